"""Symbolic integers: the extents of axes, and index expressions over them.

An extent is a Python int or an `Expression`: a polynomial over symbols, and over quotients, remainders, minima and
maxima of expressions (`polynomial`). Division and comparison (`division`) simplify with facts that follow from the
ranges of the symbols (`proofs`). `evaluation` computes an extent for given values of its symbols.

Must not know: fusions, ops, kernels.
"""

from tracefuse.ir.extents.division import ceildiv, floordiv, maximum, minimum, mod
from tracefuse.ir.extents.evaluation import evaluate, python_text
from tracefuse.ir.extents.lower_bounds import LowerBounds
from tracefuse.ir.extents.polynomial import (
    Atom,
    Binary,
    Expression,
    Extent,
    Symbol,
    as_atom,
    as_symbol,
    divide_exactly,
    from_terms,
    input_extent,
    product,
    scalar_extent,
    symbol,
    symbol_of,
    terms_of,
)
from tracefuse.ir.extents.proofs import is_nonnegative, is_positive_divisor
from tracefuse.ir.extents.substitution import substitute, symbols

__all__ = [
    "Atom",
    "Binary",
    "Expression",
    "Extent",
    "LowerBounds",
    "Symbol",
    "as_atom",
    "as_symbol",
    "ceildiv",
    "divide_exactly",
    "evaluate",
    "floordiv",
    "from_terms",
    "input_extent",
    "is_nonnegative",
    "is_positive_divisor",
    "maximum",
    "minimum",
    "mod",
    "product",
    "python_text",
    "scalar_extent",
    "substitute",
    "symbol",
    "symbol_of",
    "symbols",
    "terms_of",
]
