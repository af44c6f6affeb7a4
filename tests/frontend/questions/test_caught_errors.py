"""Functions that catch exceptions: handlers run for the calls for which they run in the plain program."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import ShapeError, fuse

ones = np.ones


def caught(operation: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    def function(*arguments: Any) -> Any:
        try:
            return operation(*arguments)
        except (ValueError, IndexError, np.linalg.LinAlgError):
            return instead(*arguments)

    return function


CASES: list[tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = [
    (lambda x, y: x + y, (ones(3), ones(3)), (ones(3), ones(4))),
    (lambda x, n: x.reshape(n, -1), (ones(6), 2), (ones(6), 4)),
    (lambda x, i: x[i], (ones(9), 7), (ones(3), 7)),
    (lambda x: x.max(), (ones(3),), (ones(0),)),
    (lambda a, b: a @ b, (ones((2, 3)), ones((3, 2))), (ones((2, 3)), ones((2, 3)))),
    (lambda a, b: np.concatenate([a, b], axis=1), (ones((2, 3)), ones((2, 3))), (ones((2, 3)), ones((3, 3)))),
    (lambda a: a.item(), (ones(1),), (ones(3),)),
    (lambda a: np.split(a, 3)[0], (ones(6),), (ones(4),)),
    (lambda a, b: np.einsum("ij,jk->ik", a, b), (ones((2, 3)), ones((3, 2))), (ones((2, 3)), ones((2, 3)))),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("is_first", [False, True])
def test_a_handler_of_errors_about_sizes_runs_where_it_does_in_numpy(case: Any, is_first: bool) -> None:
    operation, fits, fails = case
    plain = caught(operation, lambda *arguments: np.sum(arguments[0]) + 1.5)
    fused = fuse(target="reference")(plain)
    for arguments in (fails, fits, fails) if is_first else (fits, fails, fits):
        assert np.array_equal(fused(*arguments), plain(*arguments))
    assert fused.cache_info().traces <= 3


CAUGHT: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = [
    *((operation, [fails, fits, fails]) for operation, fits, fails in CASES),
    (lambda x, y: x + y, [(ones(3), ones(size)) for size in (4, 5, 3, 4)]),
    (lambda x, y: np.add(y, x, out=y), [(ones(3), ones((2, 4))), (ones(2), ones(3))]),
    (lambda x: x.reshape(7), [(ones(3),), (ones((2, 2)),), (ones(7),)]),
    (lambda x: np.sum(x, axis=2), [(ones(3),), (ones((2, 2)),), (ones((2, 2, 2)),)]),
    (lambda x: x & 1, [(ones(3),), (ones(4, int),)]),
    (lambda x: x.__setitem__(slice(1, None), [1, 2, 3]), [(ones(3),), (ones(4),)]),
    (lambda x: x + np.uint8(1) + 300, [(ones(2, np.uint8),), (ones(3),)]),
    (lambda x: np.stack([x, x[1:]]), [(ones(2),), (ones(3),)]),
]


@pytest.mark.parametrize("case", CAUGHT)
def test_caught_errors_have_numpys_type_arguments_text_and_line(case: Any) -> None:
    operation, calls = case

    def function(*arguments: Any) -> Any:
        try:
            return operation(*arguments)
        except Exception as error:
            entries = traceback.extract_tb(error.__traceback__)
            lines = [entry.lineno for entry in entries if "numpy" not in entry.filename]
            return type(error).__name__, type(error).__mro__[1].__name__, error.args, str(error), lines

    def informed(*arguments: Any) -> Any:
        try:
            return operation(*arguments)
        except Exception:
            return str(sys.exc_info()[1]), traceback.format_exc().splitlines()[-1]

    for plain in (function, informed):
        fused = fuse(target="reference")(plain)
        for arguments in calls:
            copied = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
            expected, result = plain(*arguments), fused(*copied)
            assert np.array_equal(result, expected) if isinstance(expected, np.ndarray) else result == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x[[0, 9]], x + ones(7)),
        lambda x: (x.reshape(5, -1), x & 1),
        lambda x: (x[5], np.add.accumulate(x[0])),
        lambda x: (np.add.accumulate(x[0], axis=-3), x[5]),
        lambda x: x.__setitem__(5, x[None, :2]),
        lambda x: np.add.at(x, np.array([0, -9, 1]), x[:2]),
        lambda x: np.logical_xor.at(x[:0], [0, -1, 0], x),
        lambda x: (x + ones(7)).shape,
        lambda x: np.argpartition(x, 4).ndim,
    ],
)
def test_of_several_errors_the_first_of_the_program_is_raised(function: Any) -> None:
    with pytest.raises((ValueError, IndexError, TypeError)) as expected:
        function(ones(4))
    kind = next(one for one in (LookupError, ValueError, TypeError) if issubclass(expected.type, one))
    with pytest.raises(kind):
        fuse(target="reference")(function)(ones(4))


def test_errors_that_no_handler_catches_are_those_of_tracefuse() -> None:
    def function(x: Any, y: Any) -> Any:
        try:
            with np.errstate(all="ignore"):
                return x + y
        except KeyError:
            return x

    with pytest.raises(ShapeError, match="test_caught_errors"):
        fuse(target="reference")(function)(ones(3), ones(4))


def test_a_handler_of_singular_matrices_runs_for_singular_matrices() -> None:
    def inverse(a: Any) -> Any:
        try:
            return np.linalg.inv(a) * 2, "inv"
        except np.linalg.LinAlgError as error:
            return np.linalg.pinv(a), str(error)

    for order in ((0, 1, 0, 1), (1, 0, 1, 0)):
        fused = fuse(inverse)
        for singular in order:
            a = ones((2, 2)) if singular else np.eye(2) * 4
            (mine, told), (right, text) = fused(a), inverse(a)
            assert np.allclose(mine, right)
            assert told == text
        assert fused.cache_info().traces == 2


def test_errors_outside_of_try_statements_are_requirements_of_one_trace() -> None:
    def function(x: Any, y: Any) -> Any:
        with contextlib.suppress(KeyError):
            {}["key"]
        try:
            pass
        finally:
            x = x + y
        return x

    fused = fuse(target="reference")(function)
    assert fused(ones(3), ones(3)).sum() == 6
    with pytest.raises(ShapeError):
        fused(ones(3), ones(4))
    assert fused.cache_info().traces == 1


def test_suppressed_errors_are_suppressed() -> None:
    def function(x: Any, y: Any) -> Any:
        with contextlib.suppress(ValueError):
            x = x + y
        return x

    fused = fuse(target="reference")(function)
    for size in (3, 4, 3, 5):
        assert np.array_equal(fused(ones(3), ones(size)), function(ones(3), ones(size)))


class TestRefusals:
    """What a trace refuses inside of a handler that catches it: the plain program does not raise there."""

    @staticmethod
    def _text_length(x: Any) -> int:
        try:
            return len(np.array2string(x))
        except Exception:
            return -1

    @staticmethod
    def _other_error(x: Any) -> int:
        try:
            return len(np.array2string(x))
        except Exception as error:
            raise ValueError("no text") from error

    @staticmethod
    def _suppressed(x: Any) -> int:
        length = -1
        with contextlib.suppress(TypeError, NotImplementedError):
            length = len(np.array2string(x))
        return length

    @pytest.mark.parametrize("name", ["_text_length", "_other_error", "_suppressed"])
    def test_a_refusal_that_a_handler_catches_leaves_calls_to_the_function(self, name: str) -> None:
        function, x = getattr(self, name), np.arange(3.0)
        fused = fuse(function)
        with pytest.warns(UserWarning, match=r"np.array2string cannot be fused yet: from there on, calls run the func"):
            assert fused(x) == function(x) == 10
        assert fused(x) == 10
        with pytest.raises(tracefuse.UnsupportedError, match=r"array2string .*test_caught_errors.py:\d+\)"):
            fuse(function, target="reference")(x)
