"""State of the process that a trace reads: environment variables, context variables, and what weak references lead to.

Each read is compared at every call, as a read of a global is. How NumPy treats floating-point errors may be changed
inside of the function, except to what kernels do not do.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import TraceError, UnsupportedError
from tracefuse.frontend.tracer import routes
from tracefuse.frontend.tracer.captures import Place
from tracefuse.frontend.tracer.inner_objects import referent
from tracefuse.frontend.tracer.recorder import current

_UNSET = object()


def _read(value: Any, place: Place) -> Any:
    """Returns what a trace sees of a value, and lets every call compare it."""
    recorder = current.get()
    return value if recorder is None or recorder.overlays is None else recorder.overlays.read(value, place)


def _refuse(name: str) -> TraceError:
    return TraceError(
        f"{name} is changed while a function is traced: later calls would not change it",
        hint="change it outside of the fused function", where=source.user_line(),
    )  # fmt: skip


class EnvironmentTwin(MutableMapping[str, str]):
    """`os.environ` in a trace."""

    def __getitem__(self, name: str) -> str:
        at = Place("os.environ", routes.to(os.environ), os.environ, source.user_line())
        text = os.environ.get(name)
        _read(text, at.derived(f"{{}}.get({name!r})", functools.partial(_variable, name), text))
        if text is None:
            raise KeyError(name)
        return text

    def __iter__(self) -> Iterator[str]:
        at = Place("os.environ", routes.to(os.environ), os.environ, source.user_line())
        names = tuple(os.environ)
        _read(names, at.derived("tuple({})", tuple, names))
        return iter(names)

    def __len__(self) -> int:
        return len(tuple(iter(self)))

    def __setitem__(self, name: str, value: str) -> None:
        raise _refuse("os.environ")

    def __delitem__(self, name: str) -> None:
        raise _refuse("os.environ")


def _variable(name: str, environment: Any) -> str | None:
    text: str | None = environment.get(name)
    return text


def _getenv(key: str, default: Any = None) -> Any:
    return ENVIRONMENT.get(key, default)


def _checked_error_state(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the twin of a function that sets how NumPy treats floating-point errors."""

    @source.forwards
    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        names = ("all", "divide", "over", "under", "invalid")
        for name, treatment in (*zip(names, arguments, strict=False), *keywords.items()):
            if treatment in ("raise", "call", "print", "log") and name in names:
                raise UnsupportedError(
                    f"np.{original.__name__}({name}={treatment!r}) in a fused function, which checks no floating-point "
                    "errors", where=source.user_line(),
                    hint="check the result, as in `if not np.isfinite(y).all(): raise FloatingPointError('y')`",
                )  # fmt: skip
        return original(*arguments, **keywords)

    return call


ENVIRONMENT = EnvironmentTwin()
TWINS: dict[int, Any] = {
    id(os.environ): ENVIRONMENT, id(os.getenv): _getenv,
    **{id(one): _checked_error_state(one) for one in (np.errstate, np.seterr)},
}  # fmt: skip
"""Twins of the objects that give environment variables and set the treatment of errors, by the id of each."""


class ContextVariableTwin:
    """A context variable in a trace."""

    def __init__(self, variable: ContextVar[Any], place: Place) -> None:
        self._variable, self._place, self.name = variable, place, variable.name

    def get(self, *default: Any) -> Any:
        value = _contents(self._variable)
        place = self._place.derived("{}.get()", _contents, value)
        if value is _UNSET:
            _read(True, self._place.derived("{} is unset", _is_unset, True))
            return self._variable.get(*default)
        return _read(value, place)

    def set(self, value: Any) -> Any:
        raise _refuse(self._place.path)

    reset = set


def _contents(variable: ContextVar[Any]) -> Any:
    return variable.get(_UNSET)


def _is_unset(variable: ContextVar[Any]) -> bool:
    return _contents(variable) is _UNSET


def referent_twin(reference: weakref.ref[Any], place: Place) -> Callable[[], Any]:
    """Returns a function that gives what a trace sees of the object that a weak reference leads to."""
    value = reference()
    return lambda: _read(value, place.derived("{}()", referent, value))
