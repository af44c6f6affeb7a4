"""The protocols by which NumPy and CuPy reach traced values: ufuncs, functions, methods, types."""
