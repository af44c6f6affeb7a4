"""Gradients of functions: forward and reverse mode over a recording."""
