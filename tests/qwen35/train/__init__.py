"""How the built-in model is made."""
