"""Pictures as inline SVG without a script, which notebooks keep: segments as boxes, or ops if there are no segments.

Hovering shows the user's lines. The SVG names no other resource.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from tracefuse.diagnostics.view.layered_layout import GraphLayout, lay_out
from tracefuse.diagnostics.view.palette import EDGE_COLOUR, PAPER_COLOUR, TEXT_COLOUR, colour_of
from tracefuse.diagnostics.view.picture import DrawnOp, DrawnSegment, DrawnValue, Picture

CHARACTER, LINE, PADDING = 6.3, 14.0, 8.0
"""The width of a character, the height of a line and the space around text, in pixels."""

MOST_OPS = 6
"""Ops that the box of a segment names; it counts the others."""

TALLEST = 640
"""The height in pixels above which a picture scrolls."""


MOST_READERS = 2
"""Readers of an input that is drawn once."""

_Edge: TypeAlias = tuple[tuple[str, str], str]
"""The boxes at both ends, and what hovering shows."""


class _Box:
    """A box: lines of text, a fill, and what hovering shows."""

    def __init__(self, lines: Sequence[str], fill: str, title: str, round_corners: bool = False) -> None:
        self.lines, self.fill, self.title, self.radius = lines, fill, title, 12 if round_corners else 3
        self.width = max(map(len, lines), default=0) * CHARACTER + 2 * PADDING
        self.height = len(lines) * LINE + PADDING


def notebook_html(picture: Picture, text: str) -> str:
    """Returns a picture with the text of the object under it, folded, as HTML for notebooks."""
    folded = f"<details><summary>text</summary><pre>{html.escape(text)}</pre></details>"
    return f'<div style="overflow:auto;max-height:{TALLEST}px">{svg_of(picture)}</div>{folded}'


def svg_of(picture: Picture) -> str:
    """Returns the picture as an `<svg>` element."""
    values = {value.number: value for value in picture.values}
    boxes, edges = _segment_boxes(picture, values) if picture.segments else _op_boxes(picture, values)
    boxes, edges = _repeated_inputs(boxes, edges)
    layout = lay_out({key: (box.width, box.height) for key, box in boxes.items()}, [pair for pair, _ in edges])
    width, height = round(layout.width), round(layout.height)
    count = (
        f"{len(picture.segments)} segments, {len(picture.ops)} ops" if picture.segments else f"{len(picture.ops)} ops"
    )
    return "\n".join(
        [
            f'<svg role="img" aria-label="graph of {count}" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="monospace" font-size="10.5">',
            f'<rect width="100%" height="100%" fill="{PAPER_COLOUR}"/>',
            *_edge_lines(layout, [title for _, title in edges]),
            *_box_lines(layout, boxes),
            "</svg>",
        ]
    )


def value_text(value: DrawnValue) -> str:
    """Returns a value's name, type, size and line, as in `T3 f32[64, 128] 32.8 kB (model.py:8)`."""
    label = f" {value.label}" if value.label else ""
    size = f" {value.size}" if value.size else ""
    where = f" ({value.where})" if value.where else ""
    return f"{value.name}{label} {value.type}{size}{where}"


def op_title(op: DrawnOp, values: Mapping[int, DrawnValue]) -> str:
    """Returns what hovering over an op shows: the call, its results and the user's line."""
    results = [value_text(values[number]) for number in op.outputs]
    line = [f"{op.where}  {op.line}"] if op.where else []
    return "\n".join([op.text, *results, *line])


def segment_title(segment: DrawnSegment, ops: Sequence[DrawnOp]) -> str:
    """Returns what hovering over a segment shows: its template, bytes, ops and the user's lines."""
    lines = dict.fromkeys(f"{op.where}  {op.line}" for op in ops if op.where)
    names = ", ".join(op.op for op in ops[: 4 * MOST_OPS]) + (", ..." if len(ops) > 4 * MOST_OPS else "")
    return "\n".join(
        [f"segment {segment.position}: {segment.template}, {segment.size} moved", names, *list(lines)[:24]]
    )


def _value_boxes(picture: Picture, values: Mapping[int, DrawnValue]) -> dict[str, _Box]:
    boxes = {}
    for role, numbers in (("input", picture.inputs), ("output", picture.outputs)):
        for number in dict.fromkeys(numbers):
            value = values[number]
            lines = [f"{role} {value.label or value.name}", value.type]
            boxes[f"{role}:{number}"] = _Box(lines, PAPER_COLOUR, value_text(value), round_corners=True)
    return boxes


