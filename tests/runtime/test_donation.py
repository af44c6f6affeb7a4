"""Donated arguments: which values reuse their buffers, what they hold afterwards, and which are refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.random_programs.random_fusions import definitions
from tests.random_programs.test_random_fusions import predicates
from tests.session.samples import times
from tests.ways import assert_equal_bits, backend_of, crossing
from tracefuse import FusionDefinition, fuse, options, rules
from tracefuse.compiler.executable import Executable
from tracefuse.errors import FusionError, TraceError, UnsupportedError
from tracefuse.ir.reference import evaluate
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime.devices import cpu_memory
from tracefuse.runtime.donated_arrays import DONORS, NOTHING_FITS
from tracefuse.runtime.memory.buffer_facts import returned

N = 400


def values(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(np.prod(shape or (N,)), dtype=dtype).reshape(shape or (N,))


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    gc.collect()
    assert not DONORS


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes of the arrays that tracefuse allocates."""
    shapes: list[Any] = []
    empty = cpu_memory.empty
    monkeypatch.setattr(cpu_memory, "empty", lambda shape, dtype: shapes.append(shape) or empty(shape, dtype))  # type: ignore[func-returns-value]
    return shapes


@pytest.mark.parametrize("how", [{"donate_argnums": 0}, {"donate_argnums": (0,)}, {"donate_argnames": "x"}], ids=str)
def test_a_result_reuses_the_buffer_of_a_donated_argument(how: dict[str, Any], made: list[Any]) -> None:
    fused = fuse(lambda x, y: x * 2 + y, **how)
    for _ in range(2):
        x, y = values(), values()
        result = fused(x, y)
        assert np.shares_memory(result, x)
        assert result is not x
        np.testing.assert_array_equal(result, 3 * y)
        np.testing.assert_array_equal(y, values())
    assert not made
    assert fused.cache_info()[:2] == (1, 1)


def test_a_loop_that_donates_its_state_allocates_nothing(made: list[Any]) -> None:
    step = fuse(lambda x, y: (x + y, y * 2), donate_argnums=0)
    x, y = np.zeros(N, np.float32), np.ones(N, np.float32)
    for _ in range(5):
        x, _ = step(x, y)
    np.testing.assert_array_equal(x, np.full(N, 5))
    assert made == [(N,)] * 5  # the second results, which are kept by nobody


def test_results_of_another_type_and_shape_reuse_a_buffer_of_as_many_bytes(made: list[Any]) -> None:
    def function(x: Any, y: Any) -> Any:
        total = x.sum(1)
        return (y.astype(np.int32).T + 1) * total.sum().astype(np.int32)

    fused = fuse(function, donate_argnames=("x",))
    x, y = values(10, 40), values(10, 40)
    with options(donation="ignore"):
        expected = function(x, y)
    result = fused(x, y)
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == np.int32


def test_a_donated_buffer_with_later_readers_is_not_reused_too_early() -> None:
    fused = fuse(lambda x: x + x[::-1], donate_argnums=0, donation="ignore")
    x = values()
    np.testing.assert_array_equal(fused(x), values() + values()[::-1])
    np.testing.assert_array_equal(x, values())


def test_an_intermediate_reuses_a_donated_buffer_if_no_result_can(made: list[Any]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.sum(fd.ops.exp(x), [0, 1]))
    executable = Executable(segment_fusion(fd.fusion, merge=rules.one_op_a_segment))
    array = np.ones((20, 20), np.float32)
    (total,) = executable([array], None, [x.index])
    assert made == [()]
    np.testing.assert_allclose(total, 400 * np.e, rtol=1e-6)
    np.testing.assert_allclose(array, np.e)


@settings(max_examples=times(50), suppress_health_check=list(HealthCheck))
@given(st.data(), definitions("exact"), predicates(), st.sampled_from(["cpu", "interpreter", "interpreter-cuda"]))
def test_values_are_the_same_whatever_is_donated(
    data: st.DataObject, drawn: tuple[FusionDefinition, list[Any]], merge: Any, backend: str
) -> None:
    fusion, arguments = drawn[0].fusion, drawn[1]
    segmentation = segment_fusion(fusion, merge=merge)
    wanted = evaluate(fusion, arguments, rounded=crossing(segmentation))
    donated = [n for n in fusion.tensor_inputs if data.draw(st.booleans())]
    own = [np.array(a) if isinstance(a, np.ndarray) else a for a in arguments]
    with options(donation="ignore"):
        results = Executable(segmentation, backend_of(backend))(own, None, donated)
    signed = not any(node.op.name in ("maximum", "minimum", "max", "min") for node in fusion.nodes)
    for result, expected in zip(results, wanted, strict=True):
        if isinstance(expected, np.ndarray):
            assert_equal_bits(np.asarray(result), expected, "donated", signed_zeros=signed)
    for number, now, before in zip(fusion.inputs, own, arguments, strict=True):
        if isinstance(before, np.ndarray) and number not in donated:
            np.testing.assert_array_equal(now, before)
    assert len(returned(fusion)) == len(results)


