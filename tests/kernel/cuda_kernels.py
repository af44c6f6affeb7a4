"""Handwritten GPU kernels that the tests of the interpreter, the CUDA emitter and the device share."""

from __future__ import annotations

from tracefuse import dtypes
from tracefuse.dtypes import DType, bool_, float32, float64, int32, int64
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.kernel_ir import Expression, Variable, call

HALVES = (dtypes.float16, dtypes.bfloat16)
REAL = (bool_, *dtypes.INTEGERS, *dtypes.FLOATS)
THREAD = Variable("thread", int32)


def number(value: float, dtype: DType) -> ir.Constant:
    return ir.Constant(value, dtype)


def add(a: Expression, b: Expression) -> Expression:
    return call("add", a, b)


def mul(a: Expression, b: Expression) -> Expression:
    return call("mul", a, b)


def cast(value: Expression, dtype: DType) -> Expression:
    return value if value.dtype is dtype else ir.Cast(value, dtype)


def source(name: str, dtype: DType, **facts: object) -> ir.Buffer:
    return ir.Buffer(name, dtype, alignment=dtype.itemsize, **facts)  # type: ignore[arg-type]


def target(name: str, dtype: DType, **facts: object) -> ir.Buffer:
    return source(name, dtype, written=True, **facts)


def combiner(name: str, *kinds: DType) -> ir.Combiner:
    left = tuple(Variable(f"left{k}", kind) for k, kind in enumerate(kinds))
    right = tuple(Variable(f"right{k}", kind) for k, kind in enumerate(kinds))
    return ir.Combiner(left, right, tuple(call(name, a, b) for a, b in zip(left, right, strict=True)))


def elementwise(name: str, inputs: tuple[DType, ...], result: DType, value: object, threads: int = 128) -> ir.Kernel:
    """y[i] = value(a[i], b[i], ...) for i in range(n)."""
    n, block, i = Variable("n", int64), Variable("block", int64), Variable("i", int64)
    buffers = tuple(source(f"x{k}", kind) for k, kind in enumerate(inputs))
    y = target("y", result)
    computed = value(*(ir.Load(b, i) for b in buffers))  # type: ignore[operator]
    extent = call("truncdiv", add(n, number(threads - 1, int64)), number(threads, int64))
    body = (
        ir.Let(i, add(mul(block, number(threads, int64)), cast(THREAD, int64))),
        ir.If(call("lt", i, n), (ir.Store(y, i, computed),)),
    )
    return ir.Kernel(name, (*buffers, y, n), (ir.Axis(block, extent),), body, "cuda", threads, THREAD)


def arguments_of(name: str, dtype: DType) -> tuple[DType, ...]:
    count = ir.PRIMITIVES[name]
    return (bool_, dtype, dtype) if name == "select" else (dtype,) * count


_FLOAT_ONLY = frozenset(
    name for name in list(ir.PRIMITIVES)[list(ir.PRIMITIVES).index("sqrt") : list(ir.PRIMITIVES).index("fma") + 1]
) | {"div"}
_BITS_ONLY = frozenset({"shl", "shr", "shr_logical"})


def takes(name: str, dtype: DType) -> bool:
    """Whether a primitive is defined for a real type."""
    if name == "fast_divide":
        return dtype is int64
    if name == "bitcast":
        return dtype in (int32, int64, float32, float64, *HALVES)
    if dtype is bool_:
        return name in ("and", "or", "xor", "not", "select", "eq", "ne", "lt", "le", "gt", "ge")
    if dtype.is_floating:
        return name not in _BITS_ONLY | {"and", "or", "xor", "not", "gcd"}
    return name == "pow" or name not in _FLOAT_ONLY


_BITCAST = {int32: float32, int64: float64, float32: int32, float64: int64, **dict.fromkeys(HALVES, dtypes.uint16)}


def primitive(name: str, dtype: DType) -> ir.Kernel:
    """y[i] = name(x0[i], ...)."""
    to = _BITCAST[dtype] if name == "bitcast" else None
    result = to or (bool_ if name in ir.COMPARISONS else dtype)
    return elementwise(
        f"{name}_{dtype.name}", arguments_of(name, dtype), result, lambda *values: call(name, *values, dtype=to)
    )


def conversion(origin: DType, to: DType) -> ir.Kernel:
    return elementwise(f"{origin.name}_to_{to.name}", (origin,), to, lambda x: ir.Cast(x, to))


