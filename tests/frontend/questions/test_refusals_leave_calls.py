"""Calls of functions that cannot be recorded run the function itself: with one warning, and with its results."""

from __future__ import annotations

import csv
import io
import os
import types
import warnings
from typing import Any

import numpy as np
import pytest

from tests.frontend.same_results import assert_same
from tracefuse import DtypeError, UnsupportedError, fori_loop, fuse

NAMES = np.array(["low", "middle", "high"])
TEXTS = io.StringIO()
COUNTS = types.SimpleNamespace(calls=0)


def records(x: Any) -> Any:
    table = np.zeros(len(x), dtype=[("value", "f8"), ("place", "i4")])
    table["value"], table["place"] = x * 2, np.arange(len(x))
    table.sort(order="value")
    return table["place"], table["value"].cumsum()


def fields(x: Any) -> Any:
    both = np.rec.fromarrays([x, x > 0], names="v,p")
    return both.v[both.p] + 1


def days(x: Any) -> Any:
    dates = np.datetime64("2024-02-27") + np.arange(len(x))
    return dates[np.argmax(x)], x - x.mean(), dates[-1] > dates[0]


def texts(x: Any) -> Any:
    return NAMES[np.digitize(x, [-0.5, 0.5])], x.astype("U4")


def labels(x: Any) -> Any:
    return np.char.upper(np.array(["a", "b"])[(x > 0).astype(int)]), x.dtype


def names_of_cases(x: Any) -> Any:
    return np.where(x > 0, "up", "down"), x * 2


def written_to_a_file(x: Any) -> Any:
    COUNTS.calls += 1
    np.savetxt(TEXTS, x, fmt="%.3f")
    return x + COUNTS.calls


def with_options_of_texts(x: Any) -> Any:
    with np.printoptions(precision=2):
        return f"{x[:2]}", str(x * 2)


def of_objects(x: Any) -> Any:
    return np.frompyfunc(lambda v: f"{v:.1f}", 1, 1)(x)


PROGRAMS = {
    records: "dtype .* is not supported", fields: r"np\.rec\.fromarrays\(\)", days: r"dtype datetime64\[D\]",
    texts: "indexing a NumPy array by elements", labels: "indexing a NumPy array by elements",
    names_of_cases: "str is no operand of an array operation",
    written_to_a_file: r"np\.savetxt cannot be fused yet",
    with_options_of_texts: r"np\.printoptions in a fused function",
    of_objects: "an array of objects",
}  # fmt: skip


def outcome(function: Any) -> tuple[list[Any], str]:
    """The results of three calls, and what they have written."""
    COUNTS.calls = 0
    TEXTS.seek(0)
    TEXTS.truncate()
    return [function(np.sin(np.arange(size) * 2.0)) for size in (5, 5, 8)], TEXTS.getvalue()


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda one: one.__name__)
def test_calls_warn_once_and_give_what_the_function_gives(function: Any) -> None:
    with pytest.warns(UserWarning, match=PROGRAMS[function]) as caught:
        made = outcome(fuse(function))
    np.testing.assert_equal(made, outcome(function))
    (warning,) = caught
    assert "from there on, calls run the function itself; " in str(warning.message)
    assert "(test_refusals_leave_calls.py:" in str(warning.message)


def test_explain_says_why_calls_run_the_function() -> None:
    fused, x = fuse(days), np.ones(3)
    with pytest.warns(UserWarning, match="datetime64"):
        fused(x)
    assert "dtype datetime64[D] is not supported: from there on, calls run the function itself" in str(fused.explain(x))


def test_what_only_tracefuse_can_do_and_the_reference_target_still_raise() -> None:
    with pytest.raises(DtypeError, match="datetime64"):
        fuse(days, target="reference")(np.ones(3))
    with pytest.raises(UnsupportedError, match=r"np\.savetxt cannot be fused yet \(test_refusals_leave_calls"):
        fuse(lambda x: fori_loop(0, 3, lambda i, a: np.savetxt(TEXTS, a) or a, x))(np.ones(3))


