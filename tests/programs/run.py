"""Runs the whole programs with and without `@fuse`: `python -m tests.programs.run [--field F] [--program P]`.

Each program runs in a process of its own, ten times: its state changes between the calls, and so do the layouts and the
sizes of its arguments. Results with their types, arguments and reachable state are compared with those of the plain
function on equal arguments. Sizes are small unless they are scaled: `--scale 4` makes most loops over an axis long
enough to be recorded as loops. Prints an outcome for each program and the time of a warm call against NumPy.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from tests.programs.case import Case
from tests.programs.comparison import difference, state_of
from tracefuse import fuse, wait_for_compilation
from tracefuse.errors import InternalError, TracefuseError

FOLDER = Path(__file__).parent
FIELDS = sorted(path.stem for path in FOLDER.glob("*program*s*.py") if not path.stem.startswith("test_"))
LIMIT_SECONDS = 10.0
"""A call that takes more processor time counts as a failure."""
LIMIT_OF_A_CALL = 60.0
"""The seconds after which a process without an outcome is ended."""

CALLS = (
    (0, "C"), (0, "C"), (1, "C"), (0, "strided"), (1, "Fortran"), (0, "reversed"), (1, "strided"), (0, "Fortran"),
    (1, "C"), (0, "C"),
)  # fmt: skip
"""Which of a program's sizes each call has, and the layout of its arrays."""


class Outcome(NamedTuple):
    """What became of a program: the kind, the first call (from 1) that failed, why, and times in seconds.

    longest: the most processor time of a call. fused, plain: of a warm call.
    """

    kind: str
    call: int = 0
    reason: str = ""
    longest: float = 0.0
    fused: float = 0.0
    plain: float = 0.0


