"""A layered layout of a directed acyclic graph, for pictures that cannot run a script.

Boxes are put into rows by their longest path from a source, ordered in each row by the mean position of their
neighbours, and moved towards these. An edge over several rows bends at a waypoint in each. Time and memory are linear
in boxes and edges.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from segments.lazy_dataclasses import dataclass

COLUMN_GAP, ROW_GAP, MARGIN = 18.0, 34.0, 10.0
"""Space between boxes, between rows and around the graph, in pixels."""

MOST_WAYPOINTS = 24
"""Rows that an edge may cross with a waypoint in each; a longer edge is one curve."""

SWEEPS = 4

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """Positions in pixels. boxes: the centre of each box. routes: the points of each edge, from box to box."""

    width: float
    height: float
    boxes: Mapping[str, Point]
    routes: Sequence[Sequence[Point]]


def lay_out(boxes: Mapping[str, Point], edges: Sequence[tuple[str, str]]) -> GraphLayout:
    """Lays out a graph. boxes: the width and height of each. edges: pairs of boxes, without cycles."""
    rows_of = _rows(list(boxes), edges)
    sizes, paths = dict(boxes), []
    neighbours: list[tuple[str, str]] = []
    for position, (start, end) in enumerate(edges):
        path = [start]
        between = range(rows_of[start] + 1, rows_of[end])
        for row in between if len(between) <= MOST_WAYPOINTS else ():
            waypoint = f"\0{position}.{row}"
            sizes[waypoint], rows_of[waypoint] = (4.0, 0.0), row
            path.append(waypoint)
        path.append(end)
        paths.append(path)
        neighbours += itertools.pairwise(path)
    rows: list[list[str]] = [[] for _ in range(1 + max(rows_of.values(), default=-1))]
    for box, row in rows_of.items():
        rows[row].append(box)
    _order(rows, neighbours)
    x = _columns(rows, sizes, neighbours)
    y, height = _heights(rows, sizes)
    centres = {box: (x[box], y[box]) for box in sizes}
    routes = [_route(path, centres, sizes) for path in paths]
    width = max((x[box] + sizes[box][0] / 2 for box in sizes), default=0.0) + MARGIN
    return GraphLayout(width, height, {box: centres[box] for box in boxes}, routes)


def _rows(boxes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Returns the row of each box: below all boxes that it reads; a source right above its first reader."""
    below, waiting = defaultdict(list), dict.fromkeys(boxes, 0)
    for start, end in edges:
        below[start].append(end)
        waiting[end] += 1
    has_inputs = {box for box, count in waiting.items() if count}
    rows = dict.fromkeys(boxes, 0)
    ready = [box for box in boxes if not waiting[box]]
    for box in ready:  # grows while it is read
        for reader in below[box]:
            rows[reader] = max(rows[reader], rows[box] + 1)
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    for box in boxes:
        if box not in has_inputs and below[box]:
            rows[box] = min(rows[reader] for reader in below[box]) - 1
    return rows


def _beside(neighbours: Iterable[tuple[str, str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    above, below = defaultdict(list), defaultdict(list)
    for start, end in neighbours:
        above[end].append(start)
        below[start].append(end)
    return above, below


def _order(rows: list[list[str]], neighbours: Sequence[tuple[str, str]]) -> None:
    """Sorts each row by the mean position of the neighbours in the row before, downwards and upwards in turn."""
    above, below = _beside(neighbours)
    place = {box: float(k) for row in rows for k, box in enumerate(row)}
    for sweep in range(SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            means = {b: sum(place[n] for n in near[b]) / len(near[b]) if near[b] else place[b] for b in row}
            row.sort(key=means.__getitem__)
            place.update((box, float(k)) for k, box in enumerate(row))


def _columns(
    rows: Sequence[Sequence[str]], sizes: Mapping[str, Point], neighbours: Sequence[tuple[str, str]]
) -> dict[str, float]:
    """Returns the x of each centre: as near to the neighbours as the order in the row allows."""
    above, below = _beside(neighbours)
    x: dict[str, float] = {}
    for row in rows:
        left = 0.0
        for box in row:
            x[box] = left + sizes[box][0] / 2
            left += sizes[box][0] + COLUMN_GAP
    for sweep in range(SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [sum(x[n] for n in near[b]) / len(near[b]) if near[b] else x[b] for b in row]
            x.update(zip(row, _spread([sizes[box][0] for box in row], wanted), strict=True))
    shift = MARGIN - min((x[box] - sizes[box][0] / 2 for box in x), default=0.0)
    return {box: centre + shift for box, centre in x.items()}


def _spread(widths: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """Returns centres near the wanted ones, in order and without overlap."""
    centres: list[float] = []
    for k, (width, target) in enumerate(zip(widths, wanted, strict=True)):
        least = centres[-1] + (widths[k - 1] + width) / 2 + COLUMN_GAP if centres else target
        centres.append(max(target, least))
    shift = sum(w - c for w, c in zip(wanted, centres, strict=True)) / len(centres) if centres else 0.0
    return [centre + shift for centre in centres]


def _heights(rows: Sequence[Sequence[str]], sizes: Mapping[str, Point]) -> tuple[dict[str, float], float]:
    y: dict[str, float] = {}
    top = MARGIN
    for row in rows:
        height = max((sizes[box][1] for box in row), default=0.0)
        y.update((box, top + height / 2) for box in row)
        top += height + ROW_GAP
    return y, max(top - ROW_GAP, MARGIN) + MARGIN


def _route(path: Sequence[str], centres: Mapping[str, Point], sizes: Mapping[str, Point]) -> list[Point]:
    (start_x, start_y), (end_x, end_y) = centres[path[0]], centres[path[-1]]
    first = (start_x, start_y + sizes[path[0]][1] / 2)
    last = (end_x, end_y - sizes[path[-1]][1] / 2)
    return [first, *(centres[waypoint] for waypoint in path[1:-1]), last]
