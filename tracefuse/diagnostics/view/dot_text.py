"""Pictures in the DOT language of Graphviz: a cluster for each segment, an edge for each value.

Must not know: fusions, plans.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracefuse.diagnostics.view.inline_svg import op_title, value_text
from tracefuse.diagnostics.view.palette import colour_of
from tracefuse.diagnostics.view.picture import DrawnOp, DrawnValue, Picture


def dot_of(picture: Picture) -> str:
    """Returns the graph of ops with their segments as clusters."""
    return "\n".join(["digraph fusion {", *(f"  {line}" for line in _Dot(picture).lines()), "}"])


class _Dot:
    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.values = {value.number: value for value in picture.values}
        self.origin = {number: f"input:{number}" for number in picture.inputs}
        for op in picture.ops:
            if op.segment is None:
                self.origin.update(dict.fromkeys(op.outputs, op.id))
        by_id = {op.id: op for op in picture.ops}
        for segment in picture.segments:
            producers = {number: key for key in segment.ops for number in by_id[key].outputs}
            self.origin.update((number, producers[number]) for number in segment.outputs)

    def lines(self) -> Iterator[str]:
        yield 'node [shape=box, style="filled", fillcolor="#FFFFFF", fontname="monospace"];'
        yield 'edge [fontname="monospace"];'
        for number in self.picture.inputs:
            yield self._value_box("input", self.values[number])
        yield from (self._op_box(op) for op in self.picture.ops if op.segment is None)
        by_id = {op.id: op for op in self.picture.ops}
        for segment in self.picture.segments:
            yield f"subgraph cluster_{segment.position} {{"
            yield f"  label={_quoted(f'{segment.position} {segment.template} {segment.size}')};"
            yield f'  style="filled"; fillcolor="{colour_of(segment.kind)}";'
            yield from (f"  {self._op_box(by_id[key])}" for key in segment.ops)
            yield "}"
        yield from self._edges()

    def _edges(self) -> Iterator[str]:
        inner: dict[tuple[int | None, int], str] = {}
        for op in self.picture.ops:
            for number in op.inputs:
                start = inner.get((op.segment, number), self.origin.get(number))
                if start is not None:
                    yield self._edge(start, op.id, self.values[number])
            inner.update(((op.segment, number), op.id) for number in op.outputs)
        for number in dict.fromkeys(self.picture.outputs):
            yield self._value_box("output", self.values[number])
            yield self._edge(self.origin[number], f"output:{number}", self.values[number])

    def _op_box(self, op: DrawnOp) -> str:
        return f"{_quoted(op.id)} [label={_quoted(op.op)}, tooltip={_quoted(op_title(op, self.values))}];"

    def _value_box(self, role: str, value: DrawnValue) -> str:
        label = f"{role} {value.label or value.name}\n{value.type}"
        return f"{_quoted(f'{role}:{value.number}')} [label={_quoted(label)}, shape=ellipse];"

    def _edge(self, start: str, end: str, value: DrawnValue) -> str:
        label = f"{value.name} {value.type}"
        tooltip = _quoted(value_text(value))
        return f"{_quoted(start)} -> {_quoted(end)} [label={_quoted(label)}, edgetooltip={tooltip}];"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
