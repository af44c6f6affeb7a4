"""Random fusions with arguments that fit them, for properties that hold of every fusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tracefuse.definition import FusionDefinition
from tracefuse.dtypes import DataType
from tracefuse.ir import Fusion

Draw = Callable[[st.SearchStrategy[Any]], Any]


class _Program:
    """A definition while it is drawn: every tensor with the shape that it has for the arguments."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.fd = FusionDefinition()
        self.tensors: list[tuple[Any, tuple[int, ...]]] = []
        self.sizes: list[tuple[Any, int]] = []
        self.arguments: list[Any] = []

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def inputs(self) -> None:
        pool = [self.number(1, 4) for _ in range(3)]
        for _ in range(self.number(1, 3)):
            shape = tuple(self.draw(st.sampled_from(pool)) for _ in range(self.number(1, 3)))
            spelled = [1 if e == 1 else e if self.number(0, 4) == 0 else -1 for e in shape]
            self.add(self.fd.define_tensor(spelled, True), shape)
            values = np.random.default_rng(self.number(0, 99)).integers(-3, 4, shape)
            self.arguments.append(values.astype(np.float32))
        if self.number(0, 1):
            size = self.draw(st.sampled_from(pool))
            self.sizes.append((self.fd.define_scalar(None, DataType.Int), size))
            self.arguments.append(size)

    def add(self, tensor: Any, shape: tuple[int, ...]) -> None:
        self.tensors.append((tensor, shape))

    def any_tensor(self) -> tuple[Any, tuple[int, ...]]:
        return self.draw(st.sampled_from(self.tensors))  # type: ignore[no-any-return]

    def step(self) -> None:
        kinds = [self.pointwise, self.unary, self.scalar, self.reduce, self.move, self.reshape, self.resize, self.make]
        self.draw(st.sampled_from(kinds))()

    def pointwise(self) -> None:
        tensor, shape = self.any_tensor()
        same = [t for t, s in self.tensors if s == shape]
        other = self.draw(st.sampled_from([*same, *(s for s, _ in self.sizes), 2, -0.0]))
        name = self.draw(st.sampled_from(["add", "sub", "mul", "maximum", "lt"]))
        self.add(getattr(self.fd.ops, name)(tensor, other, dtype=DataType.Float), shape)

    def unary(self) -> None:
        tensor, shape = self.any_tensor()
        name = self.draw(st.sampled_from(["neg", "set", "abs", "segment_set"]))
        self.add(getattr(self.fd.ops, name)(self.fd.ops.cast(tensor, DataType.Float)), shape)

    def scalar(self) -> None:
        tensor, shape = self.any_tensor()
        if shape and self.number(0, 1):
            axis = self.number(0, len(shape) - 1)
            self.sizes.append((tensor.size(axis), shape[axis]))
        elif self.sizes:
            size, value = self.draw(st.sampled_from(self.sizes))
            if value < 20:
                self.sizes.append((size * 2 + 1, value * 2 + 1))
        else:
            self.sizes.append((self.fd.define_scalar(3), 3))

    def reduce(self) -> None:
        tensor, shape = self.any_tensor()
        if not shape:
            return
        axes = sorted(self.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
        keep = bool(self.number(0, 1))
        name = self.draw(st.sampled_from(["sum", "max", "mean", "var"]))
        more = {"correction": 0} if name == "var" else {}
        made = getattr(self.fd.ops, name)(self.fd.ops.cast(tensor, DataType.Float), axes, keepdim=keep, **more)
        kept = tuple(1 if k in axes else e for k, e in enumerate(shape))
        self.add(made, kept if keep else tuple(e for k, e in enumerate(shape) if k not in axes))

    def move(self) -> None:
        tensor, shape = self.any_tensor()
        if self.number(0, 1) and len(shape) < 4:
            axis = self.number(0, len(shape))
            flags = [k == axis for k in range(len(shape) + 1)]
            wide = (*shape[:axis], 1, *shape[axis:])
            self.add(self.fd.ops.broadcast(tensor, flags), wide)
            if self.sizes and self.number(0, 1):
                size, value = self.draw(st.sampled_from(self.sizes))
                target = [size if k == axis else -1 for k in range(len(wide))]
                made = self.fd.ops.expand(self.tensors[-1][0], target)
                self.add(made, tuple(value if k == axis else e for k, e in enumerate(wide)))
        elif shape:
            order = self.draw(st.permutations(range(len(shape))))
            self.add(self.fd.ops.permute(tensor, order), tuple(shape[k] for k in order))

    def reshape(self) -> None:
        tensor, shape = self.any_tensor()
        if len(shape) >= 2:
            axis = self.number(0, len(shape) - 2)
            sizes = [tensor.size(k) for k in range(len(shape))]
            joined = [*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]]
            flat = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
            self.add(self.fd.ops.reshape(tensor, joined), flat)
        else:
            self.add(self.fd.ops.reshape(tensor, [1, -1]), (1, int(np.prod(shape))))

    def resize(self) -> None:
        tensor, shape = self.any_tensor()
        if not shape:
            return
        axis = self.number(0, len(shape) - 1)
        kind = self.number(0, 2)
        if kind == 0:
            start = self.number(0, shape[axis])
            starts = [start if k == axis else 0 for k in range(len(shape))]
            ends = [tensor.size(k) for k in range(len(shape))]
            self.add(self.fd.ops.slice(tensor, starts, ends), tuple(e - s for e, s in zip(shape, starts, strict=True)))
        elif kind == 1:
            pads = [0] * (2 * (len(shape) - 1 - axis)) + [1, 2]
            self.add(self.fd.ops.pad(tensor, pads, 7), tuple(e + 3 * (k == axis) for k, e in enumerate(shape)))
        else:
            self.add(self.fd.ops.cat([tensor, tensor], axis), tuple(e * (1 + (k == axis)) for k, e in enumerate(shape)))

    def make(self) -> None:
        size, value = self.draw(st.sampled_from([*self.sizes, (3, 3)]))
        if self.number(0, 1):
            self.add(self.fd.ops.full([size, 2], 5.0, DataType.Float), (value, 2))
        else:
            self.add(self.fd.ops.iota(size, 1, 2), (value,))


@st.composite
def definitions(draw: Draw) -> tuple[FusionDefinition, list[Any]]:
    """(definition, arguments) with one output or more; no reduction is over an empty axis."""
    program = _Program(draw)
    with program.fd:
        program.inputs()
        for _ in range(program.number(1, 8)):
            if all(np.prod(shape) > 0 for _, shape in program.tensors):
                program.step()
        made = {t.index for t, _ in program.tensors} - set(program.fd._builder.inputs)
        outputs = draw(st.lists(st.sampled_from(sorted(made)), min_size=1, max_size=2, unique=True)) if made else []
        for tensor, _ in program.tensors:
            if tensor.index in outputs:
                program.fd.add_output(tensor)
    return program.fd, program.arguments


def fusions() -> st.SearchStrategy[tuple[Fusion, list[Any]]]:
    """(fusion, arguments)."""
    return definitions().map(lambda drawn: (drawn[0].fusion, drawn[1]))
