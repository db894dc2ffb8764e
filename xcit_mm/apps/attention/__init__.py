"""Pictures of what an XCiT attends to in an image."""
