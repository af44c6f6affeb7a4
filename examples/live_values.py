"""A definition, its segments, and the live values while they run.

A predicate restricts the segments: here only movement ops may follow a reduction. Every segment is a definition of its
own, and its maps relate its value numbers to those of the original. A tensor is released right after its last reader;
extents (-1, -2, ...) are integers and stay.
"""

from __future__ import annotations

import numpy as np

from tracefuse import DataType, FusionDefinition, rules

with FusionDefinition() as fd:
    T0 = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    T1 = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    T2 = fd.ops.sum(T0, dims=[1])
    T3 = fd.ops.broadcast(T2, is_broadcast_dim=[False, True])
    T4 = fd.ops.add(T1, T3)
    fd.add_output(T4)

print(fd)
print()

for segment in fd.segment(merge=rules.reduction_ends_segment):
    print(segment.definition)
    print("    index_map ", dict(segment.index_map))
    print("    value_map ", dict(segment.value_map))
    print("    extent_map", dict(segment.extent_map))
    print()

x = np.arange(6, dtype=np.float32).reshape(2, 3)
y = np.ones((2, 3), dtype=np.float32)

for step, live in enumerate(fd.execute_steps([x, y])):
    place = f"after segment {step}" if step else "live before"
    print(f"{place}: {' '.join(map(str, live))} ({len(live)} entries)")

(result,) = fd.execute([x, y])
print("result:")
print(result)

assert np.array_equal(result, y + x.sum(axis=1, keepdims=True))
