"""Compares what a fused program left (results, arguments, reachable state) with what the plain program left."""

from __future__ import annotations

import enum
from collections import deque
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

DATA = (bool, int, float, complex, str, type(None), np.ndarray, np.generic, list, tuple, dict, set, deque)


def tolerance_of(dtype: np.dtype[Any]) -> float:
    """The relative error that results of iterated programs may have, beside the largest element."""
    if dtype.kind not in "fc":
        return 0.0
    return {2: 2e-2, 4: 1e-4}.get(dtype.itemsize // (2 if dtype.kind == "c" else 1), 1e-9)


def array_difference(fused: Any, plain: Any) -> str | None:
    """Why two arrays or scalars differ. A 0-d array equals a NumPy scalar of its type: results are arrays."""
    # A tracer says that it is an array, so its own type is asked.
    kinds = (np.ndarray, np.generic)
    are_arrays = issubclass(type(fused), kinds) and isinstance(plain, kinds)
    if type(fused) is not type(plain) and not are_arrays:
        return f"type {type(fused).__name__}, NumPy has {type(plain).__name__}"
    mine, right = np.asarray(fused), np.asarray(plain)
    if mine.dtype != right.dtype:
        return f"dtype {mine.dtype}, NumPy has {right.dtype}"
    if mine.shape != right.shape:
        return f"shape {mine.shape}, NumPy has {right.shape}"
    if right.dtype.kind not in "fc":
        return None if np.array_equal(mine, right) else f"values {text_of(mine)}, NumPy has {text_of(right)}"
    relative = tolerance_of(right.dtype)
    finite = np.abs(right[np.isfinite(right)])
    absolute = relative * max(float(finite.max(initial=0.0)), 1e-30) * 1e-2
    if np.allclose(mine, right, rtol=relative, atol=absolute, equal_nan=True):
        return None
    return f"values {text_of(mine)}, NumPy has {text_of(right)}"


def text_of(array: Any) -> str:
    """A short text of an array."""
    text = np.array2string(np.asarray(array).ravel()[:4], precision=6).replace("\n", "")
    return text + ("..." if array.size > 4 else "")


def difference(fused: Any, plain: Any, path: str, seen: set[int] | None = None) -> str | None:
    """Where and why two values differ: containers and objects element by element."""
    seen = set() if seen is None else seen
    if isinstance(plain, enum.Enum):  # of two copies of a module
        same = (type(fused).__name__, getattr(fused, "name", None)) == (type(plain).__name__, plain.name)
        return None if same else f"{path}: {fused!r}, NumPy has {plain!r}"
    if isinstance(plain, np.ndarray | np.generic | bool | int | float | complex):
        why = array_difference(fused, plain)
        return why and f"{path}: {why}"
    if id(plain) in seen:
        return None
    seen.add(id(plain))
    if type(fused).__name__ != type(plain).__name__:
        return f"{path}: type {type(fused).__name__}, NumPy has {type(plain).__name__}"
    if isinstance(plain, dict):
        if list(fused) != list(plain):
            return f"{path}: keys {list(fused)}, NumPy has {list(plain)}"
        return first(difference(fused[k], plain[k], f"{path}[{k!r}]", seen) for k in plain)
    if isinstance(plain, list | tuple | deque):
        if len(fused) != len(plain):
            return f"{path}: {len(fused)} elements, NumPy has {len(plain)}"
        pairs = enumerate(zip(fused, plain, strict=True))
        return first(difference(mine, right, f"{path}[{k}]", seen) for k, (mine, right) in pairs)
    if isinstance(plain, np.random.Generator):
        return difference(fused.bit_generator.state, plain.bit_generator.state, path, seen)
    if hasattr(plain, "__dict__") and not callable(plain):
        return difference(vars(fused), vars(plain), path, seen)
    if callable(plain):
        return None
    return None if fused == plain else f"{path}: {fused!r}, NumPy has {plain!r}"


def first(reasons: Any) -> str | None:
    return next((reason for reason in reasons if reason), None)


def state_of(module: ModuleType, target: Any) -> dict[str, Any]:
    """The state that a program reaches: its object, its closure cells, and the data among the globals."""
    state: dict[str, Any] = {
        name: value for name, value in vars(module).items() if isinstance(value, DATA) and not name.startswith("__")
    }
    state.pop("CASES", None)
    function = getattr(target, "__wrapped__", target)
    for name, cell in zip(
        getattr(getattr(function, "__code__", None), "co_freevars", ()),
        getattr(function, "__closure__", None) or (),
        strict=True,
    ):
        if isinstance(cell.cell_contents, DATA):
            state[name] = cell.cell_contents
    if isinstance(function, partial):
        state["self"] = [*function.args, *function.keywords.values()]
    elif not isinstance(function, FunctionType):
        state["self"] = attributes_of(target)
    return state


def attributes_of(target: Any) -> dict[str, Any]:
    """The attributes of an object, in slots too."""
    slots = [name for kind in type(target).__mro__ for name in getattr(kind, "__slots__", ())]
    return {**{name: getattr(target, name) for name in slots}, **getattr(target, "__dict__", {})}
