"""Models of mmdet and mmseg that compute the same in fewer operations, or in 16 bits."""
