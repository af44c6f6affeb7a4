"""The kinds of op, and the fields of their definitions.

An op definition declares everything about an op in one place: its result type and shape, its scalar code, its reference
implementation in NumPy, its error bound, its attributes and its docstring. Namespaces, documentation, tests and both
emitters are derived from it. Scalar code is a Python expression over the operands a, b, c, ... and the attributes by
name, optionally after lines that assign named steps. It may use Python's operators, the kernel primitives and
`x if c else y`. It is parsed once, for every target.

Must not know: single ops.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.errors import DtypeError, ScalarError
from tracefuse.ir.axes import broadcast_shapes, normalize_axes
from tracefuse.ir.error_models import (
    PointwiseError,
    ReductionError,
    exact_or_unknown,
    largest_error,
    product_error,
    sum_error,
)
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Attributes, Op, Require, Shape
from tracefuse.ir.neutral_elements import neutral_element

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
    """The source of an element: `operand` at `coordinates`, if all conditions hold."""

    operand: int
    coordinates: Shape
    conditions: tuple[Within, ...] = ()


def check_domain(name: str, operand: DType, domain: Sequence[DType]) -> None:
    """Raises DtypeError if `operand` is not in the domain of the op `name`."""
    if operand in domain:
        return
    if operand.is_complex:
        hint = "complex numbers have no order, and some functions are not defined on them; use abs(x), x.real or x.imag"
    else:
        hint = f"cast to one of: {', '.join(d.name for d in domain)}"
    raise DtypeError(f"{name} does not take {operand}", hint=hint)


# ---------------------------------------------------------------------------------------------------------------------
# pointwise


_DIVISION = re.compile("/|%|sqrt")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pointwise(Op):
    """An elementwise op.

    scalar: its scalar code. domain: its compute types. promotion: derives the compute type from the operand types:
    "common"; "float" (integers promote to floats); "divide" (integers promote to the default float); "bool"; "where"
    (the first operand is a condition). result: "same" (the compute type), "bool", "dtype" (the attribute), "real" (the
    real type of a complex compute type), "complex" (the complex type of a real compute type), or a type.
    integer: the code for integer and bool compute types, if it differs; complex: the code for complex types. native:
    halves are computed in their own type, not in float32. expensive: storing the result costs less than recomputing it.
    exact: bit-equal to NumPy in the same compute type. ends_segment: its result is stored, and its consumers are in
    another segment. varies: a host scalar that differs from call to call. error: bounds the error of a result; None:
    only for exact operands, by the reference implementation in the compute type. on_extents: the extent of the result
    for integer host scalars with extents, 1 or 0 for a comparison; see ops/extent_rules.py. extra_shape: computes a
    shape from the attributes that the result broadcasts with; `index` in the code is the row-major position in it.
    refused: scalar code; an element for which it is true is the user's error, which CPU kernels report. refusal: the
    message, in which {b} is the literal operand b, and the hint of that error. refusal_type: its type.
    """

    scalar: str
    numpy: ReferenceFunction
    domain: tuple[DType, ...]
    ufunc: np.ufunc | None = None
    promotion: str = "common"
    result: str | DType = "same"
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
    refused: str | None = None
    refusal: tuple[str, str] = ("", "")
    refusal_type: type[ScalarError] = ScalarError
    kind: str = field(default="pointwise", init=False)

    @property
    def is_copy(self) -> bool:
        """Whether the op copies its operand: the result has the operand's dtype and bits."""
        return self.scalar == "a" and self.result == "same" and self.integer is None and self.complex is None

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        extra = (self.extra_shape(attributes),) if self.extra_shape else ()
        return (broadcast_shapes((*shapes, *extra), require),)

    def types(
        self, strong: Sequence[DType], weak: Sequence[str], table: str, scalars: Sequence[DType] = ()
    ) -> tuple[DType, DType]:
        """Returns the (compute, result) types.

        strong: types of array operands. weak: kinds of Python scalars. scalars: types of scalars of a definition.
        table: the promotion rules, "numpy" or "nvfuser". Raises DtypeError if the op does not support the type.
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
        """Returns the result type for a compute type; the attribute `dtype` may override it."""
        if isinstance(self.result, DType):
            return self.result
        if self.result == "bool":
            return dtypes.bool_
        if self.result == "real":
            return compute.real
        return compute.complex if self.result == "complex" else compute

    @property
    def loops(self) -> np.ufunc | None:
        """The NumPy ufunc that determines its types, if any."""
        return self.numpy if isinstance(self.numpy, np.ufunc) else self.ufunc

    def code(self, compute: DType) -> str:
        """Returns the scalar code for a compute type."""
        other = {"float": None, "complex": self.complex}.get(compute.kind, self.integer)
        return self.scalar if other is None else other

    def divides(self, compute: DType) -> bool:
        """Whether an element takes a division or a square root, which take several times as long as a product."""
        return _DIVISION.search(self.code(compute)) is not None

    def arithmetic(self, compute: DType) -> DType:
        """Returns the type in which kernels compute, for a compute type."""
        return compute if self.native else compute.compute

    def _adjusted(self, compute: DType, table: str) -> DType:
        if self.promotion not in ("float", "divide") or compute.kind in ("float", "complex"):
            return dtypes.int64 if compute.kind == "bool" and compute not in self.domain else compute
        if table == "nvfuser":
            return dtypes.float32
        if self.promotion == "divide":
            return dtypes.float64
        # NumPy's float functions of integers use the smallest float that holds the type; int32 and wider use float64.
        return {1: dtypes.float16, 2: dtypes.float32}.get(compute.itemsize, dtypes.float64)


# ---------------------------------------------------------------------------------------------------------------------
# reductions


def widened_sum(operand: DType, table: str) -> DType:
    """Returns the type of a sum: small integers widen to 64 bits."""
    if operand.kind == "bool" or (operand.kind == "int" and (operand.itemsize < 8 or table == "nvfuser")):
        return dtypes.int64
    return dtypes.uint64 if operand.kind == "uint" and table == "numpy" else operand


@dataclass(frozen=True, slots=True)
class StatePart:
    """One variable of a reduction's state.

    lift: its value for one element `a` at the row-major position `index` in the reduced axes. combine: scalar code over
    the parts of the earlier state by name, and the parts of the later state with the prefix `later_`. initial: as for
    `Reduction`. dtype: None for the type of the elements. in_order: shorter code than `combine` for a later state of
    elements that follow those of the earlier one, by their `index`.
    """

    name: str
    lift: str
    combine: str
    initial: bool | int | float | str
    dtype: DType | None = None
    in_order: str | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reduction(Op):
    """A reduction over the axes `dims`; `keepdim` keeps them with extent 1.

    A reduction has three steps: lift (of an element), combine (associative) and final (of the state; `n` is the number
    of elements). combine: "add", "mul", "minimum", "maximum", "and", "or". initial: the neutral element,
    "lowest"/"highest" of the type, or None if an empty reduction is an error. A state of several variables has `parts`
    instead of lift and combine; final then uses the names of the parts. A composite has `steps` instead: an expression
    of other ops, which a kernel computes in several passes over a cached row; its reference implementation is one
    function.
    decomposed: an equivalent expression of other ops, in the language of `steps`; it takes several passes, the op takes
    one. term: the code of one term, if the second of two parts is a sum of terms of the elements relative to the first
    part: `x` is the element, and `over` the result of the code `over` for the first part. Several elements and the sum
    so far are then rescaled to a new first part at once.
    selects: "maximum" or "minimum", if the state is that of the first element which equals this extreme of the first
    parts, or which is NaN.
    result: "same", "float" (integers promote to floats), "sum" (small integers widen), "bool", "index" (int64).
    error: bounds the error of a result; None: derived from `combine` and `result`, see `error_model`.
    """

    numpy: ReferenceFunction
    combine: str = ""
    initial: bool | int | float | str | None = None
    lift: str = "a"
    final: str = "a"
    result: str = "same"
    steps: str | None = None
    decomposed: str | None = None
    term: str | None = None
    over: str = "a"
    selects: str = ""
    parts: tuple[StatePart, ...] = ()
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
        """The error bound of the definition, or else of its combination; None if neither has one."""
        if self.error is not None:
            return self.error
        if self.result in ("index", "bool"):
            return exact_or_unknown
        return _ERRORS.get(self.combine) if self.final == "a" else None

    @property
    def needs_elements(self) -> bool:
        return self.initial in ("lowest", "highest")

    def result_type(self, operand: DType, table: str, dtype: DType | None = None) -> DType:
        """Returns the result type. dtype: the user's choice, which takes precedence."""
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
        """Returns the default compute type."""
        if self.result == "bool":
            return dtypes.bool_
        return operand if self.result == "index" else result

    @property
    def combine_of_parts(self) -> str | None:
        """How results for equal parts of the elements combine: "sum", "max", "min", "mean"; None if they do not."""
        if self.parts or self.steps is not None:
            return None
        if self.final == "a / n":
            return "mean" if self.combine == "add" else None
        return _OF_PARTS.get(self.combine) if self.final == "a" else None

    @property
    def state_parts(self) -> tuple[StatePart, ...]:
        """The variables of the running state; a single one named `a` if the definition has no parts."""
        if self.parts:
            return self.parts
        initial = 0 if self.initial is None else self.initial
        return (StatePart("a", self.lift, f"{self.combine}(a, later_a)", initial),)

    def state(self, compute: DType) -> tuple[DType, ...]:
        """Returns the dtypes of the state for elements of type `compute`: float32 for halves, bool for bools."""
        element = dtypes.bool_ if self.result == "bool" else compute.compute
        return tuple(part.dtype or element for part in self.state_parts)

    def adds_floats(self, compute: DType) -> bool:
        """Whether it is a sum of floats, which loses digits where many small terms meet a large sum."""
        return self.combine == "add" and compute.is_floating

    def total(self, compute: DType) -> tuple[DType, ...]:
        """Returns the dtypes of a state that joins many partial states: sums of floats meet in float64."""
        return (dtypes.float64,) if self.adds_floats(compute) else self.state(compute)

    def neutral(self, part: StatePart, dtype: DType) -> bool | int | float | complex:
        """Returns the neutral element of a part of the state, in `dtype`."""
        return neutral_element(self.name, part.initial, dtype)


