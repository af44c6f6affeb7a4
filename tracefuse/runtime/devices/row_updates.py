"""Rows of a CuPy array combined with rows of another, at positions that are data: `np.add.at` and its relatives.

The bits of a result depend on the operands alone, never on the order in which threads run. Integers are combined by
atomic operations, which are exact in any order. Rows that are assigned are written once, by the last position that
names them. Floating-point rows are sorted by position, stably, and each run of equal positions is reduced: a thread
combines the rows of a chunk of the sorted positions in order, and the runs that cross the ends of chunks are reduced
in the same way, chunk after chunk, until one chunk holds the rest. A few rows are combined without a sort: the thread
of the first position that names a row combines all rows of that position in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tracefuse.caches import memoized
from tracefuse.runtime.devices import cuda_arrays
from tracefuse.runtime.devices.row_update_texts import (
    ATOMICS,
    BATCH,
    CHUNK,
    FLOATS,
    INDICES,
    JOINS,
    MOST_FEW,
    MOST_SMALL,
    SHARED_BYTES,
    UNSIGNED,
    assign_text,
    atomic_text,
    few_text,
    key_type,
    keys_text,
    runs_text,
)

RowUpdate: TypeAlias = Callable[[Any, Any, Any], Any]

THREADS = 256
MOST_BLOCKS = 4096
FEW_COLUMNS, SHORT_CHUNK = 8, 8
"""The sorted positions that a thread combines in tables of few columns, where adjacent threads read other parts of
memory and the first-level cache holds what they share; else CHUNK."""

MOST_COMPARED = 2**28
"""At most MOST_FEW rows are few if their elements compare at most so many positions: that takes less than a sort."""

MOST_JOINED, ANY_FEW = 64, 1024
"""The rows for each row of the table, of more rows than ANY_FEW, up to which these are few: a thread joins them one
after another."""

LARGE_THREADS = 1024
"""The threads of a block that combines rows of a table that fills its shared memory."""
NARROW, LEAST_VISITS = 16, {True: 2, False: 12}
"""How often the blocks combine each element of such a table, at least: then each adds its table to the result. Atomic
operations on memory take less time for rows of more than NARROW adjacent elements. (H200)"""

_MOST_INT32 = 2**31 - 1


@memoized("modules of kernels that update rows", key="text, types", most=64)
def _module(text_of: Callable[..., str], *types: Any) -> Any:
    import cupy

    return cupy.RawModule(code=text_of(*types), options=("--std=c++17",))


@memoized("kernels that update rows", key="name, text, types", most=128)
def _kernel(name: str, text_of: Callable[..., str], *types: Any) -> Any:
    """Returns a kernel of `text_of(*types)`."""
    return _module(text_of, *types).get_function(name)


def _contiguous(a: Any) -> Any:
    return a if a.flags.c_contiguous else a.copy(order="C")


def _launch(kernel: Any, threads: int, *arguments: Any, most: int = _MOST_INT32) -> None:
    """Launches a kernel on at least `threads` threads, or on `most` blocks if it walks over the rest."""
    kernel((min(-(-threads // THREADS), most),), (THREADS,), arguments)


def row_update(combine: str, dtype: np.dtype[Any]) -> RowUpdate | None:
    """Returns a function that combines rows of `dtype` by "assign" or the ufunc `combine`; None if there is no kernel.

    The function takes CuPy arrays: a table, integer positions along its first axis, which wrap, and one row
    of values for each position. It returns a new table, computed on the current stream.
    """
    update = _row_update(combine, dtype)
    return None if update is None else lambda x, index, values: update(x, _readable(index), values)


def _readable(index: Any) -> Any:
    return index if index.dtype in _READABLE else index.astype(np.int64)


_READABLE = frozenset(map(np.dtype, INDICES))


def _copied(a: Any) -> Any:
    """Returns a copy of an array in C order."""
    if not a.flags.c_contiguous or not a.size:
        return a.copy(order="C")
    result = _empty(a.shape, a.dtype)
    result.data.copy_from_device_async(a.data, a.nbytes)
    return result


def _row_update(combine: str, dtype: np.dtype[Any]) -> RowUpdate | None:
    if combine == "assign":
        return _assigned if dtype.itemsize in UNSIGNED else None
    if combine == "subtract":  # exact: rounding is symmetric, and integers wrap
        add = row_update("add", dtype)
        return None if add is None else lambda x, index, values: add(x, index, -values)
    if dtype.kind in "iu" and combine in ATOMICS:
        return lambda x, index, values: _combined_integers(x, index, values, combine)
    is_supported = dtype.name in FLOATS and combine in JOINS and (dtype.kind == "f" or combine == "add")
    return (lambda x, index, values: _combined_floats(x, index, values, combine)) if is_supported else None


def _assigned(x: Any, index: Any, values: Any) -> Any:
    result, count = _copied(x), len(index)
    if count and result.size:
        types = x.dtype.itemsize, index.dtype
        last = np.zeros(len(x), np.uint64, like=x)
        positions = _kernel("last_positions", assign_text, *types)
        _launch(positions, count, last, _contiguous(index), np.int64(count), np.int64(len(x)))
        size, columns = np.int64(x.size), np.int64(x.size // len(x))
        assign = _kernel("assign_rows", assign_text, *types)
        _launch(assign, x.size, result, last, _contiguous(values), size, columns)
    return result


def _combined_integers(x: Any, index: Any, values: Any, combine: str) -> Any:
    if not len(index) or not x.size:
        return x.copy()
    own = x.dtype
    if own.itemsize < 4:  # a sum of small integers wraps when it is converted back
        wide = np.dtype("int32" if own.kind == "i" else "uint32")
        result, values = x.astype(wide, order="C"), values.astype(wide)
    else:
        result, values = _copied(x), values if values.dtype == own else values.astype(own)
    rows, index = _contiguous(values), _contiguous(index)
    sizes = (np.int64(len(index)), np.int64(len(x)), np.int64(x.size // len(x)))
    if not _combined_in_blocks(result, index, rows, combine, sizes):
        place = "shared" if result.nbytes <= SHARED_BYTES else "memory"
        is_large = max(rows.size, result.size) > MOST_SMALL
        kernel = _kernel("update_rows", atomic_text, combine, result.dtype, place, index.dtype, is_large)
        _launch(kernel, -(-rows.size // BATCH), result, index, rows, *sizes, most=MOST_BLOCKS)
    return result if own.itemsize >= 4 else result.astype(own)


def _combined_in_blocks(result: Any, index: Any, rows: Any, combine: str, sizes: tuple[Any, ...]) -> bool:
    """Combines integers in the shared memory of few blocks, if it holds the table and they combine each element often.

    Atomic operations there take less time than in memory. Returns whether it did.
    """
    device, size, visits = result.device.id, result.nbytes, LEAST_VISITS[sizes[2] <= NARROW]
    if rows.size < visits * result.size:  # no block is needed to tell
        return False
    most = cuda_arrays.most_shared_bytes(device)
    blocks = cuda_arrays.multiprocessor_count(device) * min(2, most // size)
    if not blocks or rows.size < visits * blocks * result.size:
        return False
    kernel = _large_kernel(combine, result.dtype, index.dtype, rows.size > MOST_SMALL, device)
    kernel((blocks,), (LARGE_THREADS,), (result, index, rows, *sizes), shared_mem=size)
    return True


@memoized("kernels that update rows in shared memory", key="combiner, types, device", most=32)
def _large_kernel(combine: str, dtype: np.dtype[Any], index: np.dtype[Any], is_large: bool, device: int) -> Any:
    kernel = _kernel("update_rows", atomic_text, combine, dtype, "dynamic", index, is_large)
    kernel.max_dynamic_shared_size_bytes = cuda_arrays.most_shared_bytes(device)
    return kernel


def _combined_floats(x: Any, index: Any, values: Any, combine: str) -> Any:
    """Combines floating-point rows: a few by comparing positions, others by sorting them."""
    result, count, values = _copied(x), len(index), _contiguous(values)
    if not count or not x.size:
        return result
    columns = values.size // count * (2 if x.dtype.kind == "c" else 1)
    most = min(MOST_FEW, max(ANY_FEW, MOST_JOINED * len(x)))
    if count > most or count * count * columns > MOST_COMPARED:
        return _reduced_runs(result, index, values, combine, columns)
    kernel = _kernel("combine_few", few_text, combine, x.dtype, index.dtype)
    sizes = (np.int32(count), np.int64(len(x)), np.int64(columns))
    _launch(kernel, count * columns, result, _contiguous(index), values, *sizes)
    return result


def _reduced_runs(result: Any, index: Any, values: Any, combine: str, columns: int) -> Any:
    """Combines rows with those of `result`, in runs of equal positions. columns: the real numbers of a row."""
    count, dtype, key = len(index), result.dtype, key_type(len(result))
    keys = _empty(count, key)
    make_keys = _kernel("row_keys", keys_text, key, index.dtype)
    _launch(make_keys, count, keys, _contiguous(index), np.int64(count), np.int64(len(result)))
    order: Any = np.argsort(keys, kind="stable")
    keys = keys[order]
    chunk, real = SHORT_CHUNK if columns < FEW_COLUMNS else CHUNK, np.zeros((), dtype).real.dtype
    while True:
        chunks = -(-count // chunk)
        last = chunks == 1
        next_keys: Any = 0 if last else _empty(2 * chunks, key)
        following: Any = 0 if last else _empty((2 * chunks, columns), real)
        _launch(
            _kernel("reduce_runs", runs_text, combine, dtype, key, chunk), chunks * columns, result, keys, order,
            values, next_keys, following, np.int64(count), np.int64(columns), np.int64(chunks),
        )  # fmt: skip
        if last:
            return result
        keys, values, order, count = next_keys, following, np.int64(0), 2 * chunks
        chunk = CHUNK  # what is left is read in order, and each launch takes longer on the host than on the GPU


def _empty(shape: Any, dtype: np.dtype[Any]) -> Any:
    import cupy

    return cupy.empty(shape, dtype)
