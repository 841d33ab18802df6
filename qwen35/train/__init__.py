"""Training of the default model: data, program, evaluation. Needs the `train` extra.

`corpus`, `cases` and `pictures` make the samples, `network` and `trainer` the model, `evaluate` its score.
"""
