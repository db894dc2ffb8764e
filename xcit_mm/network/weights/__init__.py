"""Weights from files in all layouts, whole or not at all."""
