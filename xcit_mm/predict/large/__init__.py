"""Prediction of images that do not fit into memory."""
