"""What is read into the engine before anybody asks: named prefixes, and the heads of runs after an engine restart."""
