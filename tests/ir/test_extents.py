"""Tests the simplification of symbolic integers against integers over whole ranges and against sympy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import sympy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse.ir.extents import (
    Extent,
    ceildiv,
    divide_exactly,
    evaluate,
    floordiv,
    input_extent,
    is_nonnegative,
    maximum,
    minimum,
    mod,
    product,
    python_text,
    scalar_extent,
    substitute,
    symbol,
    symbols,
)

N, M, K = input_extent(0), input_extent(1), input_extent(2)
S = scalar_extent(7)
I, J = symbol("i", 100, extent=N), symbol("j", 101, extent=M)
T = symbol("t", 102, extent=6)
ATOMS = {"n": N, "m": M, "s": S, "i": I, "j": J, "t": T}
IDS = {"n": -1, "m": -2, "s": 7, "i": 100, "j": 101, "t": 102}

Tree = Any
"""An int, the name of an atom, or (operation, tree, tree)."""


def points(names: set[str]) -> Iterator[dict[str, int]]:
    """Every assignment of small values: indices below their extents, scalars of both signs."""
    for n, m in itertools.product(range(5), repeat=2):
        ranges = {"n": [n], "m": [m], "s": [-3, -1, 0, 2], "i": range(n), "j": range(m), "t": range(6)}
        free = sorted(names | ({"n"} if "i" in names else set()) | ({"m"} if "j" in names else set()))
        if ("n" not in free and n) or ("m" not in free and m):
            continue
        for values in itertools.product(*(ranges[name] for name in free)):
            yield dict(zip(free, values, strict=True))


def names_of(tree: Tree) -> set[str]:
    if isinstance(tree, tuple):
        return names_of(tree[1]) | names_of(tree[2])
    return {tree} if isinstance(tree, str) else set()


OPERATIONS: dict[str, tuple[Any, Any]] = {
    "+": (lambda a, b: a + b, lambda a, b: a + b),
    "-": (lambda a, b: a - b, lambda a, b: a - b),
    "*": (lambda a, b: a * b, lambda a, b: a * b),
    "//": (floordiv, lambda a, b: a // b),
    "%": (mod, lambda a, b: a % b),
    "min": (minimum, min),
    "max": (maximum, max),
}


class NotDefined(Exception):
    """A divisor below 1, for which the normal form does not speak."""


def integer(tree: Tree, values: dict[str, int]) -> int:
    """What the tree is, by Python's integers."""
    if not isinstance(tree, tuple):
        return values[tree] if isinstance(tree, str) else tree
    left, right = integer(tree[1], values), integer(tree[2], values)
    if tree[0] in ("//", "%") and right < 1:
        raise NotDefined
    result: int = OPERATIONS[tree[0]][1](left, right)
    return result


def extent(tree: Tree) -> Extent:
    """What the tree is as an extent; division by a constant below 1 is never built."""
    if not isinstance(tree, tuple):
        return ATOMS[tree] if isinstance(tree, str) else tree
    left, right = extent(tree[1]), extent(tree[2])
    if tree[0] in ("//", "%") and isinstance(right, int) and right < 1:
        right = 1 - right
    result: Extent = OPERATIONS[tree[0]][0](left, right)
    return result


def defined(tree: Tree) -> Tree:
    """The tree with constant divisors as `extent` takes them."""
    if not isinstance(tree, tuple):
        return tree
    operation, left, right = tree[0], defined(tree[1]), defined(tree[2])
    if operation in ("//", "%"):
        constant = extent(right)
        if isinstance(constant, int):
            right = constant if constant >= 1 else 1 - constant
    return (operation, left, right)


leaves = st.one_of(st.integers(-4, 12), st.sampled_from(sorted(ATOMS)))
nonnegative_leaves = st.one_of(st.integers(0, 12), st.sampled_from(["n", "m", "i", "j", "t"]))


def trees(leaf: st.SearchStrategy[Tree], operations: str) -> st.SearchStrategy[Tree]:
    return st.recursive(
        leaf, lambda inner: st.tuples(st.sampled_from(operations.split()), inner, inner), max_leaves=7
    ).map(defined)


small_operands = st.one_of(st.integers(1, 4), st.sampled_from(["n", "m", "i", "t"]))
bounded = st.tuples(st.sampled_from(["min", "max", "%", "//"]), small_operands, small_operands).map(defined)
"""What a slice's bounds and joined loops leave behind."""


