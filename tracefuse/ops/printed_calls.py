"""How definitions print ops whose call differs from their attributes: what definitions declare as `printed`.

`fd.ops` has nvFuser's signatures. Some of them order or name the arguments differently from the attributes of the
node, or derive some of them, and a definition must print as the call that records it.
"""

from __future__ import annotations

from tracefuse.dtypes import data_type_of
from tracefuse.ir.extents import as_symbol
from tracefuse.ir.fusion import Literal, Node, SubFusion
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.ir.printing import (
    DefinitionPrinter,
    attribute_texts,
    call_text,
    clamped,
    extent_text,
    literal_text,
    movement_types,
    pointwise_text,
)


def print_control_flow(printer: DefinitionPrinter, node: Node) -> str:
    """Prints a sub-fusion as its function and the positions of the operands that it reads, and the result types."""
    parts = {name: part for name, part in node.attributes.items() if isinstance(part, SubFusion)}
    texts = [f"{name}=({name}{node.outputs[0]}, {list(part.inputs)})" for name, part in parts.items()]
    types = ", ".join(repr(data_type_of(printer.fusion.values[number].dtype)) for number in node.outputs)
    arguments = [*map(printer.operand, node.operands), *texts, *attribute_texts(printer, node, *parts)]
    return call_text(printer, node, arguments, [f"dtypes=[{types}]"])


def print_full(printer: DefinitionPrinter, node: Node) -> str:
    """Prints the shape and the fill value by name, with the type."""
    fill = printer.operand(node.operands[0])
    arguments = [f"shape={printer.attribute(node.attributes['shape'])}", f"fill_value={fill}"]
    dtype = printer.fusion.values[node.outputs[0]].dtype
    return call_text(printer, node, arguments, printer.types(node, dtype, dtype, always=True))


def print_iota(printer: DefinitionPrinter, node: Node) -> str:
    """Prints the length before the start and the step."""
    start, step = map(printer.operand, node.operands)
    dtype = printer.fusion.values[node.outputs[0]].dtype
    length = printer.attribute(node.attributes["length"])
    return call_text(printer, node, [length, start, step], printer.types(node, dtype, dtype, always=True))


def print_pad(printer: DefinitionPrinter, node: Node) -> str:
    """Prints the widths from the last axis to the first."""
    widths = node.attributes["pad_widths"]
    backwards = tuple(w for axis in reversed(range(len(widths) // 2)) for w in widths[2 * axis : 2 * axis + 2])
    _, expected = movement_types(printer.fusion, node)
    arguments = [printer.operand(node.operands[0]), f"pad_widths={printer.attribute(backwards)}"]
    arguments.append(f"value={printer.attribute(node.attributes['value'])}")
    return call_text(printer, node, arguments, printer.types(node, expected, expected))


def print_reshape(printer: DefinitionPrinter, node: Node) -> str:
    """Prints a reshape. The shape determines which extent may be -1; only a pass adds groups."""
    left_out = ("inferable",) if node.attributes["groups"] else ("inferable", "groups")
    arguments = [printer.operand(node.operands[0]), *attribute_texts(printer, node, *left_out)]
    return call_text(printer, node, arguments, printer.types(node, *movement_types(printer.fusion, node)))


def print_slice(printer: DefinitionPrinter, node: Node) -> str:
    """Prints the bounds, and whether they are to be taken as they are."""
    starts, ends = node.attributes["start_indices"], node.attributes["end_indices"]
    (operand,) = node.inputs
    pairs = clamped(printer.fusion.values[operand].shape, starts, ends)
    manual = pairs != list(zip(starts, ends, strict=True))
    more = ["manual_normalization=True"] if manual else []
    _, expected = movement_types(printer.fusion, node)
    arguments = [printer.operand(operand), *attribute_texts(printer, node), *more]
    return call_text(printer, node, arguments, printer.types(node, expected, expected))


def print_set(printer: DefinitionPrinter, node: Node) -> str:
    """Prints a copy; a copied constant is a scalar of the definition."""
    (operand,) = node.operands
    value = printer.fusion.values[node.outputs[0]]
    if isinstance(operand, Literal) and not value.is_tensor and node.compute is value.dtype:
        return f"fd.define_scalar({literal_text(operand.value)}, dtype={data_type_of(value.dtype)})"
    assert isinstance(node.op, Pointwise)
    return pointwise_text(printer, node, node.op)


def print_extent(printer: DefinitionPrinter, node: Node) -> str:
    """Prints an extent as the size of an axis, or as arithmetic on extents."""
    extent = node.attributes["value"]
    symbol = as_symbol(extent)
    if symbol is not None and symbol.id in printer.axis_of:
        tensor, axis = printer.axis_of[symbol.id]
        if printer.fusion.values[tensor].shape[axis] == extent:
            return f"fd.ops.size({printer.name(tensor)}, dim={axis})"
    text = str(extent) if isinstance(extent, int) else extent_text(extent, printer.symbol)
    dtype = printer.fusion.values[node.outputs[0]].dtype
    return call_text(printer, node, [text], [] if dtype.name == "int64" else [f"dtype={data_type_of(dtype)}"])


def print_div(printer: DefinitionPrinter, node: Node) -> str:
    """Prints a division. nvFuser's div truncates integers, so a true quotient of integers has another name."""
    assert isinstance(node.op, Pointwise)
    text = pointwise_text(printer, node, node.op)
    values = [o.value if isinstance(o, Literal) else printer.fusion.values[o].dtype.kind for o in node.operands]
    is_integer = all(v in ("bool", "int", "uint") if isinstance(v, str) else isinstance(v, int) for v in values)
    return text.replace("fd.ops.div(", "fd.ops.truediv(", 1) if is_integer else text
