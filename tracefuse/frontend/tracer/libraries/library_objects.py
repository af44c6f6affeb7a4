"""Objects of libraries that compute with arrays, in a trace: splines, frozen distributions, search trees, estimators,
sparse matrices.

`spline(x)` and `distribution.cdf(x)` take no traced arrays. A twin of the object calls it between two stages of a call,
with the elements of the operands. The object itself is the one that the program has, so that its state is read at each
call.

Must not know: overlays of values.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import numpy as np

from tracefuse import pytrees, source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.array_ops.state_calls import NOT_OF_STATE, call_on_state
from tracefuse.frontend.tracer.libraries.numba_functions import NumbaFunction, is_numba_function
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages
from tracefuse.frontend.tracer.values.traced import ObjectOfProgram, holds_traced

_PACKAGES = (
    "numpy.ma.",
    "scipy.interpolate.",
    "scipy.spatial.",
    "scipy.stats.",
    "sklearn.",
    "statsmodels.",
    "hmmlearn.",
)
"""Packages whose objects compute without effects."""
_WITH_EFFECTS = frozenset({
    "rvs", "resample", "random", "random_state", "set_yi", "add_xi", "set_bandwidth", "set_smoothing_factor",
    "add_points", "close", "fit", "fit_predict", "fit_resample", "fit_transform", "partial_fit", "set_params",
})  # fmt: skip
"""Methods that draw numbers or change the object."""
_CHANGING = frozenset({
    "setdiag", "resize", "eliminate_zeros", "prune", "sum_duplicates", "sort_indices", "setdefault", "update", "pop",
})  # fmt: skip
"""Methods that change a sparse matrix."""
_OPERATORS = ("__add__", "__mul__", "__matmul__", "__getitem__", "__iter__", "__len__", "__array__", "__next__")


class LibraryObject(ObjectOfProgram):
    """The twin of an object of a library; its methods record a call where an argument is traced."""

    def __init__(self, value: Any, name: str) -> None:
        self.__dict__.update({"_value": value, "_name": name})

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__dict__["_value"])

    @property
    def original(self) -> Any:
        return self.__dict__["_value"]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return _called(self.__dict__["_value"], self.__dict__["_name"], arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["_value"], name)
        path = f"{self.__dict__['_name']}.{name}"
        is_own = isinstance(value, MethodType) and value.__self__ is self.__dict__["_value"]
        if is_own and (name not in _WITH_EFFECTS or _estimates_parameters(value)):
            return lambda *arguments, **keywords: _called(value, path, arguments, keywords)
        return object_twin(value, path)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_value"], name, value)


def _estimates_parameters(method: MethodType) -> bool:
    """Whether a method is `fit` of a distribution, which returns parameters and leaves the distribution as it is."""
    return method.__name__ == "fit" and type(method.__self__).__module__.startswith("scipy.stats.")


class SparseMatrix(LibraryObject):
    """The twin of a sparse matrix or array, with its operators."""

    __array_ufunc__ = None

    def __getattr__(self, name: str) -> Any:
        if name in _CHANGING:
            raise self._refusal(f"{self._name}.{name}()")
        value = super().__getattr__(name)
        if isinstance(value, np.ndarray):
            value = value.view()
            value.flags.writeable = False
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        raise self._refusal(f"{self._name}.{name} = ...")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self._refusal(f"{self._name}[...] = ...")

    def _refusal(self, call: str) -> UnsupportedError:
        message = f"{call} changes a {type(self.original).__name__}, which the fused function reads"
        hint = "change it outside the fused function, or compute another one, such as A + B"
        return UnsupportedError(message, hint=hint, where=source.user_line())

    def __iter__(self) -> Iterator[Any]:
        return (object_twin(row, f"{self._name}[...]") for row in self.original)

    def __len__(self) -> int:
        return len(self.original)


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[SparseMatrix, Any], Any]:
    def operate(self: SparseMatrix, right: Any) -> Any:
        return _called(functools.partial(function, self.original), f"{self._name} {function.__name__}", (right,), {})

    return operate


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[SparseMatrix, Any], Any]:
    def operate(self: SparseMatrix, left: Any) -> Any:
        swapped = functools.partial(_swapped, function, self.original)
        return _called(swapped, f"{self._name} {function.__name__}", (left,), {})

    return operate


def _swapped(function: Callable[[Any, Any], Any], right: Any, left: Any) -> Any:
    return function(left, right)


for _function in (operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul, operator.pow):
    setattr(SparseMatrix, f"__{_function.__name__}__", _binary(_function))
    setattr(SparseMatrix, f"__r{_function.__name__}__", _reflected(_function))
for _function in (operator.getitem, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
    setattr(SparseMatrix, f"__{_function.__name__}__", _binary(_function))
for _unary in (operator.neg, operator.pos, operator.abs):
    setattr(SparseMatrix, f"__{_unary.__name__}__", lambda self, f=_unary: object_twin(f(self.original), self._name))


def is_sparse(value: Any) -> bool:
    """Whether a value is a sparse matrix or array of SciPy."""
    return type(value).__module__.startswith("scipy.sparse.") and hasattr(type(value), "__matmul__")


def sparse_twin(value: Any, maker: str) -> Any:
    """Returns the twin of a sparse matrix that a function made of no traced values; any other value as it is."""
    return SparseMatrix(value, f"{maker}(...)") if is_sparse(value) and not isinstance(value, type) else value


class LibrarySequence(LibraryObject):
    """The twin of an estimator that holds others, such as those of a forest or the steps of a pipeline."""

    def __len__(self) -> int:
        return len(self.__dict__["_value"])

    def __iter__(self) -> Iterator[Any]:
        return (object_twin(entry, f"{self.__dict__['_name']}[...]") for entry in self.__dict__["_value"])

    def __getitem__(self, key: Any) -> Any:
        return object_twin(self.__dict__["_value"][key], f"{self.__dict__['_name']}[{key!r}]")


def object_twin(value: Any, name: str) -> Any:
    """Returns the twin of an object of a library that computes with arrays; any other value as it is.

    name: the object as the user writes it.
    """
    if is_numba_function(value):
        return NumbaFunction(value, name)
    cls = type(value)
    if is_sparse(value) and not isinstance(value, type):
        return SparseMatrix(value, name)
    is_computing = f"{cls.__module__}.".startswith(_PACKAGES) and not isinstance(value, (type, tuple, Exception))
    if is_computing and cls.__module__.startswith("sklearn.") and hasattr(cls, "__len__"):
        return LibrarySequence(value, name)
    if not is_computing or any(hasattr(cls, operator) for operator in _OPERATORS):
        return value
    return LibraryObject(value, name)


def originals_of(trees: Any) -> Any:
    """Returns trees with the objects of the program in place of their twins."""
    leaves, structure = pytrees.flatten(trees)
    originals = [leaf.original if isinstance(leaf, ObjectOfProgram) else leaf for leaf in leaves]
    return pytrees.unflatten(structure, originals)


def _called(function: Callable[..., Any], name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not holds_traced((arguments, keywords)):
        arguments, keywords = originals_of((arguments, keywords))
        return object_twin(function(*arguments, **keywords), f"{name}(...)")
    result = call_on_state(function, arguments, keywords, name=name)
    return result if result is not NOT_OF_STATE else call_between_stages(function, name, arguments, keywords)
