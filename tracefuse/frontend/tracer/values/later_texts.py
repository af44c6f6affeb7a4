"""Texts of computed values that each call makes after its kernels.

While the function is traced, a mark takes the place of the text of each value. A text with marks that reaches the
result or a line of `print` is split at its marks.

Must not know: overlays of values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracefuse import source
from tracefuse.dtypes import PYTHON_TYPES
from tracefuse.runtime.devices.array_descriptions import on_host

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.values.traced import Traced

_MARK = re.compile("\ufdd0([0-9]+)\ufdd1")  # characters that no text has


REPR, REPR_OF_ARRAY = "!r", "!r of an array"
"""In the place of a specification of `format`, which no value takes: the text of `repr`.

A value without axes is a NumPy scalar or an array.
"""


class LaterText(NamedTuple):
    """A text with values in it. texts: those before, between and after the values.

    specifications: of `format`; None for `str`, `REPR` or `REPR_OF_ARRAY` for `repr`.
    """

    texts: tuple[str, ...]
    specifications: tuple[str | None, ...]
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return joined(self.texts, self.specifications, self.values)


def joined(texts: Sequence[str], specifications: Sequence[str | None], values: Sequence[Any]) -> str:
    """Returns the text of values of a call."""
    result = [texts[0]]
    for text, specification, value in zip(texts[1:], specifications, values, strict=True):
        result += [text_of(_on_host(value), specification), text]
    return "".join(result)


def text_of(value: Any, specification: str | None) -> str:
    """Returns the text of a number or of an array of NumPy, which is a scalar if it has no axes."""
    value = value[()] if isinstance(value, np.ndarray) and not value.shape else value
    if specification is None:
        return str(value)
    if specification in (REPR, REPR_OF_ARRAY):
        return repr(value if specification == REPR else np.asarray(value))
    return format(value, specification)


def _on_host(value: Any) -> Any:
    if isinstance(value, (bool, int, float, complex, np.generic, np.ndarray)):
        return value
    return on_host(value)


def mark(traced: Traced, specification: str | None) -> str | None:
    """Returns a mark for the text of a traced value; None if the text is asked for: code may read it.

    specification: of `format`, None for `str`, `REPR` or `REPR_OF_ARRAY` for `repr`.
    """
    recorder: Any = traced.recorder
    kind = traced.value.dtype.numpy.type if traced.weak is None else PYTHON_TYPES[traced.weak]
    formats = None if specification in (REPR, REPR_OF_ARRAY) else specification
    if not _can_wait(recorder, kind, formats) or (formats and traced.value.shape):
        return None
    recorder.resolve(traced)
    marked = type(traced)(recorder, traced.number, traced.weak, traced.read, traced.sized)
    return _marked(recorder, marked, specification)


def mark_size(size: Any, recorder: Any, specification: str | None) -> str | None:
    """Returns a mark for the text of a size or an integer of the call; None if the text is asked for."""
    return _marked(recorder, size, specification) if _can_wait(recorder, int, specification) else None


def _can_wait(recorder: Any, kind: type, specification: str | None) -> bool:
    """Whether each call can make the text of a number of a type."""
    if not recorder.alive or recorder.body is not None or recorder.text_flow is None:
        return False
    if specification and not _formats(kind, specification):
        return False
    return bool(recorder.text_flow.is_only_shown(source.user_frame()))


def _marked(recorder: Any, value: Any, specification: str | None) -> str:
    recorder.texts.append((value, specification))
    return f"\ufdd0{len(recorder.texts) - 1}\ufdd1"


def _formats(kind: type, specification: str) -> bool:
    """Whether numbers of a type have a text of this specification."""
    try:
        format(kind(1), specification)
    except (TypeError, ValueError):
        return False
    return True


def split_at_marks(text: str, marked: Sequence[tuple[Any, str | None]]) -> LaterText | None:
    """Returns a text with its traced values; None for a text without marks. marked: by the number of the mark."""
    parts = _MARK.split(text) if marked else ()
    if len(parts) < 3:
        return None
    entries = [marked[int(number)] for number in parts[1::2]]
    values = tuple(value for value, _ in entries)
    return LaterText(tuple(parts[::2]), tuple(specification for _, specification in entries), values)