def test_a_donated_array_is_not_passed_again_while_the_result_lives() -> None:
    fused, other = fuse(lambda x: x + 1, donate_argnums=0), fuse(lambda tree: tree["a"] * 2)
    x = values()
    result = fused(x)
    for call in (lambda: fused(x), lambda: other({"a": x}), lambda: fuse(lambda v: v + 1)(x)):
        with pytest.raises(FusionError, match="was donated; its buffer now holds a result") as caught:
            call()
        assert "x.copy()" in str(caught.value)
    part = result[3:]
    del result
    with pytest.raises(FusionError, match="was donated"):
        fused(x)
    del part
    np.testing.assert_array_equal(other({"a": x}), (values() + 1) * 2)
    result = fused(x)
    again = fused(result)
    np.testing.assert_array_equal(again, values() + 3)


def test_a_loop_that_donates_its_state_keeps_no_state_before_the_newest() -> None:
    fused = fuse(lambda x: x + 1, donate_argnums=0)
    first = values()
    state, before = fused(first), []
    for turn in range(50):
        before.append(weakref.ref(state))
        # Every second state is donated as a view of all of it.
        state = fused(state.reshape(2, -1) if turn % 2 else state).reshape(-1)
    assert not any(old() is not None for old in before)
    assert len(DONORS) == 1
    np.testing.assert_array_equal(state, values() + 51)
    with pytest.raises(FusionError, match="x was donated; its buffer now holds a result"):
        fused(first)
    del state
    assert not DONORS
    np.testing.assert_array_equal(fused(first), values() + 52)


def test_arrays_donated_earlier_share_the_buffer_of_the_newest_result() -> None:
    fused = fuse(lambda x: x + 1, donate_argnums=0)
    first = values()
    second = fused(first)
    third = fused(second)
    for old in (first, second):
        with pytest.raises(FusionError, match="was donated"):
            fused(old)
    view = third[1:]
    del third
    with pytest.raises(FusionError, match="was donated"):
        fused(second)
    del view
    np.testing.assert_array_equal(fused(second), values() + 3)


