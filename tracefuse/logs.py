"""What tracefuse says while it works: the logger "tracefuse", and the levels of the option `debug`.

Levels 1 (segments, times, why a plan was made) go out as INFO, 2 to 4 as DEBUG. Where the application has set up no
handler for the logger or the root logger, lines go to standard error; else the application's handlers get them.

Knows: the standard library's logging, options. Must not know: what is said.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from tracefuse.config import Options

LOGGER = logging.getLogger("tracefuse")


class _StandardError(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what sys.stderr is at that moment, which notebooks and tests replace."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("tracefuse: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_own = _StandardError()


def say(options: Options, level: int, message: Callable[[], str]) -> None:
    """Logs `message()` if the option `debug` is at least `level`; else it is not called."""
    if options.debug < level:
        return
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.DEBUG)
    # Another handler may have come since, then ours goes.
    others = any(handler is not _own for handler in LOGGER.handlers)
    if others or logging.getLogger().handlers:
        LOGGER.removeHandler(_own)
    elif _own not in LOGGER.handlers:
        LOGGER.addHandler(_own)
    LOGGER.log(logging.INFO if level == 1 else logging.DEBUG, "%s", message())
