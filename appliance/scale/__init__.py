"""Several boxes behind one address: what a balancer in front of them is told."""
