"""Runs random fusions for a long time: `python -m tests.soaks.fusions [backend] [examples] [mode[-long] ...]`.

The mode `streams` puts random axes of random fusions on streams and spreads the segments over them. The mode `squares`
splits fusions of one square array: what the rule takes pair by pair it must take as a whole.

The same property as test_random.py with new examples at every run; the first failure is shrunk and shown with its
printed definition and arguments.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.partition.test_square_fusions import drawn
from tests.random_programs.random_fusions import fusions
from tests.random_programs.test_random_fusions import predicates, run
from tests.random_programs.test_random_streams import counts, marked, run_on_streams
from tracefuse import config
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.ir.fusion import Fusion
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.waiting import counted_steps


def soak(backend: str, examples: int, mode: str) -> None:
    """Raises what the first failing example raises."""
    seen = 0

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(drawn=fusions(mode.removesuffix("-long"), mode.endswith("-long")), merge=predicates())
    def holds(drawn: tuple[Fusion, list[Any]], merge: Any) -> None:
        nonlocal seen
        seen += 1
        count_one()
        try:
            run(drawn, merge, backend, mode.removesuffix("-long"))
        except Exception as error:
            fusion, arguments = drawn
            error.add_note(f"{FusionDefinition.from_fusion(fusion)!r}\n{arguments}\nmerge={merge}")
            raise

    with counted_steps(f"{backend}, {mode}", examples) as count_one:
        holds()
    print(f"{backend}, {mode}: {seen} fusions, three ways each", flush=True)


def soak_streams(backend: str, examples: int) -> None:
    """The same for fusions on streams, each with a number of streams of its own."""
    seen = 0

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(drawn=marked("exact"), merge=predicates(), count=counts(), reuses=st.booleans())
    def holds(drawn: tuple[Fusion, list[Any]], merge: Any, count: int, reuses: bool) -> None:
        nonlocal seen
        seen += 1
        count_one()
        try:
            run_on_streams(drawn, merge, backend, "exact", count, reuses)
        except Exception as error:
            error.add_note(f"{FusionDefinition.from_fusion(drawn[0])!r}\n{drawn[1]}\n{merge=} {count=} {reuses=}")
            raise

    with counted_steps(f"{backend}, streams", examples) as count_one:
        holds()
    print(f"{backend}, streams: {seen} fusions, three ways each", flush=True)


def soak_squares(examples: int) -> None:
    """Splits fusions of square arrays, as recorded and after the passes; a disagreement of the rule raises."""
    first = random.randrange(10**9)
    with counted_steps("squares", examples) as count_one:
        for seed in range(first, first + examples):
            count_one()
            fusion = drawn(seed, exact=False)
            try:
                for one in (fusion, run_passes(FUSION_PASSES, fusion, config.resolve())):
                    segment_fusion(one, strict=True)
            except Exception as error:
                error.add_note(f"seed {seed}\n{FusionDefinition.from_fusion(fusion)!r}")
                raise
    print(f"squares: {examples} fusions, each split twice", flush=True)


def main() -> None:
    backend, examples, *modes = [*sys.argv[1:], *["interpreter", "2000"][len(sys.argv) - 1 :]]
    for mode in modes or ("exact", "mixed", "general", "exact-long", "general-long"):
        if mode == "streams":
            soak_streams(backend, int(examples))
        elif mode == "squares":
            soak_squares(int(examples))
        else:
            soak(backend, int(examples), mode)


if __name__ == "__main__":
    main()
