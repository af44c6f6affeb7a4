"""Handwritten GPU kernels of whole algorithms: softmax, a transpose, sums of columns, moments, positions, clusters."""

from __future__ import annotations

from tests.kernel.cuda_kernels import THREAD, add, cast, combiner, mul, number, source, target
from tracefuse.dtypes import DType, float32, int32, int64
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.kernel_ir import Expression, Variable, call


def softmax(dtype: DType, columns: int, threads: int, width: int) -> ir.Kernel:
    """y[row] = softmax(x[row]) with a block a row and the row in registers; columns = threads * width * chunks."""
    rows, row, start = Variable("rows", int64), Variable("row", int64), Variable("start", int64)
    x, y = source("x", dtype), target("y", dtype)
    x, y = (ir.Buffer(b.name, dtype, alignment=16, written=b.written) for b in (x, y))
    each = columns // threads
    chunks = each // width
    raw, values = ir.Buffer("raw", dtype, "local", width), ir.Buffer("values", float32, "local", each)
    chunk, k = Variable("chunk", int32), Variable("k", int32)
    j, o, q = (Variable(name, int32) for name in ("j", "o", "q"))
    most, total, scale = (Variable(name, float32) for name in ("most", "total", "scale"))
    zero, one = number(0, int32), number(1, int32)
    slot = add(mul(chunk, number(width, int32)), k)
    place = add(start, mul(cast(chunk, int64), number(threads * width, int64)))

    def unrolled(variable: Variable, stop: int, *body: ir.Statement) -> ir.For:
        return ir.For(variable, zero, number(stop, int32), one, "unroll", body)

    def at(buffer: ir.Buffer, index: Expression) -> ir.Load:
        return ir.Load(buffer, index)

    second = add(mul(o, number(width, int32)), q)
    back = add(start, mul(cast(o, int64), number(threads * width, int64)))
    body: tuple[ir.Statement, ...] = (
        ir.Comment("softmax over the last axis: the row stays in registers"),
        ir.Let(start, add(mul(row, number(columns, int64)), mul(cast(THREAD, int64), number(width, int64)))),
        ir.Allocate(raw),
        ir.Allocate(values),
        ir.Declare(most, number(float("-inf"), float32)),
        unrolled(
            chunk,
            chunks,
            ir.Copy(raw, zero, x, place, width, "streaming"),
            unrolled(
                k,
                width,
                ir.Store(values, slot, cast(at(raw, k), float32)),
                ir.Accumulate(most, "maximum", at(values, slot)),
            ),
        ),
        ir.GroupReduce((most,), combiner("maximum", float32), threads),
        ir.Declare(total, number(0.0, float32)),
        unrolled(
            j,
            each,
            ir.Store(values, j, call("exp", call("sub", at(values, j), most))),
            ir.Accumulate(total, "add", at(values, j)),
        ),
        ir.GroupReduce((total,), combiner("add", float32), threads),
        ir.Let(scale, call("div", number(1.0, float32), total)),
        unrolled(
            o,
            chunks,
            unrolled(q, width, ir.Store(raw, q, cast(mul(at(values, second), scale), dtype))),
            ir.Copy(y, back, raw, zero, width, "streaming"),
        ),
    )
    name = f"softmax_{dtype.short}_{columns}"
    return ir.Kernel(name, (x, y, rows), (ir.Axis(row, rows),), body, "cuda", threads, THREAD, 2)


def transpose(dtype: DType, barrier: bool = True) -> ir.Kernel:
    """y[j, i] = x[i, j] through a shared tile of 32 x 33, 256 threads, a two-dimensional grid."""
    n, m = Variable("n", int64), Variable("m", int64)
    down, across = Variable("down", int64), Variable("across", int64)
    x, y = source("x", dtype), target("y", dtype)
    tile = ir.Buffer("tile", dtype, "shared", 32 * 33)
    lane, line = Variable("lane", int32), Variable("line", int32)
    r, s = Variable("r", int32), Variable("s", int32)
    i, j, u, v = (Variable(name, int64) for name in ("i", "j", "u", "v"))
    tiles = number(32, int64)

    def blocks(extent: Variable) -> Expression:
        return call("truncdiv", add(extent, number(31, int64)), tiles)

    def inside(a: Variable, b: Variable) -> Expression:
        return call("and", call("lt", a, n), call("lt", b, m))

    body: tuple[ir.Statement, ...] = (
        ir.Allocate(tile),
        ir.Let(lane, call("truncmod", THREAD, number(32, int32))),
        ir.Let(line, call("truncdiv", THREAD, number(32, int32))),
        ir.For(
            r,
            line,
            number(32, int32),
            number(8, int32),
            "serial",
            (
                ir.Let(i, add(mul(down, tiles), cast(r, int64))),
                ir.Let(j, add(mul(across, tiles), cast(lane, int64))),
                ir.If(
                    inside(i, j),
                    (ir.Store(tile, add(mul(r, number(33, int32)), lane), ir.Load(x, add(mul(i, m), j))),),
                ),
            ),
        ),
        *((ir.Barrier(),) if barrier else ()),
        ir.For(
            s,
            line,
            number(32, int32),
            number(8, int32),
            "serial",
            (
                ir.Let(u, add(mul(down, tiles), cast(lane, int64))),
                ir.Let(v, add(mul(across, tiles), cast(s, int64))),
                ir.If(
                    inside(u, v),
                    (ir.Store(y, add(mul(v, n), u), ir.Load(tile, add(mul(lane, number(33, int32)), s))),),
                ),
            ),
        ),
    )
    grid = (ir.Axis(down, blocks(n)), ir.Axis(across, blocks(m)))
    return ir.Kernel(f"transpose_{dtype.short}", (x, y, n, m), grid, body, "cuda", 256, THREAD)


