"""The memory of a call: output buffers, donated arguments, and where arrays lie."""
