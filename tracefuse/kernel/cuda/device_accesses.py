"""The device functions that access memory: wide and cached reads and writes, asynchronous copies, and clusters.

It also has the type of the tables' entries, which `device_functions` uses for its own table.
"""

from __future__ import annotations

from segments.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """The source of one device function or type, and the names of those it uses."""

    source: str
    needs: tuple[str, ...] = ()


INLINE = "__device__ __forceinline__"
TEMPLATE = f"template <typename T>\n{INLINE}"


def _load(name: str, cache: str) -> str:
    """Return loads through the read-only path.

    They are volatile so that the compiler does not sink adjacent loads to their first uses to save registers: the
    loads must be in flight together.
    """
    rows = [
        ("unsigned char", "u8", "unsigned short", "h", "(unsigned char)raw"),
        ("unsigned short", "u16", "unsigned short", "h", "raw"),
        ("unsigned int", "u32", "unsigned int", "r", "raw"),
    ]
    parts = [
        f"{INLINE} {t} {name}(const {t}* from) {{\n  {reg} raw;\n"
        f'  asm volatile("ld.global.nc{cache}.{kind} %0, [%1];"\n'
        f'      : "={letter}"(raw) : "l"(__cvta_generic_to_global(from)));\n'
        f"  return {result};\n}}"
        for t, kind, reg, letter, result in rows
    ]
    parts.append(f"""{INLINE} uint2 {name}(const uint2* from) {{
  uint2 raw;
  asm volatile("ld.global.nc{cache}.v2.u32 {{%0, %1}}, [%2];"
      : "=r"(raw.x), "=r"(raw.y) : "l"(__cvta_generic_to_global(from)));
  return raw;
}}
{INLINE} uint4 {name}(const uint4* from) {{
  uint4 raw;
  asm volatile("ld.global.nc{cache}.v4.u32 {{%0, %1, %2, %3}}, [%4];"
      : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w) : "l"(__cvta_generic_to_global(from)));
  return raw;
}}""")
    return "\n".join(parts)


def _read_wide(name: str, access: str) -> str:
    """Return a copy of `width` adjacent elements to registers in accesses of up to 16 bytes.

    Halves are extracted from 32-bit words, so widening one takes a single instruction.
    """
    return f"""template <int width, typename T>
{INLINE} void {name}(T* to, const T* from) {{
  constexpr int bytes = width * sizeof(T) < 16 ? width * sizeof(T) : 16;
  constexpr int count = bytes / sizeof(T);
  typedef typename Raw<bytes>::type raw;
  #pragma unroll
  for (int k = 0; k < width; k += count) {{
    const raw whole = {access};
    if constexpr (sizeof(T) == 2 && bytes >= 4) {{
      struct Words {{ unsigned int values[bytes / 4]; }};
      const Words words = bit_cast<Words>(whole);
      #pragma unroll
      for (int i = 0; i < count; ++i) to[k + i] = bit_cast<T>((unsigned short)(words.values[i / 2] >> i % 2 * 16));
    }} else {{
      struct Packed {{ T values[count]; }};
      const Packed packed = bit_cast<Packed>(whole);
      #pragma unroll
      for (int i = 0; i < count; ++i) to[k + i] = packed.values[i];
    }}
  }}
}}"""


def _write_wide(name: str, access: str) -> str:
    """Return a copy of `width` adjacent elements from registers in accesses of up to 16 bytes."""
    return f"""template <int width, typename T>
{INLINE} void {name}(T* to, const T* from) {{
  constexpr int bytes = width * sizeof(T) < 16 ? width * sizeof(T) : 16;
  constexpr int count = bytes / sizeof(T);
  struct Packed {{ T values[count]; }};
  typedef typename Raw<bytes>::type raw;
  #pragma unroll
  for (int k = 0; k < width; k += count) {{
    Packed packed;
    #pragma unroll
    for (int i = 0; i < count; ++i) packed.values[i] = from[k + i];
    {access};
  }}
}}"""


