"""Functions of complex numbers as programs of real functions, in the language of scalar code.

A program consists of lines `name = expression`; its last line is the result. It uses the operands a and b and their
parts: a = x + i y, b = u + i v. Lines may use complex functions of this table. Names in capitals are numbers that
depend on the type of the parts (`numbers`).

Branch cuts, and the values at infinities, NaN and signed zeros, follow C99's annex G, as NumPy's functions do.
Products follow NumPy, without recovery of infinities. The inverse functions use Kahan's formulas ("Branch cuts for
complex elementary functions", 1987): sums of terms with one sign, which avoid cancellation.

Must not know: single ops.
"""

from __future__ import annotations

import math

import numpy as np

from tracefuse.caches import memoized
from tracefuse.dtypes import DType

# Without named steps: the combiner of a group reduction has no statements.
_TAKEN = "(x {0} u) & (y == y) & (v == v) | (x == u) & (y {0}= v) | (x != x) | (y != y)"
_FIRST = f"complex(x if {_TAKEN} else u, y if {_TAKEN} else v)"

_NORM = """
    large = maximum(abs(x), abs(y))
    small = minimum(abs(x), abs(y))
    scale = DOWN if large > HUGE else (UP if large < SMALL else 1)
    back = UNDO_DOWN if large > HUGE else (UNDO_UP if large < SMALL else 1)
"""

_SQUARE_OF_NORM = """
    large = maximum(abs(x), abs(y))
    small = minimum(abs(x), abs(y))
    p = large * large
    q = small * small
    whole = p + q
    rest = whole - p
    error = (p - (whole - rest)) + (q - rest) + (fma(large, large, -p) + fma(small, small, -q))
"""
"""The square of the magnitude, as the unrounded sum of `whole` and `error`."""

_EXPONENTIALS = """
    size = abs(x)
    beyond = size > LIMIT
    half = exp(size - LIMIT) * 0.5
    c = half if beyond else cosh(x)
    s = copysign(half, x) if beyond else sinh(x)
    factor = EXP_LIMIT if beyond else 1
    wild = ~isfinite(y)
"""
"""cosh(x) and sinh(x) over `factor`: they may overflow where their product with a sine does not."""

_ROOTS = """
    r = sqrt(complex(1 - x, -y))
    q = sqrt(complex(1 + x, y))
    far = (maximum(abs(x), abs(y)) > FAR) | isinf(x) | isinf(y)
    distance = real(log(a)) + LN2
"""
"""sqrt(1 - a) and sqrt(1 + a); far from 0 both are lost in a, and the functions are logarithms."""

