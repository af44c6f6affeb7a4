"""The text of an exchange as ranks compare it: its kind, mesh axis, type and the user's line.

The shape is compared among the ranks that exchange with each other: parts of an axis that does not divide differ along
the other mesh axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

RecordText: TypeAlias = Sequence[str]
"""The text of an exchange; what of it must be equal on all ranks; and the ranks on which all of it must be equal."""


def record_text(record: Sequence[Any], rank: int) -> RecordText:
    """Returns the text of a record of a rank: (text,), or (kind, mesh axis, parameters, array shape, dtype, line)."""
    if len(record) == 1:
        return str(record[0]), str(record[0]), ""
    kind, axis, parameters, shape, dtype, where = record
    settings = "".join(f", {name}={value}" for name, value in parameters.items())
    line = f" ({where})" if where else ""
    start = f"{kind} over {axis.name!r} of {axis.mesh}: {dtype}"
    group = next((group for group in axis.mesh.groups(axis.name) if rank in group), ())
    return f"{start}{list(shape)}{settings}{line}", f"{start}[{len(shape)}]{settings}{line}", str(group)
