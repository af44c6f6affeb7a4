"""Runs a random program under `fuse` and as the plain function, and finds the first difference of a call."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from tests.programs.comparison import difference
from tests.random_programs.random_programs import HELPERS, Box, Call, RandomProgram, compiled, values_of
from tracefuse import fuse
from tracefuse.errors import InternalError, TracefuseError

LIMIT_SECONDS = 60


class Difference(NamedTuple):
    """What differs: the kind, the number of the call (from 1), and how."""

    kind: str
    call: int
    text: str

    @property
    def key(self) -> str:
        """Equal for differences that are probably one."""
        return f"{self.kind}: {''.join(c for c in self.text.partition(' (')[0] if not c.isdigit())[:70]}"


class Skipped(Exception):
    """NumPy leaves a value of this program undefined."""


class ProgramSide:
    """A program with globals and an object of its own."""

    def __init__(self, program: RandomProgram, wrap: Callable[[Any], Any]) -> None:
        self.program = program
        self.globals: dict[str, Any] = dict(HELPERS)
        self.function = wrap(compiled(program.text, self.globals))
        self.owner = type("Owner", (Box,), {"program": self.function})
        self.box: Any = None
        self.extents: dict[str, int] | None = None

    def prepare(self, call: Call, changed: Callable[[Any], Any] = lambda one: one) -> tuple[Any, ...]:
        """Changes the captured state as the call wants it, and makes its arguments. changed: of each value."""
        arguments, captured, box = values_of(self.program, call)
        is_new = self.extents != call.extents
        self.extents = call.extents
        arguments, captured = tuple(map(changed, arguments)), {k: changed(v) for k, v in captured.items()}
        for name, value in captured.items():
            if is_new or call.change == "rebind":
                self.globals[name] = value
            elif call.change == "in place" and isinstance(self.globals[name], np.ndarray):
                target = self.globals[name]
                if target.flags.writeable:
                    target[...] = value
        if box is not None:
            self.change_object(box, is_new, call.change)
        return arguments

    def change_object(self, box: Box, is_new: bool, change: str) -> None:
        if is_new or change == "new object":
            self.box = self.owner(**vars(box))
        elif change == "rebind":
            self.box.state, self.box.rate = box.state, box.rate
        elif change == "in place" and isinstance(self.box.state, np.ndarray) and self.box.state.flags.writeable:
            try:
                self.box.state[...] = box.state
            except ValueError:
                self.box.state = box.state

    def __call__(self, arguments: tuple[Any, ...]) -> Any:
        return self.box.program(*arguments) if self.box is not None else self.function(*arguments)

    @property
    def state(self) -> dict[str, Any]:
        state = {name: self.globals[name] for name in self.program.captured}
        return {**state, **({"self": vars(self.box)} if self.box is not None else {})}


def quiet(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What a call returns or raises."""
    with warnings.catch_warnings(), np.errstate(all="ignore", invalid="warn"):
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message=".*encountered in cast.*")
        try:
            return function(), None
        except (RuntimeWarning, MemoryError) as reason:
            raise Skipped from reason
        except Exception as error:
            return None, error


def kind_of_error(error: BaseException) -> type:
    """The built-in class that users catch."""
    return next(one for one in type(error).__mro__ if one.__module__ == "builtins")


def compared_errors(error: BaseException | None, expected: BaseException | None, call: int) -> Difference | None:
    """The difference of two outcomes of which one is an error."""
    if str(expected).startswith("Geometric sequence cannot include zero"):
        return Difference("errors that depend on elements", call, "")
    if error is None:
        return Difference("no error", call, f"NumPy raises {type(expected).__name__}: {str(expected)[:60]}")
    first = str(error).splitlines()[0] if str(error) else ""
    if not isinstance(error, TracefuseError) and expected is None:
        return Difference("internal error", call, f"{type(error).__name__}: {first}")
    if isinstance(error, InternalError):
        return Difference("internal error", call, f"{type(error).__name__}: {first}")
    refused = type(error).__name__ in ("UnsupportedError", "TraceError", "ReadOnlyError")
    if expected is None:
        return Difference("refused" if refused else "error", call, f"{type(error).__name__}: {first}")
    if refused or isinstance(error, kind_of_error(expected)):
        return None
    return Difference(
        "error differs", call, f"{type(error).__name__}: {first}; NumPy: {type(expected).__name__}: {expected}"
    )


def first_difference(
    program: RandomProgram, settings: dict[str, Any], changed: Callable[[Any], Any] = lambda one: one,
    changed_of_plain: Callable[[Any], Any] = lambda one: one,
) -> Difference | None:  # fmt: skip
    """Runs all calls on both sides. changed: of each argument and captured value; changed_of_plain: of NumPy's."""
    plain, fused = ProgramSide(program, lambda one: one), ProgramSide(program, lambda one: fuse(one, **settings))
    for number, call in enumerate(program.calls, 1):
        right = plain.prepare(call, lambda one: changed_of_plain(changed(one)))
        mine = fused.prepare(call, changed)
        expected, expected_error = quiet(lambda: plain(right))  # noqa: B023
        with limit():
            result, error = quiet(lambda: fused(mine))  # noqa: B023
        if isinstance(expected_error, NameError):
            return None
        if error is not None or expected_error is not None:
            if why := compared_errors(error, expected_error, number):
                return why
            return None
        text = difference(as_numbers(result, expected), expected, "result") or difference(mine, right, "arguments")
        if text := text or difference(fused.state, plain.state, "state"):
            return Difference(text.partition("[")[0].partition(":")[0] + " differs", number, text)
    return None


def as_numbers(result: Any, expected: Any) -> Any:
    """Results whose arrays without axes are Python numbers where NumPy's function returns Python numbers."""
    if isinstance(expected, list | tuple) and isinstance(result, list | tuple) and len(result) == len(expected):
        entries = [as_numbers(one, other) for one, other in zip(result, expected, strict=True)]
        return result._make(entries) if hasattr(result, "_make") else type(result)(entries)
    is_number = type(expected) in (bool, int, float, complex)
    return result.item() if is_number and isinstance(result, np.ndarray) and result.ndim == 0 else result


@contextmanager
def limit() -> Any:
    """Ends a call that takes too long."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"a call takes more than {LIMIT_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