_TEXTS = {
    "mul": "complex(x * u - y * v, x * v + y * u)",
    # Smith's method, as in NumPy.
    "div": """
        wide = abs(u) >= abs(v)
        top = v if wide else u
        bottom = u if wide else v
        ratio = top / bottom
        scale = 1 / (bottom + top * ratio)
        p = x if wide else y
        q = y if wide else x
        zero = (u == 0) & (v == 0)
        left = x / abs(u) if zero else (p + q * ratio) * scale
        right = y / abs(u) if zero else (q - p * ratio if wide else p * ratio - q) * scale
        complex(left, right)
        """,
    "abs": _NORM + """
        p = large * scale
        q = small * scale
        INFINITY if isinf(x) | isinf(y) else sqrt(p * p + q * q) * back
        """,
    "sqrt": _NORM + """
        p = abs(x) * scale
        q = abs(y) * scale
        root = p if isinf(x) else sqrt((p + sqrt(p * p + q * q)) * 0.5)
        other = q / (2 * root)
        half = HALF_DOWN if large > HUGE else (HALF_UP if large < SMALL else 1)
        left = (root if x >= 0 else other) * half
        right = copysign((other if x >= 0 else root) * half, y)
        zero = large == 0
        complex(INFINITY if isinf(y) else (0 if zero else left), y if zero | isinf(y) else right)
        """,
    "rsqrt": "1 / sqrt(a)",
    "exp": """
        beyond = x > LIMIT
        size = exp(x - (LIMIT if beyond else 0))
        factor = EXP_LIMIT if beyond else 1
        lost = isinf(x) & ~isfinite(y)
        left = (x if x > 0 else 0) if lost else size * cos(y) * factor
        right = y if y == 0 else (copysign(0, y) if lost & (x < 0) else size * sin(y) * factor)
        complex(left, right)
        """,
    "exp2": "exp(complex(x * LN2, y * LN2))",
    "expm1": """
        e = exp(a)
        s = sin(y * 0.5)
        complex(expm1(x) * cos(y) - 2 * s * s if abs(x) < 1 else real(e) - 1, imag(e))
        """,
    "log": _SQUARE_OF_NORM + """
        ratio = small / large
        near = 0.5 * log1p((whole - 1) + error)
        far = log(large) + 0.5 * log1p(ratio * ratio)
        size = near if (large >= 0.5) & (large <= 2) else (-INFINITY if large == 0 else far)
        complex(INFINITY if isinf(x) | isinf(y) else size, atan2(y, x))
        """,
    "log2": """
        l = log(a)
        complex(real(l) * LOG2_E, imag(l) * LOG2_E)
        """,
    "log10": """
        l = log(a)
        complex(real(l) * LOG10_E, imag(l) * LOG10_E)
        """,
    "log1p": _SQUARE_OF_NORM + """
        near = 0.5 * log1p((2 * x + whole) + error)
        far = real(log(complex(1 + x, y)))
        complex(near if large < 0.5 else far, atan2(y, 1 + x))
        """,
    "sinh": _EXPONENTIALS + """
        left = abs(x) if wild & isinf(x) else (x if wild & (x == 0) else s * cos(y) * factor)
        complex(left, y if y == 0 else c * sin(y) * factor)
        """,
    "cosh": _EXPONENTIALS + """
        left = INFINITY if wild & isinf(x) else c * cos(y) * factor
        right = 0 if wild & (x == 0) else s * sin(y) * factor
        complex(left, copysign(1, x) * y if y == 0 else right)
        """,
    "tanh": """
        size = abs(x)
        beyond = (size > FLAT) & (isfinite(y) | isinf(x))
        t = tan(y)
        s = copysign(sinh(minimum(size, FLAT)), x)
        slope = 1 + t * t
        below = 1 + slope * s * s
        e = exp(-size)
        end = copysign(0, y) if isinf(x) & ~isfinite(y) else 4 * sin(y) * cos(y) * e * e
        left = copysign(1, x) if beyond else slope * sqrt(1 + s * s) * s / below
        complex(x if x == 0 else left, y if y == 0 else (end if beyond else t / below))
        """,
    "sin": """
        w = sinh(complex(y, x))
        complex(imag(w), real(w))
        """,
    "cos": "cosh(complex(-y, x))",
    "tan": """
        w = tanh(complex(y, x))
        complex(imag(w), real(w))
        """,
    "acos": _ROOTS + """
        left = HALF_PI if x == 0 else (atan2(abs(y), x) if far else 2 * atan2(real(r), real(q)))
        right = copysign(distance, -y) if far else asinh(real(q) * imag(r) - imag(q) * real(r))
        complex(left, right)
        """,
    "asin": _ROOTS + """
        left = x if x == 0 else atan2(x, abs(y) if far else real(r) * real(q) - imag(r) * imag(q))
        right = copysign(distance, y) if far else asinh(real(r) * imag(q) - imag(r) * real(q))
        complex(left, right)
        """,
    "atan": """
        w = atanh(complex(y, x))
        complex(imag(w), real(w))
        """,
    "asinh": """
        w = asin(complex(y, x))
        complex(imag(w), real(w))
        """,
    "acosh": """
        r = sqrt(complex(x - 1, y))
        q = sqrt(complex(x + 1, y))
        far = (maximum(abs(x), abs(y)) > FAR) | isinf(x) | isinf(y)
        left = real(log(a)) + LN2 if far else asinh(real(r) * real(q) + imag(r) * imag(q))
        right = atan2(y, x) if far else 2 * atan2(imag(r), real(q))
        complex(left, copysign(HALF_PI, y) if x == 0 else right)
        """,
    "atanh": """
        size = abs(x)
        gap = abs(complex(1 - size, y))
        norm = abs(a)
        far = (maximum(size, abs(y)) > FAR) | isinf(x) | isinf(y)
        middle = 0.25 * log1p(4 * size / (gap * gap))
        near = 0.5 * (LN2 - log(gap)) if gap < EPSILON else middle
        end = 0 if isinf(norm) else size / norm / norm
        angle = 0.5 * atan2(2 * y, (1 - size) * (1 + size) - y * y)
        right = y if isnan(y) else (copysign(HALF_PI, y) if far else angle)
        complex(x if x == 0 else copysign(end if far else near, x), right)
        """,
    # Small whole exponents are products, as in NumPy. For a constant exponent the compiler keeps one of the cases.
    "pow": """
        square = a * a
        cube = a * square
        few = square if u == 2 else (cube if u == 3 else a)
        e = few if (v == 0) & ((u == 1) | (u == 2) | (u == 3)) else exp(b * log(a))
        nothing = (u == 0) & (v == 0)
        empty = (x == 0) & (y == 0)
        undefined = ~(u > 0)
        left = 1 if nothing else (real(e) if ~empty else (NAN if undefined else 0))
        right = 0 if nothing else (imag(e) if ~empty else (NAN if undefined else 0))
        complex(left, right)
        """,
    "sign": """
        size = abs(a)
        lost = isinf(x) & isinf(y)
        zero = size == 0
        left = copysign(1, x) if isinf(x) else (0 if isinf(y) | zero else x / size)
        right = copysign(1, y) if isinf(y) else (0 if isinf(x) | zero else y / size)
        complex(NAN if lost else left, NAN if lost else right)
        """,
    "round": "complex(round(x), round(y))",
    "isnan": "isnan(x) | isnan(y)",
    "isinf": "isinf(x) | isinf(y)",
    "isfinite": "isfinite(x) & isfinite(y)",
    "eq": "(x == u) & (y == v)",
    "ne": "(x != u) | (y != v)",
    # The order of real, then of imaginary parts; a NaN in either imaginary part makes numbers unordered, as in NumPy.
    "lt": "(x < u) & (y == y) & (v == v) | (x == u) & (y < v)",
    "le": "(x < u) & (y == y) & (v == v) | (x == u) & (y <= v)",
    "gt": "(x > u) & (y == y) & (v == v) | (x == u) & (y > v)",
    "ge": "(x > u) & (y == y) & (v == v) | (x == u) & (y >= v)",
    "maximum": _FIRST.format(">"),
    "minimum": _FIRST.format("<"),
}  # fmt: skip

