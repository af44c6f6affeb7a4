"""Targets: what compiles and launches kernels, allocates memory and calls libraries."""
