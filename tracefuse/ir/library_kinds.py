"""The kind of op that a library runs: a product by BLAS, or a function of NumPy, SciPy or CuPy on whole arrays.

An op on whole arrays has any number of results, with types and shapes by rule, and gets each operand in its own type:
the function decides what to convert. Parameters that hold no array are attributes; a size among them may be symbolic.

Must not know: single ops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse import dtypes
from tracefuse.dtypes import ALL, DType
from tracefuse.ir.error_models import LibraryError, accumulation_error
from tracefuse.ir.fusion import Attributes, Op, Require, Shape
from tracefuse.ir.op_kinds import Pointwise, ReferenceFunction, ShapeRule, check_domain, widened_sum

SliceRule: TypeAlias = Callable[[int, Sequence[Shape], Attributes], "dict[int, int | None] | None"]


def _no_native(attributes: Attributes) -> None:
    return None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Library(Op):
    """An op that a library runs: BLAS through NumPy, cuBLAS through CuPy.

    numpy(*arrays, **attributes) is called with NumPy or CuPy arrays. Halves without hardware support are computed in
    float32. slices(axis of the result, operand shapes, attributes) returns for each operand the axis to slice for a
    slice of the result, or None for the whole operand; it returns None if a slice of the result needs more. Without
    it, the op is not sliced. indices: the operands that hold indices; they are not promoted. result: "same", "sum"
    (small integers widen) or "index" (int64). exact: the result consists of elements of its operands, unrounded.
    in_halves: CuPy's function computes halves with a float32 accumulator; other ops get halves converted to float32.
    product: the op is the product of (stacks of) matrices, "ab", or the product with the second transposed, "ab'".
    orders: the attributes that permute each operand first. contraction: the attributes that order the axes of each
    operand as (stack, rows, summed) and (stack, summed, columns), the number of axes of the stack and of summed ones,
    for an op that sums products over shared axes. row_update(attributes): "assign" or the ufunc, for an op that
    combines rows of the first operand, at the positions in the second, with the rows of the third.
    combiner(attributes): the pointwise op that combines two elements then, None for "assign" and for ufuncs without an
    exact one. order_statistic: "all" for the elements in order along the attribute `dim`, "middle" for the median over
    the attribute `axis`. native(attributes): how compiled loops call C functions that compute the op; None if they
    cannot. error: bounds the error of a result that is not `exact`.
    """

    shape: ShapeRule
    numpy: ReferenceFunction
    domain: tuple[DType, ...]
    indices: tuple[int, ...] = ()
    result: str = "same"
    exact: bool = False
    in_halves: bool = False
    product: str | None = None
    orders: tuple[str, ...] = ()
    contraction: tuple[str, ...] = ()
    slices: SliceRule | None = None
    row_update: Callable[[Attributes], str] | None = None
    combiner: Callable[[Attributes], Pointwise | None] | None = None
    order_statistic: str = ""
    native: Callable[[Attributes], Any] = _no_native
    error: LibraryError = accumulation_error
    kind: str = field(default="library", init=False)

    def types(self, operand: DType, table: str) -> tuple[DType, DType]:
        """Returns the (compute, result) types for data of the common type `operand`."""
        check_domain(self.name, operand, self.domain)
        if self.result == "index":
            return operand, dtypes.int64
        result = widened_sum(operand, table) if self.result == "sum" else operand
        return result, result

    def keeps_type(self, position: int) -> bool:
        """Whether the operand is passed in its own type, not in the compute type."""
        return position in self.indices

    @property
    def may_raise(self) -> bool:
        """Whether the data of a call may make it raise."""
        return bool(self.indices)

    def contracted(self, shapes: Sequence[Shape]) -> tuple[int, ...] | None:
        """Returns the axis of each operand that a product sums over, None for an op that is no plain product."""
        if self.product is None or self.orders or len(shapes) != 2:
            return None
        return len(shapes[0]) - 1, max(len(shapes[1]) - (2 if self.product == "ab" else 1), 0)

    def call(self, operands: Sequence[Any], attributes: Attributes) -> tuple[Any, ...]:
        """Calls the function and returns its results."""
        result = self.numpy(*operands, **attributes)
        return result if isinstance(result, tuple) else (result,)

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        return (self.shape(shapes, attributes, require),)


# ---------------------------------------------------------------------------------------------------------------------
# functions of whole arrays

ResultTypes: TypeAlias = Callable[[Sequence[DType], Attributes], tuple[DType, ...]]
ResultShapes: TypeAlias = Callable[[Sequence[Shape], Attributes, Require], tuple[Shape, ...]]

ARRAYS = "arrays"
"""The attribute with the names of the parameters that a node's operands are, if some are optional."""


def _named(attributes: Attributes) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """Returns the names of all operands but the first, which may have none; () for operands in order. The keywords."""
    names = attributes.get(ARRAYS)
    if names is None:
        return (), attributes
    return names[1:], {name: value for name, value in attributes.items() if name not in names and name != ARRAYS}


def _unknown_error(
    numpy: Callable[..., Any], operands: list[tuple[Any, Any]], attributes: Mapping[str, Any], unit: float
) -> Any:
    """The bound of a function without an error model: unknown."""
    return np.inf


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WholeArrayOp(Library):
    """A library op on whole arrays.

    numpy(*arrays, **attributes) returns one array, or a tuple of them. function: NumPy's or SciPy's function that
    records the op; its parameters are those of `numpy`. parameters: the names of those that hold arrays, in order.
    optional: whether some of them may be left out; a node then names its operands in the attribute `arrays`.
    either: the parameters that hold an array or a number or text, which then is an attribute. dtypes(operand types,
    attributes): the types of the results. shape(operand shapes, attributes, require): their shapes. raises: whether the
    data of a call may make the function raise. sizes_from_data: why the data of a call may give a result another shape;
    the call then raises. native(attributes): how compiled loops call the function; None if they cannot.
    shape_before_types: a rule that raises for the shapes that the function refuses before it looks at types.
    """

    dtypes: ResultTypes
    shape: Callable[..., Any]
    domain: tuple[DType, ...] = ALL
    function: Any = None
    parameters: tuple[str, ...] = ("a",)
    optional: bool = False
    either: tuple[str, ...] = ()
    raises: bool = True
    sizes_from_data: str = ""
    shape_before_types: Callable[..., Any] | None = None
    error: LibraryError = _unknown_error

    def keeps_type(self, position: int) -> bool:
        return True

    @property
    def may_raise(self) -> bool:
        return self.raises

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        return tuple(self.shape(shapes, attributes, require))

    def caller(self, attributes: Attributes) -> Callable[..., Any]:
        """Returns the function of the operands that calls the function with these attributes.

        It returns an array, or a tuple or list of arrays.
        """
        names, keywords = _named(attributes)
        function = functools.partial(self.numpy, **keywords)
        return (
            function if not names else lambda first, *others: function(first, **dict(zip(names, others, strict=True)))
        )

    def call(self, operands: Sequence[Any], attributes: Attributes) -> tuple[Any, ...]:
        """Calls the function and returns its results."""
        result = self.caller(attributes)(*operands)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)
