"""The memory of a call: it matches the plan, is reused within the call, and running out of it is a clear error."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.random_programs.random_fusions import definitions
from tests.random_programs.test_random_fusions import predicates
from tests.random_programs.test_random_streams import counts, marked
from tests.runtime.addressed_device import Addressed, executable
from tests.runtime.stream_parallel import sets
from tests.session.samples import times
from tracefuse import FusionDefinition, fuse, options, rules, stream_parallel
from tracefuse.errors import OutOfMemoryError
from tracefuse.partition import segment_table
from tracefuse.runtime.devices import cpu_memory
from tracefuse.runtime.peak_memory import memory_of

X = np.ones((64, 1000), np.float32)
REAL = cpu_memory.empty


class Measured:
    """What is alive of the arrays that tracefuse allocates, and the most that was. fails_at: a count to refuse at."""

    def __init__(self) -> None:
        self.live = self.peak = self.count = 0
        self.fails_at = -1

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        self.count += 1
        if self.count == self.fails_at:
            raise MemoryError(f"no room for {shape}")
        made = REAL(shape, dtype)
        self.live += made.nbytes
        self.peak = max(self.peak, self.live)
        weakref.finalize(made, self._gone, made.nbytes)
        return made

    def _gone(self, size: int) -> None:
        self.live -= size


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    found = Measured()
    monkeypatch.setattr(cpu_memory, "empty", found.empty)
    return found


def five_ops(first: rules.Group, second: rules.Group) -> bool:
    return len(first.nodes) + len(second.nodes) <= 5


def chain(x: Any) -> Any:
    for _ in range(25):
        x = np.sin(x) * 1.5
    return x


def cut_chain() -> FusionDefinition:
    """50 ops in 10 segments."""
    fd = fuse(chain, loops="unroll").definition(X)
    assert len(fd.segment([X], merge=five_ops)) == 10
    return fd


def test_a_chain_of_segments_needs_the_memory_of_two_intermediates(measured: Measured) -> None:
    fd = cut_chain()
    use = fd.explain([X]).memory
    assert (use.peak, use.outputs, use.step) == (2 * X.nbytes, X.nbytes, 1)
    assert "peak allocation 512.0 kB (segment 1), of which 256.0 kB are outputs" in str(fd.explain([X]))
    cpu_memory.clear_cache()
    result = fd.execute([X])
    assert (measured.peak, measured.live, measured.count) == (use.peak, X.nbytes, 10)
    # The cache rounds a size up by an eighth at most, and made two buffers in all.
    assert 2 * X.nbytes <= cpu_memory.cached_bytes() <= 2 * X.nbytes * 9 / 8
    np.testing.assert_array_equal(result[0], fuse(chain, loops="unroll")(X))


def test_one_kernel_allocates_its_result_alone(measured: Measured) -> None:
    fused = fuse(chain, loops="unroll")
    assert "peak allocation 256.0 kB, of which 256.0 kB are outputs" in str(fused.explain(X))
    fused(X)
    assert measured.peak == X.nbytes


def test_scratch_of_a_split_reduction_counts(measured: Measured) -> None:
    fused = fuse(lambda x: x.sum())
    x = np.ones(1 << 22, np.float32)
    use = fused.explain(x).memory
    fused(x)
    assert measured.peak == use.peak
    assert use.outputs == 4


@settings(max_examples=times(30), suppress_health_check=list(HealthCheck))
@given(definitions("mixed", updates=True), predicates())
def test_the_plan_says_what_a_call_allocates(drawn: tuple[FusionDefinition, list[Any]], merge: Any) -> None:
    fd, arguments = drawn
    fd.segment(arguments, merge=merge)
    found = Measured()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cpu_memory, "empty", found.empty)
        explained = fd.explain(arguments)
        assume("library" not in explained.templates)  # what a library makes comes from NumPy
        arguments = [np.array(a) if isinstance(a, np.ndarray) else a for a in arguments]
        result = fd.execute(arguments)
        if not fd.fusion.aliases:  # their plans know the arguments' memory
            assert (found.peak, found.live) == (explained.memory.peak, explained.memory.outputs)
        del result
    assert found.live == 0


@pytest.mark.parametrize("fails_at", [1, 5, 10])
def test_too_little_memory_is_an_error_that_says_where_and_how_much(measured: Measured, fails_at: int) -> None:
    fd = cut_chain()
    fd.execute([X])
    measured.count, measured.fails_at = 0, fails_at
    with pytest.raises(OutOfMemoryError) as caught:
        fd.execute([X])
    step = fails_at - 1
    assert str(caught.value).startswith(
        f"out of memory at segment {step} (pointwise{step}): no room for (64, 1000); the call needs 512.0 kB in "
        "addition to its arguments, 256.0 kB of it for results"
    )
    # Also while the error is at hand, with its traceback.
    assert measured.live == 0
    np.testing.assert_array_equal(fd.execute([X])[0], fuse(chain, loops="unroll")(X))


def test_more_memory_than_the_machine_has_is_an_out_of_memory_error() -> None:
    fused = fuse(lambda x, y: x + y)
    wide = np.lib.stride_tricks.as_strided(np.ones(1), (1 << 23, 1), (0, 0))
    with pytest.raises(OutOfMemoryError, match="out of memory at segment 0"):
        fused(wide, wide.T)
    assert isinstance(OutOfMemoryError("x"), MemoryError)
    np.testing.assert_array_equal(fused(np.ones((3, 1)), np.ones((1, 3))), np.full((3, 3), 2.0))


def test_free_cached_buffers_are_released_if_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_memory.clear_cache()
    fuse(chain, loops="unroll")(X)
    gc.collect()
    assert cpu_memory.cached_bytes()
    real, failed = np.empty, []

    def empty(shape: Any, dtype: Any = float) -> Any:
        if dtype is np.uint8 and not failed:
            failed.append(shape)
            raise MemoryError
        return real(shape, dtype)

    monkeypatch.setattr(np, "empty", empty)
    made = cpu_memory.empty((777, 777), fuse(chain, loops="unroll").definition(X).fusion.values[0].dtype)
    monkeypatch.undo()
    assert failed
    assert made.shape == (777, 777)
    assert cpu_memory.cached_bytes() < 1.2 * made.nbytes


def test_intermediates_in_slots_of_one_allocation_count_as_that_allocation() -> None:
    backend = Addressed()
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        for _ in range(6):
            x = fd.ops.sin(x)
        fd.add_output(x)
        fd.add_output(fd.ops.sum(x, [1]))
    run = executable(fd.fusion, backend, rules.one_op_a_segment)
    results = run([X])
    plan, sizes = run.plan_for([X])
    use = memory_of(plan, sizes)
    kept = sum(result.nbytes for result in results)
    assert (use.outputs, use.peak) == (kept, kept + sum(backend.arenas))
    assert 2 * X.nbytes <= sum(backend.arenas) < 2 * X.nbytes + 1024


# ---------------------------------------------------------------------------------------------------------------------
# loops over slices


def planned_and_measured(fd: FusionDefinition, arguments: list[Any], measured: Measured) -> tuple[int, int]:
    use = fd.explain(arguments).memory
    for _ in range(2):
        measured.peak = measured.live
        before = measured.live
        results = fd.execute(arguments)
        assert measured.live - before == use.outputs
        del results
    return use.peak, measured.peak


@pytest.mark.parametrize("marks", [(True,), (True, True), (True, False, True), (True, True, True, True)])
@pytest.mark.parametrize("reuses", [True, False])
def test_the_programs_with_streams_need_what_their_plan_says(
    marks: tuple[bool, ...], reuses: bool, measured: Measured
) -> None:
    x = np.ones((10, 100), np.float32)
    slots = 0
    for count in (1, 3, 4, 20):
        with options(number_of_streams=count, disable="" if reuses else "loop_buffer_reuse"):
            fd = sets(*marks)
            fd.segment(merge=rules.one_op_a_segment)
            planned, peak = planned_and_measured(fd, [x], measured)
            assert planned == peak
            explained = str(fd.explain([x]))
            assert f"peak allocation {segment_table.bytes_text(planned)}" in explained
        whole = 1 if marks == (True,) else 2 if False in marks else len(marks)
        inside = 0 if False in marks else len(marks) - 1
        slots = min(count, 10) if reuses else 10
        assert planned == ((whole - inside) * 10 + inside * slots) * 400


def test_what_each_stream_needs_while_it_runs_counts(measured: Measured) -> None:
    """Rows that are long enough for sums in two steps."""

    def sums(x: Any) -> Any:
        return stream_parallel((x * 2).sum(-1), 0)

    x = np.ones((6, 1 << 19), np.float32)
    for count in (1, 3, 8):
        with options(number_of_streams=count):
            fd = fuse(sums).definition(x)
            planned, peak = planned_and_measured(fd, [x], measured)
            use = fuse(lambda x: (x * 2).sum(-1)).explain(x[:1]).memory
        assert planned == peak == 6 * 4 + min(count, 6) * (use.peak - use.outputs) > 6 * 4


@settings(max_examples=times(15), suppress_health_check=list(HealthCheck), phases=(Phase.generate,), deadline=None)
@given(marked("exact"), predicates(), counts(), st.booleans())
def test_the_plan_says_what_a_call_with_loops_allocates(drawn: Any, merge: Any, count: int, reuses: bool) -> None:
    fusion, arguments = drawn
    fd = FusionDefinition.from_fusion(fusion)
    found = Measured()
    with (
        options(number_of_streams=count, disable="" if reuses else "loop_buffer_reuse"),
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr(cpu_memory, "empty", found.empty)
        fd.segment(arguments, merge=merge)
        kinds = {node.op.kind for node in fusion.nodes}
        explained = fd.explain(arguments)
        assume("library" not in kinds)  # what a library makes comes from NumPy
        result = fd.execute(arguments)
        assert (found.peak, found.live) == (explained.memory.peak, explained.memory.outputs)
        del result
    assert found.live == 0


def test_a_network_of_twelve_layers_needs_what_its_plan_says(measured: Measured) -> None:
    """One product and one kernel a layer: two layers' values are alive at a time."""
    rows, width = 32, 48
    random = np.random.default_rng(0)
    x = random.random((rows, width), np.float32)
    weights = [random.random((width, width), np.float32) / width for _ in range(12)]

    def network(x: Any, *weights: Any) -> Any:
        for weight in weights:
            x = np.maximum(x @ weight + 0.5, 0)
        return x

    fd = fuse(network).definition(x, *weights)
    planned, peak = planned_and_measured(fd, [x, *weights], measured)
    assert planned == peak == 2 * x.nbytes
