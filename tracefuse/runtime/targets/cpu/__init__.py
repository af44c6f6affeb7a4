"""The CPU as a target: LLVM kernels on NumPy arrays."""