def load(field: str, copy: str) -> ModuleType:
    """A copy of a field's module with globals of its own."""
    spec = importlib.util.spec_from_file_location(f"{field}_{copy}", FOLDER / f"{field}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def laid_out(value: Any, layout: str) -> Any:
    """A value with each of its arrays in another layout; containers are copied."""
    if isinstance(value, dict):
        return {key: laid_out(one, layout) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(laid_out(one, layout) for one in value)
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        return value
    if layout == "Fortran":
        return np.asfortranarray(value)
    if layout == "strided":
        wide = np.zeros((*value.shape[:-1], 2 * value.shape[-1]), value.dtype)
        wide[..., ::2] = value
        return wide[..., ::2]
    if layout == "reversed":
        return value[::-1].copy()[::-1]
    return value


class Side:
    """A program, plain or fused, with its objects and closures, one for each size."""

    def __init__(self, field: str, position: int, is_fused: bool, scale: int = 1) -> None:
        self.module = load(field, "fused" if is_fused else "plain")
        listed: Case = self.module.CASES[position]
        self.case = replace(listed, sizes=tuple(scale * size for size in listed.sizes))
        self.wrap: Callable[[Any], Any] = fuse if is_fused else lambda function: function
        self.targets: dict[int, Any] = {}
        if self.case.instance is not None:
            owner, _, name = self.case.name.rpartition(".")
            setattr(getattr(self.module, owner), name, self.wrap(self.case.function))
        elif self.case.closure is None:
            self.function = self.wrap(self.case.function)

    def target(self, size: int, seed: int) -> Any:
        """The object, the closure or the function that is called."""
        if size not in self.targets:
            random = np.random.default_rng(seed)
            if self.case.instance is not None:
                self.targets[size] = self.case.instance(random, size)
            elif self.case.closure is not None:
                self.targets[size] = self.wrap(self.case.function(*self.case.closure(random, size)))
            else:
                self.targets[size] = self.function
        return self.targets[size]

    def bound(self, size: int, seed: int) -> Callable[..., Any]:
        target = self.target(size, seed)
        return getattr(target, self.case.name.rpartition(".")[2]) if self.case.instance is not None else target

    def change(self, size: int, seed: int) -> None:
        """Changes state between two calls."""
        if self.case.between is not None:
            target = self.target(size, seed)
            subject = self.module if self.case.instance is None and self.case.closure is None else target
            self.case.between(subject, np.random.default_rng(seed))

    def arguments(self, size: int, seed: int, layout: str) -> tuple[Any, ...]:
        arguments = self.case.arguments(np.random.default_rng(seed), size)
        return tuple(laid_out(one, layout if self.case.layouts else "C") for one in arguments)


def attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, BaseException | None, float]:
    """What a call returns or raises, and its seconds."""
    start = time.perf_counter()
    try:
        return function(*arguments), None, time.perf_counter() - start
    except Exception as error:
        return None, error, time.perf_counter() - start


def judged(error: BaseException | None, expected: BaseException | None) -> tuple[str, str] | None:
    """The kind and reason of a failure by exception; None where both agree."""
    if error is None and expected is None:
        return None
    if error is None:
        return "value differs", f"no error, NumPy raises {type(expected).__name__}: {expected}"
    if expected is not None and isinstance(error, type(expected)):
        return None
    text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if isinstance(error, TracefuseError) and not isinstance(error, InternalError):
        return "refused", text
    return "internal error", text


def run_calls(
    fused: Side, plain: Side, calls: tuple[tuple[int, str], ...], report: Callable[[Outcome], None]
) -> Outcome:
    """Runs the calls on both sides up to the first that differs."""
    longest = 0.0
    for number, (which, layout) in enumerate(calls, 1):
        size = fused.case.sizes[which]
        if number > 1:
            fused.change(size, 100 + number)
            plain.change(size, 100 + number)
        given, right = (side.arguments(size, number, layout) for side in (fused, plain))
        expected, expected_error, _ = attempt(plain.bound(size, 100), right)
        start = time.process_time()
        result, error, _ = attempt(fused.bound(size, 100), given)
        longest = max(longest, time.process_time() - start)
        if failure := judged(error, expected_error):
            return Outcome(failure[0], number, failure[1], longest)
        why = difference(result, expected, "result") or difference(given, right, "arguments")
        states = (state_of(side.module, side.target(size, 100)) for side in (fused, plain))
        if why := why or difference(*states, "state"):
            return Outcome("value differs", number, why, longest)
        if longest > LIMIT_SECONDS:
            return Outcome("compile longer than 10 s", number, f"{longest:.1f} s", longest)
        report(Outcome("running", number, "", longest))
    return Outcome("unchanged ok", 0, "", longest)


def best_time(side: Side) -> float:
    """The seconds of a warm call, best of several."""
    size = side.case.sizes[-1]
    function, arguments = side.bound(size, 100), side.arguments(size, 1, "C")
    attempt(function, arguments)
    wait_for_compilation()
    times = []
    end = time.perf_counter() + 0.1
    while time.perf_counter() < end or len(times) < 3:
        times.append(attempt(function, arguments)[2])
    return min(times)


def run_program(field: str, position: int, scale: int, connection: Connection) -> None:
    """The process of one program; sends outcomes, the last of which counts."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    fused, plain = Side(field, position, True, scale), Side(field, position, False, scale)
    outcome = run_calls(fused, plain, CALLS, connection.send)
    if outcome.kind == "unchanged ok":
        outcome = outcome._replace(fused=best_time(fused), plain=best_time(plain))
    connection.send(outcome)


def outcome_of(field: str, position: int, scale: int = 1) -> Outcome:
    """Runs a program in a process that is ended when a call takes far too long."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_program, args=(field, position, scale, sender))
    process.start()
    sender.close()
    last = Outcome("running", 0)
    try:
        while last.kind == "running":
            if not receiver.poll(LIMIT_OF_A_CALL):
                reason = f"more than {LIMIT_OF_A_CALL:.0f} s"
                return Outcome("compile longer than 10 s", last.call + 1, reason, LIMIT_OF_A_CALL)
            last = receiver.recv()
    except EOFError:
        process.join()
        return Outcome("internal error", last.call + 1, f"the process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()
    return last


def line_of(name: str, outcome: Outcome) -> str:
    """A line of the table."""
    if outcome.kind == "unchanged ok":
        ratio = outcome.plain / outcome.fused if outcome.fused else 0.0
        times = f"{outcome.fused * 1e6:9.1f} us, NumPy {outcome.plain * 1e6:9.1f} us, {ratio:5.2f} x"
        return f"{name:32} {outcome.kind:24} {outcome.longest:6.2f} s  {times}"
    return f"{name:32} {outcome.kind:24} {outcome.longest:6.2f} s  call {outcome.call}: {outcome.reason}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--field", action="append", choices=FIELDS, help="run this field only; may be repeated")
    parser.add_argument("--program", help="run programs of this name only")
    parser.add_argument("--scale", type=int, default=1, help="multiply the sizes of each program by this")
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="tracefuse-programs-") as folder:
        os.environ["TRACEFUSE_CACHE_DIR"] = folder
        for field in options.field or FIELDS:
            counts: Counter[str] = Counter()
            for position, case in enumerate(load(field, "listed").CASES):
                if options.program in (None, case.name):
                    outcome = outcome_of(field, position, options.scale)
                    counts[outcome.kind] += 1
                    print(line_of(case.name, outcome), flush=True)
            print(f"-- {field}: {sum(counts.values())} programs, {dict(counts)}\n", flush=True)
            totals += counts
    print(f"{sum(totals.values())} programs, {dict(totals)}")


if __name__ == "__main__":
    main()
