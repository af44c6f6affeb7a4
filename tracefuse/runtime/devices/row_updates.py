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

RowUpdate: TypeAlias = Callable[[Any, Any, Any], Any]

THREADS = 256
MOST_BLOCKS = 4096
CHUNK, FEW_COLUMNS, SHORT_CHUNK = 32, 8, 8
"""The sorted positions that a thread combines; fewer in tables of few columns, where adjacent threads read other parts
of memory and the first-level cache holds what they share."""

BATCH = 4
"""The elements whose positions a thread loads before it combines the first of them."""

MOST_FEW, MOST_COMPARED = 4096, 2**28
"""Up to so many rows are few, if all their elements compare at most so many positions: that takes less than a sort."""

MOST_JOINED, ANY_FEW = 64, 1024
"""The rows for each row of the table, of more rows than ANY_FEW, up to which these are few: a thread joins them one
after another."""

SHARED_BYTES = 32 * 1024
"""Tables up to this size are combined in the shared memory of each block first."""

_MOST_INT32 = 2**31 - 1

_ATOMICS = {
    "add": ("atomicAdd", "0"), "minimum": ("atomicMin", "HIGHEST"), "maximum": ("atomicMax", "LOWEST"),
    "bitwise_and": ("atomicAnd", "~T(0)"), "bitwise_or": ("atomicOr", "0"), "bitwise_xor": ("atomicXor", "0"),
}  # fmt: skip
"""By ufunc: the atomic function, and the neutral element."""

_JOINS = {
    "add": ("x + y", "-0.0"), "multiply": ("x * y", "1"),
    "minimum": ("y < x || y != y ? y : x", "INFINITE"), "maximum": ("y > x || y != y ? y : x", "-INFINITE"),
}  # fmt: skip
"""By ufunc: x combined with y, and the neutral element. A NaN in x stays, since no comparison with it holds."""

_INTEGERS = {"int32": "int", "uint32": "unsigned", "int64": "long long", "uint64": "unsigned long long"}
_FLOATS = {"float32": "float", "float64": "double", "complex64": "float", "complex128": "double"}
_LIMITS = {
    "int32": ("-2147483647 - 1", "2147483647"), "uint32": ("0u", "4294967295u"),
    "int64": ("-9223372036854775807ll - 1", "9223372036854775807ll"), "uint64": ("0ull", "18446744073709551615ull"),
}  # fmt: skip

_PLACE = """
typedef long long Place;
typedef @I@ Index;
__device__ Place row_of(const Index* index, Place k, Place rows) {
  Place r = index[k];
  r = r < 0 ? r + rows : r;
  return (unsigned long long)r < (unsigned long long)rows ? r : (r % rows + rows) % rows;
}
"""

_ATOMIC_TEXT = (
    _PLACE
    + """
typedef @T@ T;
__device__ unsigned long long atomicAdd(long long* p, long long v) {
  return atomicAdd((unsigned long long*)p, (unsigned long long)v);
}

extern "C" __global__ void update_rows(
    T* result, const Index* index, const T* values, Place count, Place rows, Place columns) {
  const T LOWEST = @LOWEST@, HIGHEST = @HIGHEST@;
  (void)LOWEST; (void)HIGHEST;
  const Place total = count * columns, stride = (Place)gridDim.x * blockDim.x * @BATCH@;
#if @SHARED@
  __shared__ T table[@SHARED@];
  const int size = (int)(rows * columns);
  for (int e = threadIdx.x; e < size; e += blockDim.x) table[e] = @NEUTRAL@;
  __syncthreads();
#else
  T* table = result;
#endif
  for (Place first = (Place)blockIdx.x * blockDim.x * @BATCH@ + threadIdx.x; first < total; first += stride) {
    Place at[@BATCH@];
    T value[@BATCH@];
    #pragma unroll
    for (int n = 0; n < @BATCH@; ++n) {
      const Place e = first + n * blockDim.x;
      if (e >= total) continue;
      const Place k = columns == 1 ? e : (e >> 32 ? e / columns : (unsigned)e / (unsigned)columns);
      at[n] = row_of(index, k, rows) * columns + (e - k * columns);
      value[n] = values[e];
    }
    #pragma unroll
    for (int n = 0; n < @BATCH@; ++n) {
      if (first + n * blockDim.x < total) @ATOMIC@(&table[at[n]], value[n]);
    }
  }
#if @SHARED@
  __syncthreads();
  for (int e = threadIdx.x; e < size; e += blockDim.x) {
    const T v = table[e];
    if (v != (T)(@NEUTRAL@)) @ATOMIC@(&result[e], v);
  }
#endif
}
"""
)

