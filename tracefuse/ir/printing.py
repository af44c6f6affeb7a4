"""Prints definitions as Python text that rebuilds them, in the syntax of nvFuser's frontend.

Each line defines one number: T for tensors, S for host scalars, V for vectors. The text omits everything that the
op's own rules imply, so it prints a type (`dtype=`, `compute=`) only if nvFuser's promotion would choose another.
Integers that depend on sizes are printed as a scalar that holds them, or as `fd.extent(id)` and arithmetic, which use
no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType, bool_, data_type_of, promote_nvfuser, python_kind
from tracefuse.errors import DtypeError, UnsupportedError
from tracefuse.ir.extents import Binary, Expression, Extent, Symbol, minimum
from tracefuse.ir.fusion import Fusion, Literal, Node, Op, Operand, SubFusion, Value
from tracefuse.ir.library_kinds import Library, WholeArrayOp
from tracefuse.ir.op_kinds import Movement, Pointwise, Reduction
from tracefuse.ir.parallel_types import ParallelType


@dataclass(frozen=True, slots=True)
class VectorValue:
    """A vector of a definition: integers under one number. The IR has no such value.

    elements: the integers. shape_of: the tensor whose shape it is, if it was created as a shape.
    """

    number: int
    elements: tuple[Extent, ...]
    shape_of: int | None = None


def definition_text(
    fusion: Fusion, name: str, vectors: Mapping[int, VectorValue], orders: Mapping[int, Sequence[int]] | None = None
) -> str:
    """Returns the function `name(fd)` that records `fusion` again, with the same numbers if they have no gaps.

    orders: the stride orders of outputs, by number.
    """
    lines = [f"def {name}(fd : FusionDefinition) -> None :"]
    printer = DefinitionPrinter(fusion, vectors)
    lines.extend(f"    {line}" for line in printer.lines())
    last = {owner: number for number, owner in fusion.aliases.items()}
    for number in fusion.outputs:
        owner = fusion.aliases.get(number)
        if number in fusion.slice_updates:
            node, is_last = fusion.slice_updates[number], owner is None or last[owner] == number
            lines += [] if node in fusion.nodes else [f"    {printer.name(node.outputs[0])} = {_call(printer, node)}"]
            number = node.outputs[0] if is_last else -1
        alias = "" if owner is None else f", alias_input={printer.name(owner)}"
        order = f", stride_order={list(orders[number])}" if orders and number in orders else ""
        lines += [] if number < 0 else [f"    fd.add_output({printer.name(number)}{alias}{order})"]
    if len(lines) == 1:
        lines.append("    pass")
    return "\n".join(lines)


def literal_text(value: bool | int | float | complex) -> str:
    """Returns a Python constant as an expression that needs no import."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex) and not (math.isfinite(value.real) and math.isfinite(value.imag)):
        return f"complex({literal_text(value.real)}, {literal_text(value.imag)})"
    return repr(value)


