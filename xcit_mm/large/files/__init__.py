"""Large images, labels and predictions in files, read and written by windows."""
