"""The model's package, a folder for each of its own."""
