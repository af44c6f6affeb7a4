"""Checks random chains of views and writes: `python -m tests.soaks.views [first] [last] [target] [shared]`.

Prints the seed and the first difference of each program that fails, and counts. The target is "reference" or "cpu".
With `shared`, the arguments of each program lie in the same memory.
"""

from __future__ import annotations

import sys

from tests.random_programs.random_views import check_views


def main(first: int, last: int, target: str, shares: bool) -> int:
    """Checks the programs of these seeds; returns how many differ."""
    failed = 0
    for seed in range(first, last):
        try:
            check_views(seed, target, shares)
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:2000]}")
    print(f"{failed} of {last - first} programs differ")
    return failed


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *("0", "1000", "reference")[len(sys.argv) - 1 :]]
    sys.exit(bool(main(int(arguments[0]), int(arguments[1]), arguments[2], "shared" in arguments[3:])))
