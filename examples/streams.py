"""Stream-parallel loops, and their host programs.

A marked axis of a value becomes a loop over its slices, whose iterations run on streams (CUDA streams on a GPU, threads
on the CPU). Three chains of copies, with one op per segment, show the loops: one copy, two copies that share a loop,
and two loops separated by a copy of the whole value. A value that lives only within a loop has one slot per stream. In
a fused function, `tracefuse.stream_parallel` marks a value.
"""

from __future__ import annotations

import numpy as np

from tracefuse import DataType, FusionDefinition, ParallelType, fuse, options, rules, stream_parallel

x = np.arange(28, dtype=np.float32).reshape(7, 4)


def copies(*on_streams: bool) -> FusionDefinition:
    with FusionDefinition() as fd:
        tensor = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        for marked in on_streams:
            tensor = fd.ops.set(tensor)
            if marked:
                tensor.axis(0).parallelize(ParallelType.stream)
        fd.add_output(tensor)
    return fd


for name, marks in (("one copy", (True,)), ("two copies", (True, True)), ("whole in between", (True, False, True))):
    print(f"{name}:")
    with options(disable="loop_buffer_reuse"):
        print(copies(*marks).host_program([x], merge=rules.one_op_a_segment))
    print()

fd = copies(True, True)
print("two copies, with one slot for each stream:")
print(fd.host_program([x], merge=rules.one_op_a_segment))
for count in (1, 3, 4, 20):
    (result,) = fd.execute([x], number_of_streams=count)
    assert np.array_equal(result, x), count
for disable, memory in (("loop_buffer_reuse", "a slot for each slice"), ("", "a slot for each stream")):
    with options(disable=disable):
        print(f"with {memory}: {fd.explain([x]).memory.peak} bytes allocated at most")
print()


@fuse
def softmax_of_rows(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return stream_parallel(shifted / shifted.sum(-1, keepdims=True), axis=0, chunks=2)


print("a fused function, its rows in two chunks:")
print(softmax_of_rows.host_program(x))
print("rows sum to one:", bool(np.allclose(softmax_of_rows(x).sum(-1), 1)))
