"""Labels of large images, read by windows."""
