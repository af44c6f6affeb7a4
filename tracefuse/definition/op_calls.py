"""Operations derived from op definitions: one recording function for each kind of op, and no op by name.

A pointwise op takes tensors, scalars and Python constants. A reduction takes (arg, dims, keepdim, dtype), (arg, dim,
keepdim, dtype) or (arg, dtype). A movement or library op takes its operands, then its attributes.
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
from tracefuse.caches import memoized
from tracefuse.definition.handles import Scalar, Tensor
from tracefuse.definition.host_scalars import compare_extents, compute_extent
from tracefuse.definition.parameters import AXES_OR_TYPE, FLAG, INTEGER_OPERAND, LARGEST, SIZE, TENSOR, Kind, Refused
from tracefuse.definition.recording import Recording
from tracefuse.definition.signatures import CallSignature, make_operation
from tracefuse.dtypes import DataType, DType, dtype_of, promote_nvfuser
from tracefuse.errors import DtypeError, ShapeError, UnsupportedError, shown
from tracefuse.ir.axes import normalize_axes, normalize_axis
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.ir.extents import Expression, Extent
from tracefuse.ir.fusion import Op, Operand, Shape, SubFusion
from tracefuse.ir.library_kinds import ARRAYS, WholeArrayOp
from tracefuse.ir.op_kinds import check_domain
from tracefuse.ir.printing import data_operands, moved_types, predicted_types
from tracefuse.ops import REGISTRY, Library, Movement, Pointwise, Reduction
from tracefuse.ops.loop_ops import CONTROL_FLOW

# nvFuser's name -> the name of the op definition.
ALIASES = {
    "truediv": "div",
    "mod": "fmod",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
}


class UnknownOperation(UnsupportedError, AttributeError):
    """`fd.ops` has no operation of this name."""


class RegisteredOperations:
    """The operations of one definition: attribute lookup finds op definitions by name, `dir` lists them."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def __dir__(self) -> list[str]:
        recorded = (name for name, op in REGISTRY.items() if not op.effect)
        return sorted({*dir(type(self)), *recorded, *ALIASES})  # operations only, no instance attributes

    @source.hides_own_frames
    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in CONTROL_FLOW:
            return functools.partial(self._control_flow, CONTROL_FLOW[name])
        op = REGISTRY.get(ALIASES.get(name, name))
        if op is None or op.effect or name.startswith("_"):
            close = difflib.get_close_matches(name, dir(self), n=3)
            raise UnknownOperation(
                f"fd.ops has no operation {name!r}",
                hint=f"close names: {', '.join(close)}" if close else "dir(fd.ops) lists them",
            )
        match op:
            case Pointwise():
                function: Callable[..., Any] = self._pointwise
            case Reduction():
                function = self._reduction
            case WholeArrayOp():
                function = self._whole
            case Movement() | Library():
                function = self._movement
            case _:
                raise UnknownOperation(f"fd.ops cannot record {name}: its kind is {op.kind}")
        return make_operation(_make_signature(name), self.recording, functools.partial(function, op), op.doc)

    @source.hides_own_frames
    def _control_flow(self, op: ControlFlow, *operands: Any, dtypes: Sequence[Any], **attributes: Any) -> Any:
        """Records a control-flow op as definitions print it.

        A sub-fusion is a function that records it, and the positions of the operands that it reads. dtypes: of the
        results.
        """
        for name in op.parts:
            function, positions = attributes[name]
            attributes[name] = SubFusion(self.recording.record_part(function), tuple(positions))
        sizes = {name: self._extent_of(value) for name, value in attributes.items() if isinstance(value, Scalar)}
        attributes.update(sizes)
        attributes["shapes"] = tuple(tuple(map(self._extent_of, shape)) for shape in attributes["shapes"])
        types = [dtype_of(dtype) for dtype in dtypes]
        numbers = [self.recording.operand_of(operand) for operand in operands]
        results = self.recording.record_node(op, numbers, attributes, types[0], types)
        return results if len(results) > 1 else results[0]

    def _extent_of(self, entry: Any) -> Extent:
        """Returns an entry of a printed shape as an extent."""
        if isinstance(entry, int | Expression):
            return entry
        extent = self.recording.extent_of(self.recording.operand_of(entry))
        if extent is None:
            raise ShapeError(f"{shown(entry)} is no size", hint="give an integer or a scalar that holds one")
        return extent

    def _pointwise(
        self, op: Pointwise, *arguments: Any, dtype: Any = None, compute: Any = None, **attributes: Any
    ) -> Any:
        """Records a pointwise op. dtype overrides the promoted result and compute dtype; compute only the latter."""
        operands = [self.recording.operand_of(a) for a in arguments]
        predicted, result = predicted_types(self.recording.builder.values, op, operands)
        chosen = type_or_none(dtype)
        inner = type_or_none(compute)
        if op.result == "dtype":
            if chosen is None:
                raise DtypeError(f"{op.name} needs a dtype", hint="name one, as dtype=DataType.Float")
            attributes["dtype"] = result = chosen
        elif chosen is not None:
            inner = inner or _compute_type(op, chosen, predicted)
            result = result if op.result == "bool" else chosen
        inner = inner or predicted
        if inner is None or result is None:
            result = self._raise_dtype_error(op, operands) if op.result != "bool" or inner is None else dtype_of(bool)
            inner = inner or result
        if chosen is not None or compute is not None:
            check_domain(op.name, inner, op.domain)
        extents = [compute_extent(self.recording, op, operands, result)]
        handle = self.recording.record_node(op, operands, attributes, inner, (result,), extents=extents)[0]
        truth = compare_extents(self.recording, op, operands)
        if truth is not None:
            self.recording.comparisons[handle.index] = truth
        return handle

    def _raise_dtype_error(self, op: Pointwise, operands: Sequence[Operand]) -> DType:
        """Raises the DtypeError of the op definition."""
        values = self.recording.builder.values
        typed = [values[o] for o in operands if isinstance(o, int)]
        op.types([v.dtype for v in typed if v.is_tensor], (), "nvfuser", [v.dtype for v in typed if not v.is_tensor])
        raise DtypeError(f"{op.name} does not take these constants", hint="convert one with fd.define_scalar")

    def _reduction(
        self, op: Reduction, arg: Tensor, dims: Any = None, keepdim: bool = False, dtype: Any = None, *,
        dim: int | None = None, compute: Any = None, **attributes: Any,
    ) -> Any:  # fmt: skip
        """Records a reduction: (arg, dims, keepdim, dtype), (arg, dim, keepdim, dtype) or (arg, dtype)."""
        if isinstance(dims, DataType | DType):
            dims, dtype = None, dims
        rank = arg.ndim
        chosen = dims if dims is not None or dim is None else (dim,)
        axes = normalize_axes(range(rank) if chosen is None else chosen, rank, f"{op.name}: axis")
        operand = arg.ir_value.dtype
        result = op.result_type(operand, "nvfuser", type_or_none(dtype))
        inner = type_or_none(compute) or op.compute_type(operand, result)
        if dtype is not None or compute is not None:
            check_domain(op.name, inner, op.domain)
        full = {"dims": axes, "keepdim": keepdim, **attributes}
        return self.recording.record_node(op, [self.recording.operand_of(arg)], full, inner, (result,))[0]

    def _movement(
        self, op: Movement | Library, *arguments: Any, dtype: Any = None, compute: Any = None, **attributes: Any
    ) -> Any:
        """Records a movement or library op: operands, then attributes in the order of the op definition."""
        count = len(arguments) if op.arity is None else op.arity
        handles, names = arguments[:count], [name for name, _ in op.attributes]
        defaults = {name: value for name, value in op.attributes if name == "dim" and value is not None}
        full: dict[str, Any] = {**defaults, **dict(zip(names, arguments[count:], strict=False)), **attributes}
        rank = handles[0].ndim
        if rank == 0 and isinstance(op, Library) and op.slices is not None and full.get("dim") in (0, -1):
            # An array without axes is one element: its order along an axis is that of a vector of one.
            row = self.recording.ops.broadcast(handles[0], [True])
            result = self._movement(op, row, dtype=dtype, compute=compute, **full)
            return self.recording.ops.squeeze(result, [0])
        full = {name: _normalize_attribute(name, value, rank) for name, value in full.items()}
        operands = [self.recording.operand_of(o) for o in handles]
        return self._record_moved(op, operands, full, dtype, compute)

    def _whole(self, op: WholeArrayOp, *arguments: Any, **attributes: Any) -> Any:
        """Records a library op on whole arrays: operands, then attributes by name. Returns a handle for each result."""
        operands = [self.recording.operand_of(o) for o in arguments]
        types = op.dtypes(list(map(self.recording.operand_dtype, operands)), {**dict(op.attributes), **attributes})
        handles = self.recording.record_node(op, operands, attributes, types[0], types)
        return handles[0] if len(handles) == 1 else handles

    def _record_moved(
        self, op: Op, operands: Sequence[Operand], attributes: Mapping[str, Any], dtype: Any = None, compute: Any = None
    ) -> Any:
        dtypes = self.recording.dtypes_of([o for o in data_operands(op, operands) if isinstance(o, int)])
        chosen = type_or_none(dtype)
        inner, result = moved_types(op, promote_nvfuser(*dtypes))
        if chosen is not None and not (isinstance(op, Library) and op.result == "index"):
            inner = result = moved_types(op, chosen)[1] if isinstance(op, Library) else chosen
        inner = type_or_none(compute) or inner
        if isinstance(op, Library):
            check_domain(op.name, inner, op.domain)
        return self.recording.record_node(op, operands, attributes, inner, (result,))[0]

    def _check_sizes(self, shape: Sequence[Extent], name: str) -> Shape:
        """Returns a result shape whose entries are required to be at least 0.

        Raises ShapeError if the static extents alone make more than 2**63 - 1 elements.
        """
        known = math.prod(extent for extent in shape if isinstance(extent, int))
        if known > LARGEST:
            raise ShapeError(
                f"{name}: shape {shown(list(shape))} has at least {known} elements", hint="the limit is 2**63 - 1"
            )
        for axis, extent in enumerate(shape):
            message = f"{name}: axis {axis} would get {{right}} elements"
            self.recording.builder.require(0, "<=", extent, message, "sizes are at least 0")
        return tuple(shape)


