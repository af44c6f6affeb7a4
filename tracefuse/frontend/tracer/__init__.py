"""Traced arrays: recording operators and methods, symbolic sizes, captured state."""
