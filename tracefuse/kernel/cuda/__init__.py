"""CUDA kernels: C++ text, NVRTC, launches through CuPy, and CUDA graphs."""
