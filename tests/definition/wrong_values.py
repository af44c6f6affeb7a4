"""Values that calls are not made for, calls that are right, and what a wrong one may do: for tests of refusals."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import numpy as np

from tracefuse import DataType, DtypeError, FusionDefinition, ParallelType, TracefuseError
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops import REGISTRY

EMPTY = Parameter.empty
MATRIX = np.ones((3, 4), np.float32).view(np.matrix)


class Unprintable:
    """Its repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Recorded:
    """A definition with a value of each kind. x: f32[n, m]; i, places: int64 with two axes and one."""

    def __init__(self) -> None:
        self.fd = fd = FusionDefinition(ids=iter(range(1, 10)))
        self.x, self.i = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1], dtype=DataType.Int)
        self.places = fd.define_tensor([-1], dtype=DataType.Int)
        self.number, self.count = fd.define_scalar(dtype=DataType.Double), fd.define_scalar(dtype=DataType.Int)
        self.vector = fd.define_vector([4, 4])

    ARGUMENTS = (
        np.arange(16, dtype=np.float32).reshape(4, 4) + 20 * np.eye(4, dtype=np.float32),
        np.arange(16).reshape(4, 4) % 4, np.arange(4), 2.5, 4,
    )  # fmt: skip
    """The first is a regular matrix, which `solve` needs."""


def _elsewhere() -> list[Any]:
    other = Recorded()
    for _ in range(5):
        other.fd.define_tensor([-1, -1])
    return [other.x, other.number, other.count, other.vector, other.fd.extent(-13), [other.x], [other.count]]


ELSEWHERE = _elsewhere()


def wrong_values(own: Recorded) -> list[Any]:
    """Values of every kind: few calls take one of them, and most take none."""
    fields = np.dtype([("field", int)])
    return [
        *(None, "x", b"x", bytearray(b"x"), memoryview(b"x"), object(), Unprintable(), {}, {"a": 1}, {1, 2}, slice(2)),
        *(1.5, float("nan"), float("inf"), 1j, True, -1, 7, -7, 2**63 - 1, -(2**63), 2**70, -(2**70), 2**2000),
        *(np.ones(3), np.ones((2, 2)), np.array(1), np.array("x"), np.array(None), MATRIX, np.ma.masked),
        *(np.ma.array([1, 2]), np.float32(2), np.int8(3), np.bool_(True), np.longdouble(1), np.datetime64("2020")),
        *(int, float, np.float32, type, ValueError, len, lambda: 1, iter([1]), NotImplemented, Exception("x")),
        *([], [0, 0], [5], ["x"], [None], [1.5], [2**70], [[1]], [[[0], [0]]], (0,), range(3), [0] * 100, [-1, -1]),
        *([1, -5], [10**10] * 5, [np.int64(1)], [np.ones(2)], [True, False], [own.x], [own.number], [own.count]),
        *(own.x, own.i, own.number, own.count, own.vector, ParallelType.stream, DataType.Float, DataType.Null),
        *("float32", "nope", "i4,i4", fields, *ELSEWHERE),
    ]  # fmt: skip


_GOOD: dict[str, Callable[[Recorded], Any]] = {
    **dict.fromkeys(
        (
            "arg",
            "arg2",
            "arg3",
            "mat1",
            "mat2",
            "scale1",
            "scale2",
            "src",
            "a",
            "b",
            "c",
            "d",
            "weight",
            "output",
            "tensor",
        ),
        lambda own: own.x,
    ),
    **dict.fromkeys(("query", "key", "value", "grad_output"), lambda own: own.x),
    **dict.fromkeys(("index", "input"), lambda own: own.i),
    **dict.fromkeys(("start", "seed", "offset", "dim", "position", "axis"), lambda own: 0),
    **dict.fromkeys(("fill_value", "minval", "mean", "std", "maxval"), lambda own: 1.0),
    **dict.fromkeys(("length", "k", "chunks"), lambda own: 2),
    "stack_axes": lambda own: 0,
    "joined_axes": lambda own: 1,
    "summed_axes": lambda own: 1,
    **dict.fromkeys(("shape", "new_shape", "end_indices"), lambda own: [4, 4]),
    **dict.fromkeys(("start_indices", "dims", "a_dims", "b_dims", "pad_widths"), lambda own: [0, 1]),
    **dict.fromkeys(("broadcast_dims", "values", "devices"), lambda own: [0, 1]),
    "log_sumexp": lambda own: own.places,
    "tensors": lambda own: [own.x, own.x],
    "dtype": lambda own: DataType.Float,
    "how": lambda own: "assign",
    "vector": lambda own: own.vector,
    "stride_order": lambda own: [1, 0],
    "array": lambda own: np.ones((2, 3)),
    "id": lambda own: -1,
    "is_broadcast_dim": lambda own: [False, True, False],
    "kind": lambda own: ParallelType.stream,
}
_GOOD_OF: dict[tuple[str, str], Callable[[Recorded], Any]] = {
    ("log_sumexp", "arg"): lambda own: own.x,
    ("extent", "value"): lambda own: 4,
    ("at", "index"): lambda own: 0,
    ("select", "index"): lambda own: 1,
    ("grouped_mm", "index"): lambda own: own.places,
    ("index_put_accumulate", "index"): lambda own: own.places,
    ("index_put", "index"): lambda own: own.places,
    ("slice_scatter", "start_indices"): lambda own: [0, 0],
    ("slice_scatter", "end_indices"): lambda own: [own.x.size(0), own.x.size(1)],
    ("slice_scatter", "strides"): lambda own: [1, 1],
    **{
        (op, parameter): value
        for op in ("diagonal", "diagonal_scatter")
        for parameter, value in {
            "start_indices": lambda own: [0, 0],
            "end_indices": lambda own: [4, 4],
            "strides": lambda own: [1, 1],
            "dims": lambda own: [0, 1],
        }.items()
    },
    ("diagonal_scatter", "arg2"): lambda own: own.fd.ops.sum(own.x, [0]),
    ("squeeze", "arg"): lambda own: own.fd.ops.sum(own.x, [0, 1], True),
    ("checked_position", "b"): lambda own: 1 << 20,
    ("extent_min", "a"): lambda own: 4,
    ("extent_min", "b"): lambda own: own.count,
    ("extent_max", "a"): lambda own: 4,
    ("extent_max", "b"): lambda own: own.count,
}

