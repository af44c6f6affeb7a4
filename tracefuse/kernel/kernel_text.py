"""The printer of kernels: infix arithmetic, named loops, indices in brackets, comments as `#` lines.

    kernel row_sum(x: const f32*, y: f32*, n: i64, m: i64)  target cuda, 64 threads as thread
      grid row in n
        acc: f32 = 0.0
        for j in range(i64(thread), m, 64) vector:
          acc += x[row * m + j]

Kernels of both targets print in the same notation, so a dump shows what the schedule does before any target code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.infix import Text, function, infix, prefix

# Operator precedence, as in Python.
_SELECT, _OR, _AND, _NOT, _COMPARE, _BIT_OR, _BIT_XOR, _BIT_AND, _SHIFT, _SUM, _PRODUCT, _UNARY = range(12)
_INFIX = {
    "add": ("+", _SUM),
    "sub": ("-", _SUM),
    "mul": ("*", _PRODUCT),
    "div": ("/", _PRODUCT),
    "floordiv": ("//", _PRODUCT),
    "mod": ("%", _PRODUCT),
    "lt": ("<", _COMPARE),
    "le": ("<=", _COMPARE),
    "gt": (">", _COMPARE),
    "ge": (">=", _COMPARE),
    "eq": ("==", _COMPARE),
    "ne": ("!=", _COMPARE),
    "shl": ("<<", _SHIFT),
    "shr": (">>", _SHIFT),
}
_BITS = {"and": ("&", _BIT_AND), "or": ("|", _BIT_OR), "xor": ("^", _BIT_XOR)}
_LOGIC = {"and": ("and", _AND), "or": ("or", _OR), "xor": ("!=", _COMPARE)}
_ACCUMULATE = {"add": "+=", "mul": "*="}
_SHORT = {"minimum": "min", "maximum": "max"}


def expression(value: ir.Expression) -> Text:
    """Return an expression in infix form with the fewest parentheses."""
    match value:
        case ir.Constant(number, dtype):
            text = repr(float(number.real)) if dtype.is_floating else repr(number)
            return Text(text, _UNARY) if text.startswith("-") else Text(text)
        case ir.Variable(name, _):
            return Text(name)
        case ir.Load(buffer, index, cache):
            return Text(f"{buffer.name}[{expression(index)}{_cache(cache)}]")
        case ir.Cast(argument, dtype):
            return function(dtype.short, expression(argument))
        case ir.Call(name, arguments, dtype):
            return _call(name, [expression(a) for a in arguments], value)


def _cache(cache: str) -> str:
    return "" if cache == "default" else f", {cache}"


def _call(name: str, arguments: list[Text], value: ir.Call) -> Text:
    if name == "select":
        condition, first, second = arguments
        return Text(f"{first.at(_SELECT + 1)} if {condition.at(_SELECT + 1)} else {second.at(_SELECT)}", _SELECT)
    boolean = value.arguments[0].dtype.kind == "bool"
    table = {**_INFIX, **(_LOGIC if boolean else _BITS)}
    if name in table:
        return infix(*table[name], *arguments)
    if name == "neg":
        return prefix("-", _UNARY, arguments[0])
    if name == "not":
        return prefix("not ", _NOT, arguments[0]) if boolean else prefix("~", _UNARY, arguments[0])
    if name == "bitcast":
        return function(f"bitcast_{value.dtype.short}", *arguments)
    return function(_SHORT.get(name, name), *arguments)


def parameter_text(parameter: ir.Buffer | ir.Variable) -> str:
    """Return a parameter with its type."""
    if isinstance(parameter, ir.Variable):
        return f"{parameter.name}: {parameter.dtype.short}"
    return f"{parameter.name}: {'' if parameter.written else 'const '}{parameter.dtype.short}*"


def _range(loop: ir.For) -> str:
    bounds = [loop.start, loop.stop, loop.step]
    if isinstance(loop.step, ir.Constant) and loop.step.value == 1:
        bounds.pop()
    return f"range({', '.join(expression(b).text for b in bounds)})"


def _reduction(statement: ir.GroupReduce) -> str:
    names = ", ".join(v.name for v in statement.variables)
    combiner = statement.combiner
    states = [", ".join(v.name for v in side) for side in (combiner.left, combiner.right)]
    results = ", ".join(expression(r).text for r in combiner.results)
    if statement.before:
        names = f"{', '.join(v.name for v in statement.before)} of earlier threads, {names}"
    return f"{names} = reduce over {statement.group} threads (({states[0]}), ({states[1]})) -> ({results})"


def _copy(statement: ir.Copy | ir.StartCopy | ir.EndBatch | ir.AwaitCopies | ir.Transpose) -> str:
    match statement:
        case ir.Copy(to, to_index, source, source_index, width, cache):
            wide = f"{source.name}[{expression(source_index)} : +{width}{_cache(cache)}]"
            return f"{to.name}[{expression(to_index)} : +{width}] = {wide}"
        case ir.StartCopy(to, to_index, source, source_index, width, count, steps, valid):
            wide = f"{source.name}[{expression(source_index)} : +{width}]"
            more = f", {count} times in steps of {' and '.join(map(str, steps))}" if count > 1 else ""
            more += "" if valid is None else f", zeros from copy {expression(valid)} on"
            return f"{to.name}[{expression(to_index)} : +{width}] = {wide}, awaited later{more}"
        case ir.EndBatch():
            return "end of a batch of copies"
        case ir.AwaitCopies(later):
            return f"await copies{f' but those of the last {later} batches' if later else ''}"
        case ir.Transpose(to, to_pitch, source, from_pitch, rows, columns, _, start):
            sides = f"{expression(rows)}, {expression(columns)}"
            pitch = from_pitch if isinstance(from_pitch, int) else expression(from_pitch)
            place = f":{pitch}" if start is None else f"{expression(start)} :: {pitch}"
            return f"{to.name}[:{to_pitch}] = transposed {source.name}[{place}] of {sides}"


def _matrix(matrix: ir.Matrix) -> str:
    columns = f", ::{matrix.column_pitch}" if matrix.column_pitch != 1 else ""
    return f"{matrix.buffer.name}[{expression(matrix.start)} :: {matrix.row_pitch}{columns}]"


def _matrices(
    statement: ir.AddProducts
    | ir.LoadMatrices
    | ir.LoadPairs
    | ir.MultiplyMatrices
    | ir.MultiplyTiles
    | ir.AwaitProducts
    | ir.StorePair,
) -> str:
    match statement:
        case ir.AddProducts(_, _, _, rows, terms, _, vectors, lanes, scales, replaces):
            sums, left, right = map(_matrix, statement.matrices)
            before = "" if replaces else f"{'' if scales is None else f'{scales.name} * '}{sums} + "
            sizes = f"{expression(rows)} rows, {expression(terms)} terms, {vectors * lanes} columns"
            return f"{sums} = {before}{left} @ {right} of {sizes}"
        case ir.LoadMatrices(to, to_index, source, source_index, transposed):
            matrices = f"{'transposed ' if transposed else ''}matrices at {source.name}[{expression(source_index)}]"
            return f"{to.name}[{expression(to_index)} : +4] = {matrices}"
        case ir.LoadPairs(to, to_index, source, source_index, step, aligned):
            place = (
                f"{to.name}[{expression(to_index)} : +{step * ir.LoadPairs.COUNT}{f' : {step}' if step > 1 else ''}]"
            )
            return f"{place} = {'' if aligned else 'unaligned '}pairs at {source.name}[{expression(source_index)}]"
        case ir.MultiplyMatrices(sums, sums_index, left, left_index, right, right_index, dtype):
            pairs = 2 if dtype is left.dtype else 1
            factors = f"{left.name}[{expression(left_index)} : +{4 * pairs}] @ "
            factors += f"{right.name}[{expression(right_index)} : +{2 * pairs}]"
            return f"{sums.name}[{expression(sums_index)} : +4] += {factors} of {dtype.short}"
        case ir.MultiplyTiles(sums, sums_index, left, left_index, right, right_index, columns, terms, transposed):
            factors = f"{left.name}[{expression(left_index)}] @ {'transposed ' if transposed else ''}"
            factors += f"{right.name}[{expression(right_index)}] of {statement.ROWS} x {terms} x {columns}"
            start = "" if statement.awaited else "start "
            return f"{start}{sums.name}[{expression(sums_index)}] {'' if statement.replaces else '+'}= tiles {factors}"
        case ir.AwaitProducts(completed, later):
            later_text = f" but the last {later}" if later else ""
            return f"await products of {', '.join(b.name for b in completed)}{later_text}"
        case ir.StorePair(buffer, index, low, high, dtype):
            pair = f"{dtype.short} pair ({expression(low)}, {expression(high)})"
            return f"{buffer.name}[{expression(index)}] = {pair}"


def _lines(body: Sequence[ir.Statement], indent: str) -> Iterator[str]:
    for statement in body:
        match statement:
            case ir.Let(variable, value):
                yield f"{indent}let {variable.name}: {variable.dtype.short} = {expression(value)}"
            case ir.Declare(variable, value):
                yield f"{indent}{variable.name}: {variable.dtype.short} = {expression(value)}"
            case ir.Assign(variable, value):
                yield f"{indent}{variable.name} = {expression(value)}"
            case ir.Accumulate(variable, operation, value) if operation in _ACCUMULATE:
                yield f"{indent}{variable.name} {_ACCUMULATE[operation]} {expression(value)}"
            case ir.Accumulate(variable, operation, value):
                yield f"{indent}{variable.name} = {expression(ir.call(operation, variable, value))}"
            case ir.Store(buffer, index, value, cache, block):
                where = "" if block is None else f" of block {expression(block)}"
                yield f"{indent}{buffer.name}{where}[{expression(index)}{_cache(cache)}] = {expression(value)}"
            case ir.Prefetch(buffer, index, writes, elements):
                wide = f"[{expression(index)}{f' : +{elements}' if elements > 1 else ''}]"
                yield f"{indent}prefetch {buffer.name}{wide}{' to write' if writes else ''}"
            case ir.Copy() | ir.StartCopy() | ir.EndBatch() | ir.AwaitCopies() | ir.Transpose():
                yield indent + _copy(statement)
            case (
                ir.AddProducts() | ir.LoadMatrices() | ir.LoadPairs() | ir.MultiplyMatrices() | ir.MultiplyTiles()
                | ir.AwaitProducts() | ir.StorePair()
            ):  # fmt: skip
                yield indent + _matrices(statement)
            case ir.For():
                kind = "" if statement.kind == "serial" else f" {statement.kind}"
                yield f"{indent}for {statement.variable.name} in {_range(statement)}{kind}:"
                yield from _lines(statement.body, indent + "  ")
            case ir.If(condition, then, orelse):
                yield f"{indent}if {expression(condition)}:"
                yield from _lines(then, indent + "  ")
                if orelse:
                    yield f"{indent}else:"
                    yield from _lines(orelse, indent + "  ")
            case ir.Allocate(buffer):
                size = buffer.size if isinstance(buffer.size, int | None) else expression(buffer.size)
                yield f"{indent}{buffer.space} {buffer.name}: {buffer.dtype.short}[{size}]"
            case ir.Barrier(cluster):
                yield f"{indent}barrier{' of the cluster' if cluster else ''}"
            case ir.GroupReduce():
                yield indent + _reduction(statement)
            case ir.Comment(text):
                yield from (f"{indent}# {line}" for line in text.splitlines())


def kernel_text(kernel: ir.Kernel) -> str:
    """Return the kernel as readable text that ends in a newline."""
    facts = [f"target {kernel.target}"]
    if kernel.target == "cuda":
        named = f" as {kernel.thread.name}" if kernel.thread is not None else ""
        facts.append(f"{kernel.threads} threads{named}")
        if kernel.blocks_per_multiprocessor is not None:
            facts.append(f"{kernel.blocks_per_multiprocessor} blocks a multiprocessor")
        if kernel.cluster > 1:
            facts.append(f"clusters of {kernel.cluster} blocks")
    if not kernel.contract:
        facts.append("no contraction")
    if kernel.fast_math:
        facts.append("fast math")
    if kernel.workers:
        facts.append(f"at most {kernel.workers} workers")
    lines = [f"kernel {kernel.name}({', '.join(map(parameter_text, kernel.parameters))})  {', '.join(facts)}"]
    indent = "  "
    for axis in kernel.grid:
        lines.append(f"{indent}grid {axis.variable.name} in {expression(axis.extent)}")
        indent += "  "
    return "\n".join([*lines, *_lines(kernel.body, indent)]) + "\n"