def _round_wide(name: str, access: str) -> str:
    """Return the same copy from float to a half type; one instruction rounds two elements."""
    return f"""template <int width, typename T>
{INLINE} void {name}(T* to, const float* from) {{
  constexpr int bytes = width * sizeof(T) < 16 ? width * sizeof(T) : 16;
  struct Packed {{ unsigned int pairs[bytes / 4]; }};
  typedef typename Raw<bytes>::type raw;
  #pragma unroll
  for (int k = 0; k < width; k += bytes / 2) {{
    Packed packed;
    #pragma unroll
    for (int i = 0; i < bytes / 4; ++i) packed.pairs[i] = rounded_pair<T>(from[k + 2 * i], from[k + 2 * i + 1]);
    {access};
  }}
}}"""


def _load_matrices(name: str, transposed: str) -> DeviceFunction:
    """Return the load of four matrices of 8 x 8 halves from shared memory."""
    return DeviceFunction(
        f"{INLINE} void {name}(unsigned int* to, const void* row) {{\n"
        f'  asm volatile("ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{%0, %1, %2, %3}}, [%4];"\n'
        '      : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])\n'
        '      : "r"((unsigned int)__cvta_generic_to_shared(row)) : "memory");\n}'
    )


def _multiply_matrices(half: str, kind: str) -> DeviceFunction:
    """Return the product of 16 x 16 by 16 x 8 halves, added to float32 sums."""
    return DeviceFunction(
        f"{INLINE} void multiply_matrices_{half}(float* sums, const unsigned int* left, const unsigned int* right) {{\n"
        f'  asm("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "\n'
        '      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"\n'
        '      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])\n'
        '      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));\n}'
    )


_MULTIPLY_SINGLE = DeviceFunction(
    f"""{INLINE} unsigned int tf32_of(float value) {{
  unsigned int bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}}
{INLINE} void multiply_tf32(float* sums, const unsigned int* left, const unsigned int* right) {{
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(left[0]), "r"(left[2]), "r"(left[1]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}}
{INLINE} void multiply_matrices_float32(float* sums, const float* left, const float* right) {{
  unsigned int high[8], low[8], right_high[4], right_low[4];
  #pragma unroll
  for (int k = 0; k < 8; ++k) {{
    high[k] = tf32_of(left[k]);
    low[k] = tf32_of(left[k] - __uint_as_float(high[k]));
  }}
  #pragma unroll
  for (int k = 0; k < 4; ++k) {{
    right_high[k] = tf32_of(right[k]);
    right_low[k] = tf32_of(right[k] - __uint_as_float(right_high[k]));
  }}
  float added[4] = {{0.0f, 0.0f, 0.0f, 0.0f}};
  #pragma unroll
  for (int k = 0; k < 2; ++k) multiply_tf32(added, low + 4 * k, right_high + 2 * k);
  #pragma unroll
  for (int k = 0; k < 2; ++k) multiply_tf32(added, high + 4 * k, right_low + 2 * k);
  #pragma unroll
  for (int k = 0; k < 2; ++k) multiply_tf32(added, high + 4 * k, right_high + 2 * k);
  #pragma unroll
  for (int k = 0; k < 4; ++k) sums[k] += added[k];
}}"""
)
"""The product of 16 x 16 by 16 x 8 float32 elements, of which each is the sum of two tf32: Ootomo and Yokota,
arXiv:2203.03341. The product of both low parts, about 2**-23 of a product, is left out. Since tensor cores round sums
toward zero, these are added to the other sums outside of them. The pair of a thread takes columns k and k + 4."""


_LOAD_PAIRS = DeviceFunction(
    f"""template <int step>
{INLINE} void load_pairs(unsigned int* to, const void* from) {{
  const uint4 raw = *(const uint4*)from;
  to[0] = raw.x;
  to[step] = raw.y;
  to[2 * step] = raw.z;
  to[3 * step] = raw.w;
}}"""
)

