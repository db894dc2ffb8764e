"""Transforms that read, resize, cut and change images and labels."""
