"""`x[mask]` for a mask of truth values, whose length depends on data.

The elements stay in place for elementwise operations with scalars and with elements under the same mask, assignments
under that mask, as in `x[mask] *= 2` and `x[mask] = y[mask] + 1`, and reductions: these need no length. Everything else
takes the elements as an array, from then on the only one. Its length is known if the mask depends on captured state
alone; else it is a question about a computed value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tracefuse import source
from tracefuse.errors import DtypeError, UnsupportedError
from tracefuse.frontend.tracer.array_ops import masked_reductions, traced_ops
from tracefuse.frontend.tracer.array_ops.masked_reductions import MaskSelection
from tracefuse.frontend.tracer.values.nested_lists import check_depth, leaves_of
from tracefuse.frontend.tracer.values.symbolic_size import rank_of, wrap
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced
from tracefuse.ir.extents import product


def _of_elements(name: str) -> Callable[..., Any]:
    """Returns a method that takes the elements and calls theirs."""

    def method(self: MaskedElements, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self.elements(), name)(*arguments, **keywords)

    return method


def _method_named(name: str) -> Callable[..., Any]:
    return lambda array, *arguments, **keywords: getattr(array, name)(*arguments, **keywords)


def with_elements(value: Any) -> Any:
    """Returns nested values with arrays in place of elements under masks."""
    if isinstance(value, MaskedElements):
        return value.elements()
    if not any(isinstance(leaf, MaskedElements) for leaf in leaves_of(value, (list, tuple, dict))):
        return value
    if isinstance(value, dict):
        return {key: with_elements(entry) for key, entry in value.items()}
    check_depth(value)
    return type(value)(map(with_elements, value)) if type(value) in (list, tuple) else value


def key_parts(key: Any) -> tuple[Any, ...]:
    """Returns the parts of a key, with arrays in place of elements under masks, ranges and lists of traced values."""
    parts: tuple[Any, ...] = with_elements(tuple(key) if isinstance(key, tuple) else (key,))
    return tuple(_array_of_list(_known_truth(part)) for part in parts)


def _array_of_list(part: Any) -> Any:
    if isinstance(part, range):
        return np.arange(part.start, part.stop, part.step)
    if getattr(part, "has_elements", False):
        return part.elements()
    if isinstance(part, tuple):
        part = list(part)
    return traced_ops.as_traced(part) if isinstance(part, list) and holds_traced(part) else part


def _known_truth(part: Any) -> Any:
    """Returns a truth value that a call passes as a bool: whether it selects elements decides a shape."""
    if isinstance(part, Traced) and part.read is not None and part.value.dtype.kind == "bool":
        return bool(part.recorder.value_of(part, "a truth value as an index"))
    return part


_OWN_ATTRIBUTES = frozenset({"values", "mask", "first", "count", "take", "is_of_state", "line", "_taken"})


_OF_TYPES = {"dtype", "casting", "signature", "sig", "subok", "order"}
"""Parameters of a ufunc that say nothing about elements or their places."""


class MaskedElements(MaskSelection, NDArrayOperatorsMixin):
    """A selection with NumPy's operators, functions and methods."""

    is_selection = has_elements = True

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """NumPy's class, so that `isinstance(x[mask], np.ndarray)` holds."""
        return np.ndarray

    _taken: Traced | None = None

    def elements(self) -> Traced:
        """Returns the elements as an array, always the same one.

        Raises UnsupportedError if the mask depends on arguments and nothing answers questions about it.
        """
        if self._taken is None:
            try:
                self._taken = self.take(self.values, self.first, self.count)
            except UnsupportedError as error:
                raise type(error)(error.message, hint=error.hint, where=self.line) from None
        return self._taken

    @property
    def is_taken(self) -> bool:
        """Whether the elements are an array, which later changes of the selection go to."""
        return self._taken is not None

    @property
    def _is_in_place(self) -> bool:
        return not self.is_of_state and self._taken is None

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.value.dtype.numpy

    def length(self) -> Any:
        """Returns the extent of the selected axis: a number that the call computes, or a size."""
        if not self._is_in_place:
            selected: Any = self.elements()
            return selected.shape[self.first]
        count = traced_ops.reduce("sum", self.mask)
        return count.recorder.python_number(count, "int")

    @property
    def size(self) -> Any:
        extents = self.values.extents
        other_extents = product((*extents[: self.first], *extents[self.first + self.count :]))
        length = self.length()
        return length if other_extents == 1 else length * wrap(other_extents, self.values.recorder)

    def astype(
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        if self._taken is not None:
            selected: Any = self._taken
            return selected.astype(dtype, order, casting, subok, copy)
        values: Any = self.values
        return self.with_values(values.astype(dtype, order, casting, subok, copy))

    def copy(self, order: str = "C") -> Any:
        selected: Any = self._taken
        return self.with_values(self.values) if selected is None else selected.copy()

    # -- elementwise operations ---------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if ufunc is np.matmul and method == "__call__" and self._is_in_place:
            return self._reduced("dot", ufunc, inputs, {})
        targets = keywords.get("out") or (None,)
        operands = (operand for operand in (*inputs, *targets) if operand is not None)
        is_new = all(target is None for target in targets)
        is_plain = method == "__call__" and not keywords.keys() - ({"out", *_OF_TYPES} if is_new else {"out"})
        if not is_plain or ufunc.nout > 1 > is_new or not all(map(self._is_beside, operands)):
            return getattr(ufunc, method)(*with_elements(inputs), **with_elements(keywords))
        keywords.pop("out", None)
        result = ufunc(*(value.values if isinstance(value, MaskedElements) else value for value in inputs), **keywords)
        if is_new:
            return tuple(map(self.with_values, result)) if isinstance(result, tuple) else self.with_values(result)
        (target,) = targets
        if target is not self or isinstance(result, tuple):
            raise self.refusal()
        dtype = self.values.value.dtype
        if not np.can_cast(result.value.dtype.numpy, dtype.numpy, "same_kind"):
            raise DtypeError(
                f"an in-place operation gives {result.value.dtype}, which does not go into {dtype}",
                hint="write y[mask] = y[mask] + x", where=source.user_line(),
            )  # fmt: skip
        self.values = result.astype(dtype.numpy, copy=False)
        return self

    def _is_beside(self, value: Any) -> bool:
        """Whether an operand or a target fits without taking the elements."""
        if isinstance(value, MaskedElements):
            same_place = (self.first, self.count) == (value.first, value.count)
            return not value.is_taken and same_place and self.has_mask(value.mask)
        return not rank_of(value)

    # -- reductions ---------------------------------------------------------------------------------------------------

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        if function in (np.ndim, np.size) and len(arguments) == 1 and not keywords:
            return self.ndim if function is np.ndim else self.size
        name = masked_reductions.METHODS.get(function)
        if name is not None and isinstance(arguments[0], MaskedElements) and arguments[0]._is_in_place:
            return arguments[0]._reduced(name, function, arguments, keywords)
        return function(*with_elements(arguments), **with_elements(keywords))

    def _reduced(self, name: str, function: Any, arguments: Any, keywords: Any) -> Any:
        """Reduces in place, or takes the elements if there is no such reduction in place."""
        try:
            return masked_reductions.REDUCTIONS[name](*arguments, **keywords)
        except UnsupportedError:
            return function(*with_elements(arguments), **with_elements(keywords))

    __array__, __iter__, __len__ = _of_elements("__array__"), _of_elements("__iter__"), _of_elements("__len__")
    __bool__, __int__, __float__ = _of_elements("__bool__"), _of_elements("__int__"), _of_elements("__float__")
    __complex__, __index__ = _of_elements("__complex__"), _of_elements("__index__")
    __getitem__, __setitem__ = _of_elements("__getitem__"), _of_elements("__setitem__")
    __contains__ = _of_elements("__contains__")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._is_in_place and name in masked_reductions.REDUCTIONS and hasattr(np.ndarray, name):
            function = _method_named(name)
            return lambda *arguments, **keywords: self._reduced(name, function, (self, *arguments), keywords)
        return getattr(self.elements(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute of the array, as in `y.real = 1` and `y.shape = 2, -1`, which takes the elements."""
        if name in _OWN_ATTRIBUTES:
            object.__setattr__(self, name, value)
        else:
            setattr(self.elements(), name, value)

    def __repr__(self) -> str:
        return f"elements of {self.values!r} under the mask {self.mask!r}"
