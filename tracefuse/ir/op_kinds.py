"""The kinds of op, and what the definition of each declares.

A definition declares everything about an op in one place: its result type and shape, its scalar code, its reference
implementation in NumPy, its error, its attributes and its docstring. Namespaces, documentation, tests and both emitters
follow from it. Scalar code is a Python expression over the operands a, b, c, ... and the attributes by name. It
consists of Python's operators, the kernel primitives and `x if c else y`, after lines that name steps if it has any; it
is parsed once, for every target.

Knows: how ops are described. Must not know: which ops there are, how kernels run them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.errors import DtypeError
from tracefuse.ir.axes import broadcast_shapes, normalize_axes
from tracefuse.ir.error_models import (
    LibraryError,
    PointwiseError,
    ReductionError,
    accumulation_error,
    exact_or_unknown,
    largest_error,
    product_error,
    sum_error,
)
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Attributes, Op, Require, Shape

ReferenceFunction: TypeAlias = Callable[..., Any]
IndexOf: TypeAlias = Callable[[int, Shape], Extent]


@dataclass(frozen=True, slots=True)
class Within:
    """low <= index < high."""

    index: Extent
    low: Extent
    high: Extent


@dataclass(frozen=True, slots=True)
class Source:
    """Where an element comes from: `operand` at `coordinates`, if all conditions hold."""

    operand: int
    coordinates: Shape
    conditions: tuple[Within, ...] = ()


def check_domain(name: str, operand: DType, domain: Sequence[DType]) -> None:
    """Raises DtypeError where an op does not compute in a type."""
    if operand in domain:
        return
    if operand.is_complex:
        hint = "complex numbers have no order, and some functions are not defined on them; use abs(x), x.real or x.imag"
    else:
        hint = f"cast to one of: {', '.join(d.name for d in domain)}"
    raise DtypeError(f"{name} does not take {operand}", hint=hint)


# ---------------------------------------------------------------------------------------------------------------------
# pointwise


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pointwise(Op):
    """An op on elements.

    scalar: its code. domain: the types that it computes in. promotion: how operand types make the compute type:
    "common"; "float" (integers go to floats); "divide" (integers go to the default float); "bool"; "where" (the first
    operand is a condition). result: "same" as the compute type, "bool", "dtype" (the attribute), "real" (the type of
    the compute type's real part) or "complex" (the complex type with parts of the compute type).
    integer: the code where the compute type is an integer or bool, if it differs; complex: likewise. native: halves are
    computed as they are, not in float32. expensive: worth keeping rather than recomputing. exact: bit-equal to NumPy
    where the compute type is. ends_segment: its result is stored, and its consumers are in another segment. varies: a
    host scalar that differs from call to call. error: how far a result may be off; None bounds it for exact operands
    alone, by what the reference implementation gives in the compute type. on_extents: the extent that the result is
    where the operands are integer host scalars with extents, 1 or 0 for a comparison; see ops/extent_rules.py.
    extra_shape: a shape of its own, from its attributes; `index` in the code is the row-major position.
    """

    scalar: str
    numpy: ReferenceFunction
    domain: tuple[DType, ...]
    ufunc: np.ufunc | None = None
    promotion: str = "common"
    result: str = "same"
    integer: str | None = None
    complex: str | None = None
    native: bool = False
    expensive: bool = False
    exact: bool = False
    ends_segment: bool = False
    varies: bool = False
    error: PointwiseError | None = None
    on_extents: Callable[..., Extent | None] | None = None
    extra_shape: Callable[[Attributes], Shape] | None = None
    broadcasts: bool = True
    kind: str = field(default="pointwise", init=False)

    @property
    def is_copy(self) -> bool:
        """Whether the result has the operand's type and bits."""
        return self.scalar == "a" and self.result == "same" and self.integer is None and self.complex is None

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        extra = (self.extra_shape(attributes),) if self.extra_shape else ()
        return (broadcast_shapes((*shapes, *extra), require),)

    def types(
        self, strong: Sequence[DType], weak: Sequence[str], table: str, scalars: Sequence[DType] = ()
    ) -> tuple[DType, DType]:
        """(compute, result) types for operands with `strong` types, Python `weak` kinds and fd `scalars`.

        table: "numpy" or "nvfuser".
        """
        if self.promotion == "bool":
            compute = dtypes.bool_
        elif table == "numpy":
            compute = dtypes.promote_numpy([*strong, *scalars], weak)
        else:
            compute = dtypes.promote_nvfuser(strong, scalars, weak)
        compute = self._adjusted(compute, table)
        check_domain(self.name, compute, self.domain)
        return compute, self.result_type(compute)

    def result_type(self, compute: DType) -> DType:
        """The type of the result for a compute type, where it follows from that."""
        if self.result == "bool":
            return dtypes.bool_
        if self.result == "real":
            return compute.real
        return compute.complex if self.result == "complex" else compute

    @property
    def loops(self) -> np.ufunc | None:
        """The ufunc whose types it has in NumPy, if it is one."""
        return self.numpy if isinstance(self.numpy, np.ufunc) else self.ufunc

    def code(self, compute: DType) -> str:
        """The scalar code for a compute type."""
        other = {"float": None, "complex": self.complex}.get(compute.kind, self.integer)
        return self.scalar if other is None else other

    def arithmetic(self, compute: DType) -> DType:
        """The type that kernels compute in for a compute type."""
        return compute if self.native else compute.compute

    def _adjusted(self, compute: DType, table: str) -> DType:
        if self.promotion not in ("float", "divide") or compute.kind in ("float", "complex"):
            return dtypes.int64 if compute.kind == "bool" and compute not in self.domain else compute
        if table == "nvfuser":
            return dtypes.float32
        if self.promotion == "divide":
            return dtypes.float64
        # NumPy's float functions of integers: the smallest float that holds the type, int32 and wider in float64.
        return {1: dtypes.float16, 2: dtypes.float32}.get(compute.itemsize, dtypes.float64)


# ---------------------------------------------------------------------------------------------------------------------
# reductions


def widened_sum(operand: DType, table: str) -> DType:
    """The type of a sum of elements: small integers widen."""
    if operand.kind == "bool" or (operand.kind == "int" and (operand.itemsize < 8 or table == "nvfuser")):
        return dtypes.int64
    return dtypes.uint64 if operand.kind == "uint" and table == "numpy" else operand


@dataclass(frozen=True, slots=True)
class Part:
    """One of several variables of a reduction's state.

    lift: its value for one element `a` at the row-major position `index` in the reduced axes. combine: scalar code over
    the parts of the earlier elements by name, and those of the later ones with `later_` before it. initial: as a
    reduction's. dtype: None for the type of the elements.
    """

    name: str
    lift: str
    combine: str
    initial: bool | int | float | str
    dtype: DType | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reduction(Op):
    """An op over the axes `dims`, which stay with extent 1 under `keepdim`.

    A reduction is lift (of an element), combine (associative), final (of the state; `n` is the number of elements).
    combine: "add", "mul", "minimum", "maximum", "and", "or". initial: the neutral element, "lowest"/"highest" of the
    type, or None where an empty reduction is not defined. A state of several variables has `parts` instead of lift and
    combine; final is then in terms of their names. A composite has `steps` instead, an expression of other
    ops, so that a kernel makes several passes over a row that it holds; its reference implementation is one function.
    spelled: an equivalent in other ops, in the language of `steps`, which takes several passes where the op takes one.
    term: where the second of two parts is a sum of terms of the elements over the first, the code of one: `x` is the
    element, `over` what the code of that name makes of the first part. Several elements, and the sum so far, then move
    to a new first part at once.
    result: "same", "float" (integers go to floats), "sum" (small integers widen), "bool", "index" (int64).
    error: how far a result may be off; None for what follows from `combine` and `result`, see `error_model`.
    """

    numpy: ReferenceFunction
    combine: str = ""
    initial: bool | int | float | str | None = None
    lift: str = "a"
    final: str = "a"
    result: str = "same"
    steps: str | None = None
    spelled: str | None = None
    term: str | None = None
    over: str = "a"
    parts: tuple[Part, ...] = ()
    domain: tuple[DType, ...] = dtypes.ALL
    exact: bool = False
    error: ReductionError | None = None
    kind: str = field(default="reduction", init=False)

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        shape, dims = shapes[0], attributes["dims"]
        normalize_axes(dims, len(shape))
        if self.needs_elements:
            for axis in dims:
                message = f"axis {axis} is empty ({{right}} elements)"
                require(1, "<=", shape[axis], message, "a reduction without a neutral element needs one element")
        if attributes["keepdim"]:
            return (tuple(1 if k in dims else e for k, e in enumerate(shape)),)
        return (tuple(e for k, e in enumerate(shape) if k not in dims),)

    @property
    def error_model(self) -> ReductionError | None:
        """The error of the definition, or that of its combination; None where neither says."""
        if self.error is not None:
            return self.error
        if self.result in ("index", "bool"):
            return exact_or_unknown
        return _ERRORS.get(self.combine) if self.final == "a" else None

    @property
    def needs_elements(self) -> bool:
        return self.initial in ("lowest", "highest")

    def result_type(self, operand: DType, table: str, dtype: DType | None = None) -> DType:
        """The type of the result; `dtype` is the user's own choice."""
        if dtype is not None:
            return dtype
        if self.result == "bool":
            return dtypes.bool_
        if self.result == "index" and operand in self.domain:
            return dtypes.int64
        if self.result == "sum":
            return widened_sum(operand, table)
        if self.result == "float" and (operand.is_integer or operand.kind == "bool"):
            return dtypes.float64 if table == "numpy" else dtypes.float32
        check_domain(self.name, operand, self.domain)
        return operand

    def compute_type(self, operand: DType, result: DType) -> DType:
        """The type that it computes in where nothing else is said."""
        if self.result == "bool":
            return dtypes.bool_
        return operand if self.result == "index" else result

    @property
    def state_parts(self) -> tuple[Part, ...]:
        """The variables of the running state; one named `a` where the definition has no parts."""
        if self.parts:
            return self.parts
        initial = 0 if self.initial is None else self.initial
        return (Part("a", self.lift, f"{self.combine}(a, later_a)", initial),)

    def state(self, compute: DType) -> tuple[DType, ...]:
        """The types of the state for elements of `compute`: halves in float32, truth values as themselves."""
        own = dtypes.bool_ if self.result == "bool" else compute.compute
        return tuple(part.dtype or own for part in self.state_parts)

    def neutral(self, part: Part, dtype: DType) -> bool | int | float:
        """The neutral element of a part of the state in `dtype`."""
        if part.initial in ("lowest", "highest"):
            sign = -1 if part.initial == "lowest" else 1
            if dtype.is_floating:
                return sign * math.inf
            if dtype.kind == "bool":
                return sign > 0
            bits = dtype.itemsize * 8
            if dtype.kind == "uint":
                return 0 if sign < 0 else 2**bits - 1
            return -(1 << bits - 1) if sign < 0 else (1 << bits - 1) - 1
        if isinstance(part.initial, str):
            raise ValueError(f"{self.name} has no neutral element")
        value: bool | int | float = bool(part.initial) if dtype.kind == "bool" else part.initial
        return value


_ERRORS = {"add": sum_error, "mul": product_error, "maximum": largest_error, "minimum": largest_error}


# ---------------------------------------------------------------------------------------------------------------------
# movement and library

SliceRule: TypeAlias = Callable[[int, Sequence[Shape], Attributes], "dict[int, int | None] | None"]
ShapeRule: TypeAlias = Callable[[Sequence[Shape], Attributes, Require], Shape]
PullRule: TypeAlias = Callable[[Shape, Sequence[Shape], Shape, Attributes, IndexOf], tuple[Source, ...]]


@dataclass(frozen=True, slots=True)
class Resize:
    """How an op changes one axis of one operand: what it adds at the two ends (less than 0: it cuts), and its step.

    moves: what leaves at one end enters at the other, so that the axis keeps its extent.
    """

    operand: int
    axis: int
    left: Extent
    right: Extent
    step: Extent = 1
    moves: bool = False


ResizeRule: TypeAlias = Callable[[Sequence[Shape], Attributes], tuple[Resize, ...]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Movement(Op):
    """An op that only says where each element of the result comes from.

    pull(out coordinates, operand shapes, result shape, attributes, index_of) gives the sources: the first whose
    conditions hold is read; where none does, the element is the attribute `value`. `index_of(operand, coordinates)` is
    the integer that an index operand holds there, wrapped once and kept inside the axis that it indexes.
    data: how many operands carry data (all but index operands); the result has the type of the data.
    resize: for ops that change the extents of axes one by one, how. regroups: whether elements keep their row-major
    order while axes are merged and split, as the attribute `new_shape` says. associative: applied to neighbouring
    operands, and then to what that gives, it gives the same.
    """

    shape: ShapeRule
    pull: PullRule
    numpy: ReferenceFunction
    data: int | None = None
    resize: ResizeRule | None = None
    regroups: bool = False
    associative: bool = False
    kind: str = field(default="movement", init=False)

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        return (self.shape(shapes, attributes, require),)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Library(Op):
    """An op that a library runs: BLAS through NumPy, cuBLAS through CuPy. `numpy(*arrays, **attributes)` is called with
    arrays of either; halves without hardware support are computed in float32 by the device.

    slices(axis of the result, operand shapes, attributes) gives for each operand the axis whose slice a slice of the
    result needs, None for all of it; or None where a slice needs more. Without it no axis is cut.
    indices: the operands that hold positions, which no promotion touches. result: "same", "sum" (small integers widen)
    or "index" (int64). exact: the result consists of elements of its operands, unrounded. in_halves: CuPy's function
    computes halves with an accumulator of float32; other ops get halves as float32. product: of two matrices it is
    their product, "ab", or that with the second transposed, "ab'". error: how far a result may be off where it is not
    `exact`; by default that of sums and products along an axis.
    """

    shape: ShapeRule
    numpy: ReferenceFunction
    domain: tuple[DType, ...]
    indices: tuple[int, ...] = ()
    result: str = "same"
    exact: bool = False
    in_halves: bool = False
    product: str | None = None
    slices: SliceRule | None = None
    error: LibraryError = accumulation_error
    kind: str = field(default="library", init=False)

    def types(self, operand: DType, table: str) -> tuple[DType, DType]:
        """(compute, result) types for data of the common type `operand`."""
        check_domain(self.name, operand, self.domain)
        if self.result == "index":
            return operand, dtypes.int64
        result = widened_sum(operand, table) if self.result == "sum" else operand
        return result, result

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        return (self.shape(shapes, attributes, require),)
