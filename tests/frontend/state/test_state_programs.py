"""Programs that change state around them, against the plain function on a state of its own, over ten calls.

After each call the result, every object of the state and the arguments are those of the plain function. The number of
traces is bounded.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frontend.state import programs_of_numbers_and_arrays, programs_of_objects
from tests.frontend.state.programs_of_numbers_and_arrays import Program
from tracefuse import fuse

PROGRAMS = [*programs_of_numbers_and_arrays.PROGRAMS, *programs_of_objects.PROGRAMS]
"""Programs, with the number of their traces at most."""


def reached(value: Any, seen: dict[int, int]) -> Any:
    """A picture of everything that is reached from a value: types, numbers, elements, and which objects are one."""
    if callable(value) and not hasattr(value, "__dict__"):
        return "callable"
    if isinstance(value, float) and not isinstance(value, np.generic):
        return "float", value
    if isinstance(value, (bool, int, str, type(None))):
        return type(value).__name__, value
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, np.generic):
        return "scalar", str(value.dtype), float(value)
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.tolist()
    if isinstance(value, dict):
        parts = [(key, reached(part, seen)) for key, part in value.items()]
    elif isinstance(value, set):
        parts = sorted(value)
    elif isinstance(value, (list, tuple, collections.deque)):
        parts = [reached(part, seen) for part in value]
    else:
        parts = []
    own = dict(getattr(value, "__dict__", {})) if not callable(value) or not hasattr(value, "__code__") else {}
    for name in getattr(type(value), "__slots__", ()):
        own[name] = getattr(value, name)
    return type(value).__name__, parts, [(name, reached(own[name], seen)) for name in sorted(own)]


def is_close(one: Any, other: Any) -> bool:
    """Whether two pictures are the same but for rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-12, atol=1e-12))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(is_close, one, other))
    return type(one) is type(other) and bool(one == other)


COMPILED = [
    (program, most)
    for program, most in PROGRAMS
    if program.__name__ in (
        "momentum_in_place", "a_running_average", "previous_and_current", "the_last_entry_of_a_history",
        "one_object_at_two_places", "class_attributes_and_super",
    )
]  # fmt: skip
"""Programs whose later calls take the fast path."""


@pytest.mark.parametrize(("program", "most"), PROGRAMS, ids=lambda value: getattr(value, "__name__", None))
def test_every_call_changes_the_state_as_the_plain_function_does(program: Program, most: int) -> None:
    check(program, most, "reference")


@pytest.mark.parametrize(("program", "most"), COMPILED, ids=lambda value: getattr(value, "__name__", None))
def test_the_fast_path_changes_the_state_as_the_plain_function_does(program: Program, most: int) -> None:
    check(program, most, "cpu")


def check(program: Program, most: int, target: str) -> None:
    """Compares ten calls, with growing sizes, of a fused function and of the plain one."""
    x = np.arange(5.0)

    def run(wrap: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
        function, state = program()
        wrapped = wrap(function)
        steps = []
        for call in range(10):
            argument = np.concatenate([x + call, np.ones(call // 4)])
            result = wrapped(argument)
            now = state() if callable(state) and hasattr(state, "__code__") else state
            steps.append(reached((_array(result), now), {}))
        return wrapped, steps

    _, expected = run(lambda function: function)
    fused, steps = run(lambda function: fuse(function, target=target))
    for call, (one, other) in enumerate(zip(steps, expected, strict=True)):
        assert is_close(one, other), f"call {call}: {one}, not {other}"
    assert fused.cache_info().traces <= most


def _array(result: Any) -> Any:
    """A result with 0-d arrays as NumPy scalars, which a fused function returns as arrays."""
    return result[()] if isinstance(result, np.ndarray) and not result.shape else result
