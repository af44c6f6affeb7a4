"""What runs between kernels: plans, host programs as data, as text and as Python code, streams and ranks."""
