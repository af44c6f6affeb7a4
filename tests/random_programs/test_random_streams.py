"""Tests that random fusions give the same results with random stream-parallel axes and number of streams.

`tests/soaks/fusions.py` runs many more of them (`streams`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.random_programs.random_fusions import fusions
from tests.random_programs.test_random_fusions import predicates, run
from tests.session.samples import times
from tracefuse import options
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.parallel_types import StreamAxis
from tracefuse.partition.slicing import can_slice


@st.composite
def marked(draw: Any, mode: str, long: bool = False) -> tuple[Fusion, list[Any]]:
    """A random fusion with some of the axes on streams along which its values can be cut, and arguments."""
    fusion, arguments = draw(fusions(mode, long))
    values = dict(fusion.values)
    for node in fusion.nodes:
        (number, *_) = node.outputs
        cuttable = [
            axis
            for axis in range(len(values[number].shape))
            if values[number].is_tensor and can_slice(fusion, [node], {number: axis})
        ]
        if cuttable and draw(st.booleans()):
            axis = draw(st.sampled_from(cuttable))
            in_chunks = can_slice(fusion, [node], {number: axis}, chunks=True)
            stream = StreamAxis(axis, draw(st.sampled_from([None, None, 2, 3])) if in_chunks else None)
            values[number] = replace(values[number], stream=stream)
    return replace(fusion, values=values), arguments


def run_on_streams(
    drawn: tuple[Fusion, list[Any]], merge: Any, backend: str, mode: str, count: int, reuses: bool
) -> None:
    """Raises AssertionError if a way of running it differs from the reference implementation."""
    disable = "" if reuses else "loop_buffer_reuse"
    with options(number_of_streams=count, streams=count, disable=disable), pytest.MonkeyPatch.context() as patched:
        patched.setattr("tracefuse.runtime.targets.array_device.SMALL_LOOP", 0)  # on threads, whatever their size
        run(drawn, merge, backend, mode)


def counts() -> st.SearchStrategy[int]:
    """Numbers of streams, more than most extents among them."""
    return st.sampled_from([1, 2, 3, 4, 9])


def test_random_fusions_on_streams_mean_the_same() -> None:
    @settings(
        max_examples=times(20),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.reuse, Phase.generate),
    )
    @given(drawn=marked("exact"), merge=predicates(), count=counts(), reuses=st.booleans())
    def holds(drawn: tuple[Fusion, list[Any]], merge: Any, count: int, reuses: bool) -> None:
        run_on_streams(drawn, merge, "interpreter", "exact", count, reuses)

    holds()


def test_random_fusions_spread_over_streams_mean_the_same() -> None:
    @settings(
        max_examples=times(20),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.reuse, Phase.generate),
    )
    @given(drawn=fusions("exact"), merge=predicates(), count=counts())
    def holds(drawn: tuple[Fusion, list[Any]], merge: Any, count: int) -> None:
        run_on_streams(drawn, merge, "interpreter", "exact", count, True)

    holds()
