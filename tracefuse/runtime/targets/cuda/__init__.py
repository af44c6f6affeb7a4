"""CUDA targets: GPUs with CuPy arrays, and emitted kernels without a GPU."""
