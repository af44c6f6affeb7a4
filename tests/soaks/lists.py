"""Checks random functions of lists against Python's: `python -m tests.soaks.lists [first] [last] [target]`.

Prints the seed, the first difference and the source of each program that differs, then counts. The target is
"reference" or "cpu". A refusal of tracefuse is counted, and is no difference.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np

from tests.programs.comparison import difference
from tests.random_programs.random_lists import random_lists
from tracefuse import fuse
from tracefuse.errors import InternalError, TracefuseError

SIZES = (20, 23, 20, 6, 33)
"""The sizes of the calls of one program."""


def check(seed: int, target: str, outcomes: Counter[str]) -> str | None:
    """Returns how the calls of one program differ from Python's; None if they do not."""
    function, text = random_lists(seed)
    fused = fuse(function, target=target)
    for size in SIZES:
        x = np.random.default_rng(seed + size).random(size)
        expected, error = _outcome(function, x)
        result, raised = _outcome(fused, x)
        if isinstance(raised, TracefuseError) and not isinstance(raised, InternalError):
            outcomes["both raise" if error is not None else f"refused: {str(raised)[:80]}"] += 1
            return None
        if (error is None) != (raised is None):
            return f"size {size}: {raised!r:.300}, expected {error!r:.200}\n{text}"
        why = None if error is not None else difference(result, expected, "result")
        if why is not None:
            return f"size {size}: {why}\n{text}"
    outcomes["equal"] += 1
    return None


def _outcome(function: Any, x: Any) -> tuple[Any, Exception | None]:
    try:
        result = function(x.copy(), len(x))
    except Exception as error:
        return None, error
    return result if isinstance(result, tuple) else (result,), None


def main(first: int, last: int, target: str) -> int:
    """Checks the programs of these seeds; returns how many differ."""
    warnings.simplefilter("ignore")
    outcomes, failed = Counter[str](), 0
    for seed in range(first, last):
        why = check(seed, target, outcomes)
        if why is not None:
            failed += 1
            print(f"seed {seed}: {why}", flush=True)
    print(f"{failed} of {last - first} programs differ; {dict(outcomes)}")
    return failed


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *("0", "100", "reference")[len(sys.argv) - 1 :]]
    sys.exit(bool(main(int(arguments[0]), int(arguments[1]), arguments[2])))
