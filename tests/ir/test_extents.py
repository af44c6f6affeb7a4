"""Tests the simplification of symbolic integers against integers over whole ranges and against sympy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import sympy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.ir.extent_symbols import ATOMS, OPERATIONS, N, Tree, extent
from tests.session.samples import times
from tracefuse.ir.extents import (
    Extent,
    divide_exactly,
    evaluate,
    floordiv,
    is_nonnegative,
    python_text,
    substitute,
    symbols,
)

IDS = {"n": -1, "m": -2, "s": 7, "i": 100, "j": 101, "t": 102}


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
