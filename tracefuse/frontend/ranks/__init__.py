"""Sharded arrays and functions over the ranks of a mesh."""