def _segment_boxes(picture: Picture, values: Mapping[int, DrawnValue]) -> tuple[dict[str, _Box], list[_Edge]]:
    boxes = _value_boxes(picture, values)
    by_id = {op.id: op for op in picture.ops}
    for op in picture.ops:
        if op.segment is None and op.outputs:
            boxes[f"host:{op.outputs[0]}"] = _Box([op.op], colour_of(""), op_title(op, values))
    for segment in picture.segments:
        ops = [by_id[key] for key in segment.ops]
        names = [op.op for op in ops[:MOST_OPS]] + ([f"{len(ops) - MOST_OPS} more"] if len(ops) > MOST_OPS else [])
        lines = [f"{segment.position} {segment.template}", *_wrapped(names), segment.size]
        boxes[f"segment:{segment.position}"] = _Box(lines, colour_of(segment.kind), segment_title(segment, ops))
    reasons = {(f"segment:{b.first}", f"segment:{b.second}"): b.reason for b in picture.boundaries}
    edges = []
    for edge in picture.edges:
        pair = edge.source, edge.target
        texts = [value_text(values[number]) for number in edge.values]
        texts += [f"not one segment: {reasons[pair]}"] if pair in reasons else []
        edges.append((pair, "\n".join(texts)))
    return boxes, edges


def _repeated_inputs(boxes: Mapping[str, _Box], edges: Sequence[_Edge]) -> tuple[dict[str, _Box], list[_Edge]]:
    """Draws an input with many readers at each of them, so that its edges do not cross the graph."""
    counts = Counter(start for (start, _), _ in edges if start.startswith("input:"))
    shown = {key: box for key, box in boxes.items() if counts[key] <= MOST_READERS}
    drawn: list[_Edge] = []
    for (start, end), title in edges:
        if counts[start] > MOST_READERS:
            shown[f"{start}@{end}"] = boxes[start]
            start = f"{start}@{end}"
        drawn.append(((start, end), title))
    return shown, drawn


def _wrapped(names: Sequence[str], count: int = 3) -> list[str]:
    return [", ".join(names[k : k + count]) for k in range(0, len(names), count)]


def _op_boxes(picture: Picture, values: Mapping[int, DrawnValue]) -> tuple[dict[str, _Box], list[_Edge]]:
    boxes = _value_boxes(picture, values)
    origin = {number: f"input:{number}" for number in picture.inputs}
    edges = []
    for op in picture.ops:
        types = [values[number].type for number in op.outputs]
        boxes[op.id] = _Box([op.op, *types], colour_of(op.kind), op_title(op, values))
        edges += [((origin[n], op.id), value_text(values[n])) for n in op.inputs if n in origin]
        origin.update(dict.fromkeys(op.outputs, op.id))
    outputs = [n for n in dict.fromkeys(picture.outputs) if n in origin]
    edges += [((origin[n], f"output:{n}"), value_text(values[n])) for n in outputs]
    return boxes, edges


def _edge_lines(layout: GraphLayout, titles: Sequence[str]) -> Iterator[str]:
    for route, title in zip(layout.routes, titles, strict=True):
        (x, y), *rest = route
        path = f"M{x:.0f},{y:.0f}"
        for end_x, end_y in rest:
            middle = (y + end_y) / 2
            path += f"C{x:.0f},{middle:.0f} {end_x:.0f},{middle:.0f} {end_x:.0f},{end_y:.0f}"
            x, y = end_x, end_y
        shown = f"<title>{html.escape(title)}</title>"
        yield f'<g>{shown}<path d="{path}" fill="none" stroke="{EDGE_COLOUR}"/>'
        yield f'<path d="M{x:.0f},{y:.0f}l-3,-6h6z" fill="{EDGE_COLOUR}"/></g>'


def _box_lines(layout: GraphLayout, boxes: Mapping[str, _Box]) -> Iterator[str]:
    for key, box in boxes.items():
        x, y = layout.boxes[key]
        left, top = x - box.width / 2, y - box.height / 2
        yield f"<g><title>{html.escape(box.title)}</title>"
        yield (
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="{box.radius}" '
            f'fill="{box.fill}" stroke="{EDGE_COLOUR}"/>'
        )
        for k, line in enumerate(box.lines):
            weight = ' font-weight="bold"' if k == 0 else ""
            yield (
                f'<text x="{x:.0f}" y="{top + PADDING / 2 + LINE * (k + 0.78):.0f}" text-anchor="middle" '
                f'fill="{TEXT_COLOUR}"{weight}>{html.escape(line)}</text>'
            )
        yield "</g>"
