"""The text of an exchange as ranks compare it: its kind, mesh axis, type and the user's line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def record_text(record: Sequence[Any]) -> str:
    """Returns the text of a record: (text,), or (kind, mesh axis, parameters, array shape, dtype, line)."""
    if len(record) == 1:
        return str(record[0])
    kind, axis, parameters, shape, dtype, where = record
    settings = "".join(f", {name}={value}" for name, value in parameters.items())
    line = f" ({where})" if where else ""
    return f"{kind} over {axis.name!r} of {axis.mesh}: {dtype}{list(shape)}{settings}{line}"
