"""Calls of Python's `logging` in a traced function: each call of the function logs, as the plain function does.

A message of a level that is enabled is recorded like a line of `print`. Whether a level is enabled is compared at every
call, so that a message that no handler gets costs that comparison alone.
"""

from __future__ import annotations

import copy
import functools
import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tracefuse import source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.effects.printed_values import record_effect
from tracefuse.frontend.tracer.record.recorder import current

_LEVELS = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "warn": logging.WARNING,
    "error": logging.ERROR, "critical": logging.CRITICAL, "fatal": logging.CRITICAL, "exception": logging.ERROR,
}  # fmt: skip
"""The levels of the methods of loggers and of the functions of `logging`."""


def _is_enabled(level: int, logger: Any) -> bool:
    return bool(logger.isEnabledFor(level))


_CONFIGURING = ("addHandler", "removeHandler", "setLevel", "addFilter", "removeFilter")
"""Methods that change a logger, and with it where later lines go."""


def _refusal(logger: logging.Logger, change: str) -> UnsupportedError:
    return UnsupportedError(
        f"logging.getLogger({logger.name!r}).{change} in a fused function, whose lines are logged after it has changed",
        hint="configure logging outside of the fused function", where=source.user_line(), runs_function=True,
    )  # fmt: skip


class LoggerTwin:
    """A logger in a trace."""

    def __init__(self, logger: logging.Logger) -> None:
        self.__dict__["_logger"] = logger

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self) if source.is_internal(sys._getframe(1).f_code.co_filename) else type(self._logger)

    def __getattr__(self, name: str) -> Any:
        if name in _LEVELS:
            defaults = {"exc_info": True} if name == "exception" else {}
            return ShowingCall(functools.partial(self._log, _LEVELS[name], **defaults))
        if name in _CONFIGURING or name == "handlers":
            raise _refusal(self._logger, name)
        return ShowingCall(self._log) if name == "log" else getattr(self._logger, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise _refusal(self._logger, f"{name} = ...")

    @source.forwards
    def isEnabledFor(self, level: int) -> bool:
        """Whether a level is enabled, which every call compares."""
        logger, recorder = self._logger, current.get()
        is_enabled = _is_enabled(level, logger)
        if recorder is not None and recorder.overlays is not None:
            at = Place(f"logging.getLogger({logger.name!r})", routes.to(logger), logger, source.user_line())
            text = f"{{}}.isEnabledFor({level})"
            recorder.overlays.read(is_enabled, at.derived(text, functools.partial(_is_enabled, level), is_enabled))
        return is_enabled

    @source.forwards
    def _log(
        self, level: int, message: Any, *arguments: Any, exc_info: Any = None, extra: Any = None, **more: Any
    ) -> None:
        if not self.isEnabledFor(level):
            return
        frame = source.user_frame()
        at = ("", 0, "") if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        raised = sys.exc_info()[1] if exc_info is True else exc_info
        error = (type(raised), copy.copy(raised), None) if isinstance(raised, BaseException) else None
        emit = functools.partial(_emit, self._logger, level, at, error, extra)
        if record_effect(emit, (message, *arguments)) is NotImplemented:
            emit(message, *arguments)


class ShowingCall:
    """A function that shows the texts that it gets, and does nothing else with them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @source.forwards
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._function(*arguments, **keywords)


SHOWING = (LoggerTwin, ShowingCall)
"""Types of functions, and of objects with methods, that show the texts that they get."""


def _emit(
    logger: logging.Logger, level: int, at: tuple[str, int, str], error: Any, extra: Any, message: Any, *arguments: Any
) -> None:
    """Logs a message of a call. at: the file, the line and the function of the user's code."""
    if logger is logging.root and not logger.handlers:
        logging.basicConfig()
    file, line, function = at
    shown = message if isinstance(message, str) else str(message)
    logger.handle(logger.makeRecord(logger.name, level, file, line, shown, arguments, error, function, extra))


def _get_logger(name: str | None = None) -> Any:
    return LoggerTwin(logging.getLogger(name))


def _of_root(name: str) -> Callable[..., Any]:
    @source.forwards
    def call(*arguments: Any, **keywords: Any) -> Any:
        return getattr(LoggerTwin(logging.root), name)(*arguments, **keywords)

    return call


FUNCTIONS: Mapping[int, Any] = MappingProxyType({
    id(logging.getLogger): _get_logger,
    **{id(getattr(logging, name)): ShowingCall(_of_root(name)) for name in (*_LEVELS, "log") if hasattr(logging, name)},
})  # fmt: skip
"""Twins of the functions of `logging`, by the id of each."""
