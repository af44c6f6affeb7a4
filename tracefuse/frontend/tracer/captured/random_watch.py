"""Detects random numbers drawn while a function is traced: they would be constants of every later call.

It compares NumPy's global generator and the generators that the function can reach before and after the trace. Other
sources (a generator created inside the function, CuPy's random functions) are found by the names that the code reads.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.python_code.code_names import CodeNames

_MAKERS = frozenset({"default_rng", "RandomState"})


class RandomWatch:
    """Detects random draws during a trace: create it before the trace, call `warn` after it."""

    def __init__(self, function: Callable[..., Any], places: Sequence[Place], code_names: CodeNames) -> None:
        """Records the generator states. places: those that the function can read."""
        self._function = function
        self._sources: list[tuple[str, Callable[[], Any], str]] = [("np.random", _global_state, repr(_global_state()))]
        self._named: list[str] = []
        names: set[str] = set()
        for place in places:
            value = place.value
            if isinstance(value, FunctionType):
                read = code_names.of(value.__code__)
                names |= read.globals | read.attributes | read.modules
            if isinstance(value, (np.random.Generator, np.random.RandomState)) or _is_of_python(value):
                self._watch(place.path, value)
            named = isinstance(value, (ModuleType, type))  # other objects may have a `__getattr__` of the user
            module = value.__module__ if isinstance(value, FunctionType) else value.__name__ if named else ""
            if str(module) == "cupy" or str(module).startswith("cupy.random"):
                self._named.append("cupy.random")
        self._named = [name for name in self._named if "random" in names or name != "cupy.random"]
        self._named += [f"np.random.{name}" for name in sorted(_MAKERS & names)]

    def _watch(self, path: str, generator: Any) -> None:
        def state() -> Any:
            return _state_of(generator)

        self._sources.append((path, state, repr(state())))

    @contextmanager
    def without_draws_of_stages(self) -> Iterator[None]:
        """Excludes what the stages of the trace draw that run inside of this context."""
        drawn = self._drawn()
        try:
            yield
        finally:
            self._sources = [
                (name, state, before if name in drawn else repr(state())) for name, state, before in self._sources
            ]

    def _drawn(self) -> list[str]:
        return [name for name, state, before in self._sources if repr(state()) != before]

    def warn(self, made: Collection[str]) -> None:
        """Issues a UserWarning, located at the function, for each random source that the trace drew from.

        made: the functions and types of `np.random` that make generators and whose calls were recorded.
        """
        drawn = self._drawn()
        named = [name for name in self._named if name.rpartition(".")[2] not in made]
        for name in dict.fromkeys([*drawn, *named]):
            code = getattr(self._function, "__code__", None)
            message = (
                f"{getattr(self._function, '__name__', 'the function')} draws random numbers from {name} while it is "
                "traced: they are the same at every later call; draw them outside and pass them as arguments"
            )
            if code is None:
                warnings.warn(message, UserWarning, stacklevel=2)
            else:
                warnings.warn_explicit(message, UserWarning, code.co_filename, code.co_firstlineno)


def _global_state() -> Any:
    state: Any = np.random.get_state(legacy=False)
    return _summary(state)


def _is_of_python(value: Any) -> bool:
    """Whether a value is a generator of Python other than the global one, whose functions have twins."""
    return isinstance(value, random.Random) and value is not getattr(random.random, "__self__", None)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return _summary(generator.get_state(legacy=False))
    return _summary(generator.bit_generator.state)


def _summary(state: Any) -> Any:
    """Returns a state with digests of its arrays, which `repr` would abbreviate; the text of all bytes takes longer."""
    if isinstance(state, dict):
        return {key: _summary(value) for key, value in state.items()}
    return hashlib.blake2b(state.tobytes()).hexdigest() if isinstance(state, np.ndarray) else state
