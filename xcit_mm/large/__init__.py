"""Images that do not fit into memory, computed so that each pixel attends to the whole image."""