class DefinitionPrinter:
    def __init__(self, fusion: Fusion, vectors: Mapping[int, VectorValue]) -> None:
        self.fusion, self.vectors = fusion, vectors
        self.pending = dict.fromkeys(fusion.inputs, self._input_line)
        self.pending.update(dict.fromkeys(vectors, self._vector_line))
        self.holders: dict[Extent, int] = {}
        self.axis_of = {key: (value, axis) for key, value, axis in fusion.axis_ids()}

    def name(self, number: int) -> str:
        if number in self.vectors:
            return f"V{number}"
        return f"{'T' if self.fusion.values[number].is_tensor else 'S'}{number}"

    def lines(self) -> Iterator[str]:
        """Yields the lines; inputs and vectors come where they were defined, before the first node with a higher
        number.
        """
        for node in self.fusion.nodes:
            due = [n for n in self.pending if n < node.outputs[0] or n in node.inputs]
            yield from self._defined(due)
            yield from self._sub_definitions(node)
            yield f"{', '.join(map(self.name, node.outputs))} = {_call(self, node)}"
            for output in node.outputs:
                self._hold(output)
                yield from self._spread(output)
        yield from self._defined(list(self.pending))

    def _defined(self, numbers: Sequence[int]) -> Iterator[str]:
        for number in sorted(numbers):
            yield f"{self.name(number)} = {self.pending.pop(number)(number)}"
            if number in self.fusion.values:
                self._hold(number)
                yield from self._spread(number)

    def _sub_definitions(self, node: Node) -> Iterator[str]:
        """Yields the lines that define the functions of a node's sub-fusions."""
        for name, part in node.attributes.items():
            if isinstance(part, SubFusion):
                yield from definition_text(part.fusion, f"{name}{node.outputs[0]}", {}).splitlines()

    def _spread(self, number: int) -> Iterator[str]:
        """Yields the lines that map an axis of a value to streams, and a value to devices."""
        value, name = self.fusion.values[number], self.name(number)
        stream, sharding = value.stream, value.sharding
        if sharding is not None:
            yield f"{name}.set_device_mesh({sharding.mesh.nested})"
            for axis, names in enumerate(sharding.spec):
                for mesh_axis in names:
                    kind = (ParallelType.mesh_x, ParallelType.mesh_y)[sharding.mesh.place(mesh_axis)]
                    yield f"{name}.axis({axis}).parallelize({kind!r})"
        if stream is not None:
            if stream.chunks is not None:
                yield f"{name}.outer_split({stream.axis}, {stream.chunks})"
            yield f"{name}.axis({stream.axis}).parallelize({ParallelType.stream!r})"

    def _hold(self, number: int) -> None:
        extent = self.fusion.values[number].extent
        if isinstance(extent, Expression):
            self.holders.setdefault(extent, number)

    def _input_line(self, number: int) -> str:
        value = self.fusion.values[number]
        dtype = data_type_of(value.dtype)
        return f"fd.define_scalar(None, dtype={dtype})" if not value.is_tensor else _tensor_line(value)

    def _vector_line(self, number: int) -> str:
        vector = self.vectors[number]
        if vector.shape_of is not None:
            return f"fd.ops.shape({self.name(vector.shape_of)})"
        return f"fd.define_vector({self.sequence(vector.elements)}, dtype=DataType.Int)"

    # -- operands and attributes ------------------------------------------------------------------------------------

    def operand(self, operand: Operand) -> str:
        return literal_text(operand.value) if isinstance(operand, Literal) else self.name(operand)

    def extent(self, extent: Extent) -> str:
        if isinstance(extent, int):
            return str(extent)
        holder = self.holders.get(extent)
        return self.name(holder) if holder is not None else extent_text(extent, self.symbol)

    def symbol(self, symbol: Symbol) -> str:
        return f"fd.extent({symbol.id})"

    def sequence(self, extents: Sequence[Extent]) -> str:
        return f"[{', '.join(map(self.extent, extents))}]"

    def attribute(self, attribute: Any) -> str:
        if isinstance(attribute, tuple):
            vector = next((v for v in self._vectors_so_far() if attribute and v.elements == attribute), None)
            if vector is not None and any(isinstance(e, Expression) for e in attribute):
                return self.name(vector.number)
            return f"[{', '.join(map(self.attribute, attribute))}]"
        if isinstance(attribute, Expression):
            return self.extent(attribute)
        if isinstance(attribute, DType):
            return repr(data_type_of(attribute))
        if isinstance(attribute, bool | int | float | complex):
            return literal_text(attribute)
        return repr(attribute)

    def _vectors_so_far(self) -> list[VectorValue]:
        return [v for v in self.vectors.values() if v.number not in self.pending]

    def types(self, node: Node, compute: DType | None, result: DType | None, always: bool = False) -> list[str]:
        """Returns `dtype=` and `compute=` if the node's types differ from the rules; always: include dtype anyway."""
        result_dtype = self.fusion.values[node.outputs[0]].dtype
        types = []
        if always or result_dtype is not result or (node.compute is not compute and node.compute is result_dtype):
            types.append(f"dtype={data_type_of(result_dtype)}")
        expected = result_dtype if types and not always else compute
        if node.compute is not expected:
            types.append(f"compute={data_type_of(node.compute)}")
        return types


def _tensor_line(value: Value) -> str:
    shape = [e if isinstance(e, int) else -1 for e in value.shape]
    layout = value.layout
    flags = layout.contiguity if layout is not None else ()
    if len(flags) != len(shape):
        flags = tuple(None if e == 1 else True for e in shape)
    order = f", stride_order={list(layout.stride_order)}" if layout is not None and layout.stride_order else ""
    is_cpu = layout is not None and layout.is_cpu
    return (
        f"fd.define_tensor(shape={shape}, contiguity={list(flags)}, dtype={data_type_of(value.dtype)}, "
        f"is_cpu={is_cpu}{order})"
    )


