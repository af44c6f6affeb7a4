"""Partial derivatives of ufuncs of scipy.special, as expressions of others."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse.ir.derivatives import Application

Partial = Callable[..., Any] | None
"""The derivative by one operand, as a function of scipy.special, the result and the operands; None for none."""

_ROOT_PI = math.sqrt(math.pi)


def _by_order(name: str, sign: int) -> tuple[Partial, Partial]:
    """Of Bessel functions of an order: the mean of the neighbouring orders, of which one may count negatively."""

    def by_argument(special: Any, y: Any, order: Any, x: Any) -> Any:
        function = getattr(special, name)
        return (function(order - 1, x) + sign * function(order + 1, x)) / 2

    return None, by_argument


PARTIALS: Mapping[str, tuple[Partial, ...]] = {
    "psi": (lambda s, y, x: s.zeta(2.0, x),),
    "digamma": (lambda s, y, x: s.zeta(2.0, x),),
    "gamma": (lambda s, y, x: y * s.psi(x),),
    "rgamma": (lambda s, y, x: -y * s.psi(x),),
    "loggamma": (lambda s, y, x: s.psi(x),),
    "zeta": (None, lambda s, y, x, q: -x * s.zeta(x + 1, q)),
    "beta": (lambda s, y, a, b: y * (s.psi(a) - s.psi(a + b)), lambda s, y, a, b: y * (s.psi(b) - s.psi(a + b))),
    "betaln": (lambda s, y, a, b: s.psi(a) - s.psi(a + b), lambda s, y, a, b: s.psi(b) - s.psi(a + b)),
    "poch": (lambda s, y, z, m: y * (s.psi(z + m) - s.psi(z)), lambda s, y, z, m: y * s.psi(z + m)),
    "gammainc": (None, lambda s, y, a, x: np.exp((a - 1) * np.log(x) - x - s.gammaln(a))),
    "gammaincc": (None, lambda s, y, a, x: -np.exp((a - 1) * np.log(x) - x - s.gammaln(a))),
    "betainc": (None, None, lambda s, y, a, b, x: np.exp((a - 1) * np.log(x) + (b - 1) * np.log1p(-x) - s.betaln(a, b))),
    "i0": (lambda s, y, x: s.i1(x),),
    "i1": (lambda s, y, x: (s.i0(x) + s.iv(2.0, x)) / 2,),
    "i0e": (lambda s, y, x: s.i1e(x) - np.sign(x) * y,),
    "i1e": (lambda s, y, x: (s.i0e(x) + s.ive(2.0, x)) / 2 - np.sign(x) * y,),
    "iv": _by_order("iv", 1),
    "ive": (None, lambda s, y, v, x: (s.ive(v - 1, x) + s.ive(v + 1, x)) / 2 - np.sign(x) * y),
    "j0": (lambda s, y, x: -s.j1(x),),
    "j1": (lambda s, y, x: (s.j0(x) - s.jv(2.0, x)) / 2,),
    "jv": _by_order("jv", -1),
    "y0": (lambda s, y, x: -s.y1(x),),
    "y1": (lambda s, y, x: (s.y0(x) - s.yv(2.0, x)) / 2,),
    "yv": _by_order("yv", -1),
    "k0": (lambda s, y, x: -s.k1(x),),
    "k1": (lambda s, y, x: -(s.k0(x) + s.kv(2.0, x)) / 2,),
    "kv": (None, lambda s, y, v, x: -(s.kv(v - 1, x) + s.kv(v + 1, x)) / 2),
    "erfcx": (lambda s, y, x: 2 * x * y - 2 / _ROOT_PI,),
    "erfi": (lambda s, y, x: 2 / _ROOT_PI * np.exp(x * x),),
    "dawsn": (lambda s, y, x: 1 - 2 * x * y,),
    "ndtri": (lambda s, y, x: math.sqrt(2 * math.pi) * np.exp(y * y / 2),),
    "log_ndtr": (lambda s, y, x: np.exp(-x * x / 2 - y) / math.sqrt(2 * math.pi),),
    "expi": (lambda s, y, x: np.exp(x) / x,),
    "exp1": (lambda s, y, x: -np.exp(-x) / x,),
    "expn": (None, lambda s, y, n, x: -s.expn(n - 1, x)),
    "exprel": (lambda s, y, x: (np.exp(x) - y) / x,),
    "cosm1": (lambda s, y, x: -np.sin(x),),
    "spence": (lambda s, y, x: np.log(x) / (1 - x),),
    "ellipk": (lambda s, y, m: (s.ellipe(m) / (1 - m) - y) / (2 * m),),
    "ellipe": (lambda s, y, m: (y - s.ellipk(m)) / (2 * m),),
    "wrightomega": (lambda s, y, z: y / (1 + y),),
    "boxcox": (lambda s, y, x, c: np.power(x, c - 1), None),
    "owens_t": (
        lambda s, y, h, a: -np.exp(-h * h / 2) * s.erf(a * h / math.sqrt(2)) / (2 * math.sqrt(2 * math.pi)),
        lambda s, y, h, a: np.exp(-h * h * (1 + a * a) / 2) / (2 * math.pi * (1 + a * a)),
    ),
}  # fmt: skip
"""The partial derivatives of each function, by name."""


def tangent(node: Application, tangents: Sequence[Any]) -> Sequence[Any]:
    """The rule of the op that calls a ufunc of scipy.special."""
    name = node.attributes["function"]
    node.require(name in PARTIALS, f"function={name!r}", "compute it outside of the differentiated function")
    special = importlib.import_module("scipy.special")
    places = iter(zip(node.operands, tangents, strict=True))
    pairs = [next(places) if number is None else (number, None) for number in node.attributes["numbers"]]
    operands = [operand for operand, _ in pairs]
    total = None
    for position, (_, direction) in enumerate(pairs):
        if direction is None:
            continue
        partial = PARTIALS[name][position]
        node.require(
            partial is not None, f"function={name!r}, by argument {position}",
            "leave that argument out of what is differentiated",
        )  # fmt: skip
        assert partial is not None
        term = direction * partial(special, node.results[0], *operands)
        total = term if total is None else total + term
    return (total,)


def of_bessel(node: Application, tangents: Sequence[Any]) -> Sequence[Any]:
    """The rule of np.i0."""
    return (tangents[0] * importlib.import_module("scipy.special").i1(node.operands[0]),)
