"""Calls that pass addresses, as on a GPU, run with the CPU's kernels: slots of one allocation, and graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.random_programs.random_fusions import fusions
from tests.random_programs.test_random_fusions import predicates
from tests.random_programs.test_random_streams import counts, marked
from tests.runtime.addressed_device import Addressed, chain, executable
from tests.session.samples import times
from tests.ways import assert_equal_bits
from tracefuse import (
    fuse,
    options,
    rules,
    stream_parallel,
)
from tracefuse.compiler.executable import Executable
from tracefuse.config import resolve
from tracefuse.partition.segmentation import segment_fusion


@settings(max_examples=times(15), deadline=None)
@given(st.data(), st.booleans())
def test_random_fusions_give_the_same_bits_from_addresses(data: st.DataObject, graph: bool) -> None:
    fusion, arguments = data.draw(fusions("mixed"))
    merge = data.draw(st.sampled_from([None, rules.one_op_a_segment, rules.reduction_ends_segment]))
    expected = Executable(segment_fusion(fusion, merge=merge))(arguments)
    for _ in range(2):
        for own, wanted in zip(executable(fusion, Addressed(), merge, graph)(arguments), expected, strict=True):
            assert_equal_bits(np.asarray(own), np.asarray(wanted), "from addresses")


@settings(max_examples=times(25), deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,))
@given(drawn=marked("exact"), merge=predicates(), count=counts(), reuses=st.booleans())
def test_random_stream_parallel_loops_give_the_same_bits_from_addresses(
    drawn: Any, merge: Any, count: int, reuses: bool
) -> None:
    fusion, arguments = drawn
    expected = Executable(segment_fusion(fusion, merge=merge))(arguments)
    with options(number_of_streams=count, disable="" if reuses else "loop_buffer_reuse"):
        run = Executable(segment_fusion(fusion, merge=merge), Addressed().target, options=resolve())
    for _ in range(2):
        for own, wanted in zip(run(arguments), expected, strict=True):
            assert_equal_bits(np.asarray(own), np.asarray(wanted), "from addresses")


def test_a_chain_of_twenty_segments_needs_an_arena_of_two_slots() -> None:
    backend = Addressed()
    run = executable(chain(10).fusion, backend, rules.one_op_a_segment)
    x = np.ones((30, 40), np.float32)
    (result,) = run([x])
    assert len(run.plan_for([x])[0].segments) == 20
    assert (backend.arenas, backend.arrays) == ([2 * 4864], 1)  # 4,800 bytes, up to a multiple of 256
    np.testing.assert_array_equal(result, np.full((30, 40), 6, np.float32))


def test_every_template_of_a_gpu_is_called_by_a_name() -> None:
    many, few = np.empty((4096, 32768), np.float32), np.empty((2, 1 << 20), np.float32)

    def rows(x: Any) -> Any:
        return x - x.mean(1, keepdims=True)

    with options(target="cuda"):
        found = {fuse(function).explain(x).templates[0] for function, x in (
            (rows, many), (rows, few), (lambda x: x.sum(0), many), (lambda x: x.T + 1, many), (rows, many[:, :64]),
        )}  # fmt: skip
    assert found == {"long row", "split", "column", "transpose", "row"}


def test_memory_between_the_kernels_of_a_slice_is_reused_and_each_stream_has_its_own() -> None:
    def rows(x: Any) -> Any:
        y = stream_parallel(np.exp(x) * 2, 0)
        return stream_parallel((y * x).sum(-1), 0)

    fused = fuse(rows, merge=rules.reduction_ends_segment)
    x = np.random.default_rng(0).random((7, 1 << 18), np.float32)
    backend = Addressed()
    with options(number_of_streams=3):
        run = Executable(segment_fusion(fused.definition(x).fusion), backend.target, options=resolve())
    for _ in range(2):
        (result,) = run([x])
        np.testing.assert_allclose(result, (np.exp(x) * 2 * x).sum(-1), rtol=1e-4)
    assert backend.loops == [7, 7]
    assert len(backend.allocated) >= 3