@st.composite
def sharing(draw: Any, leaf: st.SearchStrategy[Tree], operations: str) -> Tree:
    """A tree in which sub-expressions occur several times, inside one another too, as index maps have them."""
    pool = draw(st.lists(leaf, min_size=2, max_size=3))
    for _ in range(draw(st.integers(2, 7))):
        left, right = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        pool.append((draw(st.sampled_from(operations.split())), left, right))
    return defined(pool[-1])


@st.composite
def inside_and_outside(draw: Any) -> Tree:
    """A bounded atom inside another one, and beside it: x - min(x, c), and n * ((x - min(x, c)) // d)."""
    sign, operation = st.sampled_from("+-"), st.sampled_from(["//", "%", "min", "max"])
    atom, size = draw(bounded), st.integers(1, 9)
    inner = (draw(operation), (draw(sign), draw(small_operands), atom), draw(size))
    outer = (draw(sign), draw(small_operands), atom) if draw(st.booleans()) else atom
    term = ("*", draw(st.sampled_from([-1, 1, 2, "n"])), inner)
    whole = (draw(sign), (draw(sign), outer, term), draw(st.integers(0, 4)))
    return defined(whole if draw(st.booleans()) else (draw(operation), whole, draw(size)))


def small(values: Iterator[dict[str, int]], most: int = 400) -> list[dict[str, int]]:
    found = list(values)
    return found[:: max(1, len(found) // most)]


def value_of(found: Extent, values: dict[str, int]) -> int | None:
    try:
        return evaluate(found, {IDS[name]: value for name, value in values.items()})
    except ZeroDivisionError:
        return None


ALL = "+ - * // % min max"
NESTED_MINIMUM: Tree = ("-", "m", ("min", 1, "m"))
"""m - min(1, m): what a slice x[1:] leaves. Where min(1, m) is m, both it and what is made of it are 0."""

NESTED_REMAINDER: Tree = ("+", ("%", "s", 4), ("//", ("%", "s", 4), 3))
"""A remainder as a term, and inside another one, where it cannot be replaced by its dividend."""

either = st.one_of(
    trees(leaves, ALL),
    sharing(leaves, ALL),
    sharing(st.one_of(nonnegative_leaves, bounded), "+ - - * // %"),
    inside_and_outside(),
)


@settings(max_examples=times(150))
@given(either)
@example(("%", NESTED_REMAINDER, 2))
@example(("//", NESTED_REMAINDER, 2))
def test_an_expression_has_the_value_of_its_integers_everywhere(tree: Tree) -> None:
    found = extent(tree)
    for values in small(points(names_of(tree))):
        try:
            expected = integer(tree, values)
        except NotDefined:
            continue
        assert value_of(found, values) == expected, (tree, str(found), values)


@settings(max_examples=times(75))
@given(trees(nonnegative_leaves, "+ * // %"), trees(nonnegative_leaves, "+ *"))
def test_quotients_and_remainders_agree_with_brute_force_over_ranges(dividend: Tree, divisor: Tree) -> None:
    quotient, remainder = extent(("//", dividend, divisor)), extent(("%", dividend, divisor))
    for values in small(points(names_of(dividend) | names_of(divisor))):
        try:
            left, right = integer(dividend, values), integer(divisor, values)
        except NotDefined:
            continue
        if right >= 1:
            assert value_of(quotient, values) == left // right, (str(quotient), values)
            assert value_of(remainder, values) == left % right, (str(remainder), values)


@settings(max_examples=times(75))
@given(either)
@example(("-", NESTED_MINIMUM, ("*", "n", ("//", ("+", NESTED_MINIMUM, 1), 2))))
@example(("-", ("max", "n", "m"), ("+", "m", ("min", ("max", "n", "m"), 3))))
def test_what_is_proved_not_to_be_negative_never_is(tree: Tree) -> None:
    if not is_nonnegative(extent(tree)):
        return
    for values in small(points(names_of(tree))):
        try:
            assert integer(tree, values) >= 0, (tree, values)
        except NotDefined:
            continue


@settings(max_examples=times(75))
@given(either, trees(nonnegative_leaves, "+ *"))
def test_substitution_gives_what_building_it_from_the_replacement_gives(tree: Tree, replacement: Tree) -> None:
    new = extent(replacement)
    try:
        found = substitute(extent(tree), {next(symbols(N)): new})
    except ZeroDivisionError:
        return
    for values in small(points(names_of(tree) | names_of(replacement)), 100):
        try:
            expected = integer(tree, {**values, "n": integer(replacement, values)})
        except NotDefined:
            continue
        if values.get("i", 0) < integer(replacement, values):  # proofs rely on i < n
            own = value_of(found, values)
            assert own == expected, (str(found), values)


@settings(max_examples=times(150))
@given(either)
def test_the_python_text_of_an_expression_evaluates_to_it(tree: Tree) -> None:
    found = extent(tree)
    text = python_text(found, lambda s: s.name if s.name in ATOMS else {-1: "n", -2: "m", 7: "s"}[s.id or 0])
    for values in small(points(names_of(tree)), 50):
        expected = value_of(found, values)
        if expected is not None:
            assert eval(text, {"min": min, "max": max}, dict(values)) == expected


# ---------------------------------------------------------------------------------------------------------------------
# sympy as an oracle

SYMPY = {name: sympy.Symbol(name, integer=True) for name in ATOMS}


def in_sympy(tree: Tree) -> Any:
    if not isinstance(tree, tuple):
        return SYMPY[tree] if isinstance(tree, str) else sympy.Integer(tree)
    left, right = in_sympy(tree[1]), in_sympy(tree[2])
    return {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "//": lambda: sympy.floor(left / right),
        "%": lambda: left - right * sympy.floor(left / right),
    }[tree[0]]()


def read_back(found: Extent) -> Any:
    text = python_text(found, lambda s: s.name if s.name in ATOMS else {-1: "n", -2: "m", 7: "s"}[s.id or 0])
    return sympy.expand(sympy.sympify(eval(text, dict(SYMPY))))


@settings(max_examples=times(75))
@given(trees(leaves, "+ - *"))
def test_polynomials_are_sympys_expanded_ones(tree: Tree) -> None:
    found = extent(tree)
    expected = sympy.expand(in_sympy(tree))
    assert read_back(found) == expected
    terms = 0 if expected == 0 else len(sympy.Add.make_args(expected))
    assert (int(found != 0) if isinstance(found, int) else len(found.terms)) == terms


@settings(max_examples=times(75))
@given(trees(leaves, "+ - *"), trees(leaves, "+ - *"))
def test_an_exact_division_is_found_where_sympy_finds_a_polynomial(a: Tree, b: Tree) -> None:
    left, right = extent(a), extent(b)
    if right == 0:
        assert divide_exactly(left, right) is None
        return
    assert divide_exactly(left * right, right) == left
    found = divide_exactly(left, right)
    quotient = sympy.cancel(sympy.expand(in_sympy(a)) / sympy.expand(in_sympy(b)))
    whole = quotient.is_polynomial() and all(
        c.is_integer for c in sympy.Poly(quotient, *SYMPY.values()).coeffs()
    )  # fmt: skip
    assert (found is not None) == whole
    if found is not None:
        assert read_back(found) == sympy.expand(quotient)


@settings(max_examples=times(75))
@given(trees(nonnegative_leaves, "+ * // %"), st.integers(1, 9), st.lists(st.integers(1, 40), min_size=6, max_size=6))
def test_quotients_by_constants_agree_with_sympys_floor(tree: Tree, divisor: int, values: list[int]) -> None:
    at = dict(zip(sorted(ATOMS), values, strict=True))
    at |= {"i": at["i"] % at["n"], "j": at["j"] % at["m"], "t": at["t"] % 6}
    try:
        integer(tree, at)
    except NotDefined:
        return
    named = {SYMPY[name]: value for name, value in at.items()}
    expected = sympy.floor(in_sympy(tree).subs(named) / divisor)
    assert value_of(floordiv(extent(tree), divisor), at) == expected


# ---------------------------------------------------------------------------------------------------------------------
# how short they come out


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


@pytest.mark.parametrize("fact", [N - 1, M - N, S, minimum(N, S), N - 1 - T])
def test_what_does_not_hold_everywhere_is_not_proved(fact: Extent) -> None:
    assert not is_nonnegative(fact)


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
