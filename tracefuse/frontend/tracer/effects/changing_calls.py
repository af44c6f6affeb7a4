"""Functions of Python that give another result at every call: clocks, dates and random numbers. In a trace they warn.

What they give while a function is traced is a constant of every later call. Methods of `random.Random` are found by the
state of the generator, see `random_watch.py`.

Must not know: overlays of values.
"""

from __future__ import annotations

import datetime
import functools
import os
import random
import secrets
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tracefuse import source

MODULES = (datetime, os, random, secrets, time, uuid)
"""Modules with such functions."""

_CLOCKS = (
    "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time",
    "process_time_ns", "thread_time", "thread_time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime",
)  # fmt: skip
_SILENT = frozenset({"seed", "getstate", "setstate"})
"""Functions of `random` that draw nothing."""


def _twin(function: Callable[..., Any], name: str, value: str) -> Callable[..., Any]:
    @source.forwards
    def call(*arguments: Any, **keywords: Any) -> Any:
        frame = source.user_frame()
        if frame is not None:
            message = (
                f"{name}() while a function is traced: {value} is the same at every later call; pass it as an argument"
            )
            warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)
        return function(*arguments, **keywords)

    functools.update_wrapper(call, function, assigned=("__name__", "__qualname__", "__doc__", "__module__"))
    return call


def _twins() -> Iterator[tuple[int, Callable[..., Any]]]:
    """Twins by the id of the function."""
    for name in _CLOCKS:
        function = getattr(time, name, None)
        if function is not None:
            yield id(function), _twin(function, f"time.{name}", "the time")
    for name in random.__all__:
        function = getattr(random, name)
        if callable(function) and not isinstance(function, type) and name not in _SILENT:
            yield id(function), _twin(function, f"random.{name}", "the number")
    for name in ("choice", "randbelow", "randbits", "token_bytes", "token_hex", "token_urlsafe"):
        yield id(getattr(secrets, name)), _twin(getattr(secrets, name), f"secrets.{name}", "the result")
    for module, name in ((os, "urandom"), (uuid, "uuid1"), (uuid, "uuid4")):
        yield id(getattr(module, name)), _twin(getattr(module, name), f"{module.__name__}.{name}", "the result")


class _TwinOfDates(type):
    """The type of twins of the classes of dates, whose instances are those of the classes themselves."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.__mro__[1])


def _dates(original: Any, names: tuple[str, ...]) -> tuple[int, Any]:
    """The twin of a class of dates, whose methods of these names read the clock."""
    methods: dict[str, Any] = {"__new__": lambda cls, *arguments, **keywords: original(*arguments, **keywords)}
    for name in names:
        twin = _twin(getattr(original, name), f"{original.__name__}.{name}", "the time")
        methods[name] = staticmethod(twin)
    return id(original), _TwinOfDates(original.__name__, (original,), methods)


def _calendar() -> Iterator[tuple[int, Any]]:
    yield _dates(datetime.datetime, ("now", "today", "utcnow"))
    yield _dates(datetime.date, ("today",))


FUNCTIONS: dict[int, Callable[..., Any]] = {**dict(_twins()), **dict(_calendar())}
"""Twins of the functions, by the id of each."""