FUNCTIONS = {name: "\n".join(line.strip() for line in text.splitlines()) for name, text in _TEXTS.items()}
"""The program of each primitive on complex numbers."""


@memoized("constants of complex functions", key="type of a part", most=None, bound="2 types", clears=False)
def numbers(part: DType) -> dict[str, float]:
    """Returns the constants in capitals for parts of a type: float32 or float64.

    HUGE and SMALL: the range outside which a square may overflow or lose digits. DOWN and UP: powers of 4 that scale
    back into this range; UNDO their inverses, HALF the roots of these. FAR: the magnitude at which adding 1 has no
    effect. LIMIT: the largest whole number whose exponential does not overflow. FLAT: the argument from which tanh is
    1.
    """
    single = part.itemsize == 4
    down, up = (-66, 100) if single else (-514, 630)
    limit = 88.0 if single else 709.0
    epsilon = float(np.finfo(np.float32 if single else np.float64).eps)
    return {
        "INFINITY": math.inf, "NAN": math.nan, "HALF_PI": math.pi / 2,
        "LN2": math.log(2), "LOG2_E": 1 / math.log(2), "LOG10_E": 1 / math.log(10),
        "EPSILON": epsilon, "FAR": 1 / epsilon,
        "HUGE": 2.0 ** (62 if single else 510), "SMALL": 2.0 ** (-50 if single else -450),
        "DOWN": 2.0**down, "UNDO_DOWN": 2.0**-down, "HALF_DOWN": 2.0 ** (-down // 2),
        "UP": 2.0**up, "UNDO_UP": 2.0**-up, "HALF_UP": 2.0 ** (-up // 2),
        "LIMIT": limit, "EXP_LIMIT": math.exp(limit), "FLAT": 11.0 if single else 22.0,
    }  # fmt: skip
