"""The text model."""
