"""`axes=`, `axis=` and `keepdims=` of generalized ufuncs: which axes of operands and results are those of matrices."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import DtypeError, ShapeError
from tracefuse.frontend.tracer.array_ops import shaping
from tracefuse.frontend.tracer.array_ops.traced_ops import as_tensor

_RANKS = {"matmul": (2, 2, 2), "matvec": (2, 1, 1), "vecmat": (1, 2, 1), "vecdot": (1, 1, 0)}
"""How many axes of each operand and of the result are those of one vector or matrix."""


class CoreAxes:
    """The axes that a call names. results: those of the result, as `moveaxis` takes them."""

    def __init__(self, ufunc: np.ufunc, inputs: Sequence[Any], keywords: dict[str, Any]) -> None:
        self.inputs = inputs
        self._kept: int | None = None
        self._results: tuple[int, ...] = ()
        ranks = _RANKS.get(ufunc.__name__)
        axes, axis = keywords.pop("axes", None), None
        if ranks is not None and max(ranks) == 1:
            axis, keeps = keywords.pop("axis", np._NoValue), keywords.pop("keepdims", False)
            if type(axis) is bool or axis is None:
                message = "an integer is required as the axis of vectors"
                raise DtypeError(message, hint="name it, or leave axis= out", where=source.user_line())
            axis = None if axis is np._NoValue else axis
            if axes is not None and axis is not None:
                raise DtypeError("cannot specify both 'axis' and 'axes'", hint="leave one out")
            self._kept = -1 if keeps else None
            if axis is not None:
                axes = [operator.index(axis)] * (3 if keeps else 2)
        if axes is None or ranks is None:
            return
        if not isinstance(axes, list):
            raise DtypeError(
                "axes should be a list", hint="give a list with the axes of each operand and of the result"
            )
        tensors = [as_tensor(one) for one in inputs]
        counts = _counts(ranks, [len(one.extents) for one in tensors])
        counts[-1] += self._kept is not None
        named = [(one,) if isinstance(one, int | np.integer) else tuple(one) for one in axes]
        if len(named) == len(inputs) and ranks[-1] == 0:
            named.append((-1,) * counts[-1])
        if [len(one) for one in named] != counts:
            raise ShapeError(
                f"{ufunc.__name__}: axes={axes!r} for operands and a result with {counts} axes of vectors and matrices",
                hint="name as many axes for each", where=source.user_line(),
            )  # fmt: skip
        self.inputs = [
            shaping.moveaxis(one, where, tuple(range(-len(where), 0))) if where else one
            for one, where in zip(tensors, named, strict=False)
        ]
        self._results = named[-1]
        if self._kept is not None:
            self._kept = named[-1][0]

    def place(self, result: Any) -> Any:
        """Returns a result with its axes where the call wants them."""
        if self._kept is not None:
            return shaping.expand_dims(result, self._kept)
        if self._results:
            return shaping.moveaxis(result, tuple(range(-len(self._results), 0)), self._results)
        return result


def _counts(ranks: Sequence[int], dims: Sequence[int]) -> list[int]:
    """The axes of vectors and matrices of each operand and of the result: np.matmul takes vectors as well."""
    if ranks != (2, 2, 2):
        return list(ranks)
    given = [min(rank, 2) for rank in dims]
    return [*given, sum(given) - 2]


def as_vectors(ufunc: np.ufunc, inputs: Sequence[Any], target: Any) -> Sequence[Any]:
    """Returns the operands of np.matmul into an array without axes: the last axis of each is that of a vector.

    NumPy leaves out what `out=` has no axis for: the rows of the first operand and the columns of the second.
    """
    if ufunc is not np.matmul or target is None or target.extents:
        return inputs
    operands = [as_tensor(one) for one in inputs]
    for operand in operands:
        for extent in operand.extents[:-1]:
            if not operand.recorder.decide(extent, "==", 1, "out= has no axes"):
                raise ShapeError("matmul: rows for an array without axes in out=", hint="leave out= out")
    return [shaping.squeeze(one, tuple(range(len(one.extents) - 1))) for one in operands]


def without_leading(ufunc: np.ufunc, result: Any, target: Any) -> Any:
    """Returns a result without its leading axes of extent 1 that an array of `out=` does not have, as NumPy allows."""
    ranks = _RANKS.get(ufunc.__name__)
    count = 0 if ranks is None or target is None else len(result.extents) - len(target.extents)
    least = 0 if ranks is None or ufunc is np.matmul else ranks[-1]  # np.matmul's result may be a number
    if count <= 0 or len(target.extents) < least:
        return result
    if not all(result.recorder.decide(extent, "==", 1, "out= has fewer axes") for extent in result.extents[:count]):
        return result
    return shaping.squeeze(result, tuple(range(count)))
