"""Reductions of the elements that a mask selects: reductions of the whole array in which the others are neutral.

A reduction over the selected axes has no symbolic size, so it is an ordinary traced value. A reduction over other axes
leaves a selection. The minimum, the maximum and their positions raise if the mask selects nothing, as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import DType
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.array_ops import moments, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, astype, axes_of, refuse
from tracefuse.frontend.tracer.values.traced import Traced


class MaskSelection:
    """The elements of `values` at which `mask` is true.

    mask: has the rank of `values`, with extent 1 on the axes that it does not select from. first, count: the axes that
    it selects from. In NumPy's result they are one axis, number `first`. take(values, first, count): returns the
    selected elements of an array like `values` as an array. is_of_state: whether the mask depends on captured state
    alone, so that the number of elements is known. line: where the mask selected them.
    """

    def __init__(
        self, values: Traced, mask: Traced, first: int, count: int, take: Callable[[Traced, int, int], Traced],
        is_of_state: bool = False,
    ) -> None:  # fmt: skip
        self.values, self.mask, self.first, self.count, self.take = values, mask, first, count, take
        self.is_of_state = is_of_state
        self.line = source.user_line()

    @property
    def ndim(self) -> int:
        return len(self.values.extents) - self.count + 1

    def refusal(self) -> UnsupportedError:
        return UnsupportedError(
            "indexing with a boolean mask: the size of the result depends on the data",
            hint="write np.where(mask, x, other)", where=self.line,
        )  # fmt: skip

    def has_mask(self, mask: Traced) -> bool:
        """Whether the same mask selected these elements."""
        return self.mask.recorder.builder.is_same_value(self.mask.number, mask.number)

    def with_values(self, values: Any) -> Any:
        """Returns elements of other values at the same positions."""
        return type(self)(values, self.mask, self.first, self.count, self.take, self.is_of_state)

    def axes_of_values(self, axis: Any) -> tuple[tuple[int, ...], bool]:
        """Returns the axes of `values` for NumPy's parameter, and whether the selected axes are among them."""
        axes = axes_of(axis, self.ndim)
        value_axes = [k for axis in axes for k in self._axes_behind(axis)]
        return tuple(value_axes), self.first in axes

    def _axes_behind(self, axis: int) -> range:
        if axis == self.first:
            return range(self.first, self.first + self.count)
        place = axis if axis < self.first else axis + self.count - 1
        return range(place, place + 1)

    def along(self, axes: tuple[int, ...], reduced: Any) -> Any:
        """Returns a reduction over axes that are not selected, as a selection; `reduced` has kept its axes."""
        names = tuple(k for k in axes if not self.first <= k < self.first + self.count)
        before = sum(k < self.first for k in names)
        values, mask = (shaping.squeeze(x, names) for x in (reduced, self.mask))
        return type(self)(values, mask, self.first - before, self.count, self.take, self.is_of_state)


Reduce = Callable[..., Any]


def _reduced(elements: MaskSelection, axis: Any, keepdims: Any, out: Any, reduce: Reduce) -> Any:
    """Calls reduce(values, axes, mask), which keeps the axes, and gives the result NumPy's axes.

    mask: None for a reduction over axes that are not selected.
    """
    axes, is_selected = elements.axes_of_values(axis)
    keepdims = bool(keepdims) if keepdims is not np._NoValue else False
    if not is_selected:
        reduced = reduce(elements.values, axes, None)
        return elements.with_values(reduced) if keepdims else elements.along(axes, reduced)
    result = reduce(elements.values, axes, elements.mask)
    extra = tuple(range(elements.first + 1, elements.first + elements.count))
    dropped = extra if keepdims else axes
    if dropped:
        result = traced_ops.copy(shaping.squeeze(result, dropped))
    return result if out is None else into(out, result)


def _plain(name: str) -> Reduce:
    """A reduction with a neutral element: sum, prod, any, all."""

    def reduction(
        elements: MaskSelection, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False,
        initial: Any = None, where: Any = None,
    ) -> Any:  # fmt: skip
        refuse(name, where=None if where is True else where)
        more = {"initial": initial}
        return _reduced(
            elements, axis, keepdims, out,
            lambda x, axes, mask: traced_ops.reduce(name, x, axes, dtype, None, True, where=mask, **more),
        )  # fmt: skip

    return reduction


def _without_dtype(reduction: Reduce) -> Reduce:
    def reduce(elements: MaskSelection, axis: Any = None, out: Any = None, keepdims: Any = False, **more: Any) -> Any:
        return reduction(elements, axis, None, out, keepdims, **more)

    return reduce


