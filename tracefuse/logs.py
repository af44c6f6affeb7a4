"""Logging: the logger "tracefuse" and the levels of the option `debug`.

Level 1 (segments, times, reasons for new plans) logs as INFO, levels 2 to 4 as DEBUG. Messages go to the handlers of
the logger or the root logger; if the application has set up none, to standard error.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

from tracefuse.config import Options

LOGGER = logging.getLogger("tracefuse")


class _StandardError(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the current sys.stderr, which notebooks and tests replace."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("tracefuse: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_handler = _StandardError()


def say(options: Options, level: int, message: Callable[[], str]) -> None:
    """Logs `message()` if the option `debug` is at least `level`; else does not call it."""
    if options.debug < level:
        return
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.DEBUG)
    # If the application has added a handler since, ours is removed.
    others = any(handler is not _handler and not isinstance(handler, _Listing) for handler in LOGGER.handlers)
    if others or logging.getLogger().handlers:
        LOGGER.removeHandler(_handler)
    elif _handler not in LOGGER.handlers:
        LOGGER.addHandler(_handler)
    LOGGER.log(logging.INFO if level == 1 else logging.DEBUG, "%s", message())


class _Listing(logging.Handler):
    """Appends the text of each message to a list."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__()
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextlib.contextmanager
def captured_logs() -> Iterator[list[str]]:
    """Gives the list of the messages that are logged inside the block; they still go to the other handlers."""
    messages: list[str] = []
    listing = _Listing(messages)
    LOGGER.addHandler(listing)
    try:
        yield messages
    finally:
        LOGGER.removeHandler(listing)
