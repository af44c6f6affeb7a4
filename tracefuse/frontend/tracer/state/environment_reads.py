"""State of the process that a trace reads: environment variables, context variables, and what weak references lead to.

Each read is compared at every call, as a read of a global is. How NumPy treats floating-point errors may be changed
inside of the function, except to what kernels do not do.
"""

from __future__ import annotations

import functools
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy._core import umath

from tracefuse import source
from tracefuse.errors import TraceError, UnsupportedError
from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.captured.inner_objects import referent
from tracefuse.frontend.tracer.record.recorder import current

_UNSET = object()


def _read(value: Any, place: Place) -> Any:
    """Returns the part of a value that a trace reads, which every call compares."""
    recorder = current.get()
    return value if recorder is None or recorder.overlays is None else recorder.overlays.read(value, place)


def _refuse(name: str) -> TraceError:
    return TraceError(
        f"{name} is changed while a function is traced: later calls would not change it",
        hint="change it outside of the fused function", where=source.user_line(), runs_function=True,
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
        _check_error_state(original.__name__, {**dict(zip(_KINDS_OF_ERRORS, arguments, strict=False)), **keywords})
        return original(*arguments, **keywords)

    return call


_KINDS_OF_ERRORS = ("all", "divide", "over", "under", "invalid")


def _check_error_state(function: str, treatments: Mapping[str, Any]) -> None:
    """Raises UnsupportedError where NumPy would report floating-point errors other than by warnings."""
    for name, treatment in treatments.items():
        if treatment in ("raise", "call", "print", "log") and name in _KINDS_OF_ERRORS:
            raise _without_checks(f"np.{function}({name}={treatment!r})")


def _without_checks(call: str) -> UnsupportedError:
    return UnsupportedError(
        f"{call} in a fused function, which checks no floating-point errors",
        hint="check the result, as in `if not np.isfinite(y).all(): raise FloatingPointError('y')`",
        where=source.user_line(), runs_function=True,
    )  # fmt: skip


def _checked_filter(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the twin of a function that says what Python does with warnings, which may be NumPy's."""

    @source.forwards
    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if "error" in (*arguments[:1], keywords.get("action")):
            raise _without_checks(f"warnings.{original.__name__}('error')")
        return original(*arguments, **keywords)

    return call


@source.forwards
def _catch_warnings(*arguments: Any, **keywords: Any) -> Any:
    """The twin of `warnings.catch_warnings`."""
    if keywords.get("record") or keywords.get("action") == "error":
        raise _without_checks(f"warnings.catch_warnings({', '.join(f'{k}={v!r}' for k, v in keywords.items())})")
    return warnings.catch_warnings(*arguments, **keywords)


def _refuses_print_options(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the twin of a function that sets how texts of arrays look, which each call makes after its kernels."""

    @source.forwards
    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        raise UnsupportedError(
            f"np.{original.__name__} in a fused function, whose texts of arrays are made with the options of its end",
            hint="make the text outside of the fused function", where=source.user_line(),
        )  # fmt: skip

    return call


ENVIRONMENT = EnvironmentTwin()
TWINS: dict[int, Any] = {
    id(os.environ): ENVIRONMENT, id(os.getenv): _getenv,
    **{id(one): _checked_error_state(one) for one in (np.errstate, np.seterr)},
    **{id(one): _checked_filter(one) for one in (warnings.simplefilter, warnings.filterwarnings)},
    id(warnings.catch_warnings): _catch_warnings,
    **{id(one): _refuses_print_options(one) for one in (np.printoptions, np.set_printoptions)},
}  # fmt: skip
"""Twins of the objects that give environment variables and set the treatment of errors and warnings, by id."""
MODULES = (warnings,)


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
        if self._variable is not _ERROR_STATE:
            raise _refuse(self._place.path)
        token = self._variable.set(value)  # of a function under np.errstate as a decorator, which resets it
        try:
            _check_error_state("errstate", np.geterr())
        except UnsupportedError:
            self._variable.reset(token)
            raise
        return token

    def reset(self, token: Any) -> None:
        if self._variable is not _ERROR_STATE:
            raise _refuse(self._place.path)
        self._variable.reset(token)


_ERROR_STATE = getattr(umath, "_extobj_contextvar", None)
"""The variable that holds how NumPy treats floating-point errors."""


def _contents(variable: ContextVar[Any]) -> Any:
    return variable.get(_UNSET)


def _is_unset(variable: ContextVar[Any]) -> bool:
    return _contents(variable) is _UNSET


def referent_twin(reference: weakref.ref[Any], place: Place) -> Callable[[], Any]:
    """Returns a function that gives what a trace sees of the object that a weak reference leads to."""
    value = reference()
    return lambda: _read(value, place.derived("{}()", referent, value))
