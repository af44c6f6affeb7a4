"""One call of a fused function or a definition: its leaves, the trace or plan that fits, its results as a tree."""
