"""The builder of a Fusion: collects values and nodes, then verifies and freezes them.

Must not know: single ops, kernels, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracefuse.dtypes import DType
from tracefuse.errors import FusionError, ShapeError, TracefuseError
from tracefuse.ir.extents import Extent, input_extent, is_nonnegative, scalar_extent
from tracefuse.ir.fusion import (
    Attributes,
    Fusion,
    Layout,
    Literal,
    Node,
    Op,
    Operand,
    Requirement,
    Type,
    Value,
    is_input_extent,
)


class FusionBuilder:
    """Collects values and nodes; `build` verifies and freezes them. Numbers values in order unless `number` is passed.

    decides_later: concretization decides whether a computed extent is 1 and broadcasts, not recording (see
    `concretize`). settles: decides a new requirement in place of recording it, and raises where it does not hold, if
    it returns True.
    """

    def __init__(self) -> None:
        self.values: dict[int, Value] = {}
        self.inputs: list[int] = []
        self.nodes: list[Node] = []
        self.outputs: list[int] = []
        self.requirements: list[Requirement] = []
        self.aliases: dict[int, int] = {}
        self.slice_updates: dict[int, Node] = {}
        self.decides_later = False
        self.settles: Callable[[Requirement], bool] | None = None
        self._axes = 0
        self._next = 0

    def new_number(self) -> int:
        number = self._next
        self._next += 1
        return number

    def snapshot(self) -> tuple[int, ...]:
        """Returns a mark of the current state for `take_back`."""
        tables = (self.values, self.inputs, self.nodes, self.outputs, self.requirements, self.aliases)
        return (*map(len, tables), self._axes, self._next)

    def take_back(self, mark: tuple[int, ...]) -> None:
        """Restores the state at the mark."""
        *lengths, self._axes, self._next = mark
        for recorded, length in (
            (self.inputs, lengths[1]), (self.nodes, lengths[2]), (self.outputs, lengths[3]),
            (self.requirements, lengths[4]),
        ):  # fmt: skip
            del recorded[length:]
        for by_number, length in ((self.values, lengths[0]), (self.aliases, lengths[5])):
            while len(by_number) > length:
                by_number.popitem()

    @property
    def next_number(self) -> int:
        """The number of the next value."""
        return self._next

    @property
    def axes(self) -> int:
        """The total number of axes of the inputs."""
        return self._axes

    def _add(self, value: Value) -> int:
        self.values[value.number] = value
        self._next = max(self._next, value.number + 1)
        return value.number

    def tensor_input(
        self, dtype: DType, shape: Sequence[int], *, layout: Layout | None = None, name: str | None = None,
        where: str | None = None, number: int | None = None, extents: Sequence[Extent] | None = None,
    ) -> int:  # fmt: skip
        """Adds an array argument; returns its number.

        shape: -1 for a symbolic extent, 1 for a broadcast axis, n for a static extent. extents: overrides the extents,
        for a pass that knows which are equal. Raises ShapeError for an entry below -1.
        """
        if any(s < -1 for s in shape):
            raise ShapeError(f"an input's shape is made of -1, 1 and sizes, got {list(shape)}", where=where)
        known = tuple(input_extent(self._axes + k) if s == -1 else s for k, s in enumerate(shape))
        self._axes += len(shape)
        number = self.new_number() if number is None else number
        shape_type = Type(dtype, tuple(extents) if extents is not None else known)
        self.inputs.append(self._add(Value(number, shape_type, "tensor", None, layout or Layout(), name, where)))
        return number

    def scalar_input(
        self, dtype: DType, *, name: str | None = None, where: str | None = None, extent: Extent | None = None,
        number: int | None = None,
    ) -> int:  # fmt: skip
        """Adds a host scalar argument; returns its number. extent: its integer expression, by default a new symbol."""
        from_number = self.new_number() if number is None else number
        if extent is None and dtype.is_integer:
            extent = scalar_extent(from_number)
        value = Value(from_number, Type(dtype, ()), "scalar", extent, None, name, where)
        self.inputs.append(self._add(value))
        return from_number

    def require(
        self, left: Extent, relation: str, right: Extent, message: str, hint: str, where: str | None = None,
        kind: type[TracefuseError] = ShapeError,
    ) -> None:  # fmt: skip
        """Records left == right or left <= right; raises `kind` immediately if the relation is known to be false."""
        difference = right - left
        if difference == 0 or (relation == "<=" and is_nonnegative(difference)):
            return
        requirement = Requirement(left, relation, right, message, hint, where, kind)
        if isinstance(left, int) and isinstance(right, int) and not requirement.holds(left, right):
            raise requirement.error(left, right)
        if self.settles is None or not self.settles(requirement):
            self.requirements.append(requirement)

    def node(
        self, op: Op, operands: Sequence[Operand], attributes: Attributes, compute: DType,
        dtypes: Sequence[DType], *, where: str | None = None, names: Sequence[str | None] = (),
        numbers: Sequence[int] = (), extents: Sequence[Extent | None] = (),
    ) -> tuple[int, ...]:  # fmt: skip
        """Applies `op`; returns the numbers of its results. A pointwise op without tensor operands gives a host scalar.

        dtypes: the result types. extents: the integer expressions of scalar results.
        """
        full = {**dict(op.attributes), **attributes}
        shapes = [() if isinstance(o, Literal) else self.values[o].shape for o in operands]

        def require(
            left: Extent, relation: str, right: Extent, message: str, hint: str,
            kind: type[TracefuseError] = ShapeError,
        ) -> None:  # fmt: skip
            if not (self.decides_later and op.broadcasts and is_input_extent(left) != is_input_extent(right)):
                self.require(left, relation, right, f"{op.name}: {message}", hint, where, kind)

        result_shapes = op.shapes(shapes, full, require)
        on_host = op.kind == "pointwise" and not any(
            isinstance(o, int) and self.values[o].is_tensor for o in operands
        )  # fmt: skip
        kind = "scalar" if on_host and not any(result_shapes) else "tensor"
        results = []
        for position, (shape, dtype) in enumerate(zip(result_shapes, dtypes, strict=True)):
            number = numbers[position] if numbers else self.new_number()
            extent = extents[position] if extents else None
            name = names[position] if names else None
            results.append(self._add(Value(number, Type(dtype, shape), kind, extent, None, name, where)))
        self.nodes.append(Node(op, tuple(operands), full, compute, tuple(results), where))
        return tuple(results)

    def output(self, value: int, alias: int | None = None) -> None:
        """Adds `value` to the outputs. alias: the input whose memory it updates. Raises FusionError if undefined."""
        if value not in self.values:
            raise FusionError(f"no node computes output {value}")
        if alias is not None:
            self.aliases[value] = alias
        self.outputs.append(value)

    def build(self) -> Fusion:
        return Fusion(
            dict(self.values), tuple(self.inputs), tuple(self.nodes), tuple(self.outputs), tuple(self.requirements),
            dict(self.aliases), dict(self.slice_updates),
        )  # fmt: skip