def column_sum(dtype: DType) -> ir.Kernel:
    """y[j] = sum over i of x[i * stride + j]: a column a thread, a tile of 64 columns a block."""
    n, m, stride = Variable("n", int64), Variable("m", int64), Variable("stride", int64)
    block, i, j = Variable("block", int64), Variable("i", int64), Variable("j", int64)
    x, y, total = source("x", dtype), target("y", dtype), Variable("total", dtype.compute)
    loop = ir.For(
        i,
        number(0, int64),
        n,
        number(1, int64),
        "serial",
        (ir.Accumulate(total, "add", cast(ir.Load(x, add(mul(i, stride), j)), dtype.compute)),),
    )
    body = (
        ir.Let(j, add(mul(block, number(64, int64)), cast(THREAD, int64))),
        ir.If(
            call("lt", j, m),
            (ir.Declare(total, number(0.0, dtype.compute)), loop, ir.Store(y, j, cast(total, dtype))),
        ),
    )
    extent = call("truncdiv", add(m, number(63, int64)), number(64, int64))
    name = f"column_sum_{dtype.short}"
    return ir.Kernel(name, (x, y, n, m, stride), (ir.Axis(block, extent),), body, "cuda", 64, THREAD)


def moments(threads: int) -> ir.Kernel:
    """mean[row], variance[row] of x by Welford states; persistent blocks take rows, so it reduces in a loop."""
    n, m, blocks = Variable("n", int64), Variable("m", int64), Variable("blocks", int64)
    block, row, j = Variable("block", int64), Variable("row", int64), Variable("j", int64)
    x, mean_out, variance_out = source("x", float32), target("mean", float32), target("variance", float32)
    count, mean, spread = (Variable(name, float32) for name in ("count", "average", "spread"))
    value, delta = Variable("value", float32), Variable("delta", float32)
    left = tuple(Variable(f"a_{name}", float32) for name in ("count", "mean", "spread"))
    right = tuple(Variable(f"b_{name}", float32) for name in ("count", "mean", "spread"))
    counts = add(left[0], right[0])
    share = call("select", call("eq", counts, number(0.0, float32)), counts, call("div", right[0], counts))
    step = call("sub", right[1], left[1])
    results = (
        counts,
        add(left[1], mul(step, share)),
        add(add(left[2], right[2]), mul(mul(mul(step, step), left[0]), share)),
    )
    take = (
        ir.Let(value, ir.Load(x, add(mul(row, m), j))),
        ir.Let(delta, call("sub", value, mean)),
        ir.Accumulate(count, "add", number(1.0, float32)),
        ir.Accumulate(mean, "add", call("div", delta, count)),
        ir.Accumulate(spread, "add", mul(delta, call("sub", value, mean))),
    )
    body = (
        ir.For(
            row,
            block,
            n,
            blocks,
            "serial",
            (
                *(ir.Declare(v, number(0.0, float32)) for v in (count, mean, spread)),
                ir.For(j, cast(THREAD, int64), m, number(threads, int64), "vector", take),
                ir.GroupReduce((count, mean, spread), ir.Combiner(left, right, results), threads),
                ir.If(
                    call("eq", THREAD, number(0, int32)),
                    (ir.Store(mean_out, row, mean), ir.Store(variance_out, row, call("div", spread, count))),
                ),
            ),
        ),
    )
    return ir.Kernel(
        "moments",
        (x, mean_out, variance_out, n, m, blocks),
        (ir.Axis(block, blocks),),
        body,
        "cuda",
        threads,
        THREAD,
        contract=False,
    )


