"""Random programs of views, assignments and in-place operations leave what NumPy leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import fuse

MOST_AXES = 3


@dataclass(frozen=True)
class Step:
    """One statement: `what` on name number `name`, with `other` as its second operand."""

    what: str
    name: int
    other: int = 0
    key: tuple[Any, ...] = ()
    number: float = 0.0


@dataclass(frozen=True)
class Program:
    """Statements on a list of names, which begins with the arguments; made for the shapes of one run."""

    steps: tuple[Step, ...]

    def __call__(self, *arguments: Any) -> Any:
        names = list(arguments)
        for step in self.steps:
            self.run(step, names)
        return tuple(name * 1 for name in names)

    def run(self, step: Step, names: list[Any]) -> None:
        x, other = names[step.name], names[step.other]
        match step.what:
            case "view":
                names.append(x[step.key])
            case "transpose":
                names.append(x.T)
            case "flatten":
                names.append((x * 1).T.reshape(-1))
            case "joined":
                names.append(x.reshape(-1))
            case "flat":
                x.flat[::2] = [step.number, 1.25]
            case "add at":
                np.add.at(x, [0, -1, 0], step.number)
            case "masked mean":
                x[x > step.number] = (x > step.number).sum() - x[x <= step.number].sum()
            case "reshaped view":
                names.append((x + 1)[step.key].reshape(-1))
            case "new":
                names.append(x + step.number)
            case "copy":
                names.append(x[step.key].copy())
            case "add":
                x += step.number
            case "multiply":
                x *= step.number
            case "assign number":
                x[step.key] = step.number
            case "add at key":
                x[step.key] += step.number
            case "assign computed":
                x[step.key] = x[step.key][::-1] * 2 if np.ndim(x[step.key]) else x[step.key] * 2
            case "assign total":
                x[step.key] = other.sum()
            case "mask number":
                x[x > step.number] = -step.number
            case "mask in place":
                x[other.sum() * 0 + x < step.number] += 1.5
            case "mask from mask":
                mask = x > step.number
                x[mask] = x[mask] * 0.5 - 1
            case "positions":
                x[np.arange(x.shape[0])[::2]] = step.number
            case "positions in place":
                x[[0, -1]] *= 2
            case "positions from positions":
                x[[-1, 0]] = x[[0, -1]] + 1
            case "clip":
                np.clip(x, -3, 3, out=x)
            case "fill":
                x[...] = step.number
            case _:
                raise AssertionError(step.what)


KINDS = (
    "view", "view", "view", "transpose", "flatten", "reshaped view", "new", "copy", "add", "multiply", "assign number",
    "add at key", "assign computed", "assign total", "mask number", "mask in place", "mask from mask", "clip", "fill",
    "positions", "positions in place", "positions from positions", "joined", "joined", "flat", "add at", "masked mean",
)  # fmt: skip


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A basic key for an array of a shape."""
    parts: list[Any] = []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["slice", "slice", "integer", "whole"]))
        if kind == "integer":
            parts.append(draw(st.integers(-extent, extent - 1)) if extent else slice(None))
        elif kind == "whole":
            parts.append(slice(None))
        else:
            bound = st.none() | st.integers(-extent - 1, extent + 1)
            step = draw(st.sampled_from([None, 1, 2, 3, -1, -2]))
            parts.append(slice(draw(bound), draw(bound), step))
    if draw(st.booleans()) and len(shape) < MOST_AXES:
        parts.insert(draw(st.integers(0, len(parts))), None)
    if draw(st.booleans()):
        parts.append(Ellipsis)
    return tuple(parts)


def spaced(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same elements in every second place of the last axis, so that a reshape that joins axes copies."""
    return np.repeat(array, 2, -1)[..., ::2]


def copied(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy with the same layout."""
    return array.copy() if array.flags.c_contiguous else spaced(array)


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, list[np.ndarray[Any, Any]]]:
    """A program, and arguments that it runs on."""
    shapes = [tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=2))) for _ in range(draw(st.integers(1, 2)))]
    arguments = [np.arange(float(np.prod(s))).reshape(s) / 4 - 2 + k for k, s in enumerate(shapes)]
    if draw(st.booleans()):
        arguments = [spaced(a) for a in arguments]
    names: list[Any] = [copied(a) for a in arguments]
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 7))):
        arrays = [k for k, x in enumerate(names) if isinstance(x, np.ndarray) and x.flags.writeable]
        own = draw(st.sampled_from(arrays))
        step = Step(
            draw(st.sampled_from(KINDS)), own, draw(st.integers(0, len(names) - 1)),
            draw(keys(names[own].shape)), draw(st.sampled_from([-1.5, 0.0, 0.75, 2.0])),
        )  # fmt: skip
        Program(()).run(step, names)
        steps.append(step)
    return Program(tuple(steps)), arguments


@pytest.mark.parametrize("options", [{"target": "reference"}, {}], ids=["reference", "cpu"])
def test_random_programs_leave_what_numpy_leaves(options: dict[str, Any]) -> None:
    @settings(max_examples=times(75 if options else 10))
    @given(programs())
    def compare(drawn: tuple[Program, list[np.ndarray[Any, Any]]]) -> None:
        program, arguments = drawn
        own, expected = [copied(a) for a in arguments], [copied(a) for a in arguments]
        wanted = program(*expected)
        result = fuse(program.__call__, **options)(*own)
        for made, right in zip(result, wanted, strict=True):
            np.testing.assert_allclose(made, right, rtol=1e-13, atol=1e-13)
        for mine, theirs in zip(own, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-13, atol=1e-13)

    compare()


def test_positions_along_several_axes_need_no_evaluation_of_host_scalars_by_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def one_hot(labels: Any, count: int) -> Any:
        result = np.zeros((labels.size, count))
        result[np.arange(labels.size), labels] = 1
        return result

    def refuse(*_: Any) -> None:
        raise AssertionError("the generated code of the call computes host scalars")

    monkeypatch.setattr("tracefuse.compiler.executable.evaluate_scalars", refuse)
    labels = np.array([2, 0, -1])
    np.testing.assert_array_equal(fuse(one_hot)(labels, 4), one_hot(labels, 4))
