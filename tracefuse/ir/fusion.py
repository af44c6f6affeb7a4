"""The IR: typed values in static single assignment, nodes that apply an op, and the Fusion that contains them.

A Fusion is immutable and verified at construction. Tensors and host scalars share one sequence of value numbers; a
Python constant is a `Literal` operand and has no number. Extents are symbolic: axis k of the inputs, counted over all
tensor inputs, is the symbol with id -(k + 1). Requirements record the relations between extents that tracing relied on;
they are checked before anything runs.

Must not know: single ops, kernels, devices.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import Cache, register
from tracefuse.dtypes import DType
from tracefuse.errors import ConcretizationError, FusionError, ShapeError, TracefuseError
from tracefuse.ir.extents import Extent, LowerBounds, Symbol, as_symbol, substitute, symbols
from tracefuse.ir.extents.equations import solve_equations
from tracefuse.ir.parallel_types import StreamAxis
from tracefuse.ir.shardings import Sharding

if TYPE_CHECKING:
    from tracefuse.ir.derivatives import Derivative

Shape: TypeAlias = tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """Element type and shape. A host scalar has shape ()."""

    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype.short}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Layout:
    """The declared memory layout of an input, in the terms of nvFuser's define_tensor.

    contiguity: for each axis; None if the axis is broadcast. stride_order: empty, or the rank of each axis by stride.
    """

    contiguity: tuple[bool | None, ...] = ()
    stride_order: tuple[int, ...] = ()
    is_cpu: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a fusion.

    kind: "tensor", or "scalar": a host scalar, which is evaluated before the launch that takes it as an argument.
    extent: the integer expression that an integer scalar equals. name, where: the user's name and source line. origin:
    the value that a pass derived this one from, if any. stream: the axis whose slices run on streams. sharding: the
    devices that hold the value, if there are several.
    """

    number: int
    type: Type
    kind: str = "tensor"
    extent: Extent | None = None
    layout: Layout | None = None
    name: str | None = None
    where: str | None = None
    origin: int | None = None
    stream: StreamAxis | None = None
    sharding: Sharding | None = None

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def memory_order(self) -> tuple[int, ...] | None:
        """The axes from the outermost in memory, None if that is their order."""
        ranks = self.layout.stride_order if self.layout is not None else ()
        return tuple(sorted(range(len(ranks)), key=lambda axis: -ranks[axis])) if ranks else None

    @property
    def is_tensor(self) -> bool:
        return self.kind == "tensor"


@dataclass(frozen=True, slots=True)
class Literal:
    """A Python constant as an operand."""

    value: bool | int | float | complex


Operand: TypeAlias = int | Literal
Attributes: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Requirement:
    """A relation between extents that the fusion requires: left == right, or left <= right.

    message: the error message, with {left} and {right} for the two integers. kind: the error class.
    """

    left: Extent
    relation: str
    right: Extent
    message: str
    hint: str
    where: str | None = None
    kind: type[TracefuseError] = ShapeError

    def holds(self, left: int, right: int) -> bool:
        return left == right if self.relation == "==" else left <= right

    def error(self, left: int, right: int) -> TracefuseError:
        return self.kind(self.message.format(left=left, right=right), hint=self.hint, where=self.where)


Require: TypeAlias = Callable[..., None]
"""Called with two extents, the relation between them as the second argument, a message, a hint, and an error class."""
Into: TypeAlias = Callable[..., None]
"""Called with the array library, the output buffer, the operands, and the op's attributes by name."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Op:  # abstract without ABC, for which isinstance takes five times as long
    """The interface of every op. Op definitions are in tracefuse/ops; the kinds are subclasses in ir/op_kinds.py.

    arity: the number of operands; None for any number. attributes: the names of the attributes, with their defaults.
    distinct: equal nodes are different values, and are never merged. broadcasts: axes of extent 1 are broadcast to the
    result's extent. into: computes the op into an output buffer without a kernel, see ops/array_functions.py. printed:
    prints the call that records a node. effect: running it changes more than its results; it is never dropped.
    derivative: its rule, one of ir/derivatives.py; None if it has none. additive: groups of operands in which it is
    additive together, f(a + b, c + d) = f(a, c) + f(b, d), the other operands being finite constants or conditions.
    """

    name: str
    doc: str
    arity: int | None = 1
    attributes: tuple[tuple[str, Any], ...] = ()
    distinct: bool = False
    broadcasts: bool = False
    into: Into | None = None
    printed: Callable[[Any, Node], str] | None = None
    effect: bool = False
    derivative: Derivative | None = None
    additive: tuple[tuple[int, ...], ...] = ()
    kind: str = field(default="", init=False)

    @abstractmethod
    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        """Returns the result shapes. `require` records relations between extents; raises ShapeError if one is false."""

    @property
    def is_copy(self) -> bool:
        """Whether the op copies its operand: the result has the operand's dtype and bits."""
        return False

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """`outputs = op(operands, **attributes)`, computed in dtype `compute`; the node converts its operands to it.

    inputs: the value numbers among the operands, in order and without duplicates.
    """

    op: Op
    operands: tuple[Operand, ...]
    attributes: Attributes
    compute: DType
    outputs: tuple[int, ...]
    where: str | None = None
    inputs: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Asked for about ten times for each node.
        inputs = tuple(dict.fromkeys([o for o in self.operands if isinstance(o, int)]))
        object.__setattr__(self, "inputs", inputs)