_OF_PARTS = {"add": "sum", "maximum": "max", "minimum": "min", "or": "max", "and": "min"}
_ERRORS = {"add": sum_error, "mul": product_error, "maximum": largest_error, "minimum": largest_error}


# ---------------------------------------------------------------------------------------------------------------------
# movement

ShapeRule: TypeAlias = Callable[[Sequence[Shape], Attributes, Require], Shape]
PullRule: TypeAlias = Callable[[Shape, Sequence[Shape], Shape, Attributes, IndexOf], tuple[Source, ...]]


@dataclass(frozen=True, slots=True)
class Resize:
    """How an op resizes one axis of one operand.

    left, right: the elements added at the two ends; negative values remove elements. step: the stride. moves: elements
    that leave at one end enter at the other, so the extent does not change.
    """

    operand: int
    axis: int
    left: Extent
    right: Extent
    step: Extent = 1
    moves: bool = False


ResizeRule: TypeAlias = Callable[[Sequence[Shape], Attributes], tuple[Resize, ...]]
ShiftRule: TypeAlias = Callable[[Attributes, int, Extent], "dict[str, Any] | None"]
"""Called with the attributes, the axis of the result that stays as it is, and its extent."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Movement(Op):
    """An op that moves elements without computing.

    pull(result coordinates, operand shapes, result shape, attributes, index_of) returns candidate sources: the first
    whose conditions hold is read; if none does, the element is the attribute `value`. `index_of(operand, coordinates)`
    returns the element of an index operand as an integer, wrapped once and clamped to the axis that it indexes.
    data: the number of data operands, which precede the index operands and type the result. outside: the message of a
    ShapeError for an index out of range, in place of an OutOfRangeError. resize: how extents of single axes change.
    regroups: it merges and splits axes in row-major order, to `new_shape`. associative: it may be applied to adjacent
    operands first, then to the results. slices: "read", or "written": the second operand replaces a slice of the first.
    shifts: for an op that reads ranges of positions of an axis, the attributes with which it leaves an axis of a given
    extent as it is; None if it acts on that axis alone.
    """

    shape: ShapeRule
    pull: PullRule
    numpy: ReferenceFunction
    data: int | None = None
    outside: str | None = None
    resize: ResizeRule | None = None
    regroups: bool = False
    associative: bool = False
    slices: str = ""
    shifts: ShiftRule | None = None
    kind: str = field(default="movement", init=False)

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        return (self.shape(shapes, attributes, require),)
