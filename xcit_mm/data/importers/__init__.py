"""Datasets in other formats, a file for each format, and their conversion to COCO's format."""
