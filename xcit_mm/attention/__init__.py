"""Show what an XCiT attends to in an image."""
