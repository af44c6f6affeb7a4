"""Runs kernels in NumPy, GPU schedules included, so that tests execute them without a GPU."""
