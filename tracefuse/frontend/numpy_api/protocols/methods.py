"""ndarray's methods on a traced value.

Parameters keep ndarray's order, since CuPy's functions call these methods with positional arguments.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, NoAttributeError, ScalarError, UnsupportedError
from tracefuse.frontend.numpy_api.algebra import products
from tracefuse.frontend.numpy_api.arrangement import moving_elements, shape_changes
from tracefuse.frontend.numpy_api.formulas import element_bits
from tracefuse.frontend.numpy_api.protocols import elementwise
from tracefuse.frontend.numpy_api.registration import array_memory
from tracefuse.frontend.numpy_api.selecting import data_decided, element_writes, selection
from tracefuse.frontend.numpy_api.statistics import reductions
from tracefuse.frontend.tracer.array_ops import arithmetic, moments, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.traced_ops import as_array, missing
from tracefuse.frontend.tracer.effects import numpy_errors
from tracefuse.frontend.tracer.libraries.stage_calls import call_or_refuse
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.traced import Traced


def _check_truth(name: str, dtype: Any) -> None:
    """Raises DtypeError for a `dtype=` that a truth value does not have."""
    if dtype is not None and dtype_of(dtype).kind != "bool":
        raise DtypeError(f"{name}() with dtype={dtype_of(dtype)}", hint=f"write x.{name}().astype(dtype)")


def _check_is_array(x: Traced, name: str) -> None:
    """Raises for a method that NumPy's scalars lack."""
    if x.is_immutable:
        raise NoAttributeError(
            f"'numpy.{x.value.dtype}' object has no attribute {name!r}", hint=f"write np.{name}(x, ...)",
            where=source.user_line(),
        )  # fmt: skip


def _reduced(
    function: Any, x: Traced, axis: Any, dtype: Any, out: Any, keepdims: Any, initial: Any, where: Any
) -> Any:  # fmt: skip
    """A sum or a product: between two stages of the call where the place of the initial value decides the result."""
    try:
        return traced_ops.reduce(function.__name__, x, axis, dtype, out, keepdims, initial=initial, where=where)
    except UnsupportedError as refusal:
        if out is not None or (initial is None and where is None):
            raise
        keywords: dict[str, Any] = {"axis": axis, "dtype": dtype, "keepdims": bool(keepdims)}
        keywords |= {key: one for key, one in (("initial", initial), ("where", where)) if one is not None}
        return call_or_refuse(function, f"x.{function.__name__}", (x,), keywords, refusal)


def _of_scalars(method: Any) -> Any:
    """A method with NumPy's meaning of None, whose result is a scalar for a NumPy scalar, also where `out` takes it."""

    def call(self: Traced, *arguments: Any, **keywords: Any) -> Any:
        keywords = dict(reductions.named_parameters(method.__name__, keywords))
        return reductions.as_result_of_method(method(self, *arguments, **keywords), self)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


