"""Runs random fusions under random predicates on every backend.

Whole numbers with exact ops are compared bit for bit; other numbers under the error bound of `error_bounds`.
`tests/soaks/fusions.py` runs many more of them.
"""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import segments
from tests.random_programs.random_fusions import fusions
from tests.session.samples import times
from tests.ways import check
from tracefuse import config, rules
from tracefuse.ir.fusion import Fusion
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes

EXAMPLES = {"cpu": 30, "interpreter": 12, "interpreter-cuda": 30, "cuda": 50}
"""Per mode and kind of extents. The interpreter compiles nothing."""


def forbids_one_of(count: int, salt: int) -> segments.Predicate:
    """Forbids about one merge of `count`, always the same ones."""

    def predicate(first: rules.Group, second: rules.Group) -> bool:
        spelled = ",".join(sorted((*first.ops, *second.ops)))
        return zlib.crc32(spelled.encode(), salt) % count != 0

    predicate.__name__ = f"forbids_one_of({count}, {salt})"
    return predicate


def predicates() -> st.SearchStrategy[Any]:
    """None (each way's own) or a predicate that forbids merges."""
    chosen = st.builds(forbids_one_of, st.integers(2, 4), st.integers(0, 9))
    return st.one_of(st.none(), st.just(rules.reduction_ends_segment), chosen)


def run(drawn: tuple[Fusion, list[Any]], merge: Any, backend: str, mode: str) -> None:
    fusion, arguments = drawn
    # What the rule takes pair by pair it must take as a whole; here a disagreement is no reason to split further.
    for one in (fusion, run_passes(FUSION_PASSES, fusion, config.resolve())):
        segment_fusion(one, merge=merge, strict=True)
    check(fusion, arguments, None if backend == "cpu" else backend, bits=mode == "exact", merge=merge)


@pytest.mark.parametrize("extents", ["short", "long"])
@pytest.mark.parametrize("mode", ["exact", "general"])
def test_random_fusions_mean_the_same_however_they_are_segmented(backend: str, mode: str, extents: str) -> None:
    # Long rows take the interpreter longer.
    examples = EXAMPLES[backend] // (1 if extents == "short" else 3)

    @settings(max_examples=times(examples), suppress_health_check=list(HealthCheck))
    @given(drawn=fusions(mode, extents == "long"), merge=predicates())
    def holds(drawn: tuple[Fusion, list[Any]], merge: Any) -> None:
        run(drawn, merge, backend, mode)

    holds()
