"""Functions of NumPy and SciPy without a shape rule.

They run between two stages of a call, or are recorded by a call on sample arrays, which shows types and shapes; then
the extents of the operands become constants of the trace, and a call with other sizes is traced again.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tracefuse import pytrees, source
from tracefuse.caches import memoized
from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, UnsupportedError
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import as_attribute, as_operand
from tracefuse.frontend.tracer.array_ops.state_calls import NOT_OF_STATE, call_on_state, depends_on_state
from tracefuse.frontend.tracer.array_ops.traced_ops import located, recorder_of
from tracefuse.frontend.tracer.array_ops.whole_arrays import record_whole
from tracefuse.frontend.tracer.libraries.library_objects import LibraryObject
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages, call_or_refuse
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced
from tracefuse.ops.sampled_calls import (
    DISTRIBUTIONS,
    SAMPLED_PATHS,
    sample_of,
    sampled_call,
    sampled_function,
    sampled_result,
)

_OUTSIDE = "call it outside the fused function and pass its result in"


def record_library_call(path: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Records a function of SAMPLED_PATHS and returns its result, a pytree of traced values.

    It runs between two stages where an operand has a size of the call, which then stays symbolic. Else, and where no
    call can go on with its results, a call on sample arrays shows their types and shapes.
    """
    function = sampled_function(path)
    if _has_sizes_of_call(arguments) or _has_sizes_of_call(list(keywords.values())):
        with suppress(UnsupportedError):
            return call_between_stages(function, path, arguments, keywords)
    try:
        return _record_sampled(path, arguments, keywords)
    except UnsupportedError as refusal:
        return call_or_refuse(function, path, arguments, keywords, refusal)


def _has_sizes_of_call(values: Any) -> bool:
    """Whether nested lists hold a traced array with an extent that is no constant of the trace."""
    if isinstance(values, Traced):
        return any(not isinstance(values.recorder.simplify(extent), int) for extent in values.extents)
    return isinstance(values, (list, tuple)) and any(map(_has_sizes_of_call, values))


class _Operands:
    """The operands of one call, with a sample of each."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.traced: list[Traced] = []
        self.samples: list[Any] = []

    def place(self, value: Any, name: str) -> Any:
        """Returns an argument with places for the traced values in it; other values are attributes."""
        if isinstance(value, Traced) and value.on_host and value.value.dtype.is_floating:
            return self._new(value, value.read(value.recorder.hints) if value.read is not None else 1.0)
        if isinstance(value, np.ndarray) or (isinstance(value, Traced) and not value.on_host):
            array = as_operand(value)
            shape = tuple(array.recorder.pin(extent, f"a sample call of {self.name}") for extent in array.extents)
            known = None if depends_on_state(array) else array.recorder.contents.elements(array.number, None)
            return self._new(array, sample_of(array.value.dtype.numpy, shape) if known is None else known.copy())
        if isinstance(value, (list, tuple)) and holds_traced(value):
            return "list", tuple(self.place(entry, name) for entry in value)
        if isinstance(value, (type, np.dtype)):
            return "value", np.dtype(value).name
        if isinstance(value, SymbolicSize):
            return "value", int(value)
        attribute = as_attribute(self.name, name, value)
        try:
            hash(attribute)
        except TypeError:
            raise _refusal(self.name, f"the argument {name} is a {type(value).__name__}") from None
        return "value", attribute

    def _new(self, value: Any, sample: Any) -> Any:
        self.traced.append(value)
        self.samples.append(sample)
        return "operand", len(self.traced) - 1


def _refusal(name: str, reason: str) -> UnsupportedError:
    return UnsupportedError(f"{name} cannot be fused: {reason}", hint=_OUTSIDE, where=source.user_line())


def _record_sampled(path: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Records a function of NumPy or SciPy and returns its result, a pytree of traced arrays.

    Raises UnsupportedError if the sample call raises, or returns something else than arrays and numbers.
    """
    operands = _Operands(path)
    arguments, keywords = _without_memory(path, arguments, keywords)
    placed = tuple(operands.place(value, f"number {k}") for k, value in enumerate(arguments))
    named = {name: operands.place(value, name) for name, value in keywords.items()}
    recorder = recorder_of([*operands.traced, *arguments, *keywords.values()])
    if recorder.device is not None:
        raise _refusal(path, "its arrays are on a GPU")
    try:
        result = sampled_result(path, placed, named, operands.samples)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise _refusal(path, f"on sample arrays of these shapes it raises {type(error).__name__}: {error}") from error
    leaves, structure = pytrees.flatten(result)
    arrays = [_as_result(path, leaf) for leaf in leaves]
    traced = record_whole(
        recorder, sampled_call, operands.traced, path=path, arguments=placed, keywords=tuple(named.items()),
        shapes=tuple(array.shape for array in arrays), results=tuple(dtype_of(array.dtype) for array in arrays),
    )  # fmt: skip
    return pytrees.unflatten(structure, [_of_kind(*pair) for pair in zip(leaves, traced, strict=True)])


