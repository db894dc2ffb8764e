"""The errors of models: confused classes, and the costs of a detector's errors."""
