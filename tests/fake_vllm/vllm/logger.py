"""The fake, where the real one is: that of 0.26.0, which has nothing for a command line."""
