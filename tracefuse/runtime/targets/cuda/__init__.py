"""GPUs as targets: CUDA kernels on CuPy arrays, and CUDA kernels that are only written."""
