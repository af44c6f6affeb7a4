"""Checks random programs over captured state: `python -m tests.soaks.state [first] [last]`, seeds 0 to 1000 by default.

Each seed is a program over arrays at many places and a program over objects of many kinds. Prints the seed and the
first difference of each program that fails, and counts.
"""

from __future__ import annotations

import sys

from tests.random_programs.random_objects import check_objects
from tests.random_programs.random_state import check_program


def main(first: int, last: int) -> int:
    """Checks the programs of these seeds; returns how many differ."""
    failed = 0
    for seed in range(first, last):
        for check in (check_program, check_objects):
            try:
                check(seed)
            except Exception as error:
                failed += 1
                print(f"{check.__name__}({seed}): {type(error).__name__}: {str(error)[:2000]}", flush=True)
    print(f"{failed} of {2 * (last - first)} programs differ")
    return failed


if __name__ == "__main__":
    bounds = [int(argument) for argument in sys.argv[1:]]
    sys.exit(bool(main(*(bounds or [0, 1000]))))
