"""Draw, download, convert, read and check datasets."""
