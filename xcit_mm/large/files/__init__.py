"""Images of any size in files, read by windows."""
