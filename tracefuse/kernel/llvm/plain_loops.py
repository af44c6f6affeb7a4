"""Vector loops over adjacent elements that fill, copy or add arrays, as calls of linked functions.

Schedules clear sums, copy operands and results, and add partial sums. LLVM takes about 5 ms for each such loop of a
kernel, as for any that it vectorizes, and makes the same code every time. The functions are written in vectors of two
registers. What remains are masked registers, or else vectors of half a register, of an eighth, and single elements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import is_

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import DType, int64
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.interleaving import MOST_AT_ONCE
from tracefuse.kernel.llvm.scalar_ops import memory_type

_SYMBOL = re.compile(r"tf\.(fill|copy|add)\.(i8|i16|i32|i64|float|double)")
ZERO, ONE = ir.Constant(0, int64), ir.Constant(1, int64)
_BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "float": 32, "double": 64}


@dataclass(frozen=True, slots=True)
class PlainLoop:
    """`rows` rows of `count` adjacent elements that `function` fills, copies or adds to.

    value: what fills the elements, or the load of the first one that it reads. pitches: between the rows of the array
    that it writes and of the one that it reads.
    """

    function: str
    buffer: ir.Buffer
    start: ir.Expression
    value: ir.Constant | ir.Load
    count: ir.Expression
    rows: ir.Expression
    pitches: tuple[ir.Expression, ir.Expression]

    @property
    def symbol(self) -> str:
        """The symbol of its linked function."""
        type_ = f"i{8 * self.buffer.dtype.itemsize}" if self.function == "copy" else memory_type(self.buffer.dtype)
        return f"tf.{self.function}.{type_}"


def plain_loop(loop: ir.For, vector_bits: int) -> PlainLoop | None:
    """Return what a loop does, or one loop in another, if a linked function does it, else None.

    vector_bits: of a register.
    """
    return _row(loop, vector_bits) or _rows(loop, vector_bits)


def _rows(loop: ir.For, vector_bits: int) -> PlainLoop | None:
    """Return what a loop over rows does."""
    if loop.kind != "serial" or loop.step != ONE or loop.variable.dtype is not int64 or not loop.body:
        return None
    *lets, inner = (s for s in loop.body if not isinstance(s, ir.Comment))
    if not isinstance(inner, ir.For) or not all(isinstance(s, ir.Let) for s in lets):
        return None
    row, values = _row(inner, vector_bits, row_of=loop), _bound(lets)
    if row is None:
        return None
    variable, count = loop.variable.name, inlined(row.count, values)
    value = row.value
    places = [inlined(row.start, values), inlined(value.index, values) if isinstance(value, ir.Load) else ZERO]
    pitches = tuple(slope(place, variable) for place in places)
    if pitches[0] is None or pitches[1] is None or not _is_index(count) or _reads(count, variable):
        return None
    start, read = (inlined(place, {variable: loop.start}) for place in places)
    value = replace(value, index=read) if isinstance(value, ir.Load) else value
    return PlainLoop(row.function, row.buffer, start, value, count, _trips(loop), (pitches[0], pitches[1]))


def _row(loop: ir.For, vector_bits: int, row_of: ir.For | None = None) -> PlainLoop | None:
    """Return what a loop over adjacent elements does. row_of: the loop that it is the body of.

    The iterations of a serial loop need not be independent; they are where it writes a local array from another one.
    Rows of few elements stay loops, but those of local arrays, which a kernel writes once: a loop over an argument's
    rows may be short as well, as of a tile, and a call for it takes longer than its registers.
    """
    if loop.kind == "unroll" or loop.step != ONE or loop.variable.dtype is not int64 or not loop.body:
        return None
    *lets, store = (s for s in loop.body if not isinstance(s, ir.Comment))
    if not isinstance(store, ir.Store) or store.cache == "streaming" or not all(isinstance(s, ir.Let) for s in lets):
        return None
    is_row_of_local = row_of is not None and store.buffer.space == "local"
    if not is_row_of_local and _fills_registers(loop, store.buffer.dtype, vector_bits):
        return None
    values, variable = _bound(lets), loop.variable.name
    found = _function(store, values)
    if found is None or (loop.kind != "vector" and not _is_independent(store, found[1])):
        return None
    function, value = found
    indices = [inlined(store.index, values)] + ([inlined(value.index, values)] if isinstance(value, ir.Load) else [])
    if any(slope(index, variable) != ONE for index in indices):
        return None
    start, *reads = (inlined(index, {variable: loop.start}) for index in indices)
    value = replace(value, index=reads[0]) if isinstance(value, ir.Load) else value
    return PlainLoop(function, store.buffer, start, value, _trips(loop), ONE, (ZERO, ZERO))


def _trips(loop: ir.For) -> ir.Expression:
    return loop.stop if loop.start == ZERO else ir.call("sub", loop.stop, loop.start)


def _function(store: ir.Store, values: Mapping[str, ir.Expression]) -> tuple[str, ir.Constant | ir.Load] | None:
    """Return how a store changes an element, and what it reads, or None. values: of the variables of the loop."""
    value, dtype = _named(store.value, values), store.buffer.dtype
    if value.dtype is not dtype or dtype.is_complex or dtype.kind == "bool":
        return None
    if isinstance(value, ir.Constant):
        return None if dtype.is_half else ("fill", value)
    if isinstance(value, ir.Load):
        return "copy", value
    if not isinstance(value, ir.Call) or value.name != "add" or dtype.kind != "float" or dtype.is_half:
        return None
    parts = [_named(part, values) for part in value.arguments]
    for one, other in (parts, parts[::-1]):
        if one == ir.Load(store.buffer, store.index) and isinstance(other, ir.Load):
            return "add", other
    return None


def _is_independent(store: ir.Store, value: ir.Constant | ir.Load) -> bool:
    return store.buffer.space == "local" and (isinstance(value, ir.Constant) or value.buffer != store.buffer)


def _fills_registers(loop: ir.For, dtype: DType, vector_bits: int) -> bool:
    """Return whether a loop of known length moves few elements, which may be registers."""
    if not (isinstance(loop.start, ir.Constant) and isinstance(loop.stop, ir.Constant)):
        return False
    trips = int(loop.stop.value.real) - int(loop.start.value.real)
    return trips * dtype.itemsize * 8 <= MOST_AT_ONCE * vector_bits


def _bound(lets: Sequence[ir.Statement]) -> dict[str, ir.Expression]:
    """Return what variables are bound to, in terms of those before the loop."""
    values: dict[str, ir.Expression] = {}
    for let in lets:
        assert isinstance(let, ir.Let)
        values[let.variable.name] = inlined(let.value, values)
    return values


def _named(value: ir.Expression, values: Mapping[str, ir.Expression]) -> ir.Expression:
    """Return what a variable of the loop is bound to, and other expressions as they are."""
    return values.get(value.name, value) if isinstance(value, ir.Variable) else value


def inlined(e: ir.Expression, values: Mapping[str, ir.Expression]) -> ir.Expression:
    """Return an expression with values in place of variables; the same one if it has none of them."""
    if isinstance(e, ir.Variable):
        return values.get(e.name, e)
    if isinstance(e, ir.Call):
        arguments = tuple([inlined(argument, values) for argument in e.arguments])
        return e if all(map(is_, arguments, e.arguments)) else ir.Call(e.name, arguments, e.dtype)
    if isinstance(e, ir.Cast):
        argument = inlined(e.argument, values)
        return e if argument is e.argument else ir.Cast(argument, e.dtype)
    return e


def _reads(e: ir.Expression, variable: str) -> bool:
    match e:
        case ir.Variable(name):
            return name == variable
        case ir.Call(_, arguments):
            return any(_reads(argument, variable) for argument in arguments)
        case ir.Cast(argument):
            return _reads(argument, variable)
    return False


def _is_index(e: ir.Expression) -> bool:
    """Return whether an expression reads no memory, so that it may be evaluated before a loop that writes some."""
    match e:
        case ir.Call(_, arguments):
            return all(map(_is_index, arguments))
        case ir.Cast(argument):
            return _is_index(argument)
    return not isinstance(e, ir.Load)


def slope(e: ir.Expression, variable: str) -> ir.Expression | None:
    """Return by how much an index grows with a variable; None if it is not linear in it, or reads memory."""
    if isinstance(e, ir.Variable):
        return ONE if e.name == variable else ZERO
    if isinstance(e, ir.Call):
        slopes = [slope(argument, variable) for argument in e.arguments]
        if all(one is ZERO or one == ZERO for one in slopes):
            return ZERO
        if None in slopes or e.name not in ("add", "sub", "mul"):
            return None
        return _slope_of(e.name, e.arguments, slopes)
    if isinstance(e, ir.Cast):
        return ZERO if slope(e.argument, variable) == ZERO else None
    return ZERO if isinstance(e, ir.Constant) else None


def _slope_of(
    name: str, arguments: Sequence[ir.Expression], slopes: Sequence[ir.Expression | None]
) -> ir.Expression | None:
    """Return the slope of a sum, a difference or a product; None of a product of two slopes."""
    left, right = slopes
    assert left is not None
    assert right is not None
    if name == "mul":
        if left != ZERO and right != ZERO:
            return None
        factor, changing = (arguments[0], right) if left == ZERO else (arguments[1], left)
        return factor if changing == ONE else ir.call("mul", factor, changing)
    if right == ZERO:
        return left
    return right if name == "add" and left == ZERO else ir.call(name, left, right)


def plain_declaration(symbol: str) -> str:
    """Return the declaration of a function in a kernel."""
    return f"declare void @{symbol}({_parameters(symbol, '')}) nounwind willreturn memory(argmem: readwrite)"


def _parameters(symbol: str, mark: str) -> str:
    """Return the parameters of a function. mark: "%" for their names as well."""
    _, function, element = symbol.split(".")
    read = (element, "value") if function == "fill" else ("ptr", "from.start")
    names = [("ptr", "to.start"), ("i64", "to_pitch"), read, ("i64", "from_pitch"), ("i64", "rows"), ("i64", "count")]
    return ", ".join(f"{type_} %{name}" if mark else type_ for type_, name in names)


def plain_function(symbol: str, vector_bits: int, *, masks: bool = False) -> str | None:
    """Return LLVM IR for to[k] = value, from[k] or to[k] + from[k] for k < count, in each of `rows` rows.

    Elements need no alignment, and the arrays none between them. Returns None for the symbol of another function.
    vector_bits: the width of a vector register. masks: whether loads and stores take masks.
    """
    if _SYMBOL.fullmatch(symbol) is None:
        return None
    _, function, element = symbol.split(".")
    lanes = vector_bits // _BITS[element]
    lines = _masked_declarations(element, lanes) if masks else []
    lines += [f"define void @{symbol}({_parameters(symbol, '%')}) #1 {{", "start:"]
    widths = [2 * lanes] if masks else [w for w in dict.fromkeys((2 * lanes, lanes // 2, lanes // 8, 1)) if w]
    if function == "fill":
        filled = [*widths, lanes] if masks else widths[:-1]
        lines += [line for width in filled for line in _repeated(element, width)]
    lines += _ROW
    lines += [f"  %{side} = getelementptr inbounds {element}, ptr %{side}.start, i64 %{side}.place" for side in _SIDES]
    lines = [line for line in lines if function != "fill" or "%from" not in line or line.startswith("define")]
    before, first = "row.body", "0"
    last = "rest" if masks else "row.end"
    for width, following in zip(widths, [*(f"by{w}" for w in widths[1:]), last], strict=True):
        name = f"by{width}"
        lines += [
            f"  br label %{name}" if before == "row.body" else "",
            f"{name}:",
            f"  %k.{name} = phi i64 [ {first}, %{before} ], [ %{name}.next, %{name}.body ]",
            f"  %{name}.next = add nsw i64 %k.{name}, {width}",
            f"  %{name}.fits = icmp sle i64 %{name}.next, %count",
            f"  br i1 %{name}.fits, label %{name}.body, label %{following}",
            f"{name}.body:",
            *_elements(function, element, name, width),
            f"  br label %{name}",
        ]
        before, first = name, f"%k.{name}"
    if masks:
        lines += _masked_rest(function, element, lanes, before, first)
    return "\n".join([*lines, *_END])


_SIDES = ("to", "from")
_ROW = (
    "  br label %row",
    "row:",
    "  %r = phi i64 [ 0, %start ], [ %r.next, %row.end ]",
    "  %more.rows = icmp slt i64 %r, %rows",
    "  br i1 %more.rows, label %row.body, label %end",
    "row.body:",
    *(f"  %{side}.place = mul nsw i64 %r, %{side}_pitch" for side in _SIDES),
)
_END = (
    "row.end:",
    "  %r.next = add nsw i64 %r, 1",
    "  br label %row",
    "end:",
    "  ret void",
    "}",
)


def _masked_declarations(element: str, lanes: int) -> list[str]:
    """Return the declarations of loads and stores of a vector under a mask."""
    type_, mask = f"<{lanes} x {element}>", f"<{lanes} x i1>"
    suffix = _suffix(element, lanes)
    return [
        f"declare {type_} @llvm.masked.load.{suffix}(ptr, i32, {mask}, {type_})",
        f"declare void @llvm.masked.store.{suffix}({type_}, ptr, i32, {mask})",
    ]


def _suffix(element: str, lanes: int) -> str:
    return f"v{lanes}{'i' if element.startswith('i') else 'f'}{_BITS[element]}.p0"


def _masked_rest(function: str, element: str, lanes: int, before: str, first: str) -> list[str]:
    """Return the loop over the last elements of a row, fewer than two registers, in registers under a mask."""
    bits, type_, mask, suffix = _BITS[element], f"<{lanes} x {element}>", f"<{lanes} x i1>", _suffix(element, lanes)
    places, index = f"<{lanes} x i{bits}>", ", ".join(f"i{bits} {lane}" for lane in range(lanes))

    def load(name: str, side: str) -> str:
        arguments = f"ptr %rest.{side}, i32 1, {mask} %rest.mask, {type_} zeroinitializer"
        return f"  %rest.{name} = call {type_} @llvm.masked.load.{suffix}({arguments})"

    lines = [
        "rest:",
        f"  %k.rest = phi i64 [ {first}, %{before} ], [ %rest.next, %rest.body ]",
        "  %rest.more = icmp slt i64 %k.rest, %count",
        "  br i1 %rest.more, label %rest.body, label %row.end",
        "rest.body:",
        f"  %rest.next = add nsw i64 %k.rest, {lanes}",
        "  %rest.count = sub nsw i64 %count, %k.rest",
        f"  %rest.left = {'add i64 %rest.count, 0' if bits == 64 else f'trunc i64 %rest.count to i{bits}'}",
        f"  %rest.one = insertelement {places} poison, i{bits} %rest.left, i64 0",
        f"  %rest.all = shufflevector {places} %rest.one, {places} poison, <{lanes} x i32> zeroinitializer",
        f"  %rest.mask = icmp ult {places} <{index}>, %rest.all",
        f"  %rest.to = getelementptr inbounds {element}, ptr %to, i64 %k.rest",
    ]
    result = f"%by{lanes}.values"
    if function != "fill":
        result = "%rest.read"
        lines += [f"  %rest.from = getelementptr inbounds {element}, ptr %from, i64 %k.rest", load("read", "from")]
    if function == "add":
        result = "%rest.sum"
        lines += [load("before", "to"), f"  {result} = fadd {type_} %rest.before, %rest.read"]
    store = f"  call void @llvm.masked.store.{suffix}({type_} {result}, ptr %rest.to, i32 1, {mask} %rest.mask)"
    return [*lines, store, "  br label %rest"]


def _repeated(element: str, width: int) -> list[str]:
    """Return the instructions that repeat a value in a vector."""
    type_ = f"<{width} x {element}>"
    return [
        f"  %by{width}.first = insertelement {type_} poison, {element} %value, i64 0",
        f"  %by{width}.values = shufflevector {type_} %by{width}.first, {type_} poison, "
        f"<{width} x i32> zeroinitializer",
    ]


def _elements(function: str, element: str, name: str, width: int) -> list[str]:
    """Return the instructions of an iteration for `width` elements."""
    type_ = element if width == 1 else f"<{width} x {element}>"
    lines = [f"  %{name}.to = getelementptr inbounds {element}, ptr %to, i64 %k.{name}"]
    result = f"%{name}.read"
    if function == "fill":
        result = "%value" if width == 1 else f"%{name}.values"
    else:
        lines.append(f"  %{name}.from = getelementptr inbounds {element}, ptr %from, i64 %k.{name}")
        lines.append(f"  %{name}.read = load {type_}, ptr %{name}.from, align 1")
    if function == "add":
        result = f"%{name}.sum"
        lines.append(f"  %{name}.before = load {type_}, ptr %{name}.to, align 1")
        lines.append(f"  {result} = fadd {type_} %{name}.before, %{name}.read")
    return [*lines, f"  store {type_} {result}, ptr %{name}.to, align 1"]
