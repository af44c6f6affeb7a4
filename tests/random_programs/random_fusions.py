"""Generates random fusions with matching arguments, for property tests.

Three modes. "exact": whole numbers that every op keeps whole and small, so that all orders of evaluation give the same
bits. "mixed": the same, and means and variances. "general": any numbers and functions such as exp; ops that jump
(comparisons, casts to integers) only take values that no rounding has touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import DataType
from tracefuse.ir.fusion import Fusion

Draw = Callable[[st.SearchStrategy[Any]], Any]

MOST = 2.0**20
"""No magnitude grows beyond this: sums of a few of them are exact in float32."""

HALVES = {DataType.Half: 2048.0, DataType.BFloat16: 256.0}
"""The half types, with the largest whole number up to which they hold all."""


LONG = (5, 8, 33, 64, 130, 1030)
"""Extents that fill vectors, warps and blocks, or nearly."""

ELEMENTS = 10_000
"""Larger tensors are not read further."""


class _Program:
    """A definition while it is drawn: every tensor with the shape that it has for the arguments.

    largest: a bound of each tensor's magnitude, by number. inexact: the numbers of tensors that rounding has touched.
    """

    def __init__(self, draw: Draw, mode: str, long: bool) -> None:
        self.draw, self.mode, self.long = draw, mode, long
        self.fd = FusionDefinition()
        self.tensors: list[tuple[Any, tuple[int, ...]]] = []
        self.sizes: list[tuple[Any, int]] = []
        self.arguments: list[Any] = []
        self.largest: dict[int, float] = {}
        self.inexact: set[int] = set()

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def inputs(self) -> None:
        pool = [self.number(1, 4) for _ in range(3)]
        if self.long:
            pool[0] = self.pick(*LONG)
        for _ in range(self.number(1, 3)):
            shape = tuple(self.draw(st.sampled_from(pool)) for _ in range(self.number(1, 3)))
            # One long axis at most.
            shape = tuple(e if e < 5 or e not in shape[:k] else 2 for k, e in enumerate(shape))
            if np.prod(shape) > ELEMENTS:
                shape = shape[:2]
            spelled = [1 if e == 1 else e if self.number(0, 4) == 0 else -1 for e in shape]
            self.add(self.fd.define_tensor(spelled, True), shape, 3.0)
            random = np.random.default_rng(self.number(0, 99))
            values = random.uniform(-3, 3, shape) if self.mode == "general" else random.integers(-3, 4, shape)
            self.arguments.append(values.astype(np.float32))
        if self.number(0, 1):
            size = self.draw(st.sampled_from(pool))
            self.sizes.append((self.fd.define_scalar(None, DataType.Int), size))
            self.arguments.append(size)

    def add(self, tensor: Any, shape: tuple[int, ...], largest: float, *, inexact: bool = False) -> None:
        if np.prod(shape) > ELEMENTS:
            return
        self.tensors.append((tensor, shape))
        self.largest[tensor.index] = largest
        if inexact and self.mode == "general":
            self.inexact.add(tensor.index)

    def bound(self, operand: Any) -> float:
        """How large an operand may be."""
        if isinstance(operand, int | float):
            return abs(operand)
        known = [abs(value) for size, value in self.sizes if size is operand]
        return known[0] if known else self.largest[operand.index]

    def touched(self, *operands: Any) -> bool:
        """Whether rounding has touched one of the operands."""
        return any(getattr(o, "index", None) in self.inexact for o in operands)

    def any_tensor(self) -> tuple[Any, tuple[int, ...]]:
        return self.draw(st.sampled_from(self.tensors))  # type: ignore[no-any-return]

    def another(self, shape: tuple[int, ...]) -> Any:
        """A tensor of this shape."""
        return self.draw(st.sampled_from([t for t, s in self.tensors if s == shape]))

    def float(self, tensor: Any) -> Any:
        return self.fd.ops.cast(tensor, DataType.Float)

    def step(self) -> None:
        kinds = [self.pointwise, self.unary, self.scalar, self.reduce, self.move, self.reshape, self.resize, self.make]
        kinds += [self.choose, self.turn, self.half, self.take, self.product]
        if self.mode == "general":
            kinds += [self.function, self.function]
        self.draw(st.sampled_from(kinds))()

    # --- pointwise ----------------------------------------------------------------------------------------------------

    def pointwise(self) -> None:
        tensor, shape = self.any_tensor()
        other = self.draw(
            st.sampled_from([*(t for t, s in self.tensors if s == shape), *(s for s, _ in self.sizes), 2, -0.0])
        )
        name = self.pick("add", "sub", "mul", "maximum", "lt")
        a, b = self.bound(tensor), self.bound(other)
        bound = {"add": a + b, "sub": a + b, "mul": a * b, "lt": 1.0}.get(name, max(a, b))
        if bound > MOST or (name == "lt" and self.touched(tensor, other)):
            name, bound = "minimum", max(a, b)
        made = getattr(self.fd.ops, name)(tensor, other, dtype=DataType.Float)
        rounds = name in ("add", "sub", "mul")
        self.add(made, shape, bound, inexact=rounds or self.touched(tensor, other))

    def unary(self) -> None:
        tensor, shape = self.any_tensor()
        name = self.pick("neg", "set", "abs", "segment_set")
        made = getattr(self.fd.ops, name)(self.float(tensor))
        self.add(made, shape, self.bound(tensor), inexact=self.touched(tensor))

    def function(self) -> None:
        """exp of what is not large, tanh, sigmoid, erf, sqrt of magnitudes, quotients."""
        tensor, shape = self.any_tensor()
        name = self.pick("tanh", "sigmoid", "erf", "sin", "exp", "sqrt", "div")
        operand, bound = self.float(tensor), 1.0
        if name == "exp":
            operand, bound = self.fd.ops.minimum(operand, 5.0), 150.0
        elif name == "sqrt":
            operand, bound = self.fd.ops.abs(operand), max(self.bound(tensor), 1.0)
        if name == "div":
            divisor = self.fd.ops.add(self.fd.ops.abs(self.float(self.another(shape))), 0.5)
            self.add(self.fd.ops.div(operand, divisor), shape, 2 * self.bound(tensor), inexact=True)
        else:
            self.add(getattr(self.fd.ops, name)(operand), shape, bound, inexact=True)

    def choose(self) -> None:
        """where, by a comparison of exact values."""
        tensor, shape = self.any_tensor()
        left, other = self.another(shape), self.another(shape)
        limit = self.pick(0.0, 1.0, self.another(shape))
        if not self.touched(left, limit):
            name = self.pick("lt", "ge", "eq")
            condition = getattr(self.fd.ops, name)(self.float(left), limit, dtype=DataType.Float)
            made = self.fd.ops.where(condition, self.float(tensor), self.float(other))
            self.add(made, shape, max(self.bound(tensor), self.bound(other)), inexact=self.touched(tensor, other))

    def half(self) -> None:
        """A cast to a half type, which rounds also inside a kernel."""
        tensor, shape = self.any_tensor()
        dtype = self.pick(*HALVES)
        if self.bound(tensor) <= (HALVES[dtype] if self.mode != "general" else 2.0**15):
            self.add(self.fd.ops.cast(tensor, dtype), shape, self.bound(tensor) * 1.01, inexact=True)

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

    # --- reductions and products --------------------------------------------------------------------------------------

    def reduce(self) -> None:
        tensor, shape = self.any_tensor()
        if not shape:
            return
        axes = sorted(self.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
        keep = bool(self.number(0, 1))
        names = ["sum", "max", "min", "prod", "any", "all"] + ["mean", "var"] * (self.mode != "exact")
        name = self.draw(st.sampled_from(names))
        own, count = self.bound(tensor), int(np.prod([shape[k] for k in axes]))
        # 40 factors are as good as more: anything above 1 is too large by then, or stays small.
        product = max(own, 1.0) ** min(count, 40)
        bounds = {"sum": own * count, "prod": product, "var": 4 * own * own, "any": 1.0, "all": 1.0}
        if bounds.get(name, own) > MOST or (name in ("any", "all") and self.touched(tensor)):
            name = "max"
        more = {"correction": 0} if name == "var" else {}
        made = getattr(self.fd.ops, name)(self.float(tensor), axes, keepdim=keep, **more)
        kept = tuple(1 if k in axes else e for k, e in enumerate(shape))
        result = kept if keep else tuple(e for k, e in enumerate(shape) if k not in axes)
        rounds = name in ("sum", "prod", "mean", "var")
        self.add(made, result, bounds.get(name, own), inexact=rounds or self.touched(tensor))

    def product(self) -> None:
        """A matrix product of a matrix with itself, turned."""
        found = [(t, s) for t, s in self.tensors if len(s) == 2 and s[1] * self.bound(t) ** 2 <= MOST]
        if found:
            tensor, (rows, inner) = self.draw(st.sampled_from(found))
            other = self.fd.ops.permute(self.float(tensor), [1, 0])
            made = self.fd.ops.matmul(self.float(tensor), other)
            self.add(made, (rows, rows), inner * self.bound(tensor) ** 2, inexact=True)

    # --- movement -----------------------------------------------------------------------------------------------------

    def moved(self, tensor: Any, source: Any, shape: tuple[int, ...], at_least: float = 0.0) -> None:
        """Adds what has the elements of `source`."""
        self.add(tensor, shape, max(self.bound(source), at_least), inexact=self.touched(source))

    def move(self) -> None:
        tensor, shape = self.any_tensor()
        if self.number(0, 1) and len(shape) < 4:
            axis = self.number(0, len(shape))
            flags = [k == axis for k in range(len(shape) + 1)]
            wide = (*shape[:axis], 1, *shape[axis:])
            self.moved(self.fd.ops.broadcast(tensor, flags), tensor, wide)
            if self.sizes and self.number(0, 1):
                size, value = self.draw(st.sampled_from(self.sizes))
                target = [size if k == axis else -1 for k in range(len(wide))]
                made = self.fd.ops.expand(self.fd.ops.broadcast(tensor, flags), target)
                self.moved(made, tensor, tuple(value if k == axis else e for k, e in enumerate(wide)))
        elif shape:
            order = self.draw(st.permutations(range(len(shape))))
            self.moved(self.fd.ops.permute(tensor, order), tensor, tuple(shape[k] for k in order))

    def turn(self) -> None:
        """flip or roll."""
        tensor, shape = self.any_tensor()
        if shape:
            axis = self.number(0, len(shape) - 1)
            if self.number(0, 1):
                self.moved(self.fd.ops.flip(tensor, [axis]), tensor, shape)
            else:
                self.moved(self.fd.ops.roll(tensor, self.number(-3, 5), axis), tensor, shape)

    def take(self) -> None:
        """take_along_axis, at positions that a tensor of whole numbers gives."""
        tensor, shape = self.any_tensor()
        other = self.another(shape)
        if shape and not self.touched(other):
            axis = self.number(0, len(shape) - 1)
            index = self.fd.ops.remainder(self.fd.ops.cast(other, DataType.Int), tensor.size(axis))
            self.moved(self.fd.ops.take_along_axis(tensor, index, axis), tensor, shape)

    def reshape(self) -> None:
        tensor, shape = self.any_tensor()
        if len(shape) >= 2:
            axis = self.number(0, len(shape) - 2)
            sizes = [tensor.size(k) for k in range(len(shape))]
            joined = [*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]]
            flat = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
            self.moved(self.fd.ops.reshape(tensor, joined), tensor, flat)
        else:
            self.moved(self.fd.ops.reshape(tensor, [1, -1]), tensor, (1, int(np.prod(shape))))

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
            made = self.fd.ops.slice(tensor, starts, ends)
            self.moved(made, tensor, tuple(e - s for e, s in zip(shape, starts, strict=True)))
        elif kind == 1:
            pads = [0] * (2 * (len(shape) - 1 - axis)) + [1, 2]
            wider = tuple(e + 3 * (k == axis) for k, e in enumerate(shape))
            self.moved(self.fd.ops.pad(tensor, pads, 7), tensor, wider, 7.0)
        else:
            doubled = tuple(e * (1 + (k == axis)) for k, e in enumerate(shape))
            self.moved(self.fd.ops.cat([tensor, tensor], axis), tensor, doubled)

    def make(self) -> None:
        size, value = self.draw(st.sampled_from([*self.sizes, (3, 3)]))
        if self.number(0, 1):
            self.add(self.fd.ops.full([size, 2], 5.0, DataType.Float), (value, 2), 5.0)
        else:
            self.add(self.fd.ops.iota(size, 1, 2), (value,), 2.0 * value + 1)

    def update(self) -> None:
        """Updates some of the inputs, each with a tensor of its shape and type."""
        inputs = [t for t, _ in self.tensors if t.index in self.fd.recording.builder.inputs]
        shapes = {t.index: shape for t, shape in self.tensors}
        for owner in inputs:
            fitting = [t for t, s in self.tensors if s == shapes[owner.index] and t.dtype is DataType.Float]
            if fitting and self.number(0, 3):
                self.fd.add_output(self.draw(st.sampled_from(fitting)), alias_input=owner)


@st.composite
def definitions(
    draw: Draw, mode: str = "mixed", long: bool = False, updates: bool = False
) -> tuple[FusionDefinition, list[Any]]:
    """(definition, arguments) with one output or more; no reduction is over an empty axis.

    long: one extent may be among LONG; else extents are small. updates: outputs may update inputs.
    """
    program = _Program(draw, mode, long)
    with program.fd:
        program.inputs()
        for _ in range(program.number(1, 8)):
            if all(np.prod(shape) > 0 for _, shape in program.tensors):
                program.step()
        made = {t.index for t, _ in program.tensors} - set(program.fd.recording.builder.inputs)
        outputs = draw(st.lists(st.sampled_from(sorted(made)), min_size=1, max_size=2, unique=True)) if made else []
        for tensor, _ in program.tensors:
            if tensor.index in outputs:
                program.fd.add_output(tensor)
        if updates:
            program.update()
    return program.fd, program.arguments


def fusions(mode: str = "mixed", long: bool = False) -> st.SearchStrategy[tuple[Fusion, list[Any]]]:
    """(fusion, arguments)."""
    return definitions(mode, long).map(lambda drawn: (drawn[0].fusion, drawn[1]))
