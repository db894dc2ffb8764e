"""Distillation of another network's features into an XCiT. See docs/own_weights.md#distillation."""
