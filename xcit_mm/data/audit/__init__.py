"""Checks and statistics of a whole dataset, before a run."""
