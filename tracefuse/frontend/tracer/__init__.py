"""Traced arrays: what operators and methods record, symbolic sizes, captured state."""
