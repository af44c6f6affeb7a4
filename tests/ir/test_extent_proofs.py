"""What schedules rely on is proved of extents, and index expressions come out short."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ir.extent_symbols import I, J, K, M, N, S, T
from tracefuse.ir.extents import (
    Expression,
    Extent,
    ceildiv,
    evaluate,
    floordiv,
    input_extent,
    is_nonnegative,
    maximum,
    minimum,
    mod,
    product,
    symbol,
)
from tracefuse.ir.extents.counterexamples import has_counterexample


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (N * 4 - (2 * N + 2 * N), "0"),
        ((I * M + J) // M, "i"),
        ((I * M + J) % M, "j"),
        ((I * 4 + symbol("k", extent=4)) // 12, "i // 3"),
        ((I * 4 + symbol("k", extent=4)) % 12, "k + 4 * (i % 3)"),
        ((N * M * K) // (N * M * 4), "i2 // 4"),
        ((N * M * K) % (N * M * 4), "i0 * i1 * (i2 % 4)"),
        ((N * M * K) // (N * M), "i2"),
        ((6 * N + 3) // 9, "(2 * i0 + 1) // 3"),
        ((6 * N + 4) // 9, "(2 * i0 + 1) // 3"),
        ((N % 12) % 4, "i0 % 4"),
        ((N % M + J) % M, "(i0 + j) % i1"),
        ((N // 4) // 3, "i0 // 12"),
        (N // 4 * 4 + N % 4, "i0"),
        (3 * (N // M) * M + 3 * (N % M), "3 * i0"),
        ((N % M) // M, "0"),
        (M * (N // M % K) + N % M, "i0 % (i1 * i2)"),
        (5 * (4 * (N // 4 % 3) + N % 4), "5 * (i0 % 12)"),
        (M * ((N % (M * K)) // M) + N % M, "i0 % (i1 * i2)"),
        (M * K * (N // (M * K)) + M * ((N % (M * K)) // M) + N % M, "i0"),
        ((5 * N + T) // 5 - N, "t // 5"),
        (minimum(minimum(J, N), N - N // 2), "min(j, i0 - i0 // 2)"),
        (maximum(maximum(0, J), J + 1), "j + 1"),
        (minimum(minimum(S, N), N), "min(s7, i0)"),
        (ceildiv(ceildiv(N, 4), 8), "(i0 + 31) // 32"),
        (N * 2 // 2, "i0"),
        ((N + M) * 2 // (N + M), "2"),
        (mod(-1, N + 1), "i0"),
        (0 - N // 4, "-(i0 // 4)"),
        (N - M // 4, "i0 - i1 // 4"),
        (mod(N, -4), "-(-i0 % 4)"),
        (floordiv(2 * N + 1, -4), "(-i0 + 1) // 2 - 1"),
    ],
)
def test_index_expressions_come_out_short(found: Extent, expected: str) -> None:
    assert str(found) == expected


@pytest.mark.parametrize(
    "fact",
    [
        N - N // 2,
        N - 2 * (N // 2),
        2 * (N // 2) + 1 - N,
        N - 1 - I,
        N - 1 - I // 2,
        N * M - 1 - (I * M + J),
        N // 2 - I // 2,
        minimum(N, M) + maximum(N, M) - minimum(N, M),
        N - minimum(N, S),
        maximum(S, N) - N,
        maximum(S, 0),
        minimum(N + 3, M + 2) - 2,
        (N // 4 + 1) * 4 - N - 1,
        M * (N % 8),
        7 - T % 8,
    ],
)
def test_what_schedules_rely_on_is_proved(fact: Extent) -> None:
    assert is_nonnegative(fact)
    assert not isinstance(fact, Expression) or not has_counterexample(fact)


@pytest.mark.parametrize("fact", [N - 1, M - N, S, minimum(N, S), N - 1 - T])
def test_what_does_not_hold_everywhere_is_not_proved(fact: Extent) -> None:
    assert not is_nonnegative(fact)


@pytest.mark.parametrize(
    "fact", [-I - 1, N - 2 * I - 2, J - M + 1, M - N, N * M - 32832, mod(N, 8) - 7, N - maximum(N, M)]
)
def test_values_are_found_at_which_an_extent_is_negative(fact: Extent) -> None:
    assert has_counterexample(fact)


def test_a_symbolic_divisor_is_positive_since_its_quotient_exists() -> None:
    assert N // M // K == N // (M * K)
    assert N // M * M + N % M == N


@pytest.mark.parametrize("count", [3, 8, 16])
def test_positions_in_many_axes_are_proved_inside_and_give_back_their_coordinates(count: int) -> None:
    extents = [input_extent(k) for k in range(count)]
    indices = [symbol(f"l{k}", extent=e) for k, e in enumerate(extents)]
    position: Extent = 0
    for index, extent in zip(indices, extents, strict=True):
        position = position * extent + index
    assert is_nonnegative(product(extents) - 1 - position)
    assert not is_nonnegative(product(extents[1:]) - 1 - position)
    inner: Extent = 1
    for index, extent in zip(reversed(indices), reversed(extents), strict=True):
        assert position // inner % extent == index
        inner = inner * extent


def test_nested_expressions_have_short_keys() -> None:
    nested: Extent = N
    for k in range(9):
        nested = minimum(nested * M + k, nested * K - k)
    assert not isinstance(nested, int)
    ((atom,), _), *_ = nested.terms
    assert len(str(atom.key)) < 100 < len(str(nested)) / 100


def test_loops_that_cover_a_merged_axis_give_back_its_coordinates() -> None:
    """reshape (n, m, k) -> (n * m, k) -> (n, m, k) composed by hand is the identity on coordinates."""
    inner = symbol("l", extent=K)
    position = (I * M + J) * K + inner
    assert (position // (M * K), position // K % M, position % K) == (I, J, inner)
    assert product([N, M, K]) == N * M * K


@given(st.integers(0, 400), st.integers(1, 9), st.integers(1, 9), st.integers(-3, 3), st.integers(-3, 3))
def test_sums_of_quotients_and_remainders_keep_their_value(n: int, m: int, k: int, a: int, b: int) -> None:
    parts = (N % M, M * (N // M % K), M * ((N % (M * K)) // M), M * K * (N // (M * K)))
    for chosen in itertools.product((0, a, b), repeat=len(parts)):
        total = sum((factor * part for factor, part in zip(chosen, parts, strict=True)), start=0 * N)
        numbers = (n % m, m * (n // m % k), m * ((n % (m * k)) // m), m * k * (n // (m * k)))
        expected = sum(factor * number for factor, number in zip(chosen, numbers, strict=True))
        assert evaluate(total, {-1: n, -2: m, -3: k}) == expected


def test_a_symbol_of_another_range_is_another_symbol() -> None:
    assert symbol("i", extent=4) != symbol("i", extent=5)
    assert symbol("i", extent=4) // 4 == 0
    assert str(symbol("i", extent=5) // 4) == "i // 4"


@pytest.mark.parametrize("divisor", [-1, -2, -3, -8])
def test_constants_below_zero_divide_as_pythons_integers_do(divisor: int) -> None:
    for n in range(12):
        for found, expected in ((floordiv(3 * N + 1, divisor), (3 * n + 1) // divisor), (mod(N, divisor), n % divisor)):
            assert evaluate(found, {-1: n}) == expected


def test_a_division_by_no_elements_is_only_wrong_where_it_is_evaluated() -> None:
    """Loops over axes of extent 0 are joined as others are; nothing runs in them."""
    assert str(symbol("k", extent=0) // 0 + I) == "i + k // 0"
    with pytest.raises(ZeroDivisionError):
        evaluate(floordiv(N, 0), {-1: 3})


def test_a_proof_of_many_quotients_ends() -> None:
    """Each quotient may double the work of a proof; one of more than a few is not attempted."""
    total: Extent = 0
    for k in range(2, 30):
        total = total + (-1) ** k * ((N + k) // k) * ((M + k) % (N // k + 1))
    assert not is_nonnegative(total)


def test_divisors_of_several_terms_divide_by_what_loops_imply() -> None:
    half, count = floordiv(input_extent(0), 2), input_extent(1)
    rows, k = symbol("k0", extent=count), symbol("k1", extent=half - 1)
    lane = symbol("k2", extent=2)
    assert floordiv(rows * (half - 1) + k, half - 1) == rows
    assert mod(rows * (half - 1) + k, half - 1) == k
    assert floordiv(2 * rows * (half - 1) + lane * (half - 1) + k, 2 * half - 2) == rows
    assert not is_nonnegative(half - 2)
    assert is_nonnegative(lane * (half - 2) + k)