_LOAD_SHIFTED_PAIRS = DeviceFunction(
    f"""template <int step>
{INLINE} void load_shifted_pairs(unsigned int* to, const void* base, int place) {{
  const unsigned int* from = (const unsigned int*)base + (place >> 1);
  unsigned int words[5];
  #pragma unroll
  for (int k = 0; k < 5; ++k) words[k] = from[k];
  #pragma unroll
  for (int k = 0; k < 4; ++k) to[k * step] = __funnelshift_r(words[k], words[k + 1], (place & 1) * 16);
}}"""
)


MATRIX_FUNCTIONS: dict[str, DeviceFunction] = {
    "load_pairs": _LOAD_PAIRS,
    "load_shifted_pairs": _LOAD_SHIFTED_PAIRS,
    "load_matrices": _load_matrices("load_matrices", ""),
    "load_matrices_transposed": _load_matrices("load_matrices_transposed", ".trans"),
    "multiply_matrices_float16": _multiply_matrices("float16", "f16"),
    "multiply_matrices_bfloat16": _multiply_matrices("bfloat16", "bf16"),
    "multiply_matrices_float32": _MULTIPLY_SINGLE,
}

_READ, _WRITE = "(const raw*)(from + k)", "(raw*)(to + k)"
_BITS = "bit_cast<raw>(packed)"

