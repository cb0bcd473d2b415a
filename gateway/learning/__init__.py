"""What this box is like, learned from what it serves: its paces, and which prompts break its cache."""