@numpy_errors.methods_raise_as_numpy
class ArrayMethods(Traced):
    """A traced value with ndarray's methods."""

    __slots__ = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        if not self.is_immutable and source.is_compared_by_user():  # by `np.dtype(float) == x`, which no array equals
            raise AttributeError("dtype")
        return self.value.dtype.numpy

    @dtype.setter
    def dtype(self, value: Any) -> None:
        shape_changes.set_dtype(self, value)

    @property
    def strides(self) -> tuple[Any, ...]:
        return array_memory.strides_in_bytes(self)

    @strides.setter
    def strides(self, value: Any) -> NoReturn:
        raise missing("x.strides = strides", "write y = np.lib.stride_tricks.as_strided(x, shape, strides)")

    @property
    def flags(self) -> Any:
        return array_memory.ArrayFlags(self)

    def setflags(self, write: Any = None, align: Any = None, uic: Any = None) -> None:
        array_memory.set_flags(self, write, align, uic)

    def __delitem__(self, key: Any) -> NoReturn:
        raise ScalarError(
            "cannot delete array elements", hint="write y = np.delete(x, key, axis)", where=source.user_line()
        )

    @property
    def base(self) -> Any:
        return array_memory.base_of(self)

    @_of_scalars
    def sum(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None,
        where: Any = None,
    ) -> Any:  # fmt: skip
        return _reduced(np.sum, self, axis, dtype, out, keepdims, initial, where)

    @_of_scalars
    def prod(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None,
        where: Any = None,
    ) -> Any:  # fmt: skip
        return _reduced(np.prod, self, axis, dtype, out, keepdims, initial, where)

    @_of_scalars
    def max(
        self, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None
    ) -> Any:
        return traced_ops.reduce("max", self, axis, None, out, keepdims, initial=initial, where=where)

    @_of_scalars
    def min(
        self, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None
    ) -> Any:
        return traced_ops.reduce("min", self, axis, None, out, keepdims, initial=initial, where=where)

    @_of_scalars
    def any(
        self, axis: Any = None, out: Any = None, keepdims: Any = False, dtype: Any = None, *, where: Any = None
    ) -> Any:
        _check_truth("any", dtype)
        return traced_ops.reduce("any", self, axis, None, out, keepdims, where=where)

    @_of_scalars
    def all(
        self, axis: Any = None, out: Any = None, keepdims: Any = False, dtype: Any = None, *, where: Any = None
    ) -> Any:
        _check_truth("all", dtype)
        return traced_ops.reduce("all", self, axis, None, out, keepdims, where=where)

    @_of_scalars
    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **more: Any) -> Any:
        return moments.mean(self, axis, dtype, out, keepdims, **more)

    @_of_scalars
    def var(
        self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False, *,
        where: Any = None, mean: Any = None,
    ) -> Any:  # fmt: skip
        return moments.var(self, axis, dtype, out, ddof, keepdims, where=where, mean=mean)

    @_of_scalars
    def std(
        self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False, *,
        where: Any = None, mean: Any = None,
    ) -> Any:  # fmt: skip
        return moments.std(self, axis, dtype, out, ddof, keepdims, where=where, mean=mean)

    def ptp(self, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        return reductions.ptp(self, axis, out, keepdims)

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
        target = shape[0] if len(shape) == 1 else shape
        return array_memory.reshape(self, target, order, copy, is_called=source.is_called_by_user())

    def ravel(self, order: str = "C") -> Any:
        return array_memory.ravel(self, order)

    def flatten(self, order: str = "C") -> Any:
        return traced_ops.copy(array_memory.ravel(self, order))

    def transpose(self, *axes: Any) -> Any:
        if self.is_immutable and axes in ((), (None,), ((),)):
            return self
        if not axes or axes == (None,):
            return shaping.transpose(self)
        return shaping.transpose(self, axes[0] if isinstance(axes[0], (tuple, list)) else axes)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        return shaping.swapaxes(self, axis1, axis2)

    def squeeze(self, axis: Any = None) -> Any:
        return self if self.is_immutable else shaping.squeeze(self, axis)

    def astype(
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        target = dtype_of(dtype)
        if casting != "unsafe" and not np.can_cast(self.value.dtype.numpy, target.numpy, casting):  # type: ignore[arg-type]
            raise DtypeError(
                f"Cannot cast from {self.value.dtype} to {target} according to the rule '{casting}'",
                hint="use casting='unsafe'", where=source.user_line(),
            )  # fmt: skip
        result = self._of_own_kind(traced_ops.astype(self, dtype, copy=copy))
        return result if result is self else views.in_order(result, order, [self])

    @_of_scalars
    def clip(self, min: Any = None, max: Any = None, out: Any = None, **more: Any) -> Any:
        return elementwise.clip(self, min, max, out, **more)

    def copy(self, order: str = "C") -> Any:
        return views.in_order(self._of_own_kind(traced_ops.copy(self, order)), order, [self])

    def _of_own_kind(self, result: Traced) -> Traced:
        """A result without axes, as an array that can be written if this is one, else as a NumPy scalar."""
        if not result.extents and not self.is_immutable:
            result = traced_ops.as_tensor(result)
            result.own_memory()
        return result

    def conj(self) -> Any:
        return arithmetic.conjugate(self)

    conjugate = conj

    def dot(self, b: Any, out: Any = None) -> Any:
        _check_is_array(self, "dot")
        return products.dot(self, b, out)

    def trace(self, offset: Any = 0, axis1: Any = 0, axis2: Any = 1, dtype: Any = None, out: Any = None) -> Any:
        return products.trace(self, offset, axis1, axis2, dtype, out)

    def diagonal(self, offset: Any = 0, axis1: Any = 0, axis2: Any = 1) -> Any:
        return products.diagonal(self, offset, axis1, axis2)

    @_of_scalars
    def take(self, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
        return moving_elements.take(self, indices, axis, out, mode)

    def repeat(self, repeats: Any, axis: Any = None) -> Any:
        return moving_elements.repeat(self, repeats, axis)

    @_of_scalars
    def round(self, decimals: int = 0, out: Any = None) -> Any:
        return elementwise.round_(self, decimals, out)

    @_of_scalars
    def argmax(self, axis: Any = None, out: Any = None, keepdims: Any = False, *, dtype: Any = None) -> Any:
        traced_ops.refuse("argmax", dtype=dtype)
        return reductions.argmax(self, axis, out, keepdims=keepdims)

    @_of_scalars
    def argmin(self, axis: Any = None, out: Any = None, keepdims: Any = False, *, dtype: Any = None) -> Any:
        traced_ops.refuse("argmin", dtype=dtype)
        return reductions.argmin(self, axis, out, keepdims=keepdims)

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return reductions.scan("cumsum", self, axis, dtype, out)

    def cumprod(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return reductions.scan("cumprod", self, axis, dtype, out)

    def argsort(self, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
        return reductions.argsort(self, axis, kind, order, stable=stable)

    def argpartition(self, kth: Any, axis: Any = -1, kind: Any = "introselect", order: Any = None) -> Any:
        _check_is_array(self, "argpartition")
        return np.argpartition(as_array(self), kth, axis, kind, order)

    def sort(self, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> None:
        into(self, reductions.sort(self, axis, kind, order))

    def partition(self, kth: Any, axis: Any = -1, kind: Any = "introselect", order: Any = None) -> None:
        _check_is_array(self, "partition")
        result: Any = np.partition(as_array(self), kth, axis, kind, order)
        into(self, result)

    def searchsorted(self, v: Any, side: str = "left", sorter: Any = None) -> Any:
        return np.searchsorted(as_array(self), v, side, sorter)  # type: ignore[call-overload]

    @_of_scalars
    def choose(self, choices: Any, out: Any = None, mode: str = "raise") -> Any:
        return selection.choose(self, choices, out, mode)

    def nonzero(self) -> tuple[Any, ...]:
        return data_decided.nonzero(self)  # type: ignore[no-any-return]

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> Any:
        return data_decided.compress(condition, self, axis, out)

    def view(self, dtype: Any = None, type: Any = None) -> Any:
        return element_bits.view(self, dtype, type)

    def byteswap(self, inplace: bool = False) -> Any:
        return element_bits.byteswap(self, inplace)

    def fill(self, value: Any) -> None:
        element_writes.fill(self, value)

    def put(self, indices: Any, values: Any, mode: str = "raise") -> None:
        element_writes.put(self, indices, values, mode)

    def resize(self, *new_shape: Any, refcheck: bool = True) -> None:
        shape_changes.resize(self, new_shape)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Any:
        self.recorder.require_device(device)
        return self
