"""NumPy's and CuPy's functions on traced arrays, found by `dispatch`."""
