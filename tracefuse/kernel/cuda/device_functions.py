"""The device functions and types that precede a CUDA kernel, with their dependencies.

Kernels include no headers. A kernel's source contains only the entries that it uses: types, conversions of halves, and
operations that C++ leaves undefined. `device_accesses` has those that access memory. Half types are stored as 16 bits,
and conversions use hardware instructions (bfloat16 from sm_80).
"""

from __future__ import annotations

from collections.abc import Iterable

from tracefuse.errors import InternalError
from tracefuse.kernel.cuda.device_accesses import ACCESS_FUNCTIONS, INLINE, TEMPLATE, DeviceFunction
from tracefuse.kernel.cuda.tile_products import TILE_FUNCTIONS


def _both(source: str) -> str:
    """Return the source for float and for double: {T} is the type, {f} the suffix of math functions."""
    once = (source.replace("{T}", t).replace("{f}", f) for t, f in (("float", "f"), ("double", "")))
    return "\n".join(once)


def _saturating(name: str, integer: str, low: int, high: int) -> str:
    """Return conversions from float and double to an integer narrower than int, through a saturating cast to int."""
    clamp = f"number < {low} ? {low} : number > {high} ? {high} : number"
    return (
        f"{INLINE} {integer} {name}(float x) {{\n  const int number = __float2int_rz(x);\n"
        f"  return ({integer})({clamp});\n}}\n"
        f"{INLINE} {integer} {name}(double x) {{\n  const int number = x != x ? 0 : __double2int_rz(x);\n"
        f"  return ({integer})({clamp});\n}}"
    )


def _saturating_wide(name: str, integer: str, suffix: str) -> str:
    """Return the conversions to 32 and 64 bits: the instructions saturate, but not all of them map NaN to 0."""
    return "\n".join(
        f"{INLINE} {integer} {name}({t} x) {{ return x != x ? 0 : __{t}2{suffix}_rz(x); }}" for t in ("float", "double")
    )


def _rounded_pair(half: str, kind: str) -> str:
    """Return a conversion of two floats to halves in one word, the first in the low bits."""
    return (
        f"template <> {INLINE} unsigned int rounded_pair<{half}>(float low, float high) {{\n  unsigned int pair;\n"
        f'  asm("cvt.rn.{kind}x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));\n  return pair;\n}}'
    )


