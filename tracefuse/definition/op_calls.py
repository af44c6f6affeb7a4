"""The operations of a definition that follow from the rows: one call for each kind of op.

A pointwise row takes tensors, scalars and Python constants; a reduction has its three forms; a movement or library row
takes its operands and then its attributes.

Knows: rows, kinds, promotion. Must not know: which rows there are, what nvFuser spells otherwise than they do.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from tracefuse import source
from tracefuse.definition.handles import Tensor
from tracefuse.definition.host_scalars import scalar_extent, truth_of
from tracefuse.definition.parameters import AXES_OR_TYPE, INTEGER_OPERAND, LARGEST
from tracefuse.definition.recording import Recording
from tracefuse.definition.signatures import Call, operation
from tracefuse.dtypes import DataType, DType, dtype_of, promote_nvfuser
from tracefuse.errors import DtypeError, ShapeError, UnsupportedError, shown
from tracefuse.ir.axes import normalize_axes, normalize_axis
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Op, Operand, Shape
from tracefuse.ir.op_kinds import check_domain
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
                function: Callable[..., Any] = self._pointwise
            case Reduction():
                function = self._reduction
            case Movement() | Library():
                function = self._movement
            case _:
                raise UnknownOperation(f"{name} is of a kind that definitions do not record: {row.kind}")
        return operation(_call_of(name), self._fd, functools.partial(function, row), row.doc)

    def _pointwise(
        self, row: Pointwise, *operands: Any, dtype: Any = None, compute: Any = None, **attributes: Any
    ) -> Any:
        """dtype: the type of the result, and to compute in, instead of the promoted one; compute: only the latter."""
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
        if chosen is not None or compute is not None:
            check_domain(row.name, inner, row.domain)
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
        self, row: Reduction, arg: Tensor, dims: Any = None, keepdim: bool = False, dtype: Any = None, *,
        dim: int | None = None, compute: Any = None, **attributes: Any,
    ) -> Any:  # fmt: skip
        """(arg, dtype) over all axes; (arg, dim, keepdim, dtype); (arg, dims, keepdim, dtype)."""
        if isinstance(dims, DataType | DType):
            dims, dtype = None, dims
        rank = arg.ndim
        chosen = dims if dims is not None or dim is None else (dim,)
        known = normalize_axes(range(rank) if chosen is None else chosen, rank, f"{row.name}: axis")
        own = arg._value.dtype
        result = row.result_type(own, "nvfuser", type_or_none(dtype))
        inner = type_or_none(compute) or row.compute_type(own, result)
        if dtype is not None or compute is not None:
            check_domain(row.name, inner, row.domain)
        full = {"dims": known, "keepdim": keepdim, **attributes}
        return self._fd._apply(row, [self._fd._operand(arg)], full, inner, (result,))[0]

    def _movement(
        self, row: Movement | Library, *arguments: Any, dtype: Any = None, compute: Any = None, **attributes: Any
    ) -> Any:
        """Operands, then attributes in the order of the row, by position or keyword."""
        count = len(arguments) if row.arity is None else row.arity
        operands, names = arguments[:count], [name for name, _ in row.attributes]
        defaults = {name: value for name, value in row.attributes if name == "dim" and value is not None}
        full: dict[str, Any] = {**defaults, **dict(zip(names, arguments[count:], strict=False)), **attributes}
        rank = operands[0].ndim
        full = {name: _normalized(name, value, rank) for name, value in full.items()}
        given = [self._fd._operand(o) for o in operands]
        return self._moved(row, given, full, dtype, compute)

    def _moved(
        self, row: Op, given: Sequence[Operand], attributes: Mapping[str, Any], dtype: Any = None, compute: Any = None
    ) -> Any:
        own = self._fd._dtypes([o for o in data_operands(row, given) if isinstance(o, int)])
        chosen = type_or_none(dtype)
        inner, result = moved_types(row, promote_nvfuser(*own))
        if chosen is not None and not (isinstance(row, Library) and row.result == "index"):
            inner = result = moved_types(row, chosen)[1] if isinstance(row, Library) else chosen
        inner = type_or_none(compute) or inner
        if isinstance(row, Library):
            check_domain(row.name, inner, row.domain)
        return self._fd._apply(row, given, attributes, inner, (result,))[0]

    def _sizes(self, shape: Sequence[Extent], what: str) -> Shape:
        """A shape to be made: each entry is required to be no smaller than 0, and their product to be a size."""
        known = math.prod(extent for extent in shape if isinstance(extent, int))
        if known > LARGEST:
            raise ShapeError(
                f"{what}: shape {shown(list(shape))} has {known} elements or more", hint="2**63 - 1 at most"
            )
        for axis, extent in enumerate(shape):
            message = f"{what}: axis {axis} would get {{right}} elements"
            self._fd._builder.require(0, "<=", extent, message, "sizes are at least 0")
        return tuple(shape)


def _normalized(name: str, value: Any, rank: int) -> Any:
    """Axes counted from the front, each named once; other attributes as they are."""
    if name == "dim":
        return normalize_axis(value, rank)
    if name != "dims":
        return value
    axes = tuple(normalize_axis(axis, rank) for axis in value)
    if len(set(axes)) < len(axes):
        raise ShapeError(f"an axis is named twice in dims={list(value)}", hint="name each axis once")
    return axes


@functools.cache
def _call_of(name: str) -> Call:
    """How the row that is called by this name is called."""
    row = REGISTRY[ALIASES.get(name, name)]
    types = [
        Parameter("dtype", Parameter.KEYWORD_ONLY, default=None),
        Parameter("compute", Parameter.KEYWORD_ONLY, default=None),
    ]
    if isinstance(row, Reduction):
        whole = inspect.signature(RowOperations._reduction).replace(return_annotation=Signature.empty)
        shared = [p for p in whole.parameters.values() if p.kind is not Parameter.VAR_KEYWORD][2:]
        own = [_attribute(n, v, Parameter.KEYWORD_ONLY) for n, v in row.attributes if n not in ("dims", "keepdim")]
        return Call(name, Signature([*shared, *own]), {"dims": AXES_OR_TYPE})
    by_either = Parameter.POSITIONAL_OR_KEYWORD
    if isinstance(row, Pointwise):
        operands = [Parameter(n, Parameter.POSITIONAL_ONLY) for n in "abcd"[: row.arity]]
        attributes = [_attribute(n, v, Parameter.KEYWORD_ONLY) for n, v in row.attributes]
        return Call(name, Signature([*operands, *types, *attributes]))
    operands = [Parameter(n, by_either) for n in _operand_names(row)]
    attributes = [_attribute(n, v, by_either) for n, v in row.attributes]
    positions = {"index": INTEGER_OPERAND} if isinstance(row, Movement) else {}
    return Call(name, Signature([*operands, *attributes, *types]), positions)


def _attribute(name: str, default: Any, how: Any) -> Parameter:
    return Parameter(name, how, default=default)


def _operand_names(row: Op) -> list[str]:
    """`arg`, then `arg2`, ...; operands that hold positions are `index`."""
    count = row.arity or 0
    indices = row.indices if isinstance(row, Library) else ()
    if isinstance(row, Movement) and row.data is not None:
        indices = tuple(range(row.data, count))
    names = ["arg", *(f"arg{k}" for k in range(2, count + 1))]
    return ["index" if k in indices else name for k, name in enumerate(names)]


def _computing(row: Pointwise, result: DType, predicted: DType | None) -> DType:
    """The type to compute in for a result of the user's choice."""
    if row.result == "complex":
        return result.real
    return predicted if row.result == "real" and predicted is not None and predicted.is_complex else result


def type_or_none(dtype: Any) -> DType | None:
    """A type that a user named; None and DataType.Null name none."""
    return None if dtype is None or dtype is DataType.Null else dtype_of(dtype)
