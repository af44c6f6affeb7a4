"""Tests the texts of computed values: each call makes those that are only returned or printed, from one trace."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

STATE = SimpleNamespace(t=0)


def returned(x: Any) -> Any:
    return f"loss {x.sum():.3f} and {x.max()}"


def in_containers(x: Any) -> Any:
    return x * 2, f"{x.mean():.2e}", {"m": f"{x[0]!s}|{float(x[1]):.1f}"}, [f"{x}"]


def printed(x: Any) -> Any:
    print(f"sum {x.sum():.3f}", x.max(), sep="; ")
    return x


def through_variables(x: Any) -> Any:
    text = f"{x.sum():.3f}"
    longer = "a" + text
    longer += " b"
    print(longer)
    return x, longer


def labelled(value: Any) -> Any:
    return f"<{value:.2f}>"


def through_functions(x: Any) -> Any:
    return labelled(x.sum()) + (lambda value: f"{value:.1f}")(x.max())


def by_other_means(x: Any) -> Any:
    return "{:.3f} {}".format(x.sum(), x.max()), str(x.sum()) + str(x), "%s" % x.max(), format(x.min(), ".1f")  # noqa: UP032, UP031


def joined(x: Any) -> Any:
    return ", ".join([f"{value:.1f}" for value in x])


def of_types(x: Any) -> Any:
    y = x.astype(np.float32)
    return f"{int(x[0]):03d} {x.astype(int).sum()} {(x > 0).any()} {x.sum() > 3} {y.sum()} {y[0] * 1j} {float(y[0])}"


def of_counters(x: Any) -> Any:
    STATE.t += 1
    print(f"step {STATE.t} of {x.shape[0]}", STATE.t)
    return f"step {STATE.t}: {x.sum():.2f}"


def before_updates(x: Any) -> Any:
    y = x.copy()
    text = f"{y} {y[0]}"
    y += 1
    return text, y


def of_arguments_that_change(x: Any) -> Any:
    text = f"{x}"
    x += 1
    return text


def in_branches(x: Any) -> Any:
    return f"large {x.sum():.1f}" if x.sum() > 12 else f"small {x.max():.1f}"


ONE_TRACE = (
    returned, in_containers, printed, through_variables, through_functions, by_other_means, joined, of_types,
    of_counters, before_updates, of_arguments_that_change, in_branches,
)  # fmt: skip


def outcomes(function: Callable[[Any], Any]) -> list[Any]:
    """What calls return and print, with their errors."""
    STATE.t = 0
    results: list[Any] = []
    for k in range(5):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            try:
                result = repr(function(np.arange(4.0) + 1.5 * k))
            except ValueError as error:
                result = str(error)
        results.append((result, output.getvalue()))
    return results


@pytest.mark.parametrize("function", ONE_TRACE)
def test_texts_that_are_only_shown_are_made_by_each_call_of_one_trace(function: Callable[[Any], Any]) -> None:
    fused = fuse(function, target="reference")
    assert outcomes(fused) == outcomes(function)
    assert fused.cache_info().traces == (2 if function is in_branches else 1)


def measured(x: Any) -> Any:
    text = f"{x.sum():.3f}"
    return x * len(text)


def compared(x: Any) -> Any:
    return x * 2 if f"{x.sum():.3f}" == "6.000" else x


def lowered(x: Any) -> Any:
    return f"{x.sum():.3E}".lower()


def in_keys(x: Any) -> Any:
    return {f"{x.sum():.2f}": 1}


def in_closures(x: Any) -> Any:
    def length() -> int:
        return len(text)

    text = f"{x.sum():.2f}"
    return length() * x


def of_wrong_specification(x: Any) -> Any:
    return f"{x.sum():d}"


def of_computed_specification(x: Any) -> Any:
    return f"{1.5:{int(x[0]) + 3}.1f}"


def padded(x: Any) -> Any:
    text = f"{x.sum()}"
    return f"{text:>12}|"


def kept_in_a_list(x: Any) -> Any:
    texts = []
    texts.append(f"{x.sum():.2f}")
    return texts, len(texts[0])


READ = (
    measured, compared, lowered, in_keys, in_closures, of_wrong_specification, of_computed_specification, padded,
    kept_in_a_list,
)  # fmt: skip


@pytest.mark.parametrize("function", READ)
def test_texts_that_code_reads_are_those_of_the_call(function: Callable[[Any], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fifth text of a line
        assert outcomes(fuse(function, target="reference")) == outcomes(function)


class Logged:
    """Keeps texts in its state."""

    def __init__(self) -> None:
        self.t, self.lines, self.label, self.table = 0, [], "", {}

    @fuse(target="reference")
    def step(self, x: Any) -> Any:
        self.t += 1
        self.lines.append(f"step {self.t}: {x.sum():.2f}")
        self.label = f"{x.max()}"
        self.table["last"] = f"{x.min():.1f}" + "!"
        return x * len(self.lines)

    def shown(self) -> str:
        return "".join(self.lines) + self.label

    @fuse(target="reference")
    def reading(self, x: Any) -> Any:
        self.lines.append(f"{x.sum():.2f}")
        return x * len(self.lines[-1])

    @fuse(target="reference")
    def reading_elsewhere(self, x: Any) -> Any:
        self.label = f"{x.sum():.2f}"
        return x * self.length()

    def length(self) -> int:
        return len(self.label)

    @fuse(target="reference")
    def reading_another_name(self, x: Any) -> Any:
        lines = self.lines
        self.lines.append(f"{x.sum():.2f}")
        return x * len(lines[-1])

    @fuse(target="reference")
    def reading_all(self, x: Any) -> Any:
        self.label = f"{x.sum():.2f}"
        return x * len(self.shown())


METHODS = ("step", "reading", "reading_elsewhere", "reading_another_name", "reading_all")


@pytest.mark.parametrize("name", METHODS)
def test_texts_are_stored_as_the_plain_method_stores_them(name: str) -> None:
    plain, fused = Logged(), Logged()
    for k in range(5):
        x = np.arange(4.0) + 1.5 * k
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = getattr(fused, name)(x)
        np.testing.assert_array_equal(result, getattr(Logged, name).__wrapped__(plain, x))
        assert vars(fused) == vars(plain)


def test_texts_that_are_only_stored_need_one_trace() -> None:
    Logged.step.cache_clear()
    logged = Logged()
    for k in range(4):
        logged.step(np.arange(4.0) + k)
    assert Logged.step.cache_info().traces == 1
    assert logged.lines[-1] == "step 4: 18.00"


def test_kernels_make_what_texts_show() -> None:
    fused = fuse(in_containers, target="cpu")
    assert outcomes(fused) == outcomes(in_containers)
