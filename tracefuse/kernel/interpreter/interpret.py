"""The interpreter: runs any kernel in NumPy, including GPU schedules, at small sizes.

Every thread of every block is a lane (see `lanes`). Lanes run in lockstep, a chunk of blocks at a time. Behaviour that
is undefined on the hardware raises an error: an index out of bounds, a barrier or group reduction that part of a block
or cluster does not reach, two lanes that store different values to one element, and shared memory accessed by several
threads without a barrier, or by several blocks without a cluster barrier.

`contract` has no effect; `fma` rounds once. `select`, `and` and `or` evaluate all their arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import uint32
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.interpreter.buffers import WIDEST_ACCESS, InterpreterError, bind, unspecified
from tracefuse.kernel.interpreter.group_order import WARP, combine_group, scan_group
from tracefuse.kernel.interpreter.lanes import Lanes
from tracefuse.kernel.interpreter.matrices import add_products, load_matrices, multiply_matrices, pair_bits
from tracefuse.kernel.interpreter.multiplied_tiles import multiply_tiles
from tracefuse.kernel.primitives import convert

__all__ = ["InterpreterError", "interpret"]

LANES_AT_A_TIME = 1 << 16


@dataclass(slots=True)
class _Machine(Lanes):
    """Runs statements on a chunk of blocks, in lockstep."""

    # Asynchronous copies in flight: (batch, mask, destination, index, value).
    in_flight: list[tuple[int, Any, ir.Buffer, Any, Any]] = field(default_factory=list)
    batches: int = 0

    def assign(self, variable: ir.Variable, value: Any) -> None:
        if variable.name not in self.values:
            raise self.fail(f"assigns to {variable.name}, which is not declared")
        if np.asarray(value).dtype != variable.dtype.numpy:
            raise self.fail(f"assigns {np.asarray(value).dtype} to {variable.name} of {variable.dtype}")
        if self.mask is not None:
            value = np.where(self.mask, value, self.values[variable.name])
        self.values[variable.name] = value

    def declare(self, variable: ir.Variable, value: Any) -> None:
        self.values.setdefault(variable.name, value)
        self.assign(variable, value)

    def run(self, body: Sequence[ir.Statement]) -> None:
        for statement in body:
            self.step(statement)

    def step(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Let(variable, value) | ir.Declare(variable, value):
                self.declare(variable, self.evaluate(value))
            case ir.Assign(variable, value):
                self.assign(variable, self.evaluate(value))
            case ir.Accumulate():
                self.accumulate(statement)
            case ir.Store(buffer, index, value, _, block):
                rank = None if block is None else self.evaluate(block)
                self.store(buffer, self.evaluate(index), self.evaluate(value), rank)
            case ir.Copy():
                self.copy(statement)
            case ir.StartCopy():
                self.start_copy(statement)
            case ir.EndBatch():
                self.batches += 1
            case ir.AwaitCopies(later):
                self.await_copies(later)
            case ir.Transpose():
                self.transpose(statement)
            case ir.AddProducts():
                add_products(self, statement)
            case ir.LoadMatrices():
                load_matrices(self, statement)
            case ir.LoadPairs():
                self.load_pairs(statement)
            case ir.MultiplyMatrices():
                multiply_matrices(self, statement)
            case ir.MultiplyTiles():
                multiply_tiles(self, statement)
            case ir.AwaitProducts(sums, later):
                self.await_products(sums, later)
            case ir.StorePair(buffer, index, low, high, dtype):
                pair = pair_bits(self.broadcast(self.evaluate(low)), self.broadcast(self.evaluate(high)), dtype)
                self.store(buffer, self.evaluate(index), pair)
            case ir.For():
                self.loop(statement)
            case ir.If():
                self.branch(statement)
            case ir.Allocate(buffer):
                self.allocate(buffer)
            case ir.Barrier(cluster):
                self.barrier(cluster)
            case ir.GroupReduce():
                self.group_reduce(statement)
            case ir.Comment() | ir.Prefetch():
                pass

    def accumulate(self, statement: ir.Accumulate) -> None:
        if statement.operation not in ("add", "mul", "minimum", "maximum", "and", "or"):
            raise self.fail(f"accumulates with {statement.operation}")
        value = ir.call(statement.operation, statement.variable, statement.value)
        self.assign(statement.variable, self.evaluate(value))

    def branch(self, statement: ir.If) -> None:
        """Runs both branches, each in the threads that take it."""
        chosen = self.evaluate(statement.condition)
        for body, mask in ((statement.body, chosen), (statement.orelse, np.logical_not(chosen))):
            with self.where(mask) as some:
                if some:
                    self.run(body)

    def copy(self, statement: ir.Copy) -> None:
        source, destination = statement.source, statement.destination
        local = [b for b in (source, destination) if b.space == "local"]
        if len(local) != 1 or not statement.fits:
            raise self.fail(
                f"copy between {source.name} and {destination.name}: exactly one must be local, with compatible dtypes"
            )
        start, end = self.evaluate(statement.source_index), self.evaluate(statement.destination_index)
        self.check_alignment(statement.width, *((destination, end) if source.space == "local" else (source, start)))
        for k in range(statement.width):
            value = self.load(source, start + start.dtype.type(k))
            self.store(destination, end + end.dtype.type(k), convert(value, destination.dtype))

    def load_pairs(self, statement: ir.LoadPairs) -> None:
        source, destination = statement.source, statement.destination
        if source.dtype.itemsize != 2 or destination.dtype is not uint32 or destination.space != "local":
            raise self.fail(f"pairs of {source.name}: they must be halves, loaded as local uint32")
        start, place = self.evaluate(statement.source_index), self.evaluate(statement.destination_index)
        if statement.aligned:
            self.check_alignment(2 * statement.COUNT, source, start)
        for k in range(statement.COUNT):
            halves = [self.broadcast(self.load(source, start + start.dtype.type(2 * k + h))) for h in range(2)]
            low, high = (half.view(np.uint16).astype(np.uint32) for half in halves)
            self.store(destination, place + place.dtype.type(k * statement.step), low | high << np.uint32(16))

    def start_copy(self, statement: ir.StartCopy) -> None:
        """Read the source now; the destination holds unspecified values until the copy is awaited."""
        source, destination = statement.source, statement.destination
        if (source.space, destination.space) != ("global", "shared") or source.dtype is not destination.dtype:
            raise self.fail(
                f"asynchronous copy from {source.name} to {destination.name}: it must go from global to shared memory "
                f"with equal dtypes"
            )
        start, end = self.evaluate(statement.source_index), self.evaluate(statement.destination_index)
        valid = statement.count if statement.valid is None else self.evaluate(statement.valid)
        for copy in range(statement.count):
            origin, place = (
                i + i.dtype.type(copy * s) for i, s in zip((start, end), statement.steps[::-1], strict=True)
            )
            self.check_alignment(statement.width, source, origin)
            self.check_alignment(statement.width, destination, place)
            for k in range(statement.width):
                index, value = place + place.dtype.type(k), np.zeros(self.lanes, source.dtype.numpy)
                self.store(destination, index, source.dtype.numpy.type(unspecified(source.dtype)))
                with self.where(copy < valid) as some:
                    if some:
                        read = self.load(source, origin + origin.dtype.type(k))
                        value = read if self.mask is None else np.where(self.mask, read, value)
                self.in_flight.append((self.batches, self.mask, destination, index, value))

    def await_copies(self, later: int) -> None:
        """Complete the copies of the active lanes, except those of the last `later` batches."""
        outer, started, self.in_flight = self.mask, self.in_flight, []
        everyone = np.ones(self.lanes, bool)
        for batch, mask, destination, index, value in started:
            if later and batch >= self.batches - later:
                self.in_flight.append((batch, mask, destination, index, value))
                continue
            begun, active = (everyone if m is None else m for m in (mask, outer))
            if (begun & ~active).any():
                self.in_flight.append((batch, begun & ~active, destination, index, value))
            self.mask = begun & active
            if self.mask.any():
                self.store(destination, index, value)
        self.mask = outer

    def await_products(self, sums: Sequence[ir.Buffer], later: int) -> None:
        """Complete the products of tiles, except the last `later`, which must be those of `sums`."""
        count = max(0, len(self.products) - later)
        completed, self.products = self.products[:count], self.products[count:]
        if [names[0] for names in completed] != [b.name for b in sums]:
            raise self.fail(f"products of {[names[0] for names in completed]} are awaited as {[b.name for b in sums]}")

    def transpose(self, s: ir.Transpose) -> None:
        of_space = "local" if s.start is None else "global"
        if (s.source.space, s.destination.space) != (of_space, "local") or s.source.dtype is not s.destination.dtype:
            raise self.fail(f"transposes {s.source.name} to {s.destination.name}: both must be local with equal dtypes")
        rows, columns = (int(np.max(self.evaluate(e))) for e in (s.rows, s.columns))
        if s.start is not None:
            self.transpose_within(s, self.evaluate(s.start), rows, columns)
            return
        assert isinstance(s.from_pitch, int)
        shapes = ((-1, pitch, s.width, self.lanes) for pitch in (s.from_pitch, s.to_pitch))
        buffers = (s.source, s.destination)
        source, target = (self.memory(b).data.reshape(shape) for b, shape in zip(buffers, shapes, strict=True))
        if rows > min(source.shape[0], s.to_pitch) or columns > min(target.shape[0], s.from_pitch):
            raise self.fail(f"transposes {rows} rows and {columns} columns, more than {s.source.name} has")
        active = np.arange(self.lanes) if self.mask is None else np.flatnonzero(self.mask)
        moved = source[:rows, :columns, :, active].transpose(1, 0, 2, 3)
        target[:columns, :rows, :, active] = moved

    def transpose_within(self, s: ir.Transpose, start: Any, rows: int, columns: int) -> None:
        """Transposes a tile of a global buffer, element by element."""
        pitch = s.from_pitch if isinstance(s.from_pitch, int) else self.evaluate(s.from_pitch)
        bounds = [self.broadcast(self.evaluate(e)) for e in (s.rows, s.columns)]
        for r, c, part in np.ndindex(rows, columns, s.width):
            with self.where((r < bounds[0]) & (c < bounds[1])) as some:
                if some:
                    value = self.load(s.source, (start + r * pitch + c) * s.width + part)
                    self.store(s.destination, np.int64((c * s.to_pitch + r) * s.width + part), value)

    def check_alignment(self, width: int, wide: ir.Buffer, index: Any) -> None:
        memory = self.memory(wide)
        bytes_wide = min(width * wide.dtype.itemsize, WIDEST_ACCESS)
        address = memory.data.ctypes.data if wide.space == "global" else 0
        wrong = (address + (self.broadcast(index).astype(np.int64) + memory.origin) * wide.dtype.itemsize) % bytes_wide
        wrong = (wrong != 0) if self.mask is None else (wrong != 0) & self.mask
        if wrong.any():
            lane = int(np.argmax(wrong))
            at = int(self.broadcast(index)[lane])
            raise self.fail(
                f"copies {bytes_wide} bytes at {wide.name}[{at}], which is not aligned to {bytes_wide} bytes, "
                f"by {self.lane_text(lane)}"
            )

    def loop(self, loop: ir.For) -> None:
        start, stop, step = (self.evaluate(e) for e in (loop.start, loop.stop, loop.step))
        constants = (loop.start, loop.stop, loop.step)
        if loop.kind == "unroll" and not all(isinstance(e, ir.Constant) for e in constants):
            raise self.fail(f"loop {loop.variable.name} is unrolled, but its bounds are not constant")
        if np.ndim(step) or int(step) == 0:
            raise self.fail(f"loop {loop.variable.name} has step {step}")
        name, kind = loop.variable.name, loop.variable.dtype.numpy.type
        if not np.ndim(start) and not np.ndim(stop):
            for position in range(int(start), int(stop), int(step)):
                self.values[name] = kind(position)
                self.run(loop.body)
            return
        position = self.broadcast(start).astype(np.int64)
        while True:
            more = position < stop if step > 0 else position > stop
            with self.where(more) as some:
                if not some:
                    return
                self.values[name] = position.astype(kind)
                self.run(loop.body)
            position = position + int(step)

    def whole_blocks(self, statement: str) -> Any:
        """Return which blocks are active. Raises for a block with both active and inactive lanes."""
        if self.mask is None:
            return np.ones(self.blocks, bool)
        mask = self.mask.reshape(self.blocks, self.kernel.threads)
        partly = mask.any(axis=1) & ~mask.all(axis=1)
        if partly.any():
            block = int(np.argmax(partly))
            lane = block * self.kernel.threads + int(np.argmin(mask[block]))
            raise self.fail(f"{statement} is not reached by all threads of a block: missing {self.lane_text(lane)}")
        return mask.any(axis=1)

    def barrier(self, of_cluster: bool) -> None:
        blocks = self.whole_blocks("a barrier")
        if self.products:
            raise self.fail(f"a barrier during a product of tiles, of {self.products[0][0]}")
        clusters = blocks.reshape(-1, self.kernel.cluster)
        if of_cluster and (clusters.any(axis=1) & ~clusters.all(axis=1)).any():
            raise self.fail("a cluster barrier is not reached by all blocks of the cluster")
        for memory in self.buffers.values():
            if memory.buffer.space == "shared":
                memory.synchronize(blocks, of_cluster=of_cluster)

    def group_reduce(self, statement: ir.GroupReduce) -> None:
        group, threads = statement.group, self.kernel.threads
        small = group <= WARP and group & (group - 1) == 0 and threads % group == 0
        if not small and group != threads:
            raise self.fail(f"a group of {group} threads in a block of {threads}")
        self.whole_blocks("a group reduction")
        states = [self.broadcast(self.evaluate(v)).reshape(-1, group) for v in statement.variables]
        if statement.before:
            neutral = [self.broadcast(self.evaluate(v)).reshape(-1, group) for v in statement.before]
            before, totals = scan_group(statement.combiner, states, neutral, self.evaluate_bound)
            for variable, state in zip((*statement.before, *statement.variables), (*before, *totals), strict=True):
                self.assign(variable, state.reshape(-1))
            return
        states = combine_group(statement.combiner, states, self.evaluate_bound)
        for variable, state in zip(statement.variables, states, strict=True):
            self.assign(variable, np.repeat(state.reshape(-1), group))

    def evaluate_bound(self, values: dict[str, Any], expressions: Sequence[ir.Expression]) -> list[Any]:
        """Evaluate expressions with variables temporarily bound to `values`."""
        self.values.update(values)
        results = [self.evaluate(e) for e in expressions]
        for name in values:
            del self.values[name]
        return results


def interpret(kernel: ir.Kernel, arguments: Sequence[Any], *, lanes_at_a_time: int = LANES_AT_A_TIME) -> None:
    """Run `kernel` on NumPy arrays and numbers, in the order of kernel.parameters; output arrays are written in place.

    An array binds the memory that it spans, indexed from its first element, so strided and reversed views work as they
    are. Raises InterpreterError for every violation of the kernel IR's rules, data races included.
    """
    with np.errstate(all="ignore"):
        values, buffers = bind(kernel, arguments)
        host = _Machine(kernel, 1, dict(values), {})
        extents = [int(host.evaluate(axis.extent)) for axis in kernel.grid]
        total = int(np.prod(extents, dtype=np.int64)) if all(e > 0 for e in extents) else 0
        if total and extents and extents[-1] % kernel.cluster:
            raise host.fail(
                f"{extents[-1]} blocks along the last axis are not a multiple of the cluster {kernel.cluster}"
            )
        chunk = max(1, lanes_at_a_time // (kernel.threads * kernel.cluster)) * kernel.cluster
        for start in range(0, total, chunk):
            blocks = np.arange(start, min(start + chunk, total))
            local = dict(values)
            rest = np.repeat(blocks, kernel.threads)
            for axis, extent in zip(reversed(kernel.grid), reversed(extents), strict=True):
                place = convert(cast(Any, rest % extent), axis.variable.dtype)
                local[axis.variable.name] = place if len(place) > 1 else place[0]  # uniform
                rest = rest // extent
            _Machine(kernel, len(blocks), local, dict(buffers)).run(kernel.body)
