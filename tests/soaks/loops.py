"""Checks random loops against Python's: `python -m tests.soaks.loops [first] [last] [target]`.

Prints the seed, the first difference and the source of each program that differs, then counts. The target is
"reference" or "cpu". A refusal of tracefuse is counted, and is no difference.
"""

from __future__ import annotations

import copy
import signal
import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np

from tests.random_programs.random_typed_loops import arguments_of, random_typed_loops
from tracefuse import fuse

SIZES = ((19, 23, 5), (18, 1, 21), (9, 20, 0), (6, 40, 3))
"""The sizes of the calls of one program."""

SECONDS = 30
"""The most that one call may take."""


def difference(result: Any, expected: Any, path: str = "result") -> str | None:
    """Returns where two results differ; None if they do not."""
    if isinstance(expected, (list, tuple)):
        if type(result) is not type(expected) or len(result) != len(expected):
            return f"{path}: {str(result)[:100]}, expected {str(expected)[:100]}"
        pairs = enumerate(zip(result, expected, strict=True))
        return next((one for k, pair in pairs if (one := difference(*pair, f"{path}[{k}]"))), None)
    if isinstance(expected, dict):
        return difference(list(result.items()), list(expected.items()), path)
    if isinstance(expected, set):
        return None if result == expected else f"{path}: {result}, expected {expected}"
    if expected is None or result is None or isinstance(expected, str):
        return None if result is expected or result == expected else f"{path}: {result!r}, expected {expected!r}"
    one, other = np.asarray(result), np.asarray(expected)
    are_of_python = (type(value) in (bool, int, float, complex) for value in (result, expected))
    is_same = one.dtype == other.dtype and one.shape == other.shape and len(set(are_of_python)) == 1
    if other.dtype.kind not in "biufc":
        return (
            None if is_same and np.array_equal(one, other) else f"{path}: {result!r:.200}, expected {expected!r:.200}"
        )
    tolerance = 2e-2 if other.dtype == np.float16 else 1e-5 if other.dtype == np.float32 else 1e-12
    if not is_same or not np.allclose(one, other, rtol=tolerance, atol=tolerance / 1e3, equal_nan=True):
        return f"{path}: {result!r:.200}, expected {expected!r:.200}"
    return None


def outcome(function: Any, arguments: list[Any]) -> tuple[Any, BaseException | None]:
    """Returns the results of a call with what it has changed, or its error."""
    try:
        owner, *others = arguments
        result = function.__get__(owner, type(owner))(*others)
    except Exception as error:
        return None, error
    return [result, arguments[0].state(), *arguments[1:]], None


def check(seed: int, target: str, refused: Counter[str]) -> str | None:
    """Returns how the calls of one program differ from Python's; None if they do not."""
    function, text = random_typed_loops(seed)
    fused = fuse(function, target=target)
    for size in SIZES[seed % len(SIZES)]:
        arguments = arguments_of(seed, size)
        expected, error = outcome(function, copy.deepcopy(arguments))
        signal.alarm(SECONDS)
        result, raised = outcome(fused, arguments)
        signal.alarm(0)
        is_refusal = type(raised).__module__.startswith("tracefuse") and type(raised).__name__ != "InternalError"
        if raised is not None and error is None and is_refusal:
            refused[str(raised)[:100]] += 1
            return None
        if (error is None) != (raised is None):
            return f"size {size}: {raised!r:.300}, expected {error!r:.200}\n{text}"
        differs = None if error is not None else difference(result, expected)
        if differs is not None:
            return f"size {size}: {differs}\n{text}"
    return None


def main(first: int, last: int, target: str) -> int:
    """Checks the programs of these seeds; returns how many differ."""
    signal.signal(signal.SIGALRM, _raise_timeout)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    failed, refused, slow = 0, Counter[str](), 0
    for seed in range(first, last):
        try:
            differs = check(seed, target, refused)
        except _TooSlow:
            slow += 1
            print(f"seed {seed}: more than {SECONDS} s", flush=True)
            continue
        if differs is not None:
            failed += 1
            print(f"seed {seed}: {differs}", flush=True)
    print(f"{failed} of {last - first} programs differ, {slow} are slow; refused: {refused.most_common(12)}")
    return failed


class _TooSlow(BaseException):
    """A call takes too long."""


def _raise_timeout(*_: Any) -> None:
    raise _TooSlow


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *("0", "300", "reference")[len(sys.argv) - 1 :]]
    sys.exit(bool(main(int(arguments[0]), int(arguments[1]), arguments[2])))
