"""Checkpoints of true shape and no weight, made at test time."""