_ALSO_NEEDED: dict[str, tuple[str, ...]] = {
    "broadcast": ("is_broadcast_dim",),
    "permute": ("dims",),
    "permuted_matmul": ("a_dims", "b_dims"),
    "contract_axes": ("a_dims", "b_dims"),
    "define_tensor": ("shape",),
    "slice_scatter": ("start_indices", "end_indices", "strides"),
    "diagonal": ("start_indices", "end_indices", "strides", "dims"),
    "diagonal_scatter": ("start_indices", "end_indices", "strides", "dims"),
}
"""Parameters with a default that a call of two axes does not do without."""


_NARROW = (DataType.Int32, DataType.Double)
"""The types of operands of ops that take neither float32 nor int64."""


@dataclass(frozen=True)
class Target:
    """One call: `call_of(own)` is what is called, `given` arguments of a call that is right, by parameter."""

    name: str
    call_of: Callable[[Recorded], Callable[..., Any]]
    parameters: tuple[Parameter, ...]

    def given(self, own: Recorded) -> dict[str, Any]:
        """Arguments for what the call requires."""
        also = _ALSO_NEEDED.get(self.name, ())
        needed = [p.name for p in self.parameters if p.default is EMPTY or p.name in also]
        made = {name: _GOOD_OF.get((self.name, name), _GOOD.get(name)) for name in needed}
        return {name: make(own) for name, make in made.items() if make is not None}

    def run(self, own: Recorded, given: dict[str, Any]) -> Any:
        """The call with arguments by parameter."""
        positional = [p.name for p in self.parameters if p.kind is Parameter.POSITIONAL_ONLY]
        rest = {name: value for name, value in given.items() if name not in positional}
        return self.call_of(own)(*(given[name] for name in positional), **rest)

    def right(self, own: Recorded) -> dict[str, Any]:
        """Arguments that the call takes: integers where it takes no floats."""
        given = self.given(own)
        kinds = (lambda: own.x, lambda: own.i, *(lambda kind=kind: own.fd.ops.cast(own.x, kind) for kind in _NARROW))
        for operand in kinds:
            chosen = operand()
            typed = {name: chosen if value is own.x else value for name, value in given.items()}
            try:
                self.run(own, typed)
            except DtypeError as error:
                refused = error
            else:
                return typed
        raise refused


def targets() -> Iterator[Target]:
    """Every operation of `fd.ops`, and the calls of a definition and of its tensors that record."""
    plain = Recorded()

    def target(name: str, call_of: Callable[[Recorded], Callable[..., Any]]) -> Target:
        return Target(name, call_of, tuple(inspect.signature(call_of(plain)).parameters.values()))

    for name in sorted(n for n in dir(plain.fd.ops) if not n.startswith("_") and _has_calls_of_its_own(n)):
        yield target(name, lambda own, name=name: getattr(own.fd.ops, name))  # type: ignore[misc]
    for name in ("define_tensor", "define_scalar", "define_vector", "from_array", "from_pytorch", "add_output",
                 "extent", "extent_min", "extent_max"):  # fmt: skip
        yield target(f"{name}", lambda own, name=name: getattr(own.fd, name))  # type: ignore[misc]
    for name in ("size", "axis", "outer_split", "set_device_mesh"):
        yield target(name, lambda own, name=name: getattr(own.fd.ops.set(own.x), name))  # type: ignore[misc]
    yield target("parallelize", lambda own: own.fd.ops.set(own.x).axis(0).parallelize)


def _has_calls_of_its_own(name: str) -> bool:
    """Whether an operation is tested by itself. Ops on whole arrays are recorded alike, and two stand for all."""
    return not isinstance(REGISTRY.get(name), WholeArrayOp) or name in ("det", "solve")


def refusal(call: Callable[[], Any]) -> TracefuseError | None:
    """What a call refuses with, None where it takes its arguments; other errors go on."""
    try:
        call()
    except TracefuseError as error:
        return error
    return None
