"""Graphs whose steps read each other in a row."""

from __future__ import annotations

from segments import Graph, Step


def chain(length: int) -> Graph:
    return Graph([Step((value,), (value + 1,)) for value in range(length)], [0], [length])
