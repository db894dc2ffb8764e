"""Distillation of another network's features into an XCiT. See docs/distill.md."""
