"""Rewrites from fusion to fusion and from kernel to kernel."""
