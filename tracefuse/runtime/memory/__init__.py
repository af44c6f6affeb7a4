"""The memory of a call: output buffers, donated arguments, and overlap between arrays."""