@pytest.mark.parametrize("dtype", [float, np.float32, int, np.int8, complex, bool])
def test_from_iter_takes_numbers_as_numpy_does(dtype: Any) -> None:
    def function(x: Any) -> Any:
        return np.fromiter((v * 1.5 for v in x), dtype), np.fromiter(iter(x), dtype, count=2), np.fromiter([], dtype)

    for size in (3, 3, 6):
        x = np.arange(size) - 1.0
        assert_same(fuse(function, target="reference")(x), function(x))
    with pytest.raises(ValueError, match="iterator too short: Expected 5 but iterator had only 3 items"):
        fuse(lambda x: np.fromiter(x, dtype, 5), target="reference")(np.ones(3))
    with pytest.raises(ValueError, match="setting an array element with a sequence"):
        fuse(lambda x: np.fromiter(x, dtype), target="reference")(np.ones((3, 2)))


class Lazy:
    """Reads a file at the first call."""

    def __init__(self, file: Any) -> None:
        self.file, self.weights = file, None

    def __call__(self, x: Any) -> Any:
        if self.weights is None:
            self.weights = np.load(self.file)
        return x * self.weights


def read_text(file: Any, x: Any) -> Any:
    with open(file) as lines:
        return x * float(lines.readline())


def read_descriptor(file: Any, x: Any) -> Any:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return x * len(os.read(descriptor, 99))
    finally:
        os.close(descriptor)


ON_FILES = {
    "loadtxt": lambda file, x: x + np.loadtxt(file), "fromfile": lambda file, x: x + np.fromfile(file, sep=" "),
    "genfromtxt": lambda file, x: x + np.genfromtxt(file), "open": read_text,
    "descriptor": read_descriptor,
}  # fmt: skip


@pytest.mark.parametrize("name", ON_FILES)
def test_calls_that_open_a_file_see_what_it_holds_now(name: str, tmp_path: Any) -> None:
    file, function, x = str(tmp_path / "numbers.txt"), ON_FILES[name], np.ones(2)
    fused = fuse(lambda x: function(file, x))
    for number in range(3):  # without a warning: a later call may open none
        np.savetxt(file, [number, 10.0**number], fmt="%g")
        np.testing.assert_array_equal(fused(x), function(file, x))
    np.savetxt(file, [7, 8.0], fmt="%g")
    with pytest.warns(UserWarning, match="opens a file, which each call would have to do: from there on, calls run"):
        np.testing.assert_array_equal(fused(x), function(file, x))


def test_what_the_first_call_reads_from_a_file_is_state_that_later_calls_compile(tmp_path: Any) -> None:
    np.save(tmp_path / "weights.npy", np.arange(3.0))
    lazy, x = Lazy(tmp_path / "weights.npy"), np.ones(3)
    fused = fuse(lazy)
    for _ in range(6):
        np.testing.assert_array_equal(fused(x), np.arange(3.0))
    assert fused.cache_info().traces == 1
    with pytest.raises(UnsupportedError, match=r"np\.load\(\) opens a file"):
        fuse(Lazy(tmp_path / "weights.npy"), target="reference")(x)


class OnStreams:
    """Functions that read and write files that are open, in memory and on disk."""

    @staticmethod
    def reads(file: Any, x: Any) -> Any:
        return x * float(file.readline()), file.tell()

    @staticmethod
    def writes(file: Any, x: Any) -> Any:
        file.write("9\n")
        return x + 1

    @staticmethod
    def writes_rows(file: Any, x: Any) -> Any:
        csv.writer(file).writerow([len(x)])
        return x * 2

    @staticmethod
    def iterates(file: Any, x: Any) -> Any:
        return x + sum(float(line) for line, _ in zip(file, range(2), strict=False))


@pytest.mark.parametrize("name", ["reads", "writes", "writes_rows", "iterates"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_files_of_the_state_are_read_and_written_in_every_call(name: str, on_disk: bool, tmp_path: Any) -> None:
    function, outcomes = getattr(OnStreams, name), []
    for decorate in (lambda one: one, fuse):
        (tmp_path / "open.txt").write_text("1\n2\n3\n4\n5\n6\n")
        with open(tmp_path / "open.txt", "r+") if on_disk else io.StringIO("1\n2\n3\n4\n5\n6\n") as file:
            call, results = decorate(lambda x: function(file, x)), []
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                results += [call(np.arange(2.0)) for _ in range(3)]
            assert ["the function reads or writes" in str(one.message) for one in caught] == [True] * (decorate is fuse)
            file.seek(0)
            outcomes.append((results, file.read()))
    np.testing.assert_equal(*outcomes)
