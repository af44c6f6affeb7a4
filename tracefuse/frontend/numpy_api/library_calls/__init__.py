"""Functions that a library computes on whole arrays, and draws of random generators."""
