"""Questions and answers: the Python API and what it is made of."""
