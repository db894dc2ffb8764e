"""Trained models, their inputs, and the files of their predictions."""
