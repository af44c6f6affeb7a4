"""Compares every function with NumPy over types, kinds of operand and parameters.

Run it as `python -m tests.soaks.types [name ...]`.

Prints the differences by class, the largest first: the function, what differs, how many cases, one of them. Names
select generators of type_cases.py, as `of_methods`; `cpu` runs the covering sample as compiled kernels. All of
it takes some minutes; CI runs a sample.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Sequence

from tests.ops.type_cases import GENERATORS, Case, covering
from tests.ops.type_differences import differences


def main(names: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    target = "auto" if "cpu" in names else "reference"
    chosen = [g for g in GENERATORS if g.__name__ in names] or GENERATORS
    counts: Counter[tuple[str, str, str]] = Counter()
    samples: dict[tuple[str, str, str], Case] = {}
    total = 0
    for generator in chosen:
        cases = covering(generator()) if target == "auto" else list(generator())
        total += len(cases)
        for case, differs, reason in differences(cases, target, 40 if target == "auto" else 400):
            what = re.sub(r"\((\w+\.py:\d+|x\d*|[^()]*type_cases[^()]*)\)", "", differs)
            key = (reason, "" if reason else case.name, "" if reason else re.sub(r"[0-9.]+", "#", what)[:150])
            counts[key] += 1
            samples.setdefault(key, case)
        print(f"{generator.__name__}: {len(cases)} cases", flush=True)
    for key, count in counts.most_common():
        reason, name, what = key
        print(f"{count:6} {reason or name + ': ' + what}   as {samples[key].name}{samples[key].told}")
    print(
        f"{sum(counts.values())} of {total} cases differ; {sum(c for k, c in counts.items() if not k[0])} unexplained"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
