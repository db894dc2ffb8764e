"""Configs: read, adapted to a run, and checked before it."""
