"""One call of a fused function: its arguments, the matching trace, output buffers, the fast path."""
