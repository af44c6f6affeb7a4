"""NumPy's and CuPy's functions on traced values, by what they do; `dispatch` finds them."""
