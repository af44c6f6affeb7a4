"""The lanes of the interpreter: expressions over all lanes at once, and checked accesses to memory.

Every thread of every block is a lane. A variable is an array over the lanes, or a NumPy scalar while it is uniform, and
a mask marks the active lanes. New local and shared memory holds NaN, or the smallest integer (the largest, if
unsigned). An index out of bounds, a data race and an access without the barrier that it needs raise InterpreterError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.interpreter.buffers import InterpreterBuffer, InterpreterError, unspecified
from tracefuse.kernel.primitives import apply, convert


@dataclass(slots=True)
class Lanes:
    """The lanes of a chunk of blocks: their variables, their memory and which of them are active."""

    kernel: ir.Kernel
    blocks: int
    values: dict[str, Any]
    buffers: dict[str, InterpreterBuffer]
    mask: Any = None  # None: every lane is active
    # The names of the sums and the left operands of products of tiles that go on.
    products: list[tuple[str, str]] = field(default_factory=list)
    thread: Any = field(init=False)
    every_lane: Any = field(init=False)

    def __post_init__(self) -> None:
        self.every_lane = np.arange(self.lanes)
        self.thread = np.tile(np.arange(self.kernel.threads, dtype=np.int32), self.blocks)
        if self.kernel.thread is not None:
            self.values[self.kernel.thread.name] = convert(self.thread, self.kernel.thread.dtype)

    @property
    def lanes(self) -> int:
        return self.blocks * self.kernel.threads

    @property
    def lane_block(self) -> Any:
        return np.repeat(np.arange(self.blocks), self.kernel.threads)

    def target_blocks(self, rank: Any) -> Any:
        """Return the block with rank `rank` in each lane's cluster; inactive lanes get their own block."""
        cluster, own_block = self.kernel.cluster, self.lane_block
        ranks = self.broadcast(rank).astype(np.int64)
        wrong = (ranks < 0) | (ranks >= cluster)
        if self.mask is not None:
            wrong &= self.mask
        if wrong.any():
            lane = int(np.argmax(wrong))
            raise self.fail(f"block rank {ranks[lane]} outside a cluster of {cluster}, by {self.lane_text(lane)}")
        targets = own_block // cluster * cluster + ranks
        return targets if self.mask is None else np.where(self.mask, targets, own_block)

    def fail(self, problem: str) -> InterpreterError:
        return InterpreterError(f"kernel {self.kernel.name}: {problem}")

    def lane_text(self, lane: int) -> str:
        block, thread = divmod(lane, self.kernel.threads)
        names = [axis.variable.name for axis in self.kernel.grid]
        place = ", ".join(f"{name} = {np.broadcast_to(self.values[name], self.lanes)[lane]}" for name in names)
        return f"lane {lane} ({place or f'block {block}'}, thread {thread})"

    # expressions

    def evaluate(self, expression: ir.Expression) -> Any:
        match expression:
            case ir.Variable():
                if expression.name not in self.values:
                    raise self.fail(f"variable {expression.name} is read before its definition")
                result = self.values[expression.name]
            case ir.Call():
                arguments = [self.evaluate(a) for a in expression.arguments]
                result = apply(expression.name, arguments, expression.dtype)
            case ir.Constant():
                return expression.dtype.numpy.type(expression.value)
            case ir.Load():
                result = self.load(expression.buffer, self.evaluate(expression.index))
            case ir.Cast():
                result = convert(self.evaluate(expression.argument), expression.dtype)
        actual = np.asarray(result).dtype
        if actual is not expression.dtype.numpy and actual != expression.dtype.numpy:
            raise self.fail(f"{expression} evaluates to {actual}, but its dtype is {expression.dtype}")
        return result

    def broadcast(self, value: Any) -> Any:
        return np.broadcast_to(value, (self.lanes,))

    # memory

    def memory(self, buffer: ir.Buffer) -> InterpreterBuffer:
        memory = self.buffers.get(buffer.name)
        if memory is None:
            raise self.fail(f"buffer {buffer.name} is used before it is allocated")
        if buffer.space == "local" and any(buffer.name in names for names in self.products):
            raise self.fail(f"{buffer.name} is accessed before a product of tiles with it is awaited")
        return memory

    def check_index(self, memory: InterpreterBuffer, index: Any, action: str) -> Any:
        """Return the positions in the buffer's data, 0 for inactive lanes. Raises for one out of bounds.

        There is one for each lane, or one for all of them where the index is uniform and all lanes are active.
        """
        if self.mask is None:
            if not np.ndim(index) and 0 <= (position := int(index) + memory.origin) < memory.length:
                return position
            positions = self.broadcast(index).astype(np.int64) + memory.origin
        else:
            positions = np.where(self.mask, index, -memory.origin).astype(np.int64) + memory.origin
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
        positions = self.check_index(memory, index, "reads")
        if memory.length == 0:
            return np.zeros(self.lanes, buffer.dtype.numpy)
        if buffer.space == "global":
            return memory.data[positions]
        if buffer.space == "local":
            return memory.data[positions, self.every_lane]
        positions = self.broadcast(positions)
        self.record_shared_access(memory, positions, writes=False)
        return memory.data[self.lane_block, positions]

    def store(self, buffer: ir.Buffer, index: Any, value: Any, rank: Any = None) -> None:
        """Store `value`. rank: the cluster rank of the block whose shared memory to write, None for the lane's own."""
        memory = self.memory(buffer)
        if buffer.space == "global" and not buffer.written:
            raise self.fail(f"stores to {buffer.name}, which is not marked as written")
        if np.asarray(value).dtype != buffer.dtype.numpy:
            raise self.fail(f"stores {np.asarray(value).dtype} to {buffer.name} of {buffer.dtype}")
        if rank is not None and buffer.space != "shared":
            raise self.fail(f"stores to another block's {buffer.name}, which is {buffer.space} and not shared memory")
        positions = self.check_index(memory, index, "writes")
        if self.mask is None and (buffer.space == "local" or (buffer.space == "global" and self.lanes == 1)):
            # No two lanes store to one element.
            place = positions if np.ndim(positions) else slice(positions, positions + 1)
            memory.data[(place, self.every_lane) if buffer.space == "local" else place] = value
            return
        blocks = self.lane_block if rank is None else self.target_blocks(rank)
        active = self.every_lane if self.mask is None else np.flatnonzero(self.mask)
        positions, values = self.broadcast(positions)[active], self.broadcast(value)[active]
        if buffer.space == "local":
            memory.data[positions, active] = values
            return
        place = positions if buffer.space == "global" else (blocks[active], positions)
        memory.data[place] = values
        stored = np.ascontiguousarray(memory.data[place]).view(np.uint8).reshape(len(active), -1)
        lost = (stored != np.ascontiguousarray(values).view(np.uint8).reshape(len(active), -1)).any(axis=1)
        if lost.any():
            at = int(np.argmax(lost))
            where = f"{buffer.name}[{positions[at] - memory.origin}]"
            raise self.fail(f"race: two lanes store different values to {where}, one is {self.lane_text(active[at])}")
        if buffer.space == "shared" and rank is None:
            everywhere = self.broadcast(self.check_index(memory, index, "writes"))
            self.record_shared_access(memory, everywhere, writes=True)
        elif buffer.space == "shared":
            self.record_remote_write(memory, place, active)

    def record_remote_write(self, memory: InterpreterBuffer, place: Any, active: Any) -> None:
        """Record writes to other blocks' shared memory; raise for a conflict since the last cluster barrier."""
        conflict = memory.record_remote_write(place)
        if conflict.any():
            at = int(np.argmax(conflict))
            raise self.fail(
                f"no cluster barrier: writes {memory.buffer.name}[{place[1][at]}] of another block, which was "
                f"accessed since the last cluster barrier, by {self.lane_text(active[at])}"
            )

    def record_shared_access(self, memory: InterpreterBuffer, positions: Any, *, writes: bool) -> None:
        """Record accesses to shared memory; raise for a conflict between threads since the last barrier."""
        active = self.every_lane if self.mask is None else np.flatnonzero(self.mask)
        place = (self.lane_block[active], positions[active])
        conflict = memory.record_access(place, self.thread[active], writes=writes)
        if conflict.any():
            at = int(np.argmax(conflict))
            raise self.fail(
                f"no barrier: {'writes' if writes else 'reads'} {memory.buffer.name}[{place[1][at]}], which another "
                f"thread accessed since the last barrier, by {self.lane_text(active[at])}"
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
        existing = self.buffers.get(buffer.name)
        if existing is not None and buffer.space == "shared":
            return  # a block has one instance, however often the statement runs
        data = np.full(shape, unspecified(buffer.dtype), buffer.dtype.numpy)
        if existing is not None and self.mask is not None:
            data = np.where(self.mask, data, existing.data)
        create = InterpreterBuffer.shared if buffer.space == "shared" else InterpreterBuffer
        self.buffers[buffer.name] = create(buffer, data)

    # active lanes

    @contextmanager
    def where(self, condition: Any) -> Iterator[bool]:
        """Narrow the mask to `condition`; yield whether any lane is active."""
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
