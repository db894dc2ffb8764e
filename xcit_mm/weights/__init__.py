"""Read the weights of files in all their layouts, whole or not at all."""
