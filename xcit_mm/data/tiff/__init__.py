"""What TIFF files say about their bands and their place on the map."""
