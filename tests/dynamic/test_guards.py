"""Tests symbolic sizes, the guards on them, and the message of a guard failure."""

from __future__ import annotations

import logging
import timeit
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tracefuse import FusionDefinition, ShapeDtype, ShapeError, fuse, options
from tracefuse.dynamic.guard_failures import fact_text
from tracefuse.dynamic.guards import Guard, compile_guards, divisible
from tracefuse.ir.extents import input_extent, python_text
from tracefuse.logs import LOGGER


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


# -- what is symbolic ----------------------------------------------------------------------------------------------


def test_extents_of_a_fused_function_are_symbolic() -> None:
    @fuse
    def f(x: Any) -> Any:
        return x.sum(-1) / x.shape[-1] + x.shape[0] * 2

    for shape in ((3, 5), (7, 9), (20, 4)):
        np.testing.assert_allclose(f(ones(*shape)), np.full(shape[0], 1 + 2 * shape[0], np.float32))
    assert f.cache_info().traces == 1


def test_dynamic_false_compiles_for_each_shape() -> None:
    @fuse(dynamic=False)
    def f(x: Any) -> Any:
        return x + x.shape[0]

    for n in (3, 4, 3):
        assert np.array_equal(f(ones(n)), ones(n) + n)
    assert f.cache_info()[:2] == (2, 2)
    assert "i64" not in f.segments(ones(3))[0].kernel  # no size is passed
    with options(dynamic=True):
        assert np.array_equal(f(ones(5)), ones(5) + 5)


def test_static_sizes_take_one_shape_alone() -> None:
    with FusionDefinition() as fd:
        x = fd.from_array(ones(3, 4), static_sizes=True)
        y = fd.define_tensor(sizes=[3, 4], strides=[4, 1], static_sizes=True)
        fd.add_output(fd.ops.add(x, y))
    assert repr(fd).count("shape=[3, 4]") == 2
    assert np.array_equal(fd.execute([ones(3, 4), ones(3, 4)])[0], ones(3, 4) * 2)
    with pytest.raises(ShapeError, match=r"input T0 has 5 elements on axis 1, not 4 \(test_guards.py:\d+\)"):
        fd.execute([ones(3, 5), ones(3, 5)])


def test_a_definition_mixes_static_and_symbolic_axes() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, 4], contiguity=True)
        fd.add_output(fd.ops.mul(x, 2.0))
    for n in (3, 8, 1):
        assert np.array_equal(fd.execute([ones(n, 4)])[0], ones(n, 4) * 2)
    with pytest.raises(ShapeError, match="input T0 has 5 elements on axis 1, not 4"):
        fd.execute([ones(3, 5)])


def test_unequal_extents_are_refused_with_both_lines_before_any_launch() -> None:
    launched = []

    @fuse
    def f(x: Any, y: Any) -> Any:
        z = x * 2
        launched.append(1)
        return z + y

    f(ones(2, 4), ones(2, 4))
    with pytest.raises(ShapeError) as error:
        f(ones(2, 4), ones(2, 5))
    message = str(error.value)
    assert message.startswith("add: extents differ on axis 1: 4 (")
    assert message.count("test_guards.py:") >= 2
    assert " and 5 (y, test_guards.py:" in message
    assert "broadcasting needs one of them to be 1" in message
    assert launched == [1]  # neither traced again nor run
    assert f.cache_info().compiles == 1


def test_a_comparison_guards_its_outcome_and_never_the_values() -> None:
    @fuse
    def f(x: Any) -> Any:
        return x * 2 if x.shape[0] > 10 else x + 1

    for n in (3, 5, 9, 20, 30):
        assert np.array_equal(f(ones(n)), ones(n) * 2)  # 1 * 2 is 1 + 1
    assert f.cache_info().traces == 2


@pytest.fixture(autouse=True)
def _logger_as_it_was() -> Iterator[None]:
    yield
    LOGGER.handlers.clear()
    LOGGER.setLevel(logging.NOTSET)


