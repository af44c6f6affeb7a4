"""Random NumPy programs against NumPy: `python -m tests.soaks.programs SEED N [--target T] [--no-state] [--show K]
[--uses] [--cover FILE] [--seconds S]`.

Runs N programs from a seed, each several times with changed values, layouts, sizes and captured state. Compares results
with their types, arguments, reachable state and errors with the plain function. Prints each new kind of difference with
a program that was made as short as possible, then the counts, and how often each function met each class of types.

The text of a program is the same for a seed on every machine. With `--cover` programs have 3 to 6 statements, of the
functions that met their class of types least often, by the counts in the file, which the run updates. The root of the
repository must be on PYTHONPATH.

The programs run in a child process. A program that ends it or takes too long is counted, and another child goes on
with the next: "ended in NumPy" if that happened to the plain function alone, else "ended". Singular values of
infinities raise LinAlgError, since LAPACK does not return for some of them.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.random_programs.finite_decompositions import decompositions_of_infinities_raise
from tests.random_programs.program_comparison import Difference, ProgramSide, Skipped, first_difference, quiet
from tests.random_programs.program_coverage import LEAST_USES, Coverage
from tests.random_programs.program_explanations import EXPLAINED, explained
from tests.random_programs.program_reports import describe, features_of, is_of_kernels, print_uses, shortened
from tests.random_programs.random_programs import VALUES, WRITES, RandomProgram, program_of
from tracefuse import clear_caches, options

STRICT = {"contract": False, "exact_half": True}
"""With these options kernels round as NumPy does, except in sums and elementary functions."""

MOST_SHORTENED = 4
"""How many programs with one kind of difference are made short."""

SECONDS_OF_A_PROGRAM = 200
"""The most that a program may take with its report."""

PROGRAMS_OF_A_CHILD = 2000

BYTES_OF_A_CHILD = 8 << 30
"""The most memory of a child: a program of which one value needs more is no comparison."""


class Report(NamedTuple):
    """What one program gave: its kind of outcome, a key of equal differences, a text, and what it covered."""

    seed: int
    kind: str
    key: str
    text: str
    uses: list[tuple[str, str, int]]
    features: list[str]


class Begun(NamedTuple):
    """What a child begins with a program: to run NumPy alone, or the fused function."""

    seed: int
    phase: str
    text: str


def judged(program: RandomProgram, seed: int, settings: dict[str, Any], kinds: Counter[str]) -> tuple[str, str, str]:
    """(kind, key, text) of a program."""
    short = None
    try:
        why = first_difference(copy.deepcopy(program), settings)
        why = why and (explained(program, why, settings) or why)
        if why is not None and is_of_kernels(program, why, settings):
            why = why._replace(kind=f"kernels: {why.kind}")
        if why is not None and why.kind not in ("refused", *EXPLAINED) and kinds[why.key] < MOST_SHORTENED:
            short = shortened(program, why, settings)
            why = explained(short, why, settings) or why
    except Skipped:
        why = Difference("undefined in NumPy", 0, "")
    if why is None:
        return "equal", "", ""
    if why.kind in EXPLAINED:
        return why.kind, "", ""
    kinds[why.key] += 1
    shown = why.kind != "refused" and short is not None
    return why.kind, why.key, describe(short, first_difference(short, settings) or why, seed) if shown else ""


def run_programs(given: argparse.Namespace) -> None:
    """The child: runs programs and writes what it begins, and a report of each, as lines of JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (BYTES_OF_A_CHILD, BYTES_OF_A_CHILD))
    coverage = Coverage.read(given.cover, [*VALUES, *WRITES]) if given.cover else None
    settings = {**STRICT, **({"target": given.target} if given.target else {})}
    kinds: Counter[str] = Counter()
    with (
        os.fdopen(given.child, "w", buffering=1) as pipe, options(cache_dir=given.cache),
        decompositions_of_infinities_raise(),
    ):  # fmt: skip
        for seed in range(given.seed, given.seed + given.count):
            print(json.dumps(["begins", seed, "NumPy", ""]), file=pipe)
            program = program_of(seed, not given.no_state, coverage)
            plain = ProgramSide(program, lambda one: one)
            for call in program.calls:
                run_plain(plain, plain.prepare(call))
            print(json.dumps(["begins", seed, "fused", program.text]), file=pipe)
            uses = [(*pair, count) for pair, count in program.uses.items()]
            outcome = judged(program, seed, settings, kinds)
            print(json.dumps(["report", seed, *outcome, uses, sorted(features_of(program))]), file=pipe)
            if seed % 500 == 499:
                clear_caches()
            if coverage and (seed % 100 == 99 or seed == given.seed + given.count - 1):
                coverage.write(given.cover)


