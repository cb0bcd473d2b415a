"""The fake, where the real one is."""
