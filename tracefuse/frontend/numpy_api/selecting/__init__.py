"""Functions that select elements, or write some."""
