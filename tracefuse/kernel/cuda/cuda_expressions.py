"""Types, literals and expressions of the kernel IR as CUDA C++.

Signed arithmetic on data wraps. Indices and bounds use plain C++ arithmetic: an overflowing index would be out of
bounds anyway, and undefined overflow lets the compiler keep addresses in 64-bit registers. The caller tells `Printer`
which of the two it prints; `data_variables` returns the variables that data depends on.

Half values are 16-bit structs; their arithmetic is computed in float and rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.device_functions import DEVICE_FUNCTIONS
from tracefuse.kernel.infix import Text, function, infix, prefix

# C++ operator precedence.
CONDITIONAL, LOGICAL_OR, LOGICAL_AND, BIT_OR, BIT_XOR, BIT_AND = 1, 2, 3, 4, 5, 6
EQUALITY, RELATION, SHIFT, SUM, PRODUCT, UNARY = 7, 8, 9, 10, 11, 12

TYPES = {"bool": "bool", "int32": "int", "float32": "float", "float64": "double"}

_OPERATORS = {"add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT)}
_WRAPPING = {"add": "wrapping_add", "sub": "wrapping_subtract", "mul": "wrapping_multiply"}
_INTEGER_DIVISION = {
    "floordiv": "floor_divide",
    "mod": "floor_remainder",
    "truncdiv": "truncated_divide",
    "truncmod": "truncated_remainder",
}
_PLAIN_DIVISION = {"truncdiv": "/", "truncmod": "%"}
_COMPARISONS = {
    "lt": ("<", RELATION),
    "le": ("<=", RELATION),
    "gt": (">", RELATION),
    "ge": (">=", RELATION),
    "eq": ("==", EQUALITY),
    "ne": ("!=", EQUALITY),
}
_BITS = {"and": ("&", BIT_AND), "or": ("|", BIT_OR), "xor": ("^", BIT_XOR)}
_LOGIC = {"and": ("&&", LOGICAL_AND), "or": ("||", LOGICAL_OR), "xor": ("!=", EQUALITY)}
_SHIFTS = {"shl": "shift_left", "shr": "shift_right", "shr_logical": "shift_right_logical"}
_INTEGER_FUNCTIONS = {
    "minimum": "minimum",
    "maximum": "maximum",
    "pow": "integer_power",
    "gcd": "greatest_divisor",
    "fast_divide": "fast_divide",
}
_PREDICATES = {"isnan": "is_nan", "isinf": "is_infinite", "isfinite": "is_finite", "signbit": "is_negative"}
# CUDA math functions, by their names for double; the float versions add an f.
_MATH = {
    **{
        name: name
        for name in (
            *("sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin"),
            *("acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "erfcinv"),
            *("lgamma", "cbrt", "floor", "ceil", "trunc", "pow", "atan2", "nextafter", "copysign", "fma"),
        )
    },
    "round": "rint",
    "abs": "fabs",
    "truncmod": "fmod",
}
# With fast math: float functions that the hardware approximates.
_APPROXIMATE = {name: f"__{name}f" for name in ("exp", "log", "log2", "log10", "sin", "cos", "tan", "pow")}
# Float functions that device_functions.py computes in fewer instructions than the CUDA library.
_REPLACED = {"tanh": "hyperbolic_tangent", "erfc": "complementary_error"}
_SMALL_INT = range(-(2**31) + 1, 2**31)


def is_narrow(dtype: DType) -> bool:
    """Return whether C++ promotes the integer dtype to int in arithmetic."""
    return dtype.is_integer and dtype.itemsize < 4


def has_load(expression: ir.Expression) -> bool:
    match expression:
        case ir.Load():
            return True
        case ir.Call(_, arguments, _):
            return any(has_load(a) for a in arguments)
        case ir.Cast(argument, _):
            return has_load(argument)
    return False


def variables_of(expression: ir.Expression) -> Iterator[str]:
    """Yield the names of the variables that the value is computed from, excluding those in load indices."""
    match expression:
        case ir.Variable(name, _):
            yield name
        case ir.Call(_, arguments, _):
            for argument in arguments:
                yield from variables_of(argument)
        case ir.Cast(argument, _):
            yield from variables_of(argument)


def data_variables(body: tuple[ir.Statement, ...]) -> frozenset[str]:
    """Return the variables that flow into a stored value or a reduction, not only into indices and conditions."""
    sources: dict[str, set[str]] = {}
    data: set[str] = set()
    for statement in ir.walk_statements(body):
        match statement:
            case ir.Let(variable, value) | ir.Declare(variable, value) | ir.Assign(variable, value):
                sources.setdefault(variable.name, set()).update(variables_of(value))
            case ir.Accumulate(variable, _, value):
                sources.setdefault(variable.name, set()).update(variables_of(value))
            case ir.Store(buffer, _, value, _) if not buffer.positions:
                data.update(variables_of(value))
            case ir.StorePair(_, _, low, high):
                data.update((*variables_of(low), *variables_of(high)))
            case ir.GroupReduce(variables, combiner, _, before):
                data.update(v.name for v in (*variables, *before))
                for result in combiner.results:
                    data.update(variables_of(result))
    pending = list(data)
    while pending:
        new = sources.get(pending.pop(), set()) - data
        data |= new
        pending.extend(new)
    return frozenset(data)


def float_text(value: float, dtype: DType) -> Text:
    """Return a literal that parses to exactly `value` as float or double."""
    single = dtype is dtypes.float32
    if math.isnan(value) or math.isinf(value):
        bits = np.array(value, dtype.numpy).view(np.uint32 if single else np.uint64)
        return Text(f"{'__int_as_float' if single else '__longlong_as_double'}({int(bits):#x})")
    if not single:
        text = repr(float(value))
    elif value == 0 or 1e-4 <= abs(value) < 1e9:
        text = np.format_float_positional(np.float32(value), unique=True, trim="0") + "f"
    else:
        text = np.format_float_scientific(np.float32(value), unique=True, trim="0") + "f"
    return Text(text, UNARY) if text.startswith("-") else Text(text)


class Printer:
    """Prints expressions and records in `used` the device functions that they need."""

    def __init__(self, names: Mapping[str, str], *, fast_math: bool = False) -> None:
        self.names = dict(names)
        self.fast_math = fast_math
        self.used: set[str] = set()

    def use(self, name: str) -> str:
        self.used.add(name)
        return name

    def type(self, dtype: DType) -> str:
        if dtype.kind == "complex":
            raise InternalError(f"{dtype.name} in a kernel: complex numbers must be split into their parts")
        return TYPES[dtype.name] if dtype.name in TYPES else self.use(dtype.name)

    def constant(self, constant: ir.Constant, *, bare: bool = False) -> Text:
        """Return a literal of the constant's dtype, or with `bare` an int literal that the context converts."""
        value, dtype = constant.value, constant.dtype
        if isinstance(value, complex):
            self.type(dtypes.complex128)
            raise InternalError(f"complex constant {value} of {dtype}")
        if dtype.kind == "bool":
            return Text("true" if value else "false")
        if dtype.is_half:
            bits = int(np.array(value, dtype.numpy).view(np.uint16))
            return Text(f"{self.type(dtype)}{{{bits:#06x} /* {float(value):g} */}}")
        if dtype.is_floating:
            return float_text(float(value), dtype)
        number = int(value)
        if number == -(2 ** (8 * dtype.itemsize - 1)) and dtype.itemsize >= 4:
            suffix = "ll" if dtype.itemsize == 8 else ""
            return Text(f"{number + 1}{suffix} - 1", SUM)
        if bare and number in _SMALL_INT:
            suffix = ""
        elif is_narrow(dtype):
            return Text(f"({self.type(dtype)}){number}", UNARY)
        else:
            suffix = {"int32": "", "int64": "ll", "uint32": "u", "uint64": "ull"}[dtype.name]
        return Text(f"{number}{suffix}", UNARY) if number < 0 else Text(f"{number}{suffix}")

    def value(self, expression: ir.Expression) -> Text:
        """Print a data expression with wrapping arithmetic; a constant alone may be a bare literal."""
        return self.top(expression, index=False)

    def index(self, expression: ir.Expression) -> Text:
        """Print an index, a bound or a condition."""
        return self.top(expression, index=True)

    def top(self, expression: ir.Expression, *, index: bool) -> Text:
        if isinstance(expression, ir.Constant):
            return self.constant(expression, bare=True)
        return self.print(expression, index)

    def print(self, expression: ir.Expression, index: bool) -> Text:
        match expression:
            case ir.Constant():
                return self.constant(expression)
            case ir.Variable(name, _):
                return Text(self.names[name])
            case ir.Load(buffer, position, cache):
                return self.load(buffer, position, cache)
            case ir.Cast(argument, dtype):
                return self.cast(argument, dtype, index)
            case ir.Call(name, arguments, dtype):
                return self.call(name, arguments, dtype, index)

    def load(self, buffer: ir.Buffer, position: ir.Expression, cache: str) -> Text:
        name, where = self.names[buffer.name], self.index(position)
        if buffer.packed:
            return Text(f"{self.use('read_packed')}({name} + {where.at(SUM)})")
        if cache == "streaming" and buffer.space == "global":
            reader = self.use("read_streaming" if buffer.written or not buffer.exclusive else "read_once")
            return Text(f"{reader}({name})" if where.text == "0" else f"{reader}({name} + {where.at(SUM)})")
        return Text(f"{name}[{where}]")

    # casts

    def cast(self, argument: ir.Expression, to: DType, index: bool) -> Text:
        source = argument.dtype
        inner = self.print(argument, index)
        if source is to:
            return inner
        if source.is_half:
            inner, source = self.widened(inner, source), dtypes.float32
            if to is dtypes.float32:
                return inner
        if to.kind == "bool":
            return infix("!=", EQUALITY, inner, Text("0"))
        if to.is_half:
            if to is dtypes.bfloat16 and source.kind != "bool" and source.itemsize >= 4 and source.is_integer:
                wide = inner if source.itemsize == 8 else Text(f"(double){inner.at(UNARY)}", UNARY)
                inner = function(self.use("odd_float"), wide)
            elif source is dtypes.float64 or (source.is_integer and source.itemsize == 8):
                inner = function(self.use("odd_float"), inner)
            elif source is not dtypes.float32:
                inner = Text(f"(float){inner.at(UNARY)}", UNARY)
            return function(self.use(f"to_{to.name}"), inner)
        if source.is_floating and to.is_integer:
            name = "to_int" if to is dtypes.int32 else f"to_{to.name}"
            return function(self.use(name), inner)
        return Text(f"({self.type(to)}){inner.at(UNARY)}", UNARY)

    def widened(self, half: Text, dtype: DType) -> Text:
        self.use(f"float_of_{dtype.name}")
        return function("to_float", half)

    # calls

    def call(self, name: str, arguments: tuple[ir.Expression, ...], dtype: DType, index: bool) -> Text:
        kind = arguments[-1].dtype
        self.type(kind)
        if name == "select":
            condition = self.print(arguments[0], index)
            first, second = self.pair(arguments[1], arguments[2], index, exact=kind.is_half or is_narrow(kind))
            return Text(f"{condition.at(LOGICAL_OR)} ? {first.at(LOGICAL_OR)} : {second.at(CONDITIONAL)}", CONDITIONAL)
        if name == "bitcast":
            self.use("bit_cast")
            return function(f"bit_cast<{self.type(dtype)}>", self.print(arguments[0], index))
        if kind.is_half:
            return self.half_call(name, arguments, dtype, index)
        if name in _COMPARISONS:
            return infix(*_COMPARISONS[name], *self.pair(arguments[0], arguments[1], index))
        if kind.kind == "bool":
            return self.bool_call(name, arguments, index)
        if kind.is_integer:
            return self.integer_call(name, arguments, kind, index)
        return self.float_call(name, arguments, kind, index)

    def pair(self, a: ir.Expression, b: ir.Expression, index: bool, *, exact: bool = False) -> tuple[Text, Text]:
        """Return both operands of an operator; a constant next to a non-constant may be a bare literal."""
        if exact or isinstance(a, ir.Constant) is isinstance(b, ir.Constant):
            return self.print(a, index), self.print(b, index)
        if is_narrow(a.dtype):  # C++ computes both as int
            return self.top(a, index=index), self.top(b, index=index)
        first = self.constant(a, bare=True) if isinstance(a, ir.Constant) else self.print(a, index)
        second = self.constant(b, bare=True) if isinstance(b, ir.Constant) else self.print(b, index)
        return first, second

    def half_call(self, name: str, arguments: tuple[ir.Expression, ...], dtype: DType, index: bool) -> Text:
        kind = arguments[0].dtype
        if name == "nextafter":
            self.used |= {f"float_of_{kind.name}", "next_half"}
            return function("next_half", *(self.print(a, index) for a in arguments))
        wide = tuple(ir.Cast(a, dtypes.float32) for a in arguments)
        result = self.print(ir.call(name, *wide), index)
        return function(self.use(f"to_{kind.name}"), result) if dtype.is_half else result

    def bool_call(self, name: str, arguments: tuple[ir.Expression, ...], index: bool) -> Text:
        if name == "not":
            return prefix("!", UNARY, self.print(arguments[0], index))
        name = {"mul": "and", "minimum": "and", "add": "or", "maximum": "or"}.get(name, name)
        if name not in _LOGIC:
            raise InternalError(f"kernel IR: {name} of bool")
        return infix(*_LOGIC[name], *(self.print(a, index) for a in arguments))

    def integer_call(self, name: str, arguments: tuple[ir.Expression, ...], kind: DType, index: bool) -> Text:
        index = index and not any(has_load(a) for a in arguments)
        plain = index or kind.kind == "uint" or is_narrow(kind)
        if name in _OPERATORS and plain:
            if name == "mul" and kind is dtypes.uint16:  # promoted to int, the product would overflow
                first, second = (self.print(a, index) for a in arguments)
                return Text(f"(uint16)((unsigned int){first.at(UNARY)} * {second.at(UNARY)})", UNARY)
            return self.narrowed(infix(*_OPERATORS[name], *self.pair(arguments[0], arguments[1], index)), kind)
        if name in _PLAIN_DIVISION and self.divides_plainly(arguments[1], index):
            divided = infix(_PLAIN_DIVISION[name], PRODUCT, *self.pair(arguments[0], arguments[1], index))
            return self.narrowed(divided, kind)
        if name in _BITS:
            return self.narrowed(infix(*_BITS[name], *self.pair(arguments[0], arguments[1], index)), kind)
        texts = [self.print(a, index) for a in arguments]
        if name in _OPERATORS:
            return function(self.use(_WRAPPING[name]), *texts)
        if name in ("neg", "not"):
            if name == "neg" and not plain:
                return function(self.use("wrapping_negate"), *texts)
            return self.narrowed(prefix("-" if name == "neg" else "~", UNARY, texts[0]), kind)
        if name == "abs":
            return texts[0] if kind.kind == "uint" else function(self.use("wrapping_absolute"), *texts)
        if name in ("shr", "shl") and self.shifts_plainly(name, arguments[1], kind):
            return self.narrowed(infix(">>" if name == "shr" else "<<", SHIFT, texts[0], texts[1]), kind)
        device_functions = {**_INTEGER_DIVISION, **_SHIFTS, **_INTEGER_FUNCTIONS}
        if name not in device_functions:
            raise InternalError(f"kernel IR: {name} of {kind}")
        return function(self.use(device_functions[name]), *texts)

    def divides_plainly(self, divisor: ir.Expression, index: bool) -> bool:
        return index or (isinstance(divisor, ir.Constant) and int(divisor.value.real) not in (0, -1))

    def shifts_plainly(self, name: str, count: ir.Expression, kind: DType) -> bool:
        inside = isinstance(count, ir.Constant) and 0 <= int(count.value.real) < 8 * kind.itemsize
        return inside and (name == "shr" or kind in (dtypes.uint32, dtypes.uint64))

    def narrowed(self, text: Text, kind: DType) -> Text:
        """Cast the int that C++ computes from narrow integers back to their type."""
        return Text(f"({self.type(kind)}){text.at(UNARY)}", UNARY) if is_narrow(kind) else text

    def float_call(self, name: str, arguments: tuple[ir.Expression, ...], kind: DType, index: bool) -> Text:
        texts = [self.print(a, index) for a in arguments]
        if name in _OPERATORS:
            return infix(*_OPERATORS[name], *texts)
        if self.fast_math and kind is dtypes.float32 and name in _APPROXIMATE:
            return function(_APPROXIMATE[name], *texts)
        if name == "div":
            return infix("/", PRODUCT, *texts)
        if name in _REPLACED and kind is dtypes.float32:
            return function(self.use(_REPLACED[name]), *texts)
        if name == "neg":
            return prefix("-", UNARY, texts[0])
        suffix = "f" if kind is dtypes.float32 else ""
        if name == "rounded_product":
            return function("__fmul_rn" if suffix else "__dmul_rn", *texts)
        if name in _MATH:
            return function(_MATH[name] + suffix, *texts)
        if name == "truncdiv":
            return function("trunc" + suffix, infix("/", PRODUCT, *texts))
        device_functions = {**_PREDICATES, "floordiv": "float_floor_divide", "mod": "float_remainder"}
        device_function = device_functions.get(name, name)
        if device_function not in device_functions.values() and name not in (
            "minimum",
            "maximum",
            "exp_term",
            "exp2_term",
        ):
            raise InternalError(f"kernel IR: {name} of {kind}")
        return function(self.use(device_function), *texts)


# Names that a kernel must not use: C++ keywords, CUDA's built-in variables, and names that the emitter writes.
_WORDS = """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr
continue default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline
int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register return
short signed sizeof static struct switch template this throw true try typedef typeid typename union unsigned using
virtual void volatile wchar_t while xor xor_eq half threadIdx blockIdx blockDim gridDim warpSize min max main to_float
dynamic_shared"""
RESERVED = frozenset((*_WORDS.split(), *_MATH.values(), *(f"{m}f" for m in _MATH.values()), *DEVICE_FUNCTIONS))


def identifiers(names: Iterable[str], reserved: Iterable[str]) -> dict[str, str]:
    """Return a C++ identifier for each name: the name itself, with trailing underscores if it is taken."""
    used = set(reserved)
    result: dict[str, str] = {}
    for name in names:
        text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
        text = f"v{text}" if not text or text[0].isdigit() or text.startswith("__") else text
        while text in used:
            text += "_"
        used.add(text)
        result[name] = text
    return result
