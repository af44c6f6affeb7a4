"""The CUDA C++ of the kernels that combine rows at positions that are data, by combiner and types."""

from __future__ import annotations

from typing import Any

import numpy as np

CHUNK = 32
"""The sorted positions that a thread combines."""
MOST_SMALL = 1 << 30
"""So many elements of rows, or of a table, are numbered by 32-bit integers."""
BATCH = 4
"""The elements whose positions a thread loads before it combines the first of them."""
MOST_FEW = 4096
"""So many rows, at most, are few."""
SHARED_BYTES = 32 * 1024
"""Tables up to this size are combined in the shared memory of each block first, of which they need no more."""

ATOMICS = {
    "add": ("atomicAdd", "0"), "minimum": ("atomicMin", "HIGHEST"), "maximum": ("atomicMax", "LOWEST"),
    "bitwise_and": ("atomicAnd", "~T(0)"), "bitwise_or": ("atomicOr", "0"), "bitwise_xor": ("atomicXor", "0"),
}  # fmt: skip
"""By ufunc: the atomic function, and the neutral element."""

JOINS = {
    "add": ("x + y", "-0.0"), "multiply": ("x * y", "1"),
    "minimum": ("y < x || y != y ? y : x", "INFINITE"), "maximum": ("y > x || y != y ? y : x", "-INFINITE"),
}  # fmt: skip
"""By ufunc: x combined with y, and the neutral element. A NaN in x stays, since no comparison with it holds."""

INTEGERS = {"int32": "int", "uint32": "unsigned", "int64": "long long", "uint64": "unsigned long long"}
FLOATS = {"float32": "float", "float64": "double", "complex64": "float", "complex128": "double"}
LIMITS = {
    "int32": ("-2147483647 - 1", "2147483647"), "uint32": ("0u", "4294967295u"),
    "int64": ("-9223372036854775807ll - 1", "9223372036854775807ll"), "uint64": ("0ull", "18446744073709551615ull"),
}  # fmt: skip

INDICES = {"int32": "int", "int64": "long long"}
"""The types of positions that kernels read as they are."""

INT64 = np.dtype(np.int64)

_PLACE = """
typedef @P@ Place;
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
    T* result, const Index* index, const T* values, long long row_count, long long table_rows, long long row_size) {
  const T LOWEST = @LOWEST@, HIGHEST = @HIGHEST@;
  (void)LOWEST; (void)HIGHEST;
  const Place rows = (Place)table_rows, columns = (Place)row_size, total = (Place)(row_count * row_size);
#if @SHARED@
#if @SHARED@ > 0
  __shared__ T table[@SHARED@];
#else
  extern __shared__ T table[];
#endif
  const int size = (int)(rows * columns);
  for (int e = threadIdx.x; e < size; e += blockDim.x) table[e] = @NEUTRAL@;
  __syncthreads();
#else
  T* table = result;
#endif
  // Element e is in column c of row k. From one element of a thread to the next they grow by the same, or wrap.
  const Place width = blockDim.x, stride = (Place)gridDim.x * width * @BATCH@, jump = stride - width * (@BATCH@ - 1);
  const Place near_k = width / columns, near_c = width - near_k * columns;
  const Place far_k = jump / columns, far_c = jump - far_k * columns;
  Place e = (Place)blockIdx.x * width * @BATCH@ + threadIdx.x, k = e / columns, c = e - k * columns;
  for (; e < total; e += stride) {
    Place at[@BATCH@];
    T value[@BATCH@];
    #pragma unroll
    for (int n = 0; n < @BATCH@; ++n) {
      if (e + n * width < total) {
        at[n] = row_of(index, k, rows) * columns + c;
        value[n] = values[e + n * width];
      }
      k += n + 1 < @BATCH@ ? near_k : far_k;
      c += n + 1 < @BATCH@ ? near_c : far_c;
      if (c >= columns) {
        c -= columns;
        ++k;
      }
    }
    #pragma unroll
    for (int n = 0; n < @BATCH@; ++n) {
      if (e + n * width < total) @ATOMIC@(&table[at[n]], value[n]);
    }
  }
#if @SHARED@
  __syncthreads();
  // Each block begins elsewhere, so that few of them combine the same elements at a time.
  const int begin = (int)((long long)size * blockIdx.x / gridDim.x);
  for (int n = threadIdx.x; n < size; n += blockDim.x) {
    const int place = begin + n < size ? begin + n : begin + n - size;
    const T v = table[place];
    if (v != (T)(@NEUTRAL@)) @ATOMIC@(&result[place], v);
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
    for name, value in {"P": "long long", **names}.items():
        text = text.replace(f"@{name}@", str(value))
    return text


UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long", 16: "ulonglong2"}


def assign_text(itemsize: int, index: np.dtype[Any] = INT64) -> str:
    """Returns the kernels that assign rows of elements of so many bytes. index: the type of the positions."""
    return _filled(_ASSIGN_TEXT, T=UNSIGNED[itemsize], I=INDICES[index.name])


def atomic_text(
    combine: str, dtype: np.dtype[Any], place: str, index: np.dtype[Any] = INT64, is_large: bool = False
) -> str:
    """Returns the kernel that combines integers of 4 or 8 bytes.

    place: where a block combines rows: "memory", "shared" with a table of at most SHARED_BYTES, or "dynamic", in as
    much shared memory as a launch says. index: as of `assign_text`. is_large: there are more than MOST_SMALL elements.
    """
    function, neutral = ATOMICS[combine]
    lowest, highest = LIMITS[dtype.name]
    shared = {"memory": 0, "shared": SHARED_BYTES // dtype.itemsize, "dynamic": -1}[place]
    return _filled(
        _ATOMIC_TEXT, T=INTEGERS[dtype.name], ATOMIC=function, NEUTRAL=neutral, LOWEST=lowest, HIGHEST=highest,
        SHARED=shared, I=INDICES[index.name], BATCH=BATCH, P="long long" if is_large else "int",
    )  # fmt: skip


def runs_text(combine: str, dtype: np.dtype[Any], key: np.dtype[Any], chunk: int = CHUNK) -> str:
    """Returns the kernel that reduces runs of equal positions. key: their type. chunk: the positions of a thread."""
    join, neutral = JOINS[combine]
    return _filled(_RUNS_TEXT, T=FLOATS[dtype.name], K=_KEYS[key.name], JOIN=join, NEUTRAL=neutral, CHUNK=chunk)


def keys_text(key: np.dtype[Any], index: np.dtype[Any] = INT64) -> str:
    """Returns the kernel that makes the keys that positions are sorted by. index: as of `assign_text`."""
    return _filled(_KEYS_TEXT, K=_KEYS[key.name], I=INDICES[index.name])


def key_type(rows: int) -> np.dtype[Any]:
    """Returns the narrowest type of the positions in a table: a radix sort takes a pass for each byte."""
    return np.dtype(next((name for name in ("uint8", "uint16", "int32") if rows - 1 <= np.iinfo(name).max), "int64"))


_KEYS = {"uint8": "unsigned char", "uint16": "unsigned short", "int32": "int", "int64": "long long"}


def few_text(combine: str, dtype: np.dtype[Any], index: np.dtype[Any] = INT64) -> str:
    """Returns the kernel that combines a few floating-point rows. index: as of `assign_text`."""
    join, _ = JOINS[combine]
    return _filled(_FEW_TEXT, T=FLOATS[dtype.name], I=INDICES[index.name], JOIN=join, MOST=MOST_FEW)