def _moment(function: Reduce, *, with_ddof: bool) -> Reduce:
    """mean, var or std. Halves are computed in float32, since the sum of many may exceed their range."""

    def typed(x: Any, axes: Any, mask: Any, dtype: Any, more: Any) -> Any:
        dtype_of_values = x.value.dtype
        if mask is None or dtype is not None or not dtype_of_values.is_half:
            return function(x, axes, dtype, None, keepdims=True, where=mask, **more)
        wide = function(astype(x, dtypes.float32), axes, None, None, keepdims=True, where=mask, **more)
        return astype(wide, dtype_of_values)

    def moment(
        elements: MaskSelection, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0,
        keepdims: Any = False, **more: Any,
    ) -> Any:  # fmt: skip
        refuse(function.__name__, **more)
        options = {"ddof": ddof} if with_ddof else {}
        return _reduced(elements, axis, keepdims, out, lambda x, axes, mask: typed(x, axes, mask, dtype, options))

    def mean(
        elements: MaskSelection,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: Any = False,
        **more: Any,
    ) -> Any:
        return moment(elements, axis, dtype, out, 0, keepdims, **more)

    return moment if with_ddof else mean


def _end_of(dtype: DType, name: str) -> Any:
    """Returns the value of a type that never wins: the lowest for a maximum, the highest for a minimum."""
    is_max = name in ("max", "argmax")
    if dtype.kind == "bool":
        return not is_max
    if dtype.is_integer:
        limits = np.iinfo(dtype.name)
        return int(limits.min if is_max else limits.max)
    if dtype.is_complex:
        raise UnsupportedError(
            f"{name} of {dtype} under a mask", hint="compare z.real or abs(z)", where=source.user_line()
        )
    return -np.inf if is_max else np.inf


def _others_lose(x: Any, mask: Any, name: str) -> Any:
    """Returns the values with the elements that the mask excludes replaced by one that never wins."""
    return apply("where", mask, x, _end_of(x.value.dtype, name))


def _unless_empty(reduced: Any, x: Any, axes: tuple[int, ...], mask: Any) -> Any:
    """Returns a reduction that raises where the mask selects nothing. Axes are kept."""
    spread = shaping.broadcast_to(mask, x.recorder.sizes([x.extents[k] if k in axes else m for k, m in enumerate(mask.extents)]))  # fmt: skip # noqa: E501
    has_some = traced_ops.reduce("any", spread, axes, None, None, True)
    is_empty = astype(apply("logical_not", has_some), np.int64)
    dim = axes[0]
    return reduced.recorder.movement("unless_empty", [reduced, is_empty], dim=dim)


def _extreme(name: str) -> Reduce:
    """max or min."""

    def reduce(x: Any, axes: tuple[int, ...], mask: Any) -> Any:
        if mask is None:
            return traced_ops.reduce(name, x, axes, None, None, True)
        reduced = traced_ops.reduce(name, _others_lose(x, mask, name), axes, None, None, True)
        return _unless_empty(reduced, x, axes, mask)

    def extreme(elements: MaskSelection, axis: Any = None, out: Any = None, keepdims: Any = False, **more: Any) -> Any:
        refuse(name, **more)
        return _reduced(elements, axis, keepdims, out, reduce)

    return extreme


