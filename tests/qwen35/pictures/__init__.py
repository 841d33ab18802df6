"""Pictures: reading, resizing, patches, the vision tower."""
