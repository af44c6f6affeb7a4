"""An interpreter of the kernel IR in NumPy, including GPU schedules, so tests run CUDA kernels without a GPU."""
