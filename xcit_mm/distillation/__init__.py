"""Training of an XCiT with the features of another network. See docs/distill.md."""