def run_plain(plain: ProgramSide, arguments: tuple[Any, ...]) -> None:
    try:
        quiet(lambda: plain(arguments))
    except Skipped:
        return


def reports_of_child(given: argparse.Namespace, first: int, count: int, end: float) -> Iterator[Report]:
    """Reports of the programs of a child, which is ended when the time is over; the last one may be of its end."""
    reading, writing = os.pipe()
    more = [f"--{name}={value}" for name in ("target", "cover", "cache") if (value := getattr(given, name))]
    more += ["--no-state"] if given.no_state else []
    command = [sys.executable, "-m", "tests.soaks.programs", str(first), str(count), f"--child={writing}", *more]
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, pass_fds=[writing], stdout=subprocess.DEVNULL, stderr=said)
        os.close(writing)
        begun = Begun(first, "NumPy", "")
        last = first - 1
        try:
            for entry in entries_of(reading, end):
                if isinstance(entry, Report):
                    last = entry.seed
                    yield entry
                else:
                    begun = entry
            if last < first + count - 1 and time.monotonic() < end:
                kind = "ended in NumPy" if begun.phase == "NumPy" else "ended"
                why = end_of(child)
                said.seek(0)
                shown = f"-- seed {begun.seed}: {why}\n{begun.text}\n{said.read().decode(errors='replace')[-1500:]}"
                yield Report(begun.seed, kind, f"{kind}: {why}", shown, [], [])
        finally:
            os.close(reading)
            child.kill()
            child.wait()


def end_of(child: subprocess.Popen[bytes]) -> str:
    """How a child ended whose pipe is closed, or that it takes too long."""
    try:
        return f"exit status {child.wait(10)}"
    except subprocess.TimeoutExpired:
        return "takes too long"


def entries_of(reading: int, end: float) -> Iterator[Report | Begun]:
    """What a child writes, until it ends, takes too long for a program, or the time is over."""
    unread = b""
    limit = time.monotonic() + SECONDS_OF_A_PROGRAM
    while (left := min(limit, end) - time.monotonic()) > 0:
        if not select.select([reading], [], [], left)[0]:
            return
        received = os.read(reading, 1 << 16)
        if not received:
            return
        *lines, unread = (unread + received).split(b"\n")
        for line in lines:
            kind, *fields = json.loads(line)
            yield Report(*fields) if kind == "report" else Begun(*fields)
            limit = time.monotonic() + SECONDS_OF_A_PROGRAM


def soak(given: argparse.Namespace) -> Counter[str]:
    """Runs programs and prints each new kind of difference; returns the counts."""
    outcomes: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    uses: Counter[tuple[str, str]] = Counter()
    features: Counter[str] = Counter()
    start = time.monotonic()
    end = start + (given.seconds or float("inf"))
    seed, last = given.seed, given.seed + given.count
    while seed < last and time.monotonic() < end:
        for report in reports_of_child(given, seed, min(PROGRAMS_OF_A_CHILD, last - seed), end):
            seed = report.seed + 1
            outcomes[report.kind] += 1
            kinds.update([report.key] if report.key else [])
            for name, kind, count in report.uses:
                uses[name, kind] += count
            features.update(report.features)
            if report.text and kinds[report.key] <= given.show:
                print(report.text, "\n", flush=True)
    print(f"{seed - given.seed} programs, {time.monotonic() - start:.0f} s: {dict(outcomes)}")
    for key, times in kinds.most_common():
        print(f"{times:5} {key}")
    rare = sum(times < LEAST_USES for times in uses.values())
    print(f"{len(uses)} pairs of a function and a class of types, {rare} of them met fewer than {LEAST_USES} times")
    if given.uses:
        print_uses(uses, features)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--target", default=None, help="reference: NumPy runs what was recorded, nothing is compiled")
    parser.add_argument("--no-state", action="store_true", help="no programs with captured arrays or an object")
    parser.add_argument("--show", type=int, default=1, help="programs to print of each kind of difference")
    parser.add_argument("--uses", action="store_true", help="print how often each function met each class of types")
    parser.add_argument("--seconds", type=int, default=0, help="end after this time, with fewer programs")
    parser.add_argument("--cover", default=None, help="a file of counts, read and written: rare functions come first")
    parser.add_argument("--child", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--cache", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        run_programs(given)
        return
    # A fresh folder: what is compiled here is of no use to anybody else.
    with tempfile.TemporaryDirectory(prefix="tracefuse-soak-") as given.cache:
        outcomes = soak(given)
    if given.cover:
        print(Coverage.read(given.cover, [*VALUES, *WRITES]))
    sys.exit(any(kind not in ("equal", "refused", "ended in NumPy", *EXPLAINED) for kind in outcomes))


if __name__ == "__main__":
    main()
