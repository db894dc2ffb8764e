"""Checkpoints of a run: the search for the newest, its verification, writing and keeping."""
