"""Functions of the user that NumPy calls for each element: `np.vectorize(f)(x)`, `np.frompyfunc(f, 1, 1)(x)`.

Such a call runs between two stages of a call, on the elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import pytrees, source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.numpy_api.protocols.list_arguments import stacked
from tracefuse.frontend.tracer.array_ops.masked_elements import MaskedElements
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages
from tracefuse.frontend.tracer.values.traced import Traced

_INSTEAD = "write the function for whole arrays, with np.where for its cases"


def holds_arrays(*values: Any) -> bool:
    """Whether trees hold traced arrays or numbers other than sizes."""
    return any(isinstance(leaf, (Traced, MaskedElements)) for leaf in pytrees.flatten(values)[0])


def _between_stages(function: Callable[..., Any], name: str, arguments: Any, keywords: Any) -> Any:
    try:
        return call_between_stages(function, name, arguments, keywords)
    except UnsupportedError as error:
        raise UnsupportedError(error.message, hint=_INSTEAD, where=error.where) from None


class VectorizedFunction:
    """The twin of an `np.vectorize` object in a trace."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self.__name__, self.__doc__ = getattr(original, "__name__", "vectorized"), original.__doc__

    @source.forwards
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        original = self._original
        arguments, keywords = tuple(map(stacked, arguments)), {k: stacked(v) for k, v in keywords.items()}
        if not holds_arrays(arguments, keywords):
            return original(*arguments, **keywords)
        options = {"otypes": original.otypes, "excluded": original.excluded, "signature": original.signature}
        call = functools.partial(_call_vectorized, options)
        return _between_stages(call, f"np.vectorize({self.__name__})", (original.pyfunc, *arguments), keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _call_vectorized(options: dict[str, Any], function: Any, *arguments: Any, **keywords: Any) -> Any:
    return np.vectorize(function, **options)(*arguments, **keywords)


@source.forwards
def _vectorize(*arguments: Any, **keywords: Any) -> Any:
    """Makes a function like `np.vectorize`, also as a decorator with keywords."""
    if arguments and arguments[0] is not np._NoValue:
        return VectorizedFunction(np.vectorize(*arguments, **keywords))
    return functools.partial(_vectorize, **keywords)


class FunctionOfElements:
    """The twin of what `np.frompyfunc` returns, in a trace."""

    def __init__(self, function: Any, original: Any) -> None:
        self._function, self._original = function, original

    @source.forwards
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        arguments = tuple(map(stacked, arguments))
        if keywords or not holds_arrays(arguments):
            return self._original(*arguments, **keywords)
        return ObjectsOfCall(self._function, self._original.nout, arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class ObjectsOfCall:
    """What a function of `np.frompyfunc` returns: an array of objects, until it is cast to numbers."""

    def __init__(self, function: Any, count: int, arguments: tuple[Any, ...]) -> None:
        self._function, self._count, self._arguments = function, count, arguments

    @source.forwards
    def astype(self, dtype: Any, *more: Any, **keywords: Any) -> Any:
        name = getattr(self._function, "__name__", "function")
        call_key = (len(self._arguments), np.dtype(dtype))
        call = functools.partial(_call_on_elements, *call_key)
        return _between_stages(call, f"np.frompyfunc({name})", (self._function, *self._arguments), {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _of_objects(f"{name} of")

    def refuse_as_result(self, path: str) -> None:
        """Raises UnsupportedError: the array is the result of the fused function, or stored in its state."""
        raise _of_objects(f"{path} is")


def _of_objects(use: str) -> UnsupportedError:
    return UnsupportedError(
        f"{use} an array of objects, which np.frompyfunc gives", hint="cast it first: f(x).astype(float)",
        where=source.user_line(),
    )  # fmt: skip


def _call_on_elements(count: int, dtype: Any, function: Any, *arguments: Any) -> Any:
    return np.asarray(np.frompyfunc(function, count, 1)(*arguments)).astype(dtype)


@source.forwards
def _from_python(func: Any, /, nin: int, nout: int, **keywords: Any) -> Any:
    original = np.frompyfunc(func, nin, nout, **keywords)
    return FunctionOfElements(func, original) if nout == 1 else original


FUNCTIONS: dict[int, Any] = {id(np.frompyfunc): _from_python}
"""Twins of functions, by the id of each."""
CALLED: dict[int, Any] = {id(np.vectorize): _vectorize}
"""Twins of types, in calls, by the id of the type."""