def extent_text(extent: Extent, name_of: Callable[[Symbol], str]) -> str:
    """Returns an integer expression as Python. Minima and maxima use the definition: fd.extent has no order."""
    if isinstance(extent, int):
        return str(extent)
    parts = []
    for monomial, coefficient in extent.terms:
        factors = [_atom_text(atom, name_of) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.append(str(coefficient) if coefficient >= 0 else f"({coefficient})")
        parts.append(" * ".join(factors))
    return " + ".join(parts)


def _atom_text(atom: Symbol | Binary, name_of: Callable[[Symbol], str]) -> str:
    if isinstance(atom, Symbol):
        return name_of(atom)
    left, right = (extent_text(side, name_of) for side in (atom.left, atom.right))
    if atom.operation in ("min", "max"):
        return f"fd.extent_{atom.operation}({left}, {right})"
    return f"(({left}) {atom.operation} ({right}))"


# ---------------------------------------------------------------------------------------------------------------------
# one line a node


def _call(printer: DefinitionPrinter, node: Node) -> str:
    if node.op.printed is not None:
        return node.op.printed(printer, node)
    match node.op:
        case Pointwise():
            return pointwise_text(printer, node, node.op)
        case Reduction():
            return _reduction(printer, node, node.op)
        case WholeArrayOp():
            usual = [n for n, v in node.op.attributes if _is_default(node.attributes[n], v)]
            operands = map(printer.operand, node.operands)
            return call_text(printer, node, [*operands, *attribute_texts(printer, node, *usual)])
        case Movement() | Library():
            return _movement(printer, node)
    raise UnsupportedError(f"{node.op.name} cannot be printed as a definition", hint="print str(fusion)")


def call_text(printer: DefinitionPrinter, node: Node, arguments: Sequence[str], more: Sequence[str] = ()) -> str:
    return f"fd.ops.{node.op.name}({', '.join([*arguments, *more])})"


def _is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def attribute_texts(printer: DefinitionPrinter, node: Node, *left_out: str) -> list[str]:
    return [f"{k}={printer.attribute(v)}" for k, v in node.attributes.items() if k not in left_out]


def predicted_types(
    known: Mapping[int, Value], op: Pointwise, operands: Sequence[Operand]
) -> tuple[DType | None, DType | None]:
    """Returns the (compute, result) types by nvFuser's promotion; (None, None) if it rejects the operands."""
    taking = operands[1:] if op.promotion == "where" else operands
    values = [known[o] for o in taking if isinstance(o, int)]
    weak = [python_kind(o.value) for o in taking if isinstance(o, Literal)]
    tensors = [v.dtype for v in values if v.is_tensor]
    try:
        return op.types(tensors, weak, "nvfuser", [v.dtype for v in values if not v.is_tensor])
    except DtypeError:
        return None, None


def pointwise_text(printer: DefinitionPrinter, node: Node, op: Pointwise) -> str:
    compute, result = predicted_types(printer.fusion.values, op, node.operands)
    arguments = [*map(printer.operand, node.operands), *attribute_texts(printer, node, "dtype")]
    result_dtype = printer.fusion.values[node.outputs[0]].dtype
    if op.result == "bool":
        types = [] if node.compute is compute else [f"dtype={data_type_of(node.compute)}"]
        return call_text(printer, node, arguments, types)
    if op.result == "dtype":
        types = [f"dtype={data_type_of(result_dtype)}"]
        types += [] if node.compute is compute else [f"compute={data_type_of(node.compute)}"]
        return call_text(printer, node, arguments, types)
    return call_text(printer, node, arguments, printer.types(node, compute, result))


def _reduction(printer: DefinitionPrinter, node: Node, op: Reduction) -> str:
    fusion = printer.fusion
    result = fusion.values[node.outputs[0]].dtype
    operand = fusion.type_of(node.operands[0])
    compute = op.compute_type(result if operand is None else operand.dtype, result)
    types = [] if op.result == "bool" and result is bool_ else [f"dtype={data_type_of(result)}"]
    types += [] if node.compute is compute else [f"compute={data_type_of(node.compute)}"]
    keys = [k for k in node.attributes if k not in ("dims", "keepdim")]
    order = ["dims", *keys, "keepdim"]
    attributes = [f"{k}={printer.attribute(node.attributes[k])}" for k in order]
    return call_text(printer, node, [printer.operand(node.operands[0]), *attributes], types)


def data_operands(op: Op, operands: Sequence[Operand]) -> Sequence[Operand]:
    """Returns the data operands of a movement or library op, without its index operands."""
    if isinstance(op, Library):
        return [o for k, o in enumerate(operands) if k not in op.indices]
    return operands[: op.data] if isinstance(op, Movement) and op.data else operands


def moved_types(op: Op, common: DType) -> tuple[DType, DType]:
    """Returns the (compute, result) types of a movement or library op for data of a common type."""
    return op.types(common, "nvfuser") if isinstance(op, Library) else (common, common)


def movement_types(fusion: Fusion, node: Node) -> tuple[DType | None, DType | None]:
    """Returns the (compute, result) types of a movement or library node by nvFuser's promotion of its data."""
    values = [fusion.values[o] for o in data_operands(node.op, node.operands) if isinstance(o, int)]
    if not values:
        return None, None
    tensors = [v.dtype for v in values if v.is_tensor]
    common = promote_nvfuser(tensors, [v.dtype for v in values if not v.is_tensor])
    try:
        return moved_types(node.op, common)
    except DtypeError:
        return None, None


def _movement(printer: DefinitionPrinter, node: Node) -> str:
    compute, result = movement_types(printer.fusion, node)
    operands = [printer.operand(o) for o in node.operands]
    if node.op.arity is None and isinstance(node.op, Movement):
        operands = [f"[{', '.join(operands)}]"]
    return call_text(printer, node, [*operands, *attribute_texts(printer, node)], printer.types(node, compute, result))


def clamped(shape: Sequence[Extent], starts: Sequence[Extent], ends: Sequence[Extent]) -> list[tuple[Extent, Extent]]:
    """Clamps slice bounds to the axis, as nvFuser does by default."""
    pairs = []
    for extent, start, end in zip(shape, starts, ends, strict=True):
        stop = minimum(end, extent)
        pairs.append((minimum(start, stop), stop))
    return pairs