register(Cache(
    "ir.fusion.Fusion._canonical", "extents with equal symbols unified", "extent", "extents of the fusion",
    "a fusion", "with the fusion",
))  # fmt: skip
register(Cache(
    "ir.fusion.Fusion._shapes", "shapes of values in unified extents", "value number", "values of the fusion",
    "a fusion", "with the fusion",
))  # fmt: skip
register(Cache(
    "ir.extents.lower_bounds.LowerBounds._least", "lower bounds that requirements give", "extent",
    "requirements of the fusion", "a fusion", "with the fusion",
))  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Fusion:
    """A recorded function. `values` by number; `aliases` maps an output to the input whose memory it updates.

    slice_updates: for an output in `aliases` that holds a slice of the input, the node that computes the whole.
    concrete: concretized for the sizes of calls: an extent that depends on a run-time scalar is 1, or known not to be.
    equal_extents: symbols that equal an extent, besides those in the requirements, from which the others are derived.
    """

    values: Mapping[int, Value]
    inputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    requirements: tuple[Requirement, ...] = ()
    aliases: Mapping[int, int] = field(default_factory=dict)
    slice_updates: Mapping[int, Node] = field(default_factory=dict)
    concrete: bool = False
    equal_extents: Mapping[Symbol, Extent] = field(default_factory=dict, repr=False)
    _representatives: dict[Symbol, Extent] = field(default_factory=dict, init=False, repr=False)
    _canonical: dict[Extent, Extent] = field(default_factory=dict, init=False, repr=False)
    _shapes: dict[int, Shape] = field(default_factory=dict, init=False, repr=False)
    _lower_bounds: list[LowerBounds] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        verify(self)
        self._representatives.update(self.equal_extents)
        equations = [(r.left, r.right) for r in self.requirements if r.relation == "=="]
        self._representatives.update(solve_equations(equations))

    def type_of(self, operand: Operand) -> Type | None:
        """Returns the type of a value operand; None for a literal."""
        return None if isinstance(operand, Literal) else self.values[operand].type

    def shape_of(self, operand: Operand) -> Shape:
        """Returns the shape of an operand in canonical extents; () for a literal."""
        if isinstance(operand, Literal):
            return ()
        if not self._representatives:
            return self.values[operand].type.shape
        shape = self._shapes.get(operand)
        if shape is None:
            shape = self._shapes[operand] = tuple(self.canonical(e) for e in self.values[operand].type.shape)
        return shape

    def canonical(self, extent: Extent) -> Extent:
        """Returns `extent` with every symbol replaced by the representative of the symbols equal to it."""
        if not self._representatives or isinstance(extent, int):
            return extent
        canonical = self._canonical.get(extent)
        if canonical is None:
            canonical = self._canonical[extent] = substitute(extent, self._representatives)
        return canonical

    def is_nonnegative(self, extent: Extent) -> bool:
        """Whether it is proved, from the requirements as well, that an extent is not negative."""
        if not self._lower_bounds:
            sides = ((self.canonical(r.left), self.canonical(r.right)) for r in self.requirements)
            self._lower_bounds.append(LowerBounds(sides))
        return self._lower_bounds[0].is_nonnegative(self.canonical(extent))

    @property
    def representatives(self) -> Mapping[Symbol, Extent]:
        """The representative of each symbol that equals an expression of older symbols."""
        return self._representatives

    @property
    def symbolic_axes(self) -> tuple[tuple[int, int], ...]:
        """The (value, axis) pairs whose extent depends on a run-time scalar; empty for a concretized fusion."""
        if self.concrete:
            return ()
        results = (self.values[number] for node in self.nodes for number in node.outputs)
        extents = ((v.number, axis, self.canonical(e)) for v in results for axis, e in enumerate(v.shape))
        return tuple((n, axis) for n, axis, e in extents if any(s.id is not None and s.id >= 0 for s in symbols(e)))

    @property
    def producers(self) -> dict[int, Node]:
        return {output: node for node in self.nodes for output in node.outputs}

    @property
    def tensor_inputs(self) -> tuple[int, ...]:
        return tuple(v for v in self.inputs if self.values[v].is_tensor)

    @property
    def scalar_inputs(self) -> tuple[int, ...]:
        return tuple(v for v in self.inputs if not self.values[v].is_tensor)

    def axis_ids(self) -> Iterator[tuple[int, int, int]]:
        """Yields (extent id, value, axis) for every axis of every tensor input, in order."""
        position = 0
        for value in self.tensor_inputs:
            for axis in range(len(self.values[value].shape)):
                yield -(position + 1), value, axis
                position += 1

    def __str__(self) -> str:
        return _typed_view(self)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SubFusion:
    """A fusion that an op runs. inputs: for each of its inputs, the position of the op's operand that it reads."""

    fusion: Fusion
    inputs: tuple[int, ...]

    def select(self, operands: Sequence[Any]) -> list[Any]:
        """Returns the arguments of the fusion among the operands of the op."""
        return [operands[position] for position in self.inputs]


