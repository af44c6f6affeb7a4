"""Functions of elements that are composed of several ops."""
