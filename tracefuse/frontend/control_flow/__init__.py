"""Loops and branches: `fori_loop` and its kin, and `for` loops of Python whose bodies are recorded once."""