def test_donating_a_view_of_a_result_leaves_the_record_of_the_whole() -> None:
    fused = fuse(lambda x: x + 1, donate_argnums=0)
    first = values()
    second = fused(first)
    part = fused(second[: N // 2])
    assert np.shares_memory(part, first)
    with pytest.raises(FusionError, match="was donated"):
        fused(first)
    np.testing.assert_array_equal(part, values()[: N // 2] + 2)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.complex64, np.bool_, np.int8])
def test_buffers_of_every_dtype_are_reused(dtype: Any) -> None:
    fused = fuse(lambda x: ~x if x.dtype == bool else x + x, donate_argnums=0, donation="raise")
    for array in (np.ones((3, 5), dtype), np.ones((3, 5), dtype)):
        result = fused(array)
        assert result.dtype == dtype
        assert np.shares_memory(result.view(np.uint8), array.view(np.uint8))


def test_leaves_of_donated_trees() -> None:
    @fuse(donate_argnames="state")
    def update(state: dict[str, Any], gradients: dict[str, Any]) -> dict[str, Any]:
        return {name: state[name] - 0.5 * gradients[name] for name in state}

    state = {"w": values(), "b": values(10)}
    result = update(state, {"w": values(), "b": values(10)})
    np.testing.assert_array_equal(result["w"], 0.5 * values())
    assert all(any(np.shares_memory(result[a], state[b]) for b in state) for a in state)


def test_methods_and_keywords() -> None:
    class Model:
        @fuse(donate_argnums=1)
        def step(self, x: Any, y: Any) -> Any:
            return x + y

    x = values()
    assert np.shares_memory(Model().step(x, y=values()), x)
    x = values()
    assert np.shares_memory(Model().step(x=x, y=values()), x)


def test_output_buffers_come_first() -> None:
    fused = fuse(lambda x: (x * 2, x + 1), donate_argnums=0, donation="ignore")
    x, out = values(), np.empty(N, np.float32)
    first, second = fused(x, out=(out, None))
    assert first is out
    np.testing.assert_array_equal(out, 2 * values())
    np.testing.assert_array_equal(second, values() + 1)
    x = values()
    with options(donation="warn"), pytest.warns(UserWarning, match="x: out= shares its memory"):
        first, second = fused(x, out=(x, None))
    assert first is x
    np.testing.assert_array_equal(x, 2 * values())
    np.testing.assert_array_equal(second, values() + 1)


def read_only() -> Any:
    array = values()
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        (lambda x: x.sum(), (values(),), f"x: {NOTHING_FITS}"),
        (lambda x: x + x[::-1], (values(),), f"x: {NOTHING_FITS}"),
        (lambda x: x * 2, (values()[::2],), "x: it is not contiguous"),
        (lambda x: x * 2, (read_only(),), "x: it is read-only"),
        (lambda x: (x, x + 1), (values(),), "x: the call returns it unchanged"),
    ],
    ids=["nothing", "read elsewhere", "strided", "read-only", "returned"],
)
def test_donated_buffers_that_are_not_reused_warn_or_raise_as_the_option_says(
    function: Any, arguments: Any, reason: str
) -> None:
    fused = fuse(function, donate_argnums=0)
    with pytest.warns(UserWarning, match="donated buffers are not reused") as warned:
        fused(*arguments)
    assert reason in str(warned[0].message)
    assert warned[0].filename == __file__
    before = arguments[0].copy()
    with options(donation="raise"), pytest.raises(UnsupportedError, match="donated buffers are not reused"):
        fused(*arguments)
    np.testing.assert_array_equal(arguments[0], before)
    with options(donation="ignore"):
        fused(*arguments)


def test_a_buffer_that_is_donated_twice_or_shared_is_not_reused() -> None:
    fused = fuse(lambda x, y: (x + 1, y * 2), donate_argnums=(0, 1))
    x = values()
    with pytest.warns(UserWarning, match="x: y shares its memory; y: x shares its memory"):
        first, second = fused(x, x)
    np.testing.assert_array_equal(first, values() + 1)
    np.testing.assert_array_equal(second, values() * 2)
    np.testing.assert_array_equal(x, values())
    beside = fuse(lambda x, y: x + y, donate_argnums=0, donation="raise")
    with pytest.raises(UnsupportedError, match="x: y shares its memory"):
        beside(x, x[::-1])


def test_an_argument_that_is_updated_in_place_is_not_reused() -> None:
    @fuse(donate_argnames="x")
    def function(x: Any) -> Any:
        x += 1
        return x * 2

    x = values()
    with pytest.warns(UserWarning, match="x: it is updated in place"):
        np.testing.assert_array_equal(function(x), (values() + 1) * 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, np.bool_])
def test_check_mode_overwrites_donated_arrays_that_are_not_reused(dtype: Any) -> None:
    fused = fuse(lambda x: (x != 0).any(), donate_argnums=0, donation="ignore", check=True)
    x = np.ones(N, dtype)
    assert fused(x)
    smallest = {"i": -(2**31), "u": 0, "b": False}.get(x.dtype.kind, np.nan)
    np.testing.assert_array_equal(x, np.full(N, smallest, dtype))


def test_check_mode_overwrites_intermediates_but_not_results() -> None:
    with options(check=True):
        fused = fuse(lambda x, y: x * 2 + y, donate_argnums=0)
        np.testing.assert_array_equal(fused(values(), values()), 3 * values())


def test_sizes_at_which_a_buffer_does_not_fit_need_another_plan() -> None:
    fused = fuse(lambda x, y: y * x.sum(), donate_argnums=0, donation="ignore")
    for n, m in ((N, N), (N, 2 * N), (3 * N, 3 * N), (7, 9)):
        x, y = np.ones(n, np.float32), values(m)
        np.testing.assert_array_equal(fused(x, y), values(m) * n)


def test_zero_sizes_and_numbers_have_nothing_to_donate() -> None:
    fused = fuse(lambda x, n: x * n, donate_argnums=(0, 1), donation="raise")
    assert fused(values(0), 3).shape == (0,)


def test_names_and_kinds_that_cannot_be_donated_are_refused() -> None:
    with pytest.raises(TraceError, match=r"donate_argnames: there is no parameter 'z'"):
        fuse(lambda x: x, donate_argnames="z")
    with pytest.raises(TraceError, match="x: a static argument has no memory to donate"):
        fuse(lambda x: x, donate_argnames="x", static_argnums=0)
    jax = pytest.importorskip("jax")
    with pytest.raises(UnsupportedError, match="a donated argument: JAX arrays are immutable"):
        fuse(lambda x: x + 1, donate_argnums=0)(jax.numpy.ones(3))


def test_other_ways_of_running_leave_donated_arrays_unchanged() -> None:
    for way in ({"eager": True}, {"target": "reference"}):
        x = values()
        np.testing.assert_array_equal(fuse(lambda x: x * 2, donate_argnums=0, **way)(x), 2 * values())
        np.testing.assert_array_equal(x, values())


def test_one_op_per_segment_reuses_a_donated_buffer_once() -> None:
    fused = fuse(lambda x: np.exp(np.sin(x * 2)), donate_argnums=0)
    fd = fused.definition(values())
    assert fd.segment(merge=rules.one_op_a_segment)
    x = values()
    executable = Executable(segment_fusion(fd.fusion, merge=rules.one_op_a_segment))
    (result,) = executable([x], None, [fd.fusion.inputs[0]])
    assert np.shares_memory(result, x)
    np.testing.assert_allclose(result, np.exp(np.sin(values() * 2)), rtol=1e-5)
