"""Calls on captured state that no op expresses, as in `np.linalg.cholesky(K) @ x`: recorded as steps of the prologue.

The function runs at the trace, on the elements of the captured arrays. What it returns becomes inputs of the fusion,
or, if it is neither an array nor a number, a value that the trace assumes. An exception that the function raises is
the user's, who may catch it, and is a result of the step like others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from tracefuse import dtypes, pytrees, source
from tracefuse.frontend.tracer.array_ops.masked_elements import MaskedElements
from tracefuse.frontend.tracer.array_ops.rebuilt_trees import rebuilt
from tracefuse.frontend.tracer.captured.prologue import ResultKey, SizeOf, StateCall, ValueOf, key_of, own_result
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import symbols
from tracefuse.runtime.devices.arrays import dtype_of_array

_NUMBERS = {"int": dtypes.int64, "float": dtypes.float64, "complex": dtypes.complex128}
"""The types of Python numbers as inputs."""

NOT_OF_STATE = object()
"""What `call_on_state` returns if it records nothing: an argument depends on arguments of the traced function."""


def depends_on_state(value: Any) -> bool:
    """Whether a value is traced and depends on captured arrays alone."""
    return isinstance(value, Traced) and value.number in value.recorder.builder.of_state


def call_on_state(
    function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], *, name: str | None = None,
    where: str | None = None,
) -> Any:  # fmt: skip
    """Calls a function now, and in later calls of the traced function if the contents of what it reads differ.

    name, where: the function and the user's line, for listings. Returns its result with traced values in place of
    arrays and numbers, or NOT_OF_STATE. Raises what the function raises.
    """
    leaves, call_structure = pytrees.flatten((tuple(arguments), dict(keywords)))
    traced = [leaf for leaf in leaves if isinstance(leaf, Traced)]
    if not any(map(depends_on_state, traced)):
        return NOT_OF_STATE
    recorder = traced[0].recorder
    if any(_is_no_constant(recorder, leaf) for leaf in leaves):
        return NOT_OF_STATE
    recorder.check_alive()
    name = name or name_of(function)
    placeholders = [_placeholder(recorder, leaf, f"an argument of {name}") for leaf in leaves]
    if any(placeholder is NOT_OF_STATE for placeholder in placeholders):
        return NOT_OF_STATE
    reads = dict.fromkeys(number for argument in placeholders for number in _reads(argument))
    where = where or source.user_line()
    step = StateCall(tuple(reads), (), where, name, function, tuple(placeholders), call_structure)
    return _run(recorder, step)


def _run(recorder: Recorder, step: StateCall) -> Any:
    """Runs a call and adds it to the prologue with what it returned or raised."""
    values = {number: recorder.contents.elements(number, None) for number in step.reads}
    enclosing = current.set(None)  # the function computes with arrays; it records nothing
    try:
        result = step.function_result(values)
    except Exception as error:
        recorder.contents.steps.append(step.returning((), None, (), type(error)))
        raise
    finally:
        current.reset(enclosing)
    leaves, structure = pytrees.flatten(result)
    keys, writes, new_leaves = [], [], []
    for leaf in leaves:
        key = key_of(leaf)
        keys.append(ResultKey(key is not None, leaf if key is None else key))
        if key is None:
            new_leaves.append(leaf)
            continue
        new_leaves.append(_add_input(recorder, own_result(leaf), f"{step.name}()"))
        writes.append(recorder.builder.inputs[-1])
        if isinstance(new_leaves[-1], Traced) and not isinstance(leaf, (np.generic, int, float, complex)):
            new_leaves[-1].own_memory()
    recorder.contents.steps.append(step.returning(tuple(writes), structure, tuple(keys), None))
    return rebuilt(recorder, structure, new_leaves)


def _add_input(recorder: Recorder, value: Any, name: str) -> Any:
    """Adds a result of the prologue, an array or a Python number, as an input; returns its traced value or size."""
    where = source.user_line()
    if type(value) in (int, float, complex):
        kind = type(value).__name__
        result = recorder.scalar_argument(value, _NUMBERS[kind], kind, name, where)
    else:
        result = recorder.tensor_argument(value.shape, dtype_of_array(value), name, where)
        result.memory = None
    number = recorder.builder.inputs[-1]
    if recorder.builder.values[number].is_tensor:
        recorder.contents.add_axes(number)
    recorder.builder.add_constant(number, value, is_state=True)
    recorder.contents.add_result(number, value)
    return result


def _is_no_constant(recorder: Recorder, leaf: Any) -> bool:
    """Whether an argument is neither traced nor a value that is the same at every call.

    Code of the user's may read state, and an overlay ends with the trace.
    """
    if isinstance(leaf, (MaskedElements, FunctionType, MethodType)):
        return True
    original = None if recorder.overlays is None else recorder.overlays.original(leaf)
    return original is not None and not isinstance(leaf, Traced)


def _placeholder(recorder: Recorder, leaf: Any, reason: str) -> Any:
    """Returns an argument of a call as a value, a size or a constant; NOT_OF_STATE if it has no known value."""
    if isinstance(leaf, SymbolicSize):
        extent = recorder.simplify(leaf.extent)
        axes = recorder.contents.axes
        if not isinstance(extent, int) and all(symbol.id in axes for symbol in symbols(extent)):
            return SizeOf(extent, {symbol.id: axes[symbol.id] for symbol in symbols(extent) if symbol.id is not None})
        return recorder.pin(extent, reason)
    if not isinstance(leaf, Traced):
        return leaf
    if leaf.on_host and leaf.read is not None:
        value = recorder.value_of(leaf, reason)
        # NumPy promotes its scalars by their type, and numbers of Python by their kind.
        scalar = value if leaf.weak else leaf.value.dtype.numpy.type(value)
        return scalar if leaf.weak or leaf.is_immutable else np.asarray(scalar)
    if recorder.contents.elements(leaf.number, reason) is None:
        return NOT_OF_STATE
    return ValueOf(leaf.number, leaf.is_immutable)


def _reads(placeholder: Any) -> tuple[int, ...]:
    if isinstance(placeholder, ValueOf):
        return (placeholder.number,)
    return placeholder.reads if isinstance(placeholder, SizeOf) else ()


def name_of(function: Any) -> str:
    """The function as the user writes it, as in `np.linalg.cholesky`."""
    module = getattr(function, "__module__", None) or ""
    public = [part for part in module.split(".") if not part.startswith("_") and part not in ("builtins", "core")]
    path = ".".join([*public, getattr(function, "__name__", type(function).__name__)])
    return f"np.{path[6:]}" if path.startswith("numpy.") else path
