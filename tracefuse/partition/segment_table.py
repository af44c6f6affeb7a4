"""Plain-text tables of segments, for `explain` and `str`."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence

import segments
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion
from tracefuse.partition.predicates import sum_of_bytes


def html_of(shown: object) -> str:
    """Returns the text of an object as HTML, for notebooks."""
    return f"<pre>{html.escape(str(shown))}</pre>"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lays out a table with columns two spaces apart, a line under the headers and no trailing spaces."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    lines = [headers, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def value_names(fusion: Fusion, numbers: Sequence[int]) -> str:
    """Returns the names of values in a definition, such as T0 and S1. Extents are their negative ids.

    Buffers, which are no values, have no name.
    """
    numbers = [n for n in numbers if n < 0 or n in fusion.values]
    names = [str(n) if n < 0 else f"{'T' if fusion.values[n].is_tensor else 'S'}{n}" for n in numbers]
    return " ".join(names) or "-"


def kinds_text(fusion: Fusion) -> str:
    """Counts the nodes of each kind, as in `2 pointwise, 1 reduction`."""
    return ", ".join(f"{count} {kind}" for kind, count in Counter(n.op.kind for n in fusion.nodes).items()) or "nothing"


def bytes_text(size: Extent) -> str:
    """Formats a number of bytes with a unit, or the expression of a symbolic size."""
    if not isinstance(size, int):
        return str(size)
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


def segments_table(
    fusion: Fusion, interfaces: Sequence[segments.Segment], parts: Sequence[Fusion], templates: Sequence[str]
) -> str:
    """Returns a table of segments: position, template, inputs and outputs of `fusion`, kinds of nodes, bytes moved."""
    rows = []
    for position, (interface, part, template) in enumerate(zip(interfaces, parts, templates, strict=True)):
        crossing = [n for n in (*interface.original_inputs, *interface.original_outputs) if n >= 0]
        rows.append(
            [
                str(position),
                template or "-",
                value_names(fusion, interface.original_inputs),
                value_names(fusion, interface.original_outputs),
                kinds_text(part),
                bytes_text(sum_of_bytes(fusion, crossing)),
            ]
        )
    return table(["segment", "template", "inputs", "outputs", "nodes", "bytes"], rows)


def reasons_text(boundaries: Mapping[tuple[int, int], segments.Verdict]) -> str:
    """Returns the reason that each pair of segments was not merged, one line per pair."""
    return "\n".join(f"{first} | {second}: {verdict}" for (first, second), verdict in sorted(boundaries.items()))
