"""Prediction of the inputs of a command line: what tools/infer.py calls."""
