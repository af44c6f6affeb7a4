"""Plain-text tables of segments, for `explain` and for `str`.

Knows: how a table is laid out and what a segment is described by. Must not know: how segments are found or run.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence

import segments
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion
from tracefuse.partition.predicates import sum_of_bytes


def html_of(shown: object) -> str:
    """The text of an object as notebooks show it."""
    return f"<pre>{html.escape(str(shown))}</pre>"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their longest cell, two spaces apart, a line under the headers; no spaces at line ends."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    lines = [headers, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def value_names(fusion: Fusion, numbers: Sequence[int]) -> str:
    """Values as a definition names them (T0, S1), extents as their negative ids."""
    names = [str(n) if n < 0 else f"{'T' if fusion.values[n].is_tensor else 'S'}{n}" for n in numbers]
    return " ".join(names) or "-"


def kinds_text(fusion: Fusion) -> str:
    """How many nodes of each kind: `2 pointwise, 1 reduction`."""
    return ", ".join(f"{count} {kind}" for kind, count in Counter(n.op.kind for n in fusion.nodes).items()) or "nothing"


def bytes_text(size: Extent) -> str:
    """Bytes as a person reads them; an expression where sizes are symbolic."""
    if not isinstance(size, int):
        return str(size)
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


def segments_table(
    fusion: Fusion, borders: Sequence[segments.Segment], parts: Sequence[Fusion], templates: Sequence[str]
) -> str:
    """One row a segment: its number, template, inputs and outputs by their numbers in `fusion`, kinds, bytes moved."""
    rows = []
    for position, (border, part, template) in enumerate(zip(borders, parts, templates, strict=True)):
        crossing = [n for n in (*border.original_inputs, *border.original_outputs) if n >= 0]
        rows.append(
            [
                str(position),
                template or "-",
                value_names(fusion, border.original_inputs),
                value_names(fusion, border.original_outputs),
                kinds_text(part),
                bytes_text(sum_of_bytes(fusion, crossing)),
            ]
        )
    return table(["segment", "template", "inputs", "outputs", "nodes", "bytes"], rows)


def reasons_text(boundaries: Mapping[tuple[int, int], segments.Verdict]) -> str:
    """Why segments are not one, one line a pair."""
    return "\n".join(f"{first} | {second}: {verdict}" for (first, second), verdict in sorted(boundaries.items()))
