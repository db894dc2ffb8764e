"""The built-in shapes, which are drawn instead of downloaded."""
