"""The datasets that configs name, and the download of COCO and ADE20k."""
