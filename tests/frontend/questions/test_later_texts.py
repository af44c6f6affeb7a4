"""Tests the texts of computed values: each call makes those that are only returned or printed, from one trace."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass
class Recorded:
    """A value with the representation that dataclasses generate."""

    value: Any


class Named:
    """A value with a representation of its own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Named({self.value!r})"


def represented(x: Any) -> Any:
    half, truth = x.astype(np.float16), x > 1
    texts = [repr(half), repr(half.sum()), f"{truth!r} {truth.any()!r} {np.array(x.sum())!r} {float(x[0])!r} {x=}"]
    return texts, "%r %s %d" % (x.max(), x.min(), 3), "{!r} {:>8}".format(x * 1j, x[1])  # noqa: UP031, UP032


def represented_in_containers(x: Any) -> Any:
    return f"{[x.sum(), 2]} {(x.max(), x.min())!r}", repr({"a": x.sum()}), repr(Named(x[1]))


ONE_TRACE = (
    returned, in_containers, printed, through_variables, through_functions, by_other_means, joined, of_types,
    of_counters, before_updates, of_arguments_that_change, in_branches, represented, represented_in_containers,
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


def padded_as_texts(x: Any) -> Any:
    total, number = x.sum(), float(x[0])
    by_percent = "%9s|%-20r|%.2s|%*d" % (total, total, total, 5, x[0])  # noqa: UP031
    return f"{total!s:>12}|{total!r:>30}|{number!r:>9}", by_percent, "{!s:>12}|{!a}".format(total, x)  # noqa: UP032


def escaped(x: Any) -> Any:
    return ascii(x.sum()), f"{x.sum()!a} {float(x[0])!a}", "%a" % x.max()  # noqa: UP031


def repeated_and_measured(x: Any) -> Any:
    return repr(x.sum()) * 2, len(repr(x.max())), str(x.max()).zfill(9), [*map(repr, x)]


def as_order(x: Any) -> Any:
    return [float(one) for one in sorted([x.max() * 9, x.min() + 5], key=repr)], [
        float(one) for one in sorted([x[1] * 7, x[0]], key=labelled)
    ]


def read_from_a_file(x: Any) -> Any:
    file = io.StringIO()
    print(x.sum(), repr(x.max()), x.shape[0], file=file)
    return file.getvalue()


def of_generated_methods(x: Any) -> Any:
    return f"{Recorded(x.sum())} {Recorded(x * 2)!r}"


READ = (
    of_generated_methods,
    measured, compared, lowered, in_keys, in_closures, of_wrong_specification, of_computed_specification, padded,
    kept_in_a_list, padded_as_texts, escaped, repeated_and_measured, as_order, read_from_a_file,
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
