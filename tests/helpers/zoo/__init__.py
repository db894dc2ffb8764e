"""A trial of the models of mmdet and mmseg with random weights and images."""
