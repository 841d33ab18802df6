"""Training of the default model: data, program, evaluation. Needs the `train` extra."""
