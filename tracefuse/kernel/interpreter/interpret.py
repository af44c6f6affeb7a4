"""Runs any kernel of the kernel IR in NumPy, GPU schedules too, at small sizes.

Every thread of every block is a lane; a variable is an array over the lanes, or one NumPy scalar while all lanes agree;
a mask says which lanes are active. Lanes run in lockstep, a chunk of blocks at a time. What a real machine leaves
undefined is an error here: an index outside its buffer, a barrier or group reduction that part of a block or cluster
does not reach, two lanes storing different values to one element, shared memory read or written across lanes with no
barrier between, or across blocks with none of their cluster. New local and shared memory holds NaN, or the smallest
integer (the largest, if unsigned).

`contract` changes nothing here; `fma` is rounded once. `select`, `and`, `or` evaluate all their arguments.

Knows: the kernel IR and NumPy. Must not know: ops, schedules, targets' source code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.interpreter.buffers import WIDEST_ACCESS, InterpreterError, Memory, bind, unspecified
from tracefuse.kernel.interpreter.group_order import WARP, combine_group
from tracefuse.kernel.primitives import apply, convert

__all__ = ["InterpreterError", "interpret"]

LANES_AT_A_TIME = 1 << 16


@dataclass(slots=True)
class _Machine:
    """A chunk of blocks, run in lockstep."""

    kernel: ir.Kernel
    blocks: int
    values: dict[str, Any]
    memories: dict[str, Memory]
    check_races: bool
    mask: Any = None  # None: every lane is active
    # Copies on their way: (batch, mask, destination, index, value).
    started: list[tuple[int, Any, ir.Buffer, Any, Any]] = field(default_factory=list)
    batches: int = 0
    thread: Any = field(init=False)

    def __post_init__(self) -> None:
        self.thread = np.tile(np.arange(self.kernel.threads, dtype=np.int32), self.blocks)
        if self.kernel.thread is not None:
            self.values[self.kernel.thread.name] = convert(self.thread, self.kernel.thread.dtype)

    @property
    def lanes(self) -> int:
        return self.blocks * self.kernel.threads

    @property
    def lane_block(self) -> Any:
        return np.repeat(np.arange(self.blocks), self.kernel.threads)

    def blocks_named(self, rank: Any) -> Any:
        """The block that each lane names by its place in the lane's cluster; inactive lanes get their own."""
        cluster, own = self.kernel.cluster, self.lane_block
        ranks = self.broadcast(rank).astype(np.int64)
        wrong = (ranks < 0) | (ranks >= cluster)
        if self.mask is not None:
            wrong &= self.mask
        if wrong.any():
            lane = int(np.argmax(wrong))
            raise self.fail(f"block {ranks[lane]} of a cluster of {cluster} is named by {self.lane_text(lane)}")
        named = own // cluster * cluster + ranks
        return named if self.mask is None else np.where(self.mask, named, own)

    def fail(self, what: str) -> InterpreterError:
        return InterpreterError(f"kernel {self.kernel.name}: {what}")

    def lane_text(self, lane: int) -> str:
        block, thread = divmod(lane, self.kernel.threads)
        names = [axis.variable.name for axis in self.kernel.grid]
        place = ", ".join(f"{name} = {np.broadcast_to(self.values[name], self.lanes)[lane]}" for name in names)
        return f"lane {lane} ({place or f'block {block}'}, thread {thread})"

    # expressions

    def evaluate(self, expression: ir.Expression) -> Any:
        match expression:
            case ir.Constant(value, dtype):
                return dtype.numpy.type(value)
            case ir.Variable(name, dtype):
                if name not in self.values:
                    raise self.fail(f"variable {name} is read before it has a value")
                result = self.values[name]
            case ir.Load(buffer, index, _):
                result = self.load(buffer, self.evaluate(index))
            case ir.Cast(argument, dtype):
                result = convert(self.evaluate(argument), dtype)
            case ir.Call(name, arguments, dtype):
                result = apply(name, [self.evaluate(a) for a in arguments], dtype)
        if np.asarray(result).dtype != expression.dtype.numpy:
            raise self.fail(f"{expression} gives {np.asarray(result).dtype}, its type says {expression.dtype}")
        return result

    def broadcast(self, value: Any) -> Any:
        return np.broadcast_to(value, (self.lanes,))

    # memory

    def memory(self, buffer: ir.Buffer) -> Memory:
        found = self.memories.get(buffer.name)
        if found is None:
            raise self.fail(f"buffer {buffer.name} is used before it is allocated")
        return found

    def checked(self, memory: Memory, index: Any, action: str) -> Any:
        """Positions in the memory's data for every lane; inactive lanes get 0."""
        positions = np.where(True if self.mask is None else self.mask, self.broadcast(index), -memory.origin)
        positions = positions.astype(np.int64) + memory.origin
        wrong = (positions < 0) | (positions >= memory.length)
        if self.mask is not None:
            wrong &= self.mask
        if wrong.any():
            lane = int(np.argmax(wrong))
            low, high = -memory.origin, memory.length - memory.origin
            raise self.fail(
                f"{action} {memory.buffer.name}[{positions[lane] - memory.origin}] outside [{low}, {high}) by "
                + self.lane_text(lane)
            )
        return positions

    def load(self, buffer: ir.Buffer, index: Any) -> Any:
        memory = self.memory(buffer)
        positions = self.checked(memory, index, "reads")
        if memory.length == 0:
            return np.zeros(self.lanes, buffer.dtype.numpy)
        if buffer.space == "global":
            if np.ndim(index) == 0 and self.mask is None:
                return memory.data[positions[0]]
            return memory.data[positions]
        if buffer.space == "local":
            return memory.data[positions, np.arange(self.lanes)]
        if self.check_races:
            self.note_shared(memory, positions, writes=False)
        return memory.data[self.lane_block, positions]

    def store(self, buffer: ir.Buffer, index: Any, value: Any, rank: Any = None) -> None:
        """rank: of the block that is meant, where one is named."""
        memory = self.memory(buffer)
        if buffer.space == "global" and not buffer.written:
            raise self.fail(f"stores to {buffer.name}, which is not marked as written")
        if np.asarray(value).dtype != buffer.dtype.numpy:
            raise self.fail(f"stores {np.asarray(value).dtype} to {buffer.name} of {buffer.dtype}")
        if rank is not None and buffer.space != "shared":
            raise self.fail(f"names a block to store to {buffer.name}, which is {buffer.space} memory")
        blocks = self.lane_block if rank is None else self.blocks_named(rank)
        positions = self.checked(memory, index, "writes")
        active = np.arange(self.lanes) if self.mask is None else np.flatnonzero(self.mask)
        positions, values = positions[active], self.broadcast(value)[active]
        if buffer.space == "local":
            memory.data[positions, active] = values
            return
        place = positions if buffer.space == "global" else (blocks[active], positions)
        memory.data[place] = values
        if self.check_races:
            kept = np.ascontiguousarray(memory.data[place]).view(np.uint8).reshape(len(active), -1)
            lost = (kept != np.ascontiguousarray(values).view(np.uint8).reshape(len(active), -1)).any(axis=1)
            if lost.any():
                at = int(np.argmax(lost))
                where = f"{buffer.name}[{positions[at] - memory.origin}]"
                raise self.fail(
                    f"race: two lanes store different values to {where}, one is {self.lane_text(active[at])}"
                )
            if buffer.space == "shared" and rank is None:
                self.note_shared(memory, self.checked(memory, index, "writes"), writes=True)
            elif buffer.space == "shared":
                self.note_foreign(memory, place, active)

    def note_foreign(self, memory: Memory, place: Any, active: Any) -> None:
        """Records writes to the memory of named blocks; raises where others touched it and the cluster has not met."""
        clash = memory.touch_foreign(place)
        if clash.any():
            at = int(np.argmax(clash))
            raise self.fail(
                f"no barrier of the cluster: writes {memory.buffer.name}[{place[1][at]}] of another block, which was "
                f"touched since the last one, by {self.lane_text(active[at])}"
            )

    def note_shared(self, memory: Memory, positions: Any, *, writes: bool) -> None:
        """Records who touched shared memory since the last barrier; raises where lanes depend on each other."""
        active = np.arange(self.lanes) if self.mask is None else np.flatnonzero(self.mask)
        place = (self.lane_block[active], positions[active])
        clash = memory.touch(place, self.thread[active], writes=writes)
        if clash.any():
            at = int(np.argmax(clash))
            raise self.fail(
                f"no barrier: {'writes' if writes else 'reads'} {memory.buffer.name}[{place[1][at]}], which another "
                f"thread touched since the last barrier, by {self.lane_text(active[at])}"
            )

    def allocate(self, buffer: ir.Buffer) -> None:
        size = buffer.size if isinstance(buffer.size, int) else None
        if size is None:
            if buffer.size is None or isinstance(buffer.size, int):
                raise self.fail(f"buffer {buffer.name} has no size")
            size = int(self.evaluate(buffer.size))
        if buffer.space not in ("local", "shared"):
            raise self.fail(f"allocates {buffer.name} in {buffer.space} memory")
        shape = (size, self.lanes) if buffer.space == "local" else (self.blocks, size)
        known = self.memories.get(buffer.name)
        if known is not None and buffer.space == "shared":
            return  # one for the block, however often the statement is passed
        data = np.full(shape, unspecified(buffer.dtype), buffer.dtype.numpy)
        if known is not None and self.mask is not None:
            data = np.where(self.mask, data, known.data)
        self.memories[buffer.name] = (Memory.shared if buffer.space == "shared" else Memory)(buffer, data)

    # statements

    @contextmanager
    def where(self, condition: Any) -> Iterator[bool]:
        """Narrows the mask to `condition`; gives whether any lane is left."""
        outer = self.mask
        if np.ndim(condition) == 0:
            yield bool(condition)
            return
        mask = condition if outer is None else outer & condition
        self.mask = None if mask.all() else mask
        try:
            yield bool(mask.any())
        finally:
            self.mask = outer

    def assign(self, variable: ir.Variable, value: Any) -> None:
        if variable.name not in self.values:
            raise self.fail(f"assigns to {variable.name}, which is not declared")
        if np.asarray(value).dtype != variable.dtype.numpy:
            raise self.fail(f"{variable.name} is {variable.dtype}, its value {np.asarray(value).dtype}")
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
            case ir.Accumulate(variable, operation, value):
                if operation not in ("add", "mul", "minimum", "maximum", "and", "or"):
                    raise self.fail(f"accumulates with {operation}")
                self.assign(variable, self.evaluate(ir.call(operation, variable, value)))
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
            case ir.For():
                self.loop(statement)
            case ir.If(condition, then, orelse):
                chosen = self.evaluate(condition)
                for branch, taken in ((then, chosen), (orelse, np.logical_not(chosen))):
                    with self.where(taken) as some:
                        if some:
                            self.run(branch)
            case ir.Allocate(buffer):
                self.allocate(buffer)
            case ir.Barrier(cluster):
                self.barrier(cluster)
            case ir.GroupReduce():
                self.group_reduce(statement)
            case ir.Comment():
                pass

    def copy(self, statement: ir.Copy) -> None:
        source, destination = statement.source, statement.destination
        local = [b for b in (source, destination) if b.space == "local"]
        if len(local) != 1 or not statement.fits:
            raise self.fail(f"copy between {source.name} and {destination.name}: one must be local, types equal")
        start, end = self.evaluate(statement.source_index), self.evaluate(statement.destination_index)
        self.check_alignment(statement, *((destination, end) if source.space == "local" else (source, start)))
        for k in range(statement.width):
            value = self.load(source, start + start.dtype.type(k))
            self.store(destination, end + end.dtype.type(k), convert(value, destination.dtype))

    def start_copy(self, statement: ir.StartCopy) -> None:
        """Reads at once; until the copy is awaited, its destination holds what new memory does."""
        source, destination = statement.source, statement.destination
        if (source.space, destination.space) != ("global", "shared") or source.dtype is not destination.dtype:
            raise self.fail(f"starts a copy from {source.name} to {destination.name}: global to shared, types equal")
        start, end = self.evaluate(statement.source_index), self.evaluate(statement.destination_index)
        self.check_alignment(statement, source, start)
        self.check_alignment(statement, destination, end)
        for k in range(statement.width):
            value, index = self.load(source, start + start.dtype.type(k)), end + end.dtype.type(k)
            self.store(destination, index, source.dtype.numpy.type(unspecified(source.dtype)))
            self.started.append((self.batches, self.mask, destination, index, value))

    def await_copies(self, later: int) -> None:
        """Those of the active lanes are done, but for the last batches; the others stay."""
        outer, started, self.started = self.mask, self.started, []
        everyone = np.ones(self.lanes, bool)
        for batch, mask, destination, index, value in started:
            if later and batch >= self.batches - later:
                self.started.append((batch, mask, destination, index, value))
                continue
            begun, active = (everyone if m is None else m for m in (mask, outer))
            if (begun & ~active).any():
                self.started.append((batch, begun & ~active, destination, index, value))
            self.mask = begun & active
            if self.mask.any():
                self.store(destination, index, value)
        self.mask = outer

    def transpose(self, s: ir.Transpose) -> None:
        if {s.source.space, s.destination.space} != {"local"} or s.source.dtype is not s.destination.dtype:
            raise self.fail(f"transposes {s.source.name} to {s.destination.name}: both must be local, of one type")
        rows, columns = (int(np.max(self.evaluate(e))) for e in (s.rows, s.columns))
        shapes = ((-1, pitch, s.width, self.lanes) for pitch in (s.from_pitch, s.to_pitch))
        buffers = (s.source, s.destination)
        source, target = (self.memory(b).data.reshape(shape) for b, shape in zip(buffers, shapes, strict=True))
        if rows > min(source.shape[0], s.to_pitch) or columns > min(target.shape[0], s.from_pitch):
            raise self.fail(f"transposes {rows} rows and {columns} columns, more than {s.source.name} has")
        active = np.arange(self.lanes) if self.mask is None else np.flatnonzero(self.mask)
        moved = source[:rows, :columns, :, active].transpose(1, 0, 2, 3)
        target[:columns, :rows, :, active] = moved

    def check_alignment(self, statement: ir.Copy | ir.StartCopy, wide: ir.Buffer, index: Any) -> None:
        memory = self.memory(wide)
        bytes_wide = min(statement.width * wide.dtype.itemsize, WIDEST_ACCESS)
        address = memory.data.ctypes.data if wide.space == "global" else 0
        wrong = (address + (self.broadcast(index).astype(np.int64) + memory.origin) * wide.dtype.itemsize) % bytes_wide
        wrong = (wrong != 0) if self.mask is None else (wrong != 0) & self.mask
        if wrong.any():
            lane = int(np.argmax(wrong))
            at = int(self.broadcast(index)[lane])
            raise self.fail(
                f"copies {bytes_wide} bytes at {wide.name}[{at}], not so aligned, by {self.lane_text(lane)}"
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

    def whole_blocks(self, what: str) -> Any:
        """The blocks that are active; raises where a block is active in part."""
        if self.mask is None:
            return np.ones(self.blocks, bool)
        mask = self.mask.reshape(self.blocks, self.kernel.threads)
        partly = mask.any(axis=1) & ~mask.all(axis=1)
        if partly.any():
            block = int(np.argmax(partly))
            lane = block * self.kernel.threads + int(np.argmin(mask[block]))
            raise self.fail(f"{what} is not reached by all threads of a block: missing {self.lane_text(lane)}")
        return mask.any(axis=1)

    def barrier(self, of_cluster: bool) -> None:
        blocks = self.whole_blocks("a barrier")
        clusters = blocks.reshape(-1, self.kernel.cluster)
        if of_cluster and (clusters.any(axis=1) & ~clusters.all(axis=1)).any():
            raise self.fail("a barrier of the cluster is not reached by all of its blocks")
        for memory in self.memories.values():
            if memory.buffer.space == "shared":
                memory.part(blocks, of_cluster=of_cluster)

    def group_reduce(self, statement: ir.GroupReduce) -> None:
        group, threads = statement.group, self.kernel.threads
        small = group <= WARP and group & (group - 1) == 0 and threads % group == 0
        if not small and group != threads:
            raise self.fail(f"a group of {group} threads in a block of {threads}")
        self.whole_blocks("a group reduction")
        states = [self.broadcast(self.evaluate(v)).reshape(-1, group) for v in statement.variables]
        states = combine_group(statement.combiner, states, self.bound)
        for variable, state in zip(statement.variables, states, strict=True):
            self.assign(variable, np.repeat(state.reshape(-1), group))

    def bound(self, values: dict[str, Any], expressions: Sequence[ir.Expression]) -> list[Any]:
        """Expressions with some variables bound for them alone."""
        self.values.update(values)
        results = [self.evaluate(e) for e in expressions]
        for name in values:
            del self.values[name]
        return results


def interpret(
    kernel: ir.Kernel, arguments: Sequence[Any], *, check_races: bool = True, lanes_at_a_time: int = LANES_AT_A_TIME
) -> None:
    """Runs `kernel` on NumPy arrays and numbers in the order of kernel.parameters; writes its output arrays in place.

    An array stands for the memory that it spans, addressed from its first element: strided and reversed views are taken
    as they are. check_races: also raise where lanes race. Raises InterpreterError.
    """
    with np.errstate(all="ignore"):
        values, memories = bind(kernel, arguments)
        host = _Machine(kernel, 1, dict(values), {}, check_races)
        extents = [int(host.evaluate(axis.extent)) for axis in kernel.grid]
        total = int(np.prod(extents, dtype=np.int64)) if all(e > 0 for e in extents) else 0
        if total and extents and extents[-1] % kernel.cluster:
            raise host.fail(f"{extents[-1]} blocks along the last axis are no whole clusters of {kernel.cluster}")
        chunk = max(1, lanes_at_a_time // (kernel.threads * kernel.cluster)) * kernel.cluster
        for start in range(0, total, chunk):
            blocks = np.arange(start, min(start + chunk, total))
            local = dict(values)
            rest = np.repeat(blocks, kernel.threads)
            for axis, extent in zip(reversed(kernel.grid), reversed(extents), strict=True):
                local[axis.variable.name] = convert(cast(Any, rest % extent), axis.variable.dtype)
                rest = rest // extent
            _Machine(kernel, len(blocks), local, dict(memories), check_races).run(kernel.body)