def _of_kind(leaf: Any, value: Traced) -> Traced:
    """Returns a result as a number of Python where it is one on sample arrays."""
    is_number = isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic)
    return value.recorder.python_number(value, type(leaf).__name__) if is_number else value


def _without_memory(
    path: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Returns the arguments without permissions to overwrite operands.

    Raises UnsupportedError for an array to write.
    """
    try:
        bound = inspect.signature(sampled_function(path)).bind(*arguments, **keywords)
    except (TypeError, ValueError):
        return arguments, keywords  # the sample call raises, or the function has no signature
    for name, value in list(bound.arguments.items()):
        if name in ("out", "output") and isinstance(value, (Traced, np.ndarray)):
            raise _refusal(path, f"it writes into {name}")
        if name.startswith("overwrite_"):
            del bound.arguments[name]
    return bound.args, bound.kwargs


def _as_result(path: str, leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic, bool, int, float, complex)):
        try:
            dtype_of(np.asarray(leaf).dtype)
        except DtypeError:
            pass
        else:
            return np.asarray(leaf)
    raise _refusal(path, f"it returns a {type(leaf).__name__}")


class RecordingDistribution:
    """The twin of a distribution of scipy.stats in a trace: its functions record, or run between two stages."""

    def __init__(self, path: str, original: Any) -> None:
        self._path, self._object = path, LibraryObject(original, path)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        path = f"{self.__dict__['_path']}.{name}"
        if path in SAMPLED_PATHS:
            return _twin(path, getattr(self.__dict__["_original"], name))
        return getattr(self.__dict__["_object"], name)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._object(*arguments, **keywords)


@memoized("what records functions of libraries without a shape rule", key="path and function", most=1024)
def _twin(path: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what records a function where an argument is traced, and else calls it."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        passed = (arguments, keywords)
        if not (holds_traced(passed) or any(isinstance(v, SymbolicSize) for v in keywords.values())):
            return function(*arguments, **keywords)
        result = call_on_state(function, arguments, keywords)
        return record(arguments, keywords) if result is NOT_OF_STATE else result

    @located
    def record(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        return record_library_call(path, arguments, keywords)

    call.__name__, call.__doc__, call.__wrapped__ = function.__name__, function.__doc__, function  # type: ignore[attr-defined]
    return call


def _objects() -> Iterator[tuple[int, Any]]:
    stats = sys.modules.get("scipy.stats")
    for path in DISTRIBUTIONS if stats is not None else ():
        original = getattr(stats, path.rpartition(".")[2])
        yield id(original), RecordingDistribution(path, original)


def recording_functions() -> dict[int, Any]:
    """Returns the twins of the functions and distributions of imported modules, by the id of each."""
    twins: dict[int, Any] = dict(_objects())
    for name, paths in _PATHS_BY_MODULE.items():
        module = sys.modules.get(name)
        for path, attribute in paths if module is not None else ():
            function = getattr(module, attribute, None)
            if callable(function) and not isinstance(function, np.ufunc):
                twins[id(function)] = _twin(path, function)
    return twins


def _paths_by_module() -> dict[str, list[tuple[str, str]]]:
    paths: dict[str, list[tuple[str, str]]] = {}
    for path in SAMPLED_PATHS:
        module, _, name = path.rpartition(".")
        if module != "numpy":
            paths.setdefault(module, []).append((path, name))
    return paths


_PATHS_BY_MODULE = _paths_by_module()
"""The paths of functions outside of NumPy's main module, each with its name in the module."""


def _module_names() -> tuple[str, ...]:
    modules = dict.fromkeys(path.rpartition(".")[0] for path in SAMPLED_PATHS)
    for path in DISTRIBUTIONS:
        del modules[path]
    return tuple(dict.fromkeys(name for module in modules for name in _with_parents(module)))


def _with_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[: k + 1]) for k in range(len(parts))]


MODULE_NAMES = _module_names()
"""The modules whose functions have twins, and those that lead to them."""
