"""What compiles and launches kernels for a target, allocates its memory and calls its libraries."""