PRIMITIVE_CASES = [(name, dtype) for name in ir.PRIMITIVES for dtype in REAL if takes(name, dtype)]
CAST_CASES = [(origin, to) for origin in REAL for to in REAL if origin is not to]


def group_reduce(dtype: DType, group: int, threads: int, name: str = "add") -> ir.Kernel:
    """y[i] = the combination of x over the group of threads that i belongs to."""
    blocks, block, i = Variable("blocks", int64), Variable("block", int64), Variable("i", int64)
    x, y, state = source("x", dtype), target("y", dtype), Variable("state", dtype)
    body = (
        ir.Let(i, add(mul(block, number(threads, int64)), cast(THREAD, int64))),
        ir.Declare(state, ir.Load(x, i)),
        ir.GroupReduce((state,), combiner(name, dtype), group),
        ir.Store(y, i, state),
    )
    name = f"{name}_{dtype.name}_{group}_of_{threads}"
    return ir.Kernel(name, (x, y, blocks), (ir.Axis(block, blocks),), body, "cuda", threads, THREAD)


def copy(dtype: DType, width: int, cache: str, *, written: bool = False) -> ir.Kernel:
    """y = x, `width` elements a thread at a time; `written` claims that x is written too."""
    blocks, block, at = Variable("blocks", int64), Variable("block", int64), Variable("at", int64)
    x, y = source("x", dtype, written=written), target("y", dtype)
    chunk = ir.Buffer("chunk", dtype, "local", width)
    lane = add(mul(block, number(64, int64)), cast(THREAD, int64))
    zero = number(0, int64)
    body = (
        ir.Let(at, mul(lane, number(width, int64))),
        ir.Allocate(chunk),
        ir.Copy(chunk, zero, x, at, width, cache),
        ir.Copy(y, at, chunk, zero, width, cache),
    )
    name = f"copy_{dtype.name}_{width}_{cache}{'_written' if written else ''}"
    return ir.Kernel(name, (x, y, blocks), (ir.Axis(block, blocks),), body, "cuda", 64, THREAD)


def rounded_copy(dtype: DType, width: int, cache: str = "default") -> ir.Kernel:
    """y = x of float32 rounded to a half type, `width` elements a thread at a time."""
    blocks, block, at = Variable("blocks", int64), Variable("block", int64), Variable("at", int64)
    x, y = source("x", float32), target("y", dtype)
    chunk = ir.Buffer("chunk", float32, "local", width)
    lane = add(mul(block, number(64, int64)), cast(THREAD, int64))
    zero = number(0, int64)
    body = (
        ir.Let(at, mul(lane, number(width, int64))),
        ir.Allocate(chunk),
        ir.Copy(chunk, zero, x, at, width, cache),
        ir.Copy(y, at, chunk, zero, width, cache),
    )
    name = f"round_{dtype.name}_{width}_{cache}"
    return ir.Kernel(name, (x, y, blocks), (ir.Axis(block, blocks),), body, "cuda", 64, THREAD)


def quotients(dtype: DType, count: int, *, shared: bool) -> ir.Kernel:
    """y[i, k] = x0[i, k] / x1[i, k], or / x1[i, 0], for `count` k a thread; 64 threads."""
    blocks, block, at = Variable("blocks", int64), Variable("block", int64), Variable("at", int64)
    x0, x1, y = source("x0", dtype), source("x1", dtype), target("y", dtype)
    lane = add(mul(block, number(64, int64)), cast(THREAD, int64))
    a = [Variable(f"a{k}", dtype) for k in range(count)]
    b = [Variable("b", dtype)] if shared else [Variable(f"b{k}", dtype) for k in range(count)]
    q = [Variable(f"q{k}", dtype) for k in range(count)]
    places = [add(at, number(k, int64)) for k in range(count)]
    body = (
        ir.Let(at, mul(lane, number(count, int64))),
        *(ir.Let(v, ir.Load(x0, place)) for v, place in zip(a, places, strict=True)),
        *(ir.Let(v, ir.Load(x1, place)) for v, place in zip(b, places, strict=False)),
        *(ir.Let(v, call("div", n, b[k if not shared else 0])) for k, (v, n) in enumerate(zip(q, a, strict=True))),
        *(ir.Store(y, place, v) for v, place in zip(q, places, strict=True)),
    )
    name = f"quotients_{dtype.name}_{count}_{'shared' if shared else 'own'}"
    return ir.Kernel(name, (x0, x1, y, blocks), (ir.Axis(block, blocks),), body, "cuda", 64, THREAD)