def changes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the log that say which size or scalar changed."""
    return [message for message in caplog.messages if ", now " in message and "compiled" not in message]


# -- what breaks a guard -------------------------------------------------------------------------------------------


def test_a_miss_says_which_guard_failed_and_what_changed(caplog: pytest.LogCaptureFixture) -> None:
    @fuse(target="cuda", debug=1)
    def softmax(x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    assert softmax.explain(ShapeDtype((64, 1024), np.float16)).guard_failures == ""
    line = "x: extent of axis 1 was 1024 (divisible by 8), now 1023"
    found = softmax.explain(ShapeDtype((64, 1023), np.float16))
    assert changes(caplog) == [line]
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    assert found.guard_failures == line
    assert str(found).endswith(f"compiled again because:\n  {line}")
    softmax.explain(ShapeDtype((32, 1023), np.float16))
    softmax.explain(ShapeDtype((128, 1024), np.float16))
    assert changes(caplog) == [line]  # both found their plan


def test_another_trace_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    @fuse(debug=1)
    def f(x: Any, n: int) -> Any:
        return x * len([0] * n) if x.shape[0] < 10 else x

    for argument, n in ((ones(4), 2), (ones(4), 3), (ones(12), 3)):
        f(argument, n)
    assert changes(caplog) == [
        "n: was 2 (its value is used), now 3",
        "x: extent of axis 0 was 4 (at most 9), now 12",
    ]
    assert f.explain(ones(4), 3).guard_failures == changes(caplog)[0]


def test_crossing_32_bits_by_size_alone_compiles_once_more() -> None:
    @fuse(target="cuda")
    def f(x: Any) -> Any:
        return x * 2 + 1

    texts = []
    for shape, compiles in (((2**16, 2**14), 1), ((2**17, 2**15), 2), ((2**18, 2**15), 2), ((2**10, 2**10), 2)):
        (segment,) = f.segments(ShapeDtype(shape, np.float32))
        texts.append(segment.source)
        assert f.cache_info().compiles == compiles
    assert texts[0] == texts[3] != texts[1] == texts[2]
    assert "2147" in f.explain(ShapeDtype((2**17, 2**15), np.float32)).guard_failures


def test_a_guard_that_fails_8_times_warns_once_with_argument_and_line() -> None:
    @fuse
    def f(x: Any, n: int) -> Any:
        return x * len([0] * n)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for n in range(8):
            f(ones(3), n)
        assert not seen
        for n in range(8, 30):
            f(ones(3), n)
    (warning,) = seen
    message = str(warning.message)
    assert message.startswith("n (test_guards.py:")
    assert "8 times" in message
    assert "n: was 7 (its value is used), now 8" in message
    assert warning.filename == __file__


def test_each_shape_asked_for_is_nothing_to_warn_of() -> None:
    @fuse(dynamic=False)
    def f(x: Any) -> Any:
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(2, 14):
            f(ones(n))


@pytest.mark.parametrize(
    ("guard", "text"),
    [
        (divisible(input_extent(0), 8, ""), "divisible by 8"),
        (Guard(input_extent(0) % 4, "!=", 0, ""), "not divisible by 4"),
        (Guard(input_extent(0), "<=", 5, ""), "at most 5"),
        (Guard(3, "<=", input_extent(0), ""), "at least 3"),
        (Guard(3, "<", input_extent(0), ""), "at least 4"),
        (Guard(input_extent(0), "!=", 1, ""), "not 1"),
        (Guard(input_extent(0) * input_extent(1), "<=", 100, ""), "i0 * i1 <= 100"),
        (Guard(input_extent(0), "==", input_extent(1), ""), "i0 == i1"),
    ],
)
def test_facts_in_words(guard: Guard, text: str) -> None:
    assert fact_text(guard) == text


def test_each_fact_is_checked_once() -> None:
    """Ten guards that repeat each other are tested as the few that they are."""
    n = input_extent(0)
    guards = [divisible(n, 8, f"reason {k}") for k in range(9)] + [Guard(n, "<=", 100, "")]
    holds = compile_guards(guards)
    assert holds({-1: 16})
    assert not holds({-1: 15})
    assert not holds({-1: 104})
    assert len([c for c in holds.__code__.co_consts if c is not None]) <= 6


def main() -> None:
    """Prints what ten guards cost at dispatch."""
    n, m = input_extent(0), input_extent(1)
    guards = [divisible(n, d, "") for d in (2, 4, 8)] + [divisible(m, d, "") for d in (2, 4, 8)]
    guards += [Guard(n * m, "<=", 2**31, ""), Guard(n, "!=", 1, ""), Guard(m, "!=", 1, ""), Guard(n, "<=", 4096, "")]
    # As they stand in the function that a call runs: over local variables.
    tests = [f"{python_text(g.left, str)} {g.relation} {python_text(g.right, str)}" for g in guards]
    statement = f"{' and '.join(tests)}"
    seconds = min(timeit.repeat(statement, "i0, i1 = 64, 1024", number=1_000_000, repeat=5)) / 1_000_000
    print(f"{len(guards)} guards: {seconds * 1e6:.2f} us")


if __name__ == "__main__":
    main()