def is_input_extent(extent: Extent) -> bool:
    """Returns whether an extent is a constant or the extent of an input axis.

    Any other extent is computed: it may be 1 in a call, and then broadcasts.
    """
    symbol = as_symbol(extent)
    return isinstance(extent, int) or (symbol is not None and symbol.id is not None and symbol.id < 0)


def verify(fusion: Fusion, *, lowerable: bool = False) -> None:
    """Raises FusionError unless every value is computed once, before it is read, and every output exists.

    lowerable: also raises ConcretizationError for the first axis whose size depends on a run-time scalar.
    """
    for number, axis in fusion.symbolic_axes if lowerable else ():
        symbolic = fusion.values[number]
        raise ConcretizationError(
            f"axis {axis} of value {number} is symbolic: a run-time scalar decides how many elements it has",
            hint="concretize the fusion for the sizes of a call first", where=symbolic.where,
        )  # fmt: skip
    defined: set[int] = set()
    for value in fusion.inputs:
        if value in defined:
            raise FusionError(f"value {value} is an input twice")
        defined.add(value)
    for node in fusion.nodes:
        for operand in node.inputs:
            if operand not in defined:
                raise FusionError(
                    f"{node.op.name} reads value {operand}, which no earlier node computes", where=node.where
                )
        if node.op.arity is not None and len(node.operands) != node.op.arity:
            raise FusionError(
                f"{node.op.name} takes {node.op.arity} operands, got {len(node.operands)}", where=node.where
            )
        for output in node.outputs:
            if output in defined:
                raise FusionError(
                    f"value {output} is computed twice, the second time by {node.op.name}", where=node.where
                )
            defined.add(output)
    for output in fusion.outputs:
        if output not in defined:
            raise FusionError(f"no node computes output {output}")
    missing = defined - fusion.values.keys()
    if missing:
        raise FusionError(f"values without a type: {sorted(missing)}")


def _typed_view(fusion: Fusion) -> str:
    def typed_name(number: int) -> str:
        value = fusion.values[number]
        return f"v{number}: {value.type if value.is_tensor else value.dtype.short}"

    lines = [f"fusion({', '.join(typed_name(v) for v in fusion.inputs)}):"]
    for node in fusion.nodes:
        operands = [str(o.value) if isinstance(o, Literal) else f"v{o}" for o in node.operands]
        attributes = ((k, v) for k, v in node.attributes.items() if not isinstance(v, SubFusion))
        operands += [f"{k}={_attribute_text(v)}" for k, v in attributes]
        left = ", ".join(typed_name(v) for v in node.outputs)
        text = f"  {left} = {node.op.name}({', '.join(operands)})"
        lines.append(f"{text:<60}  # {node.where}" if node.where else text)
        for key, value in node.attributes.items():
            if isinstance(value, SubFusion):
                lines.append(f"    {key}({', '.join(value.select(operands))}):")
                lines += [f"    {line}" for line in str(value.fusion).splitlines()]
    lines.append(f"  return {', '.join(f'v{v}' for v in fusion.outputs)}")
    return "\n".join(lines)


def _attribute_text(value: object) -> str:
    texts = map(_attribute_text, value) if isinstance(value, tuple) else ()
    return f"({', '.join(texts)}{',' * (len(value) == 1)})" if isinstance(value, tuple) else str(value)