_ASSIGN_TEXT = (
    _PLACE
    + """
extern "C" __global__ void last_positions(unsigned long long* last, const Index* index, Place count, Place rows) {
  const Place k = (Place)blockIdx.x * blockDim.x + threadIdx.x;
  if (k < count) atomicMax(&last[row_of(index, k, rows)], (unsigned long long)k + 1);
}

extern "C" __global__ void assign_rows(
    @T@* result, const unsigned long long* last, const @T@* values, Place elements, Place columns) {
  const Place e = (Place)blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= elements) return;
  const Place row = e / columns, from = (Place)last[row];
  if (from) result[e] = values[(from - 1) * columns + (e - row * columns)];
}
"""
)

_KEYS_TEXT = (
    _PLACE
    + """
extern "C" __global__ void row_keys(@K@* keys, const Index* index, Place count, Place rows) {
  const Place k = (Place)blockIdx.x * blockDim.x + threadIdx.x;
  if (k < count) keys[k] = (@K@)row_of(index, k, rows);
}
"""
)

_RUNS_TEXT = """
typedef @T@ T;
typedef @K@ Key;
typedef long long Place;
#define INFINITE ((T)__longlong_as_double(0x7ff0000000000000ll))
__device__ T joined(T x, T y) { return @JOIN@; }

extern "C" __global__ void reduce_runs(
    T* result, const Key* keys, const Place* order, const T* values, Key* next_keys, T* next, Place count,
    Place columns, Place chunks) {
  const Place e = (Place)blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= chunks * columns) return;
  const Place chunk = e / columns, column = e - chunk * columns;
  const Place first = chunk * @CHUNK@, stop = first + @CHUNK@ < count ? first + @CHUNK@ : count;
  const Place before = first > 0 ? (Place)keys[first - 1] : -1, after = stop < count ? (Place)keys[stop] : -1;
  const T neutral = (T)(@NEUTRAL@);
  T head = neutral, tail = neutral;
  const Key head_key = keys[first];
  Key key = head_key;
  T run = values[(order ? order[first] : first) * columns + column];
  for (Place k = first + 1; k <= stop; ++k) {
    const bool ends = k == stop || keys[k] != key;
    if (ends) {
      if (key == before && key == head_key) head = run;
      else if (k == stop && key == after) tail = run;
      else result[(Place)key * columns + column] = joined(result[(Place)key * columns + column], run);
      if (k == stop) break;
      key = keys[k];
    }
    const T v = values[(order ? order[k] : k) * columns + column];
    run = ends ? v : joined(run, v);
  }
  if (!next) return;
  if (column == 0) {
    next_keys[2 * chunk] = head_key;
    next_keys[2 * chunk + 1] = key;
  }
  next[2 * chunk * columns + column] = head;
  next[(2 * chunk + 1) * columns + column] = tail;
}
"""

_FEW_TEXT = (
    _PLACE
    + """
typedef @T@ T;
#define INFINITE ((T)__longlong_as_double(0x7ff0000000000000ll))
__device__ T joined(T x, T y) { return @JOIN@; }

extern "C" __global__ void combine_few(
    T* result, const Index* index, const T* values, int count, Place rows, Place columns) {
  __shared__ Place at[@MOST@ + 8];
  for (int k = threadIdx.x; k < count + 8; k += blockDim.x) at[k] = k < count ? row_of(index, k, rows) : -1;
  __syncthreads();
  const Place e = (Place)blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= count * columns) return;
  const int first = (int)(e / columns);
  const Place column = e - first * columns, row = at[first];
  bool is_later = false;
  #pragma unroll 8
  for (int k = 0; k < first; ++k) is_later |= at[k] == row;
  if (is_later) return;
  T run = values[e];
  for (int k = first + 1; k < count; k += 8) {
    unsigned equal = 0;
    #pragma unroll
    for (int n = 0; n < 8; ++n) equal |= (unsigned)(at[k + n] == row) << n;
    for (; equal; equal &= equal - 1) run = joined(run, values[(k + __ffs(equal) - 1) * columns + column]);
  }
  T* element = result + row * columns + column;
  *element = joined(*element, run);
}
"""
)


def _filled(text: str, **names: object) -> str:
    for name, value in names.items():
        text = text.replace(f"@{name}@", str(value))
    return text


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
    return index if index.dtype.name in _INDICES else index.astype(np.int64)


def _row_update(combine: str, dtype: np.dtype[Any]) -> RowUpdate | None:
    if combine == "assign":
        return _assigned if dtype.itemsize in _UNSIGNED else None
    if combine == "subtract":  # exact: rounding is symmetric, and integers wrap
        add = row_update("add", dtype)
        return None if add is None else lambda x, index, values: add(x, index, -values)
    if dtype.kind in "iu" and combine in _ATOMICS:
        return lambda x, index, values: _combined_integers(x, index, values, combine)
    is_supported = dtype.name in _FLOATS and combine in _JOINS and (dtype.kind == "f" or combine == "add")
    return (lambda x, index, values: _combined_floats(x, index, values, combine)) if is_supported else None


