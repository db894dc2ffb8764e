"""Losses of whole images of any size, with exact gradients."""
