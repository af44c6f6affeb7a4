"""Traced values, symbolic sizes and host numbers, and how NumPy promotes them as operands."""
