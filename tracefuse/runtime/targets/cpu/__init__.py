"""The CPU target: LLVM kernels on NumPy arrays."""
