"""Dependence on the sizes and layouts of a call: guards, concretized reshapes and resizes, and their keys."""
