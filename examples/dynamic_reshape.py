"""Reshapes and slices whose sizes are known only at the call, and how many kernels they compile.

The definition is recorded once, with the target shape as integer inputs. The sizes of each call decide which axes it
merges and splits; calls that merge and split the same axes share their kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import DataType, FusionDefinition, fuse, options

with FusionDefinition() as fd:
    T0 = fd.define_tensor(shape=[-1, -1, -1, -1], contiguity=True, dtype=DataType.Float)
    target = fd.define_vector(4)
    T1 = fd.ops.reshape(T0, target)
    fd.add_output(fd.ops.mul(T1, 2.0))

known = []
for shape, new_shape in [
    ((8, 12, 7, 5), (8, 3, 28, 5)),
    ((8, 15, 7, 9), (8, 3, 35, 9)),
    ((8, 15, 7, 9), (8, 3, -1, 9)),
    ((8, 15, 7, 9), (8, 5, 21, 9)),
    ((8, 15, 7, 9), (8, 15, 7, 9)),
]:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (result,) = fd.execute([x, *new_shape])
    assert np.array_equal(result, 2 * x.reshape(new_shape))
    concrete = fd.concretization([x, *new_shape])
    is_new = concrete.key not in known
    known.append(concrete.key)
    print(f"{shape} -> {new_shape}: {concrete.reshapes[0]}{' (new)' if is_new else ''}")

try:
    fd.execute([x, 8, 4, -1, 9])
except ValueError as error:
    print(f"refused: {str(error).splitlines()[0].partition(' (')[0]}")

print()
print("the first of them, as it is run:")
print(fd.concretization([np.zeros((8, 12, 7, 5), np.float32), 8, 3, 28, 5]))


def window(x: Any, start: int, stop: int) -> Any:
    return x[:, start:stop] + 1


print()
print("x[:, start:stop] in the three modes:")
for mode in ("on", "off", "auto"):
    with options(concretize_resize_extents=mode):
        f = fuse(window)
        for start, stop in [(0, 3), (0, 4), (1, 5), (1, 6)]:
            x = np.arange(20, dtype=np.float32).reshape(2, 10)
            assert np.array_equal(f(x, start, stop), x[:, start:stop] + 1)
        keys = [str(f.concretization(x, start, stop).keys_of(3)[0]) for start, stop in [(0, 3), (1, 6)]]
        print(f"{mode:>4}: {f.cache_info().compiles} compiled, keys {' '.join(keys)}")
