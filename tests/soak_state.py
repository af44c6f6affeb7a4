"""Checks random programs over captured state: `python tests/soak_state.py [first] [last]`, seeds 0 to 1000 by default.

Prints the seed and the first difference of each program that fails, and counts.
"""

from __future__ import annotations

import sys

from random_state import check_program


def main(first: int, last: int) -> int:
    """Checks the programs of these seeds; returns how many differ."""
    failed = 0
    for seed in range(first, last):
        try:
            check_program(seed)
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:2000]}")
    print(f"{failed} of {last - first} programs differ")
    return failed


if __name__ == "__main__":
    bounds = [int(argument) for argument in sys.argv[1:]]
    sys.exit(bool(main(*(bounds or [0, 1000]))))