ACCESS_FUNCTIONS: dict[str, DeviceFunction] = {
    # Asynchronous copies to shared memory that bypass registers; those of 16 bytes also bypass L1.
    "start_copy": DeviceFunction(
        f"template <int bytes>\n{INLINE} void start_copy(void* to, const void* from) {{\n"
        "  const unsigned int place = (unsigned int)__cvta_generic_to_shared(to);\n"
        "  if constexpr (bytes < 16) {\n"
        '    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"\n'
        '                 :: "r"(place), "l"(from), "n"(bytes) : "memory");\n'
        "  } else {\n    #pragma unroll\n    for (int k = 0; k < bytes; k += 16) {\n"
        '      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"\n'
        '                   :: "r"(place + k), "l"((const char*)from + k) : "memory");\n'
        "    }\n  }\n}"
    ),
    "start_copies": DeviceFunction(
        f"template <int bytes, int to_step, int from_step, int count, int done = 0>\n"
        f"{INLINE} void start_copies(unsigned int to, const void* from, int valid) {{\n"
        '  static_assert(bytes == 16, "several copies are of 16 bytes each");\n'
        "  if constexpr (done < count) {\n"
        '    asm volatile("{ .reg .pred none; setp.ge.s32 none, %2, %3;\\n"\n'
        '                 "cp.async.cg.shared.global [%0 + %4], [%1 + %5], 16, none; }"\n'
        '                 :: "r"(to), "l"(from), "n"(done), "r"(valid), "n"(done * to_step), "n"(done * from_step)\n'
        '                 : "memory");\n'
        "    start_copies<bytes, to_step, from_step, count, done + 1>(to, from, valid);\n  }\n}"
    ),
    "await_copies": DeviceFunction(
        f'{INLINE} void await_copies() {{ asm volatile("cp.async.wait_all;" ::: "memory"); }}'
    ),
    "end_batch": DeviceFunction(
        f'{INLINE} void end_batch() {{ asm volatile("cp.async.commit_group;" ::: "memory"); }}'
    ),
    "await_batches": DeviceFunction(
        f"template <int later>\n{INLINE} void await_batches() {{\n"
        '  asm volatile("cp.async.wait_group %0;" :: "n"(later) : "memory");\n}'
    ),
    # Clusters: sm_90 and later. The barrier is split into arrive and wait, so waiting for blocks to start is free.
    "arrive_in_cluster": DeviceFunction(
        f"{INLINE} void arrive_in_cluster() {{\n"
        '  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");\n}'
    ),
    "start_in_cluster": DeviceFunction(
        f"{INLINE} void start_in_cluster() {{\n"
        '  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");\n}'
    ),
    "wait_for_cluster": DeviceFunction(
        f"{INLINE} void wait_for_cluster() {{\n"
        '  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");\n}'
    ),
    "meet_cluster": DeviceFunction(
        f"{INLINE} void meet_cluster() {{\n  arrive_in_cluster();\n  wait_for_cluster();\n}}",
        ("arrive_in_cluster", "wait_for_cluster"),
    ),
    # Maps an address in this block's shared memory to the same address in another block of the cluster.
    "in_block": DeviceFunction(
        f"{TEMPLATE} T* in_block(T* own, int block) {{\n  T* other;\n"
        '  asm("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(own), "r"(block));\n  return other;\n}'
    ),
    **MATRIX_FUNCTIONS,
    "Raw": DeviceFunction(
        "template <int bytes> struct Raw;\n"
        "template <> struct Raw<1> { typedef unsigned char type; };\n"
        "template <> struct Raw<2> { typedef unsigned short type; };\n"
        "template <> struct Raw<4> { typedef unsigned int type; };\n"
        "template <> struct Raw<8> { typedef uint2 type; };\n"
        "template <> struct Raw<16> { typedef uint4 type; };"
    ),
    "load_once": DeviceFunction(_load("load_once", ".L1::no_allocate")),
    "load_constant": DeviceFunction(_load("load_constant", "")),
    "read_once": DeviceFunction(
        f"{TEMPLATE} T read_once(const T* from) {{\n"
        "  return bit_cast<T>(load_once((const typename Raw<sizeof(T)>::type*)from));\n}",
        ("Raw", "bit_cast", "load_once"),
    ),
    "read_streaming": DeviceFunction(
        f"{TEMPLATE} T read_streaming(const T* from) {{\n"
        "  return bit_cast<T>(__ldcs((const typename Raw<sizeof(T)>::type*)from));\n}",
        ("Raw", "bit_cast"),
    ),
    "read_packed": DeviceFunction(
        f"{TEMPLATE} T read_packed(const T* from) {{\n"
        "  const unsigned char* bytes = (const unsigned char*)from;\n  typename Raw<sizeof(T)>::type raw;\n"
        "  for (int k = 0; k < (int)sizeof(T); ++k) ((unsigned char*)&raw)[k] = bytes[k];\n"
        "  return bit_cast<T>(raw);\n}",
        ("Raw", "bit_cast"),
    ),
    "write_streaming": DeviceFunction(
        f"{TEMPLATE} void write_streaming(T* to, T value) {{\n"
        "  typedef typename Raw<sizeof(T)>::type raw;\n  __stcs((raw*)to, bit_cast<raw>(value));\n}",
        ("Raw", "bit_cast"),
    ),
    "read_wide": DeviceFunction(_read_wide("read_wide", f"*{_READ}"), ("Raw", "bit_cast")),
    "read_wide_constant": DeviceFunction(
        _read_wide("read_wide_constant", f"load_constant({_READ})"), ("Raw", "bit_cast", "load_constant")
    ),
    "read_wide_once": DeviceFunction(
        _read_wide("read_wide_once", f"load_once({_READ})"), ("Raw", "bit_cast", "load_once")
    ),
    "read_wide_streaming": DeviceFunction(_read_wide("read_wide_streaming", f"__ldcs({_READ})"), ("Raw", "bit_cast")),
    "write_wide": DeviceFunction(_write_wide("write_wide", f"*{_WRITE} = {_BITS}"), ("Raw", "bit_cast")),
    "write_wide_streaming": DeviceFunction(
        _write_wide("write_wide_streaming", f"__stcs({_WRITE}, {_BITS})"), ("Raw", "bit_cast")
    ),
    "round_wide": DeviceFunction(
        _round_wide("round_wide", f"*{_WRITE} = {_BITS}"), ("Raw", "bit_cast", "rounded_pair")
    ),
    "round_wide_streaming": DeviceFunction(
        _round_wide("round_wide_streaming", f"__stcs({_WRITE}, {_BITS})"), ("Raw", "bit_cast", "rounded_pair")
    ),
}