DEVICE_FUNCTIONS: dict[str, DeviceFunction] = {
    "int8": DeviceFunction("typedef signed char int8;"),
    "int16": DeviceFunction("typedef short int16;"),
    "int64": DeviceFunction("typedef long long int64;"),
    "uint8": DeviceFunction("typedef unsigned char uint8;"),
    "uint16": DeviceFunction("typedef unsigned short uint16;"),
    "uint32": DeviceFunction("typedef unsigned int uint32;"),
    "uint64": DeviceFunction("typedef unsigned long long uint64;"),
    "float16": DeviceFunction("struct float16 { unsigned short bits; };"),
    "bfloat16": DeviceFunction("struct bfloat16 { unsigned short bits; };"),
    "bit_cast": DeviceFunction(
        f"template <typename To, typename From>\n{INLINE} To bit_cast(From from) {{\n"
        '  static_assert(sizeof(To) == sizeof(From), "sizes");\n  To to;\n'
        "  memcpy(&to, &from, sizeof(To));\n  return to;\n}"
    ),
    "float_of_float16": DeviceFunction(
        f"{INLINE} float to_float(float16 x) {{\n  float result;\n"
        '  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));\n  return result;\n}',
        ("float16",),
    ),
    "float_of_bfloat16": DeviceFunction(
        f"{INLINE} float to_float(bfloat16 x) {{ return __uint_as_float((unsigned int)x.bits << 16); }}", ("bfloat16",)
    ),
    "rounded_pair": DeviceFunction(f"template <typename T> {INLINE} unsigned int rounded_pair(float low, float high);"),
    "rounded_pair_float16": DeviceFunction(_rounded_pair("float16", "f16"), ("float16", "rounded_pair")),
    "rounded_pair_bfloat16": DeviceFunction(_rounded_pair("bfloat16", "bf16"), ("bfloat16", "rounded_pair")),
    "to_float16": DeviceFunction(
        f"{INLINE} float16 to_float16(float x) {{\n  float16 result;\n"
        '  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));\n  return result;\n}',
        ("float16",),
    ),
    # Rounds a pair and keeps one: rounding a single bfloat16 is eight times slower.
    "to_bfloat16": DeviceFunction(
        f"{INLINE} bfloat16 to_bfloat16(float x) {{\n"
        "  return bfloat16{(unsigned short)rounded_pair<bfloat16>(x, 0.0f)};\n}",
        ("rounded_pair_bfloat16",),
    ),
    # Rounds to odd, so rounding the result to a half type is a single rounding overall.
    "odd_float": DeviceFunction(
        f"{INLINE} float odd_float(double x) {{\n  const float cut = __double2float_rz(x);\n"
        "  return x == x && (double)cut != x ? __uint_as_float(__float_as_uint(cut) | 1u) : cut;\n}\n"
        f"{INLINE} float odd_float(long long x) {{\n  const float cut = __ll2float_rz(x);\n"
        "  return (long long)cut != x ? __uint_as_float(__float_as_uint(cut) | 1u) : cut;\n}\n"
        f"{INLINE} float odd_float(unsigned long long x) {{\n  const float cut = __ull2float_rz(x);\n"
        "  return (unsigned long long)cut != x ? __uint_as_float(__float_as_uint(cut) | 1u) : cut;\n}"
    ),
    "to_int8": DeviceFunction(_saturating("to_int8", "int8", -128, 127), ("int8",)),
    "to_int16": DeviceFunction(_saturating("to_int16", "int16", -32768, 32767), ("int16",)),
    "to_uint8": DeviceFunction(_saturating("to_uint8", "uint8", 0, 255), ("uint8",)),
    "to_uint16": DeviceFunction(_saturating("to_uint16", "uint16", 0, 65535), ("uint16",)),
    "to_int": DeviceFunction(_saturating_wide("to_int", "int", "int")),
    "to_int64": DeviceFunction(_saturating_wide("to_int64", "int64", "ll"), ("int64",)),
    "to_uint32": DeviceFunction(_saturating_wide("to_uint32", "uint32", "uint"), ("uint32",)),
    "to_uint64": DeviceFunction(_saturating_wide("to_uint64", "uint64", "ull"), ("uint64",)),
    "exp_term": DeviceFunction(
        f"{INLINE} float exp_term(float x) {{\n  float result;\n"
        '  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(__fmul_rn(x, 1.44269504f)));\n  return result;\n}\n'
        f"{INLINE} double exp_term(double x) {{ return exp(x); }}"
    ),
    "exp2_term": DeviceFunction(
        f"{INLINE} float exp2_term(float x) {{\n  float result;\n"
        '  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));\n  return result;\n}\n'
        f"{INLINE} double exp2_term(double x) {{ return exp2(x); }}"
    ),
    # A polynomial near 0 and 1 - 2 / (e^2x + 1) elsewhere. Both are computed: a branch would diverge within a warp.
    "hyperbolic_tangent": DeviceFunction(
        f"{INLINE} float hyperbolic_tangent(float x) {{\n  const float square = __fmul_rn(x, x);\n"
        "  float series = __fmaf_rn(0.01643758f, square, -0.052671812f);\n"
        "  series = __fmaf_rn(__fmaf_rn(series, square, 0.13320725f), square, -0.33332947f);\n"
        "  const float near = __fmaf_rn(x, __fmaf_rn(series, square, 0.0f), x);  // + 0: the sign of -0 stays\n"
        "  float power, reciprocal;\n"
        '  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(__fmul_rn(fabsf(x), 2.8853901f)));\n'
        '  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(__fadd_rn(power, 1.0f)));\n'
        "  return fabsf(x) < 0.55f ? near : copysignf(__fmaf_rn(reciprocal, -2.0f, 1.0f), x);\n}"
    ),
    # t p(q) e^(-a^2) with a = |x|, t = 1 / (1 + a / 2) and q = 1 - 2t, in which e^(a^2) erfc(a) / t is smooth for all a
    # (Shepherd and Laframboise, 1981). The roundings of 1 + a / 2 and of a^2 are corrected. This takes three quarters
    # of the instructions of the CUDA library's function.
    "complementary_error": DeviceFunction(
        f"{INLINE} float complementary_error(float x) {{\n  float a, t, power;\n"
        '  asm("min.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(fabsf(x)), "f"(10.1f));  // 0 beyond\n'
        "  const float below = __fmaf_rn(a, 0.5f, 1.0f), rest = __fmaf_rn(a, 0.5f, __fsub_rn(1.0f, below));\n"
        '  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(below));\n'
        "  t = __fmaf_rn(t, __fmaf_rn(-rest, t, __fmaf_rn(-below, t, 1.0f)), t);\n"
        "  const float q = __fmaf_rn(t, -2.0f, 1.0f);\n"
        "  float p = __fmaf_rn(-2.3406179e-05f, q, -0.000264581118f);\n"
        "  p = __fmaf_rn(__fmaf_rn(p, q, -0.000363174389f), q, 0.0015214642f);\n"
        "  p = __fmaf_rn(__fmaf_rn(p, q, 0.00321760471f), q, -0.0107514095f);\n"
        "  p = __fmaf_rn(__fmaf_rn(p, q, -0.0182179511f), q, 0.139735758f);\n"
        "  p = __fmaf_rn(__fmaf_rn(p, q, -0.343580455f), q, 0.510791361f);\n"
        "  const float square = __fmul_rn(a, a), exponent = __fmul_rn(square, 1.44269504f);\n"
        '  asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(-exponent));\n'
        "  float lost = __fmaf_rn(square, 1.9259629e-8f, __fmaf_rn(square, 1.44269504f, -exponent));\n"
        "  lost = __fmaf_rn(lost, 0.69314718f, __fmaf_rn(a, a, -square));\n"
        "  const float tail = __fmul_rn(__fmul_rn(t, p), __fmaf_rn(power, -lost, power));\n"
        "  return x < 0.0f ? __fsub_rn(2.0f, tail) : tail;\n}"
    ),
    # Branch-free division in three steps (Markstein, 1990): correctly rounded like `/` if all numbers are far from the
    # ends of the range. Divisions by a common divisor share its reciprocal.
    "quotient": DeviceFunction(
        f"{INLINE} float quotient(float a, float b) {{\n  float estimate;\n"
        '  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(b));\n'
        "  const float reciprocal = __fmaf_rn(estimate, __fmaf_rn(-b, estimate, 1.0f), estimate);\n"
        "  const float near = __fmul_rn(a, reciprocal);\n"
        "  return __fmaf_rn(__fmaf_rn(-b, near, a), reciprocal, near);\n}"
    ),
    "is_plain": DeviceFunction(f"{INLINE} bool is_plain(float x) {{ return fabsf(x) >= 0x1p-80f; }}"),
    "is_plain_divisor": DeviceFunction(
        f"{INLINE} bool is_plain_divisor(float x) {{ return fabsf(x) >= 0x1p-20f && fabsf(x) <= 0x1p64f; }}"
    ),
    "divide": DeviceFunction(
        "__device__ __noinline__ float divide(float a, float b) {\n"
        "  return a == 0 && b != 0 && fabsf(b) < __int_as_float(0x7f800000) ? a * b : a / b;  // 0, and its sign\n}"
    ),
    # Signed arithmetic with wraparound, which C++ leaves undefined.
    "wrapping_add": DeviceFunction(
        f"{TEMPLATE} T wrapping_add(T a, T b) {{ return (T)((unsigned long long)a + (unsigned long long)b); }}"
    ),
    "wrapping_subtract": DeviceFunction(
        f"{TEMPLATE} T wrapping_subtract(T a, T b) {{ return (T)((unsigned long long)a - (unsigned long long)b); }}"
    ),
    "wrapping_multiply": DeviceFunction(
        f"{TEMPLATE} T wrapping_multiply(T a, T b) {{ return (T)((unsigned long long)a * (unsigned long long)b); }}"
    ),
    "wrapping_negate": DeviceFunction(
        f"{TEMPLATE} T wrapping_negate(T a) {{ return (T)(0ull - (unsigned long long)a); }}"
    ),
    "wrapping_absolute": DeviceFunction(
        f"{TEMPLATE} T wrapping_absolute(T a) {{ return a < 0 ? wrapping_negate(a) : a; }}", ("wrapping_negate",)
    ),
    # Integer division: 0 for a divisor of 0; the smallest integer divided by -1 wraps.
    "truncated_divide": DeviceFunction(
        f"{TEMPLATE} T truncated_divide(T a, T b) {{\n"
        "  return b == 0 ? (T)0 : (T)(-1) < (T)0 && b == (T)(-1) ? wrapping_negate(a) : (T)(a / b);\n}",
        ("wrapping_negate",),
    ),
    "truncated_remainder": DeviceFunction(
        f"{TEMPLATE} T truncated_remainder(T a, T b) {{\n"
        "  return b == 0 || ((T)(-1) < (T)0 && b == (T)(-1)) ? (T)0 : (T)(a % b);\n}"
    ),
    "floor_divide": DeviceFunction(
        f"{TEMPLATE} T floor_divide(T a, T b) {{\n  const T remainder = truncated_remainder(a, b);\n"
        "  return (T)(truncated_divide(a, b) - (remainder != 0 && (remainder < 0) != (b < 0)));\n}",
        ("truncated_remainder", "truncated_divide"),
    ),
    "floor_remainder": DeviceFunction(
        f"{TEMPLATE} T floor_remainder(T a, T b) {{\n  const T remainder = truncated_remainder(a, b);\n"
        "  return (T)(remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder);\n}",
        ("truncated_remainder",),
    ),
    # Python's float remainder and the matching floor quotient.
    "float_remainder": DeviceFunction(
        _both(
            f"{INLINE} {{T}} float_remainder({{T}} a, {{T}} b) {{\n  const {{T}} remainder = fmod{{f}}(a, b);\n"
            "  if (b == 0) return remainder;\n"
            "  if (remainder == 0) return copysign{f}(({T})0, b);\n"
            "  return (remainder < 0) != (b < 0) ? remainder + b : remainder;\n}"
        )
    ),
    "float_floor_divide": DeviceFunction(
        _both(
            f"{INLINE} {{T}} float_floor_divide({{T}} a, {{T}} b) {{\n  if (b == 0) return a / b;\n"
            "  const {T} remainder = fmod{f}(a, b);\n"
            "  {T} quotient = (a - remainder) / b;\n"
            "  if (remainder != 0 && (remainder < 0) != (b < 0)) quotient -= 1;\n"
            "  if (quotient == 0) return copysign{f}(({T})0, a / b);\n"
            "  const {T} whole = floor{f}(quotient);\n"
            "  return quotient - whole > ({T})0.5 ? whole + 1 : whole;\n}"
        )
    ),
    # Exponentiation by squaring with wraparound; a negative exponent gives the truncated reciprocal.
    "integer_power": DeviceFunction(
        f"{TEMPLATE} T integer_power(T base, T exponent) {{\n"
        "  if (exponent < 0 && base != (T)1 && base != (T)(-1)) return (T)0;\n"
        "  unsigned long long left = (unsigned long long)(exponent < 0 ? (T)(exponent & 1) : exponent);\n"
        "  unsigned long long square = (unsigned long long)base, result = 1;\n"
        "  for (; left != 0; left >>= 1, square *= square)\n    if (left & 1) result *= square;\n"
        "  return (T)result;\n}"
    ),
    "greatest_divisor": DeviceFunction(
        f"{TEMPLATE} T greatest_divisor(T a, T b) {{\n"
        "  unsigned long long first = a < 0 ? 0ull - (unsigned long long)a : (unsigned long long)a;\n"
        "  unsigned long long second = b < 0 ? 0ull - (unsigned long long)b : (unsigned long long)b;\n"
        "  while (second != 0) {\n    const unsigned long long rest = first % second;\n"
        "    first = second;\n    second = rest;\n  }\n  return (T)first;\n}"
    ),
    # a // d by the inverse 2**62 // d + 1 of d.
    "fast_divide": DeviceFunction(
        f"{INLINE} long long fast_divide(long long a, long long inverse) {{\n"
        "  const unsigned int low = (unsigned int)a, factor = (unsigned int)(inverse >> 32);\n"
        "  const unsigned int carried = __umulhi(low, (unsigned int)inverse);\n"
        "  return (long long)(((unsigned long long)low * factor + carried) >> 30);\n}"
    ),
    # NaN propagates from either side.
    "minimum": DeviceFunction(
        f"{TEMPLATE} T minimum(T a, T b) {{ return a < b || a != a ? a : b; }}\n"
        f"{INLINE} float minimum(float a, float b) {{\n  float result;\n"
        '  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));\n  return result;\n}'
    ),
    "maximum": DeviceFunction(
        f"{TEMPLATE} T maximum(T a, T b) {{ return a > b || a != a ? a : b; }}\n"
        f"{INLINE} float maximum(float a, float b) {{\n  float result;\n"
        '  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));\n  return result;\n}'
    ),
    "shift_left": DeviceFunction(
        f"{TEMPLATE} T shift_left(T a, T b) {{\n"
        "  return (unsigned long long)b < 8 * sizeof(T) ? (T)((unsigned long long)a << b) : (T)0;\n}"
    ),
    "shift_right": DeviceFunction(
        f"{TEMPLATE} T shift_right(T a, T b) {{\n"
        "  return (unsigned long long)b < 8 * sizeof(T) ? (T)(a >> b) : (T)(a < 0 ? -1 : 0);\n}"
    ),
    "shift_right_logical": DeviceFunction(
        f"{TEMPLATE} T shift_right_logical(T a, T b) {{\n"
        "  const unsigned long long bits = (unsigned long long)a & (~0ull >> (64 - 8 * sizeof(T)));\n"
        "  return (unsigned long long)b < 8 * sizeof(T) ? (T)(bits >> b) : (T)0;\n}"
    ),
    "is_nan": DeviceFunction(f"{TEMPLATE} bool is_nan(T x) {{ return x != x; }}"),
    "is_infinite": DeviceFunction(
        f"{INLINE} bool is_infinite(float x) {{ return fabsf(x) == __int_as_float(0x7f800000); }}\n"
        f"{INLINE} bool is_infinite(double x) {{ return fabs(x) == __longlong_as_double(0x7ff0000000000000); }}"
    ),
    "is_finite": DeviceFunction(
        f"{INLINE} bool is_finite(float x) {{ return fabsf(x) < __int_as_float(0x7f800000); }}\n"
        f"{INLINE} bool is_finite(double x) {{ return fabs(x) < __longlong_as_double(0x7ff0000000000000); }}"
    ),
    "is_negative": DeviceFunction(
        f"{INLINE} bool is_negative(float x) {{ return __float_as_int(x) < 0; }}\n"
        f"{INLINE} bool is_negative(double x) {{ return __double_as_longlong(x) < 0; }}"
    ),
    "next_half": DeviceFunction(
        f"{TEMPLATE} T next_half(T x, T y) {{\n  const float a = to_float(x);\n  const float b = to_float(y);\n"
        "  if (a != a) return x;\n  if (b != b || a == b) return y;\n"
        "  if (a == 0) return T{(unsigned short)((y.bits & 0x8000) | 1)};\n"
        "  return T{(unsigned short)((a < b) == (a > 0) ? x.bits + 1 : x.bits - 1)};\n}"
    ),
    **ACCESS_FUNCTIONS,
    **TILE_FUNCTIONS,
}


def prelude(names: Iterable[str]) -> str:
    """Return the source of the entries `names` and their dependencies, in the table's order."""
    wanted: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in wanted:
            continue
        if name not in DEVICE_FUNCTIONS:
            raise InternalError(f"the CUDA prelude has no {name}")
        wanted.add(name)
        pending.extend(DEVICE_FUNCTIONS[name].needs)
    return "".join(definition.source + "\n\n" for name, definition in DEVICE_FUNCTIONS.items() if name in wanted)