def _normalize_attribute(name: str, value: Any, rank: int) -> Any:
    """Normalizes axes to count from the front and checks that each occurs once; other attributes pass through."""
    if name == "dim":
        return normalize_axis(value, rank)
    if name != "dims":
        return value
    axes = tuple(normalize_axis(axis, rank) for axis in value)
    if len(set(axes)) < len(axes):
        raise ShapeError(f"dims={list(value)} names an axis twice", hint="name each axis once")
    return axes


@memoized(
    "the signature of a method of `fd.ops`", key="name", most=None, bound="op definitions and aliases", clears=False
)
def _make_signature(name: str) -> CallSignature:
    """Builds the call signature of the op with this name."""
    op = REGISTRY[ALIASES.get(name, name)]
    types = [
        Parameter("dtype", Parameter.KEYWORD_ONLY, default=None),
        Parameter("compute", Parameter.KEYWORD_ONLY, default=None),
    ]
    if isinstance(op, Reduction):
        reduction = inspect.signature(RegisteredOperations._reduction).replace(return_annotation=Signature.empty)
        shared = [p for p in reduction.parameters.values() if p.kind is not Parameter.VAR_KEYWORD][2:]
        specific = [_attribute(n, v, Parameter.KEYWORD_ONLY) for n, v in op.attributes if n not in ("dims", "keepdim")]
        return CallSignature(name, Signature([*shared, *specific]), {"dims": AXES_OR_TYPE})
    by_either = Parameter.POSITIONAL_OR_KEYWORD
    if isinstance(op, Pointwise):
        operands = [Parameter(n, Parameter.POSITIONAL_ONLY) for n in "abcd"[: op.arity]]
        attributes = [_attribute(n, v, Parameter.KEYWORD_ONLY) for n, v in op.attributes]
        return CallSignature(name, Signature([*operands, *types, *attributes]))
    operands = [Parameter(n, by_either) for n in _operand_names(op)]
    attributes = [_attribute(n, v, by_either) for n, v in op.attributes]
    if isinstance(op, WholeArrayOp):
        return _make_whole_signature(op)
    positions = {"index": INTEGER_OPERAND} if isinstance(op, Movement) else {}
    return CallSignature(name, Signature([*operands, *attributes, *types]), positions)