def _ptp(elements: MaskSelection, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    result = REDUCTIONS["max"](elements, axis, None, keepdims) - REDUCTIONS["min"](elements, axis, None, keepdims)
    return result if out is None else into(out, result)


def _position(name: str) -> Reduce:
    """argmax or argmin: the number of selected elements before the extreme one."""

    def reduce(x: Any, axes: tuple[int, ...], mask: Any) -> Any:
        (dim,) = axes
        if mask is None:
            return traced_ops.reduce(name, x, dim, None, None, True)
        place = traced_ops.reduce(name, _others_lose(x, mask, name), dim, None, None, True)
        line = traced_ops.iota(x.recorder, 0, 1, x.extents[dim], dtypes.int64)
        line = shaping.expand_dims(line, tuple(k for k in range(len(x.extents)) if k != dim)) if len(x.extents) > 1 else line  # fmt: skip # noqa: E501
        before = apply("logical_and", mask, apply("lt", line, place))
        return _unless_empty(traced_ops.reduce("sum", before, dim, None, None, True), x, axes, mask)

    def position(elements: MaskSelection, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
        if axis is None and elements.ndim != 1:
            raise elements.refusal()
        return _reduced(_in_one_axis(elements), 0 if axis is None else axis, keepdims, out, reduce)

    return position


def _in_one_axis(elements: MaskSelection) -> MaskSelection:
    """Returns the same elements with the selected axes joined to one, in row-major order."""
    if elements.count == 1:
        return elements
    x: Any = elements.values
    sizes, end = x.recorder.sizes(x.extents), elements.first + elements.count
    mask: Any = elements.mask
    wide = shaping.broadcast_to(mask, (*mask.shape[: elements.first], *sizes[elements.first : end], *mask.shape[end:]))
    values, flags = (
        shaping.reshape(array, (*array.shape[: elements.first], -1, *array.shape[end:])) for array in (x, wide)
    )
    return type(elements)(values, flags, elements.first, 1, elements.take, elements.is_of_state)


def _count_nonzero(elements: MaskSelection, axis: Any = None, *, keepdims: Any = False) -> Any:
    flags = elements.with_values(apply("ne", elements.values, 0))
    return REDUCTIONS["sum"](flags, axis, None, None, keepdims)


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Returns the sum of the products of elements under one mask."""
    return _dot(a, b, out)


def _dot(a: Any, b: Any, out: Any = None, *, conjugates: bool = False) -> Any:
    selection = a if isinstance(a, MaskSelection) else b
    if not isinstance(a, MaskSelection) or not isinstance(b, MaskSelection) or a.ndim != 1 or not a.has_mask(b.mask):
        raise selection.refusal()
    left = apply("conj", a.values) if conjugates and a.values.value.dtype.is_complex else a.values
    product = apply("where", a.mask, apply("mul", left, b.values), False)
    result = traced_ops.sum_of_products(product, tuple(range(len(product.extents))))
    return result if out is None else into(out, result)


def _average(elements: MaskSelection, axis: Any = None, weights: Any = None, returned: bool = False) -> Any:
    if weights is None and not returned:
        return REDUCTIONS["mean"](elements, axis)
    if axis is not None or returned or not isinstance(weights, MaskSelection) or not elements.has_mask(weights.mask):
        raise elements.refusal()
    weighted = elements.with_values(apply("mul", elements.values, weights.values))
    return apply("div", REDUCTIONS["sum"](weighted), REDUCTIONS["sum"](weights))


def _norm(elements: MaskSelection, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    if elements.ndim != 1 or axis not in (None, 0, -1) or ord not in (None, 1, 2, np.inf, -np.inf):
        raise elements.refusal()
    size = apply("abs", elements.values)
    size = size if size.value.dtype.is_floating else astype(size, dtypes.float64)
    if ord == 1:
        return REDUCTIONS["sum"](elements.with_values(size), None, None, None, keepdims)
    if ord in (np.inf, -np.inf):
        return REDUCTIONS["max" if ord > 0 else "min"](elements.with_values(size), None, None, keepdims)
    return apply("sqrt", REDUCTIONS["sum"](elements.with_values(apply("mul", size, size)), None, None, None, keepdims))


def _without_nan(name: str) -> Reduce:
    def reduction(elements: MaskSelection, *arguments: Any, **keywords: Any) -> Any:
        x = elements.values
        if x.value.dtype.is_floating or x.value.dtype.is_complex:
            mask = apply("logical_and", elements.mask, apply("logical_not", apply("isnan", x)))
            elements = type(elements)(x, mask, elements.first, elements.count, elements.take, elements.is_of_state)
        axis = arguments[0] if arguments else keywords.get("axis")
        if not elements.axes_of_values(axis)[1]:
            raise elements.refusal()
        return REDUCTIONS[name](elements, *arguments, **keywords)

    return reduction


def _median(elements: MaskSelection, axis: Any = None, out: Any = None, overwrite_input: bool = False) -> Any:
    """Sorts with the excluded elements at the end, and takes the elements in the middle of the others."""
    if elements.ndim != 1 or axis not in (None, 0, -1):
        raise elements.refusal()
    flat = _in_one_axis(elements)
    x: Any = flat.values if flat.values.value.dtype.is_floating else astype(flat.values, np.float64)
    mask: Any = flat.mask
    ordered: Any = np.sort(apply("where", mask, x, np.inf))
    count: Any = np.count_nonzero(mask)
    low, high = (shaping.take(ordered, np.maximum(k, 0), 0) for k in ((count - 1) // 2, count // 2 - (count == 0)))
    is_nan = apply("logical_or", REDUCTIONS["any"](flat.with_values(apply("isnan", x))), apply("eq", count, 0))
    middle = apply("where", apply("eq", low, high), low, apply("div", apply("add", low, high), 2))
    result = apply("where", is_nan, np.nan, middle)
    return result if out is None else into(out, result)


REDUCTIONS: dict[str, Reduce] = {
    "sum": _plain("sum"), "prod": _plain("prod"), "any": _without_dtype(_plain("any")),
    "all": _without_dtype(_plain("all")), "mean": _moment(moments.mean, with_ddof=False),
    "var": _moment(moments.var, with_ddof=True), "std": _moment(moments.std, with_ddof=True),
    "max": _extreme("max"), "min": _extreme("min"), "ptp": _ptp, "argmax": _position("argmax"),
    "argmin": _position("argmin"), "count_nonzero": _count_nonzero, "dot": dot, "average": _average, "norm": _norm,
    "median": _median, "vdot": lambda a, b: _dot(a, b, conjugates=True),
    **{f"nan{name}": _without_nan(name) for name in ("sum", "prod", "mean", "var", "std")},
}  # fmt: skip
"""Reductions by name, with the parameters of NumPy's functions."""

METHODS: dict[Any, str] = {
    np.amax: "max", np.amin: "min", np.inner: "dot", np.linalg.norm: "norm",
    **{getattr(np, name): name for name in REDUCTIONS if hasattr(np, name)},
}  # fmt: skip
"""The reduction for each function of NumPy."""
