"""What is said of the box: snapshots become one view, which page, JSON, terminal and Prometheus render."""
