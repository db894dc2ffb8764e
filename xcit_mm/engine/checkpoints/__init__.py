"""Checkpoints of a run: find the newest, verify it, write whole ones, and keep the last."""
