"""What was asked of the box and what came of it: one row a request, kept without any text."""
