"""Predictions for annotation tools: files to import, and a server that Label Studio asks."""
