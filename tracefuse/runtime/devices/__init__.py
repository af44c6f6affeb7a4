"""Arrays, memory, streams and libraries of the CPU and of GPUs."""