def _attribute(name: str, default: Any, reading: Any) -> Parameter:
    return Parameter(name, reading, default=default)


def _kind_like(default: Any) -> Kind:
    """Returns the kind of an attribute of an op on whole arrays: the values that can stand for its default."""

    def read(recording: Any, value: Any, within: bool = False) -> Any:
        if isinstance(default, bool):
            return FLAG.read(recording, value)
        takes_text = default is None or isinstance(default, str) or within
        if value is None or (isinstance(value, str) and takes_text):
            return value
        if isinstance(default, str):
            raise Refused(value)
        if isinstance(value, (list, tuple)):
            return tuple(read(recording, entry, True) for entry in value)
        if isinstance(value, DataType):
            return dtype_of(value)
        return value if isinstance(value, (bool, float, complex)) else SIZE.read(recording, value)

    return Kind("what NumPy's function takes there", read)


def _make_whole_signature(op: WholeArrayOp) -> CallSignature:
    """The signature of an op on whole arrays: its operands by position, its attributes by keyword."""
    named = [*op.attributes, *([(ARRAYS, None)] if op.optional else [])]
    attributes = [_attribute(name, default, Parameter.KEYWORD_ONLY) for name, default in named]
    kinds = {name: _kind_like(default) for name, default in named}
    if op.arity is None:
        operands = [Parameter("operands", Parameter.VAR_POSITIONAL)]
    else:
        operands = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in op.parameters]
    kinds.update((operand.name, TENSOR) for operand in operands)
    return CallSignature(op.name, Signature([*operands, *attributes]), kinds)


def _operand_names(op: Op) -> list[str]:
    """Names the operands arg, arg2, ...; an operand that holds positions is `index`."""
    count = op.arity or 0
    indices = op.indices if isinstance(op, Library) else ()
    if isinstance(op, Movement) and op.data is not None:
        indices = tuple(range(op.data, count))
    names = ["arg", *(f"arg{k}" for k in range(2, count + 1))]
    return ["index" if k in indices else name for k, name in enumerate(names)]


def _compute_type(op: Pointwise, result: DType, predicted: DType | None) -> DType:
    """Returns the type to compute in when the user chose the result type."""
    if op.result == "complex":
        return result.real
    return predicted if op.result == "real" and predicted is not None and predicted.is_complex else result


def type_or_none(dtype: Any) -> DType | None:
    """Returns the dtype that the user named; None for None and DataType.Null."""
    return None if dtype is None or dtype is DataType.Null else dtype_of(dtype)
