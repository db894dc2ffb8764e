"""Image descriptors and image search."""