def argmax(threads: int) -> ir.Kernel:
    """y[row] = the first position of the largest x[row, :]: a state of value and position."""
    n, m, row, j = (Variable(name, int64) for name in ("n", "m", "row", "j"))
    x, y = source("x", float32), target("y", int64)
    best, place = Variable("best", float32), Variable("place", int64)
    left = (Variable("a_best", float32), Variable("a_place", int64))
    right = (Variable("b_best", float32), Variable("b_place", int64))

    def better(a: tuple[Variable, Variable], b: tuple[Expression, Expression]) -> Expression:
        return call("or", call("gt", b[0], a[0]), call("and", call("eq", b[0], a[0]), call("lt", b[1], a[1])))

    chosen = better(left, right)
    results = tuple(call("select", chosen, b, a) for a, b in zip(left, right, strict=True))
    value = Variable("value", float32)
    body = (
        ir.Declare(best, number(float("-inf"), float32)),
        ir.Declare(place, number(2**62, int64)),
        ir.For(
            j,
            cast(THREAD, int64),
            m,
            number(threads, int64),
            "serial",
            (
                ir.Let(value, ir.Load(x, add(mul(row, m), j))),
                ir.If(better((best, place), (value, j)), (ir.Assign(best, value), ir.Assign(place, j))),
            ),
        ),
        ir.GroupReduce((best, place), ir.Combiner(left, right, results), threads),
        ir.If(call("eq", THREAD, number(0, int32)), (ir.Store(y, row, place),)),
    )
    return ir.Kernel("argmax", (x, y, n, m), (ir.Axis(row, n),), body, "cuda", threads, THREAD)


def large_shared(elements: int) -> ir.Kernel:
    """y[i] = x[elements - 1 - i] through one shared buffer that may be beyond 48 KiB; one block of 256 threads."""
    x, y = source("x", float32), target("y", float32)
    held, copied = ir.Buffer("held", float32, "shared", elements), ir.Buffer("copied", float32, "shared", elements)
    block, i, k = Variable("block", int32), Variable("i", int32), Variable("k", int32)
    last, step = number(elements - 1, int32), number(256, int32)
    body = (
        ir.Allocate(held),
        ir.Allocate(copied),
        ir.For(i, THREAD, number(elements, int32), step, "serial", (ir.Store(held, i, ir.Load(x, i)),)),
        ir.Barrier(),
        ir.For(
            k,
            THREAD,
            number(elements, int32),
            step,
            "serial",
            (
                ir.Store(copied, k, ir.Load(held, call("sub", last, k))),
                ir.Store(y, k, ir.Load(copied, k)),
            ),
        ),
    )
    return ir.Kernel("large_shared", (x, y), (ir.Axis(block, number(1, int32)),), body, "cuda", 256, THREAD)


def cluster_sum(dtype: DType, cluster: int, threads: int, *, barrier: bool = True, copies: bool = True) -> ir.Kernel:
    """y[c * cluster + r] = the sum of all x of cluster c plus r, each block having `threads` elements in shared memory.

    barrier: whether the cluster meets before the sums of its blocks are read; copies: whether copies are awaited.
    """
    blocks, block, at = Variable("blocks", int64), Variable("block", int64), Variable("at", int64)
    rank, row = Variable("rank", int64), Variable("row", int64)
    x, y = source("x", dtype), target("y", dtype)
    held, sums = ir.Buffer("held", dtype, "shared", threads), ir.Buffer("sums", dtype, "shared", cluster)
    state, total, k = Variable("state", dtype), Variable("total", dtype), Variable("k", int64)
    zero, one, size = (number(n, int64) for n in (0, 1, cluster))
    lane = cast(THREAD, int64)
    body = (
        ir.Let(rank, call("truncmod", block, size)),
        ir.Let(row, call("truncdiv", block, size)),
        ir.Let(at, add(mul(block, number(threads, int64)), lane)),
        ir.Allocate(held),
        ir.Allocate(sums),
        ir.StartCopy(held, lane, x, at, 1),
        *([ir.AwaitCopies()] if copies else []),
        ir.Declare(state, ir.Load(held, lane)),
        ir.GroupReduce((state,), combiner("add", dtype), threads),
        ir.If(call("lt", lane, size), (ir.Store(sums, rank, state, block=lane),)),
        ir.Barrier(cluster=barrier),
        ir.Declare(total, cast(rank, dtype)),
        ir.For(k, zero, size, one, "serial", (ir.Accumulate(total, "add", ir.Load(sums, k)),)),
        ir.If(call("eq", lane, zero), (ir.Store(y, block, total),)),
    )
    name = f"cluster_sum_{dtype.name}_{cluster}_of_{threads}"
    extent = mul(blocks, size)
    return ir.Kernel(
        name, (x, y, blocks), (ir.Axis(block, extent),), body, "cuda", threads, THREAD, cluster=cluster
    )  # fmt: skip