_INDICES = {"int32": "int", "int64": "long long"}
"""The types of positions that kernels read as they are."""

_INT64 = np.dtype(np.int64)
_UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long", 16: "ulonglong2"}


def assign_text(itemsize: int, index: np.dtype[Any] = _INT64) -> str:
    """Returns the kernels that assign rows of elements of so many bytes. index: the type of the positions."""
    return _filled(_ASSIGN_TEXT, T=_UNSIGNED[itemsize], I=_INDICES[index.name])


def _assigned(x: Any, index: Any, values: Any) -> Any:
    result, count = x.copy(), len(index)
    if count and result.size:
        types = x.dtype.itemsize, index.dtype
        last = np.zeros(len(x), np.uint64, like=x)
        positions = _kernel("last_positions", assign_text, *types)
        _launch(positions, count, last, _contiguous(index), np.int64(count), np.int64(len(x)))
        size, columns = np.int64(x.size), np.int64(x.size // len(x))
        assign = _kernel("assign_rows", assign_text, *types)
        _launch(assign, x.size, result, last, _contiguous(values), size, columns)
    return result


def atomic_text(combine: str, dtype: np.dtype[Any], is_small: bool, index: np.dtype[Any] = _INT64) -> str:
    """Returns the kernel that combines integers of 4 or 8 bytes.

    is_small: the table has at most SHARED_BYTES. index: as of `assign_text`.
    """
    function, neutral = _ATOMICS[combine]
    lowest, highest = _LIMITS[dtype.name]
    shared = SHARED_BYTES // dtype.itemsize if is_small else 0
    return _filled(
        _ATOMIC_TEXT, T=_INTEGERS[dtype.name], ATOMIC=function, NEUTRAL=neutral, LOWEST=lowest, HIGHEST=highest,
        SHARED=shared, I=_INDICES[index.name], BATCH=BATCH,
    )  # fmt: skip


def _combined_integers(x: Any, index: Any, values: Any, combine: str) -> Any:
    if not len(index) or not x.size:
        return x.copy()
    wide = x.dtype if x.dtype.itemsize >= 4 else np.dtype("int32" if x.dtype.kind == "i" else "uint32")
    result = x.astype(wide, order="C")  # a copy; a sum of small integers wraps when it is converted back
    rows = _contiguous(values.astype(wide, copy=False))
    kernel = _kernel("update_rows", atomic_text, combine, wide, result.nbytes <= SHARED_BYTES, index.dtype)
    sizes = (np.int64(len(index)), np.int64(len(x)), np.int64(x.size // len(x)))
    _launch(kernel, -(-values.size // BATCH), result, _contiguous(index), rows, *sizes, most=MOST_BLOCKS)
    return result.astype(x.dtype, copy=False)


def runs_text(combine: str, dtype: np.dtype[Any], key: np.dtype[Any], chunk: int = CHUNK) -> str:
    """Returns the kernel that reduces runs of equal positions. key: their type. chunk: the positions of a thread."""
    join, neutral = _JOINS[combine]
    return _filled(_RUNS_TEXT, T=_FLOATS[dtype.name], K=_KEYS[key.name], JOIN=join, NEUTRAL=neutral, CHUNK=chunk)


def keys_text(key: np.dtype[Any], index: np.dtype[Any] = _INT64) -> str:
    """Returns the kernel that makes the keys that positions are sorted by. index: as of `assign_text`."""
    return _filled(_KEYS_TEXT, K=_KEYS[key.name], I=_INDICES[index.name])


def key_type(rows: int) -> np.dtype[Any]:
    """Returns the narrowest type of the positions in a table: a radix sort takes a pass for each byte."""
    return np.dtype(next((name for name in ("uint8", "uint16", "int32") if rows - 1 <= np.iinfo(name).max), "int64"))


_KEYS = {"uint8": "unsigned char", "uint16": "unsigned short", "int32": "int", "int64": "long long"}


def few_text(combine: str, dtype: np.dtype[Any], index: np.dtype[Any] = _INT64) -> str:
    """Returns the kernel that combines a few floating-point rows. index: as of `assign_text`."""
    join, _ = _JOINS[combine]
    return _filled(_FEW_TEXT, T=_FLOATS[dtype.name], I=_INDICES[index.name], JOIN=join, MOST=MOST_FEW)


def _combined_floats(x: Any, index: Any, values: Any, combine: str) -> Any:
    """Combines floating-point rows: a few by comparing positions, others by sorting them."""
    result, count, values = x.copy(), len(index), _contiguous(values)
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
