"""The arguments that a library function gets between two stages: the elements of its operands, as arrays or numbers.

Arrays are read-only, since what follows may read them, except for functions that write none: several of NumPy's copy a
read-only array, which takes longer than what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.frontend.tracer.libraries.passed_functions import PassedDict, PassedFunction

_WRITING = frozenset({
    "copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis", "shuffle", "nan_to_num", "median",
    "nanmedian", "percentile", "nanpercentile", "quantile", "nanquantile",
})  # fmt: skip
"""NumPy's functions that write their arguments, some of them where a parameter asks for it."""


@dataclass(frozen=True, slots=True)
class PlaceOfOperand:
    """The place of an operand among the arguments of a call.

    kind: "array", that of a number, or OBJECT. sequence: list or tuple, where the operand holds the entries of one.
    """

    position: int
    kind: str
    sequence: type[Any] | None = None


def only_reads(function: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Whether a function of NumPy cannot write its arguments. Several copy those that are read-only."""
    if any(isinstance(argument, (PassedFunction, PassedDict)) for argument in arguments):
        return False
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] == "numpy" and function.__name__ not in _WRITING


class GivenArguments:
    """Returns the leaves of the arguments of each call. Those that are equal in all calls are tested once.

    placed: leaves, and the places of operands among them. is_written: see `given`.
    """

    __slots__ = ("_changing", "_leaves", "_options")

    def __init__(self, placed: Sequence[Any], *, is_written: bool) -> None:
        self._leaves, self._options = list(placed), {"is_written": is_written}
        kinds = (PassedFunction, PassedDict, PlaceOfOperand, np.ndarray)
        self._changing = [(k, leaf) for k, leaf in enumerate(placed) if isinstance(leaf, kinds)]

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        leaves = self._leaves.copy()
        for position, leaf in self._changing:
            leaves[position] = given(leaf, arrays, **self._options)
        return leaves


def given(argument: Any, arrays: Sequence[Any], *, is_written: bool) -> Any:
    """Returns an argument of a call. is_written: the function may write it, so that arrays are read-only."""
    if isinstance(argument, (PassedFunction, PassedDict)):
        return argument.rebuilt(lambda inner: given(inner, arrays, is_written=is_written))
    protected = _read_only if is_written else _as_scalar
    if isinstance(argument, PlaceOfOperand):
        array = arrays[argument.position]
        if argument.sequence is not None:
            return argument.sequence(array if argument.kind == "array" else array.tolist())
        if isinstance(array, (bool, int, float, complex)):
            return array
        return array.item() if argument.kind != "array" else protected(array)
    return protected(argument) if isinstance(argument, np.ndarray) else argument


def _as_scalar(array: Any) -> Any:
    return array if array.ndim else array[()]


def _read_only(array: Any) -> Any:
    """A view through which a function cannot change the operand, which what follows may read."""
    view = array.view()
    view.flags.writeable = False
    return view if view.ndim else view[()]
