"""The operations of a definition that follow from the rows: one call for each kind of op.

A pointwise row takes tensors, scalars and Python constants; a reduction has its three forms; a movement or library row
takes its operands and then its attributes.

Knows: rows, kinds, promotion. Must not know: which rows there are, what nvFuser spells otherwise than they do.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracefuse import source
from tracefuse.definition.handles import Tensor, located
from tracefuse.definition.host_scalars import scalar_extent, truth_of
from tracefuse.definition.recording import Recording
from tracefuse.dtypes import DataType, DType, dtype_of, promote_nvfuser
from tracefuse.errors import DtypeError, ShapeError, TraceError, UnsupportedError
from tracefuse.ir.axes import normalize_axes, normalize_axis
from tracefuse.ir.extents import Expression
from tracefuse.ir.fusion import Op, Operand, Shape
from tracefuse.ir.printing import data_operands, moved_types, predicted_types
from tracefuse.ops import REGISTRY, Library, Movement, Pointwise, Reduction

# nvFuser's names of what is a row under another name here.
ALIASES = {
    "truediv": "div",
    "mod": "fmod",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "index_select": "take",
}


class UnknownOperation(UnsupportedError, AttributeError):
    """`fd.ops` has no operation of this name."""


class RowOperations:
    """The operations of one definition. `getattr` finds rows by name; `dir` lists them."""

    def __init__(self, fd: Recording) -> None:
        self._fd = fd

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *REGISTRY, *ALIASES})

    @source.hides_own_frames
    def __getattr__(self, name: str) -> Callable[..., Any]:
        row = REGISTRY.get(ALIASES.get(name, name))
        if row is None or name.startswith("_"):
            close = difflib.get_close_matches(name, dir(self), n=3)
            raise UnknownOperation(
                f"fd.ops has no operation {name!r}",
                hint=f"close names: {', '.join(close)}" if close else "dir(fd.ops) lists them",
            )
        match row:
            case Pointwise():
                call: Callable[..., Any] = functools.partial(self._pointwise, row)
            case Reduction():
                call = functools.partial(self._reduction, row)
            case Movement() | Library():
                call = functools.partial(self._movement, row)
            case _:
                raise UnknownOperation(f"{name} is of a kind that definitions do not record: {row.kind}")
        found = located(call)
        found.__doc__ = row.doc
        return found

    def _pointwise(
        self, row: Pointwise, *operands: Any, dtype: Any = None, compute: Any = None, **attributes: Any
    ) -> Any:
        """dtype: the type of the result, and to compute in, instead of the promoted one; compute: only the latter."""
        if row.arity is not None and len(operands) != row.arity:
            raise TraceError(f"{row.name} takes {row.arity} operands, got {len(operands)}", hint=f"it is: {row.doc}")
        _check_names(row, attributes)
        given = [self._fd._operand(o) for o in operands]
        predicted, result = predicted_types(self._fd._builder.values, row, given)
        chosen = type_or_none(dtype)
        inner = type_or_none(compute)
        if row.result == "dtype":
            if chosen is None:
                raise DtypeError(f"{row.name} needs a dtype", hint="name one, as dtype=DataType.Float")
            attributes["dtype"] = result = chosen
        elif chosen is not None:
            inner = inner or _computing(row, chosen, predicted)
            result = result if row.result == "bool" else chosen
        inner = inner or predicted
        if inner is None or result is None:
            result = self._refused(row, given) if row.result != "bool" or inner is None else dtype_of(bool)
            inner = inner or result
        extents = [scalar_extent(self._fd, row, given, result)]
        made = self._fd._apply(row, given, attributes, inner, (result,), extents=extents)[0]
        truth = truth_of(self._fd, row, given)
        if truth is not None:
            self._fd._truths[made.index] = truth
        return made

    def _refused(self, row: Pointwise, given: Sequence[Operand]) -> DType:
        """Raises the row's own DtypeError."""
        values = self._fd._builder.values
        taking = [values[o] for o in given if isinstance(o, int)]
        row.types([v.dtype for v in taking if v.is_tensor], (), "nvfuser", [v.dtype for v in taking if not v.is_tensor])
        raise DtypeError(f"{row.name} does not take these constants", hint="convert one with fd.define_scalar")

    def _reduction(
        self, row: Reduction, arg: Tensor, dims: Any = None, keepdim: Any = False, dtype: Any = None, *,
        dim: int | None = None, compute: Any = None, **attributes: Any,
    ) -> Any:  # fmt: skip
        """(arg, dtype) over all axes; (arg, dim, keepdim, dtype); (arg, dims, keepdim, dtype)."""
        if isinstance(dims, DataType | DType):
            dims, dtype = None, dims
        rank = arg.ndim
        chosen = dims if dims is not None else dim
        axes = range(rank) if chosen is None else [chosen] if isinstance(chosen, int) else chosen
        known = normalize_axes(tuple(axes), rank, f"{row.name}: axis")
        own = arg._value.dtype
        result = row.result_type(own, "nvfuser", type_or_none(dtype))
        inner = type_or_none(compute) or row.compute_type(own, result)
        _check_names(row, attributes)
        full = {"dims": known, "keepdim": bool(keepdim), **attributes}
        return self._fd._apply(row, [self._fd._operand(arg)], full, inner, (result,))[0]

    def _movement(
        self, row: Movement | Library, *arguments: Any, dtype: Any = None, compute: Any = None, **attributes: Any
    ) -> Any:
        """Operands, then attributes in the order of the row, by position or keyword."""
        operands, rest = self._split(row, arguments)
        names = [name for name, _ in row.attributes]
        defaults = {name: value for name, value in row.attributes if name == "dim" and value is not None}
        full: dict[str, Any] = {**defaults, **dict(zip(names, rest, strict=False)), **attributes}
        unknown = [name for name in full if name not in names]
        if unknown or len(rest) > len(names):
            wrong = f"does not take {unknown[0]!r}" if unknown else f"takes {len(names)} attributes, got {len(rest)}"
            raise TraceError(f"{row.name} {wrong}", hint=_taken(names))
        rank = operands[0].ndim
        full = {name: self._normalized(name, value, rank) for name, value in full.items()}
        given = [self._fd._operand(o) for o in operands]
        return self._moved(row, given, full, dtype, compute)

    def _split(self, row: Op, arguments: Sequence[Any]) -> tuple[list[Tensor], Sequence[Any]]:
        if row.arity is None and arguments and isinstance(arguments[0], list | tuple):
            return list(arguments[0]), arguments[1:]
        count = row.arity
        if count is None:
            count = sum(hasattr(a, "ndim") for a in arguments)
        if len(arguments) < count or count == 0:
            raise TraceError(
                f"{row.name} takes {count or 'tensors as'} operands, got {len(arguments)}", hint=f"it is: {row.doc}"
            )
        return list(arguments[:count]), [a for a in arguments[count:] if a is not None]

    def _normalized(self, name: str, value: Any, rank: int) -> Any:
        if name == "dim":
            return normalize_axis(value, rank)
        if name == "dims":
            return tuple(normalize_axis(d, rank) for d in value)
        return self._plain(value)

    def _plain(self, value: Any) -> Any:
        """An attribute in the terms of the IR: scalars and vectors become the integers that they are."""
        if isinstance(value, list | tuple):
            return tuple(map(self._plain, value))
        return self._fd._attribute(value)

    def _moved(
        self, row: Op, given: Sequence[Operand], attributes: Mapping[str, Any], dtype: Any = None, compute: Any = None
    ) -> Any:
        own = self._fd._dtypes([o for o in data_operands(row, given) if isinstance(o, int)])
        chosen = type_or_none(dtype)
        inner, result = moved_types(row, promote_nvfuser(*own))
        if chosen is not None and not (isinstance(row, Library) and row.result == "index"):
            inner = result = moved_types(row, chosen)[1] if isinstance(row, Library) else chosen
        inner = type_or_none(compute) or inner
        return self._fd._apply(row, given, attributes, inner, (result,))[0]

    def _sizes(self, shape: Any, what: str) -> Shape:
        """A shape to be made: each entry is required to be no smaller than 0."""
        extents = tuple(self._plain(list(entries_of(shape))))
        for axis, extent in enumerate(extents):
            if not isinstance(extent, int | Expression):
                raise ShapeError(f"{what}: entry {axis} of the shape is {extent!r}", hint="a shape is made of integers")
            message = f"{what}: axis {axis} would get {{right}} elements"
            self._fd._builder.require(0, "<=", extent, message, "sizes are at least 0")
        return extents


def _taken(names: Sequence[str]) -> str:
    return f"it takes {', '.join(names) or 'no attributes'}"


def _check_names(row: Op, attributes: Mapping[str, Any]) -> None:
    """Raises for a keyword that is no attribute of the row."""
    names = [name for name, _ in row.attributes]
    unknown = next((name for name in attributes if name not in names), None)
    if unknown is not None:
        raise TraceError(
            f"{row.name} does not take {unknown!r}", hint=f"it takes {', '.join(names) or 'no attributes'}"
        )


def entries_of(sequence: Any) -> Sequence[Any]:
    """The elements of a vector; a sequence as it is."""
    elements = getattr(sequence, "elements", None)
    return sequence if elements is None else elements  # type: ignore[no-any-return]


def _computing(row: Pointwise, result: DType, predicted: DType | None) -> DType:
    """The type to compute in for a result of the user's choice."""
    if row.result == "complex":
        return result.real
    return predicted if row.result == "real" and predicted is not None and predicted.is_complex else result


def type_or_none(dtype: Any) -> DType | None:
    """A type that a user named; None and DataType.Null name none."""
    return None if dtype is None or dtype is DataType.Null else dtype_of(dtype)
