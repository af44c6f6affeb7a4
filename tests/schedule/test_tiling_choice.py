"""Tests that the choice of a tiling depends on guarded size classes alone, and keeps every bit of the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.cuda_lowering import numbers
from tests.session.samples import times
from tests.ways import backend_of
from tracefuse import fuse
from tracefuse.compiler.executable import Executable
from tracefuse.ir.extents import evaluate, symbol
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime.targets.cpu.cpu_target import cpu_target
from tracefuse.schedule.chip_rates import CHIPS, rates_of
from tracefuse.schedule.cost import Rates, Work, price, rates_from
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.tiling_choice import PricedTiling, TilingChooser
from tracefuse.schedule.tilings import Offer, SizeClasses, Tiling

EDGES = ((8, 64, 512), (100, 1000))


def offer_of(prices: dict[tuple[int, int], list[int]]) -> Offer:
    """An offer of two axes with three tilings, whose bytes are given for each pair of classes."""
    classes = tuple(
        SizeClasses(symbol(f"i{k}", -k - 1), edges, "the tiling of a test") for k, edges in enumerate(EDGES)
    )
    points = {
        tuple(one.representative(k) for one, k in zip(classes, at, strict=True)): cost for at, cost in prices.items()
    }
    tilings = tuple(Tiling.of(side=side) for side in range(3))
    return Offer(tilings, classes, lambda tiling, point: Work(bytes_moved=1e6 * points[*point][tiling["side"]]))


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), min_size=12, max_size=12),
    st.tuples(st.integers(1, 2000), st.integers(1, 2000)),
    st.tuples(st.integers(1, 2000), st.integers(1, 2000)),
)
def test_every_size_that_meets_the_guards_of_a_choice_chooses_the_same(
    prices: list[list[int]], first: tuple[int, int], second: tuple[int, int]
) -> None:
    offer = offer_of(dict(zip([(a, b) for a in range(4) for b in range(3)], prices, strict=True)))
    chooser, choices = TilingChooser(), []
    for size in (first, second):
        sizes = Sizes({-1: size[0], -2: size[1]})
        choices.append((chooser.choose("s0", offer, sizes)[0], sizes.guards))
    values = {-1: second[0], -2: second[1]}
    if all(guard.compares(evaluate(guard.left, values), evaluate(guard.right, values)) for guard in choices[0][1]):
        assert choices[0][0] == choices[1][0]


@given(st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), min_size=12, max_size=12))
def test_a_choice_without_the_model_is_the_first_tiling_and_guards_nothing(prices: list[list[int]]) -> None:
    offer = offer_of(dict(zip([(a, b) for a in range(4) for b in range(3)], prices, strict=True)))
    sizes = Sizes({-1: 50, -2: 50})
    assert TilingChooser(generic=True).choose("s0", offer, sizes)[0] == offer.tilings[0]
    assert not sizes.guards


def test_the_model_never_chooses_another_order_of_a_reduction() -> None:
    tilings = (Tiling.of(8, rows=8), Tiling.of(16, rows=16))
    offer = Offer(tilings, (), lambda tiling, point: Work(bytes_moved=1e9 / tiling["rows"]))
    assert TilingChooser().choose("s0", offer, Sizes({}))[0] == tilings[0]
    forced = TilingChooser(forced={"s0": tilings[1]})
    assert forced.choose("s0", offer, Sizes({}))[0] == tilings[1]


FUNCTIONS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "transposed": (lambda x, y: x.T * 2 + y, ((300, 401), (401, 300))),
    "permuted in a stack": (lambda x: x.transpose(2, 0, 1) + 1, ((37, 50, 90),)),
    "wide rows": (lambda x, row: x * row, ((9, 9001), (9001,))),
    "columns": (lambda x: x.sum(0), ((700, 330),)),
    "a variance of columns": (lambda x: x / x.std(0), ((400, 400),)),
    "chunks of columns": (lambda x: x.sum(0), ((3000, 400),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tilings_with_one_order_give_equal_bits_and_others_close_ones(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    arguments = [numbers(*shape, seed=k) for k, shape in enumerate(shapes)]
    segmentation = segment_fusion(fuse(function).definition(*arguments).fusion)
    plan, _ = Executable(segmentation, cpu_target()).plan_for(arguments)
    (lowered,) = [segment.lowered for segment in plan.segments]
    assert lowered is not None
    (priced,) = lowered.tilings.values()
    assert len(priced) > 1
    assert sum(one.is_chosen for one in priced) == 1
    results = {}
    for one in priced:
        forced = TilingChooser(forced={"s0": one.tiling})
        (results[one.tiling],) = Executable(segmentation, cpu_target(), tilings=forced)(arguments)
    first = results[priced[0].tiling]
    np.testing.assert_allclose(first, function(*(a.astype(np.float64) for a in arguments)), rtol=1e-4, atol=1e-5)
    for tiling, result in results.items():
        if tiling.order == priced[0].tiling.order:
            np.testing.assert_array_equal(result, first)
        else:
            np.testing.assert_allclose(result, first, rtol=1e-4, atol=1e-4)


def rows_of(function: Callable[..., Any], *shape: int) -> tuple[Any, Any, tuple[PricedTiling, ...]]:
    """The array, the segmentation and the tilings of a function of rows on the interpreted GPU."""
    x = numbers(*shape)
    segmentation = segment_fusion(fuse(function).definition(x).fusion)
    plan, _ = Executable(segmentation, backend_of("interpreter-cuda")).plan_for([x])
    (segment,) = plan.segments
    assert segment.lowered is not None
    assert segment.lowered.template == "row"
    return x, segmentation, segment.lowered.tilings["s0"]


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("columns", [24, 113])
def test_any_number_of_threads_of_a_row_computes_the_row(columns: int) -> None:
    x, segmentation, priced = rows_of(softmax, 9, columns)
    orders = {one.tiling.order: one.tiling for one in priced}
    assert len(orders) > 2
    for tiling in orders.values():
        forced = TilingChooser(forced={"s0": tiling})
        (result,) = Executable(segmentation, backend_of("interpreter-cuda"), tilings=forced)([x])
        np.testing.assert_allclose(result, softmax(x.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("columns", [24, 113, 700])
def test_the_threads_of_a_row_follow_from_its_length_alone(columns: int) -> None:
    chosen = [next(p.tiling for p in rows_of(softmax, rows, columns)[2] if p.is_chosen) for rows in (2, 300, 3000)]
    assert len({tiling.order for tiling in chosen}) == 1


@pytest.mark.parametrize("path", sorted(CHIPS.glob("*.toml")), ids=lambda path: path.stem)
def test_a_constants_file_has_positive_constants_and_the_name_of_its_chip(path: Any) -> None:
    rates = rates_of(path.stem, 4)
    assert rates.name == path.stem
    assert rates.workers == 4
    numbers_of = [getattr(rates, name) for name in Rates.__slots__ if name not in ("name", "masks", "operation_ns")]
    assert all(value > 0 for value in [*numbers_of, *rates.operation_ns.values()])
    assert set(rates.operation_ns) == set(Rates().operation_ns)


def test_an_unknown_constant_raises_and_an_unknown_chip_has_the_generic_ones() -> None:
    with pytest.raises(KeyError, match="memory_gps"):
        rates_from({"memory_gps": 3.0}, 1)
    assert rates_of("a processor of tomorrow", 3) == rates_of("generic", 3)


@given(st.floats(1, 1e9), st.integers(1, 64))
def test_a_price_falls_neither_with_more_bytes_nor_with_fewer_workers(moved: float, workers: int) -> None:
    rates = rates_of("generic", workers)
    work = Work(moved, moved, tasks=1000.0)
    more = Work(2 * moved, 2 * moved, tasks=1000.0)
    assert price(work, rates).total <= price(more, rates).total
    assert price(replace(work, in_flight=64.0), rates).total >= price(work, rates).total
    if workers > 1:
        assert price(work, rates).bounds["memory"] <= price(work, rates_of("generic", 1)).bounds["memory"]


def axpy(x: Any, y: Any) -> Any:
    return x * 2 + y


def on_a_gpu(function: Any, *arguments: Any) -> tuple[tuple[PricedTiling, ...], Callable[[Tiling], Any]]:
    """The tilings of a function of one segment on a GPU, and the function that runs one in the interpreter."""
    target = backend_of("interpreter-cuda")
    segmentation = segment_fusion(fuse(function).definition(*arguments).fusion)
    plan, _ = Executable(segmentation, target).plan_for(arguments)
    (lowered,) = [segment.lowered for segment in plan.segments]
    assert lowered is not None
    priced = next(iter(lowered.tilings.values()), ())

    def run(tiling: Tiling) -> Any:
        (result,) = Executable(segmentation, target, tilings=TilingChooser(forced={"s0": tiling}))(arguments)
        return result

    return priced, run


@given(
    st.lists(st.sampled_from([2, 5, 16, 17, 33, 40, 64]), min_size=2, max_size=3), st.permutations(range(3)),
    st.sampled_from([np.float16, np.float32, np.int8]), st.data(),
)  # fmt: skip
@settings(max_examples=times(6))
def test_tiles_of_every_side_compute_the_same_on_a_gpu(
    shape: list[int], drawn: list[int], dtype: Any, data: st.DataObject
) -> None:
    order = [axis for axis in drawn if axis < len(shape)]
    x = np.random.default_rng(0).integers(-4, 5, shape).astype(dtype)
    y = np.random.default_rng(1).integers(-4, 5, [shape[axis] for axis in order]).astype(dtype)
    row, column = y[:1], y[..., :1]

    def function(x: Any, y: Any, row: Any, column: Any) -> Any:
        return x.transpose(order) * row + y * column

    priced, run = on_a_gpu(function, x, y, row.copy(), column.copy())
    tiling = data.draw(st.sampled_from([one.tiling for one in priced]))
    np.testing.assert_array_equal(run(tiling), function(x, y, row, column))


@given(
    st.integers(1, 600), st.integers(2, 40), st.sampled_from([np.float16, np.float32, np.int8]), st.booleans(),
    st.data(),
)  # fmt: skip
@settings(max_examples=times(12))
def test_threads_with_any_number_of_rows_compute_the_same_on_a_gpu(
    rows: int, columns: int, dtype: Any, aligned: bool, data: st.DataObject
) -> None:
    memory = np.random.default_rng(0).integers(-4, 5, rows * columns + 1).astype(dtype)
    x = memory[not aligned : rows * columns + (not aligned)].reshape(rows, columns)

    def function(x: Any) -> Any:
        return x - x.max(-1, keepdims=True)

    priced, run = on_a_gpu(function, x)
    tiling = data.draw(st.sampled_from([one.tiling for one in priced])) if priced else Tiling()
    np.testing.assert_array_equal(run(tiling), function(x))


@pytest.mark.parametrize("shapes", [((9_000,), (9_000,)), ((30, 512), (512,)), ((4099,), (4099,))])
def test_blocks_of_every_shape_compute_the_same_on_a_gpu(shapes: tuple[tuple[int, ...], ...]) -> None:
    arguments = [numbers(*shape, seed=k) for k, shape in enumerate(shapes)]
    priced, run = on_a_gpu(axpy, *arguments)
    assert len({one.tiling["threads"] for one in priced}) == 3
    assert priced[0].is_chosen
    for one in priced:
        np.testing.assert_allclose(run(one.tiling), axpy(*arguments), rtol=1e-6)
