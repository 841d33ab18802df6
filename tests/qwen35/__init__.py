"""The model's package: a room for each of its parts."""
