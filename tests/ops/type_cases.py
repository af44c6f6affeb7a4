"""Calls of every function over types, kinds of operand and parameters."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.frontend.numpy_functions import numpy_samples

TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
FEW_TYPES = ("bool", "int8", "uint16", "int64", "float16", "float32", "complex64")
UFUNCS = sorted({f for f in vars(np).values() if isinstance(f, np.ufunc)}, key=lambda f: f.__name__)
OPERATORS: tuple[Callable[[Any, Any], Any], ...] = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.matmul, operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift, operator.lt,
    operator.le, operator.eq, operator.ne, operator.gt, operator.ge,
)  # fmt: skip
NUMBERS = (True, 2, -1, 0.1, 300, 1e5, 2 - 1j, 2049.0000001)


def first(dtype: str) -> Any:
    kind, values = np.dtype(dtype).kind, [True, False, True, False, True, True]
    if kind in "iu":
        values = [3, -2 if kind == "i" else 2, 7, np.iinfo(dtype).max, np.iinfo(dtype).min if kind == "i" else 1, 5]
    elif kind == "f":
        values = [1.5, -2.25, 0.0, -0.0, np.inf, np.nan]
    elif kind == "c":
        values = [1.5 + 2j, -2.25 - 1j, 0.5j, 3, -1 + 0.25j, 0]
    return np.array(values, dtype)


def second(dtype: str) -> Any:
    kind, values = np.dtype(dtype).kind, [True, True, False, False, True, False]
    if kind in "iu":
        values = [2, 3, 1, 5, 1, 4]
    elif kind == "f":
        values = [2.0, 0.3, 1.5, 4.0, 3.0, 1.0]
    elif kind == "c":
        values = [2.0, 0.3 - 1j, -1.5j, 4.0, 3.0 + 1j, 1.0]
    return np.array(values, dtype)


FIRST, SECOND = ({dtype: make(dtype) for dtype in TYPES} for make in (first, second))
SHAPES = ((), (0,), (3, 0), (0, 3), (2, 3))
SHAPED = {(dtype, shape): np.resize(SECOND[dtype], shape) for dtype in TYPES for shape in SHAPES}


@dataclass(frozen=True, eq=False)
class Case:
    """One call: its name, what tells it from others of the name, the call and its arrays."""

    name: str
    told: tuple[Any, ...]
    call: Callable[..., Any]
    arrays: tuple[Any, ...]


def with_two_arrays() -> Iterator[Case]:
    for function in (*UFUNCS, *OPERATORS):
        if not isinstance(function, np.ufunc) or (function.nin == 2 and function.__name__ not in ("matvec", "vecmat")):
            for a in TYPES:
                for b in TYPES:
                    yield Case(function.__name__, (a, b), function, (FIRST[a], SECOND[b]))


def with_one_array() -> Iterator[Case]:
    for ufunc in (u for u in UFUNCS if u.nin == 1):
        for dtype in TYPES:
            yield Case(ufunc.__name__, (dtype,), ufunc, (FIRST[dtype],))
    for sign in (operator.pos, operator.neg, operator.invert, abs):
        for dtype in TYPES:
            yield Case(sign.__name__, (dtype,), sign, (FIRST[dtype],))


def with_a_number() -> Iterator[Case]:
    for function in (*UFUNCS, *OPERATORS):
        name = function.__name__
        if (isinstance(function, np.ufunc) and (function.nin != 2 or function.signature)) or name == "matmul":
            continue
        for dtype in TYPES:
            for number in NUMBERS:
                if "shift" not in name or isinstance(number, complex | float) or number >= 0:
                    yield Case(name, (dtype, number), lambda x, f=function, n=number: f(x, n), (FIRST[dtype],))
                yield Case(name, (number, dtype), lambda x, f=function, n=number: f(n, x), (SECOND[dtype],))


def with_a_named_type() -> Iterator[Case]:
    for ufunc in (u for u in UFUNCS if u.nin < 3 and not u.signature):
        for own in FEW_TYPES:
            arrays = (SECOND[own], SECOND[own])[: ufunc.nin]
            for other in FEW_TYPES:
                for casting in ("no", "safe", "same_kind", "unsafe"):
                    yield Case(
                        ufunc.__name__,
                        (own, f"dtype={other}", casting),
                        lambda *x, u=ufunc, d=other, c=casting: u(*x, dtype=d, casting=c),
                        arrays,
                    )
                if ufunc.nout == 1:
                    yield Case(
                        ufunc.__name__,
                        (own, f"out={other}"),
                        lambda *x, u=ufunc, d=other: u(*x, out=np.zeros_like(x[0], dtype=d)),
                        arrays,
                    )


def of_reductions() -> Iterator[Case]:
    for name in (
        "sum",
        "prod",
        "max",
        "min",
        "any",
        "all",
        "mean",
        "var",
        "argmax",
        "argmin",
        "count_nonzero",
        "cumsum",
    ):
        function = getattr(np, name)
        for dtype in FEW_TYPES:
            for shape in SHAPES:
                x, one_axis = (SHAPED[dtype, shape],), name in ("argmax", "argmin", "cumsum")
                for axis in (None, 0, -1, 1, 2, *(() if one_axis else ((), (0,), (0, 1)))):
                    told = (dtype, shape, axis)
                    for more in parameters(name):
                        yield Case(
                            name, (*told, more), lambda x, f=function, a=axis, m=more: f(x, axis=a, **filled(m, x)), x
                        )


def filled(parameters: dict[str, Any], x: Any) -> dict[str, Any]:
    """With the mask that depends on the array."""
    return {**parameters, "where": x != 1} if "where" in parameters else parameters


def parameters(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{}]
    if name != "cumsum":
        found.append({"keepdims": True})
    if name in ("sum", "prod", "max", "min"):
        found += [{"initial": 1}, {"initial": 2.5}, {"initial": -1}, {"initial": 2, "where": True}]
    if name in ("sum", "prod", "any", "all", "mean"):
        found.append({"where": True})
    if name in ("sum", "prod", "mean", "cumsum"):
        found += [{"dtype": d} for d in ("int8", "float32", "bool", "complex64")]
    return found


def of_products() -> Iterator[Case]:
    matrices = {d: np.resize(SECOND[d], (3, 4)) for d in TYPES}
    wide = {d: np.resize(FIRST[d] if np.dtype(d).kind in "biu" else SECOND[d], (4, 2)) for d in TYPES}
    vectors = {d: np.resize(SECOND[d], (4,)) for d in TYPES}
    for name, call, left, right in (
        ("@", operator.matmul, matrices, wide), ("@ of a vector", operator.matmul, matrices, vectors),
        ("dot", np.dot, vectors, vectors), ("inner", np.inner, matrices, vectors), ("vdot", np.vdot, vectors, vectors),
        ("einsum", lambda a, b: np.einsum("ij,jk->", a, b), matrices, wide),
        ("tensordot", lambda a, b: np.tensordot(a, b, 1), matrices, wide), ("outer", np.outer, vectors, vectors),
    ):  # fmt: skip
        for a in TYPES:
            for b in TYPES:
                yield Case(name, (a, b), call, (left[a], right[b]))


KINDS: dict[str, Callable[[Any], Any]] = {
    "array": lambda x: x,
    "0-d array": lambda x: np.array(x[0]),
    "NumPy scalar": lambda x: x[0],
    "number": lambda x: x[0].item(),
    "list": lambda x: x.tolist(),
}
"""What an operand is made from an array with one axis."""


def with_kinds() -> Iterator[Case]:
    """Two operands of all kinds; lists and numbers stand in the function, all others are arguments."""
    for function in (*UFUNCS, *OPERATORS):
        if isinstance(function, np.ufunc) and (function.nin != 2 or function.signature):
            continue
        for (one, make_one), (two, make_two) in itertools.product(KINDS.items(), repeat=2):
            if {one, two} <= {"number", "list"} or (
                function is operator.matmul and not {one, two} <= {"array", "list"}
            ):
                continue
            for a, b in itertools.product(FEW_TYPES, repeat=2):
                told = (a, one, b, two)
                yield of_operands(function.__name__, told, function, make_one(FIRST[a]), make_two(SECOND[b]))


def of_operands(name: str, told: tuple[Any, ...], function: Callable[..., Any], *operands: Any) -> Case:
    """A call whose arrays and NumPy scalars are arguments of the fused function."""
    arrays = tuple(x for x in operands if isinstance(x, (np.ndarray, np.generic)))
    if len(arrays) == len(operands):
        return Case(name, told, function, arrays)

    def call(*given: Any) -> Any:
        following = iter(given)
        return function(*(next(following) if isinstance(x, (np.ndarray, np.generic)) else x for x in operands))

    return Case(name, told, call, arrays)


def with_one_scalar() -> Iterator[Case]:
    for ufunc in (u for u in UFUNCS if u.nin == 1):
        for kind in ("0-d array", "NumPy scalar"):
            for dtype in TYPES:
                yield Case(ufunc.__name__, (dtype, kind), ufunc, (KINDS[kind](FIRST[dtype]),))


def of_methods() -> Iterator[Case]:
    """reduce, accumulate, outer and at of every ufunc with two operands."""
    for ufunc in (u for u in UFUNCS if u.nin == 2 and u.nout == 1 and not u.signature):
        name = ufunc.__name__
        for dtype in TYPES:
            for shape in ((6,), (2, 3), (0, 3)):
                x = np.resize(SECOND[dtype], shape)
                for more in (
                    {},
                    {"axis": -1},
                    {"axis": None},
                    {"keepdims": True},
                    {"dtype": "float32"},
                    {"initial": 1},
                ):
                    call = lambda x, u=ufunc, m=more: u.reduce(x, **m)  # noqa: E731
                    yield Case(f"{name}.reduce", (dtype, shape, more), call, (x,))
                for more in ({}, {"axis": -1}, {"dtype": "int64"}):
                    call = lambda x, u=ufunc, m=more: u.accumulate(x, **m)  # noqa: E731
                    yield Case(f"{name}.accumulate", (dtype, shape, more), call, (x,))
            for other in FEW_TYPES:
                yield Case(f"{name}.outer", (dtype, other), ufunc.outer, (FIRST[dtype], SECOND[other]))
                call = lambda x, y, u=ufunc: (t := x + x[:1] * 0, u.at(t, [0, 2, 0], y[:3]))[0]  # noqa: E731
                yield Case(f"{name}.at", (dtype, other), call, (SECOND[dtype], SECOND[other]))


METHODS = (
    "x.sum()", "x.prod(0)", "x.max()", "x.min(0, keepdims=True)", "x.any()", "x.all(-1)", "x.mean()", "x.mean(0)",
    "x.var()", "x.std(0, ddof=1)", "x.ptp()", "x.argmax()", "x.argmin(0)", "x.cumsum()", "x.cumprod()", "x.round()",
    "x.round(1)", "x.round(-1)", "x.clip(1, 2)", "x.clip(None, 2)", "x.clip(-1, 300)", "x.clip(0.5, 1.5)", "x.conj()",
    "x.real", "x.imag", "x.copy()", "x.astype('int8')", "x.astype('float16')", "x.astype('complex64')", "x.T",
    "x.reshape(-1)", "x.ravel()", "x.take(0)", "x.take([0])", "x.repeat(2)", "x.dot(x)", "x @ x", "x[0]", "x[:1]",
    "x[...]", "x.squeeze()", "x.sum(dtype='float32')", "x.mean(dtype='float32')", "x.sum(initial=2)", "abs(x)", "-x",
    "+x", "~x", "round(x.sum(), 1)", "divmod(x, 3)", "divmod(7, x)", "x == [1, 2, 3, 4, 5, 6]",
    "[1, 2, 3, 4, 5, 6] * x",
    "x + [0.5] * 6", "x // (1, 2, 3, 4, 5, 6)", "x.sum() / 3", "x.sum() * x", "x.max() + 1", "x.mean() * 2 + x",
)  # fmt: skip


def of_array_methods() -> Iterator[Case]:
    for text in METHODS:
        call = eval(f"lambda x: {text}")
        for dtype in TYPES:
            for make in (FIRST, SECOND):
                yield Case(text, (dtype, "first" if make is FIRST else "second"), call, (make[dtype],))
            yield Case(text, (dtype, "0-d array"), call, (np.array(SECOND[dtype][0]),))
            yield Case(text, (dtype, "NumPy scalar"), call, (SECOND[dtype][0],))


def of_functions() -> Iterator[Case]:
    """The sample calls of every function, with their arrays in every type."""
    cast: dict[tuple[str, str], Any] = {}
    for name, calls in numpy_samples.SAMPLES.items():
        for text in calls:
            names = [n for n in numpy_samples.used(text) if n != "J" or text.partition("(")[2][:1] == "J"]
            call = eval(f"lambda {', '.join(names)}: {text}", {"np": np, **numpy_samples.NAMES})
            for dtype in TYPES:
                for one in names:
                    if (one, dtype) not in cast:
                        cast[one, dtype] = typed(numpy_samples.NAMES[one], dtype)
                yield Case(name, (text, dtype), call, tuple(cast[one, dtype] for one in names))


KINDS_OF_ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "0-d array": lambda x: np.array(x.ravel()[0]),
    "NumPy scalar": lambda x: x.ravel()[0],
    "number": lambda x: x.ravel()[0].item(),
    "list": lambda x: x.tolist(),
    "Fortran order": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "reversed": lambda x: x[::-1].copy()[::-1],
}
"""What an argument of a function is made from an array."""


def of_functions_of_kinds() -> Iterator[Case]:
    """A sample call of every function, with one of its arrays of each kind and few types."""
    for name, calls in numpy_samples.SAMPLES.items():
        for text in calls[:2]:
            names = [n for n in numpy_samples.used(text) if n != "J" or text.partition("(")[2][:1] == "J"]
            for changed, (kind, make), dtype in itertools.product(names, KINDS_OF_ARGUMENTS.items(), FEW_TYPES):
                values = [typed(numpy_samples.NAMES[one], dtype) for one in names]
                values = [make(value) if one == changed else value for one, value in zip(names, values, strict=True)]
                call = eval(f"lambda {', '.join(names)}: {text}", {"np": np, **numpy_samples.NAMES})
                yield of_operands(name, (text, changed, kind, dtype), call, *values)


def typed(array: Any, dtype: str) -> Any:
    """Finite elements of an array in a type; what the type does not hold is cut off."""
    finite = np.nan_to_num(array, nan=1.0, posinf=3.0, neginf=-3.0)
    kind = np.dtype(dtype).kind
    if kind in "biu":
        finite = np.clip(finite.real, 0 if kind == "u" else -100, 100)
    return (finite if kind == "c" else finite.real).astype(dtype)


GENERATORS = (
    with_one_array, with_two_arrays, with_a_number, with_a_named_type, of_reductions, of_products, with_kinds,
    with_one_scalar, of_methods, of_array_methods, of_functions, of_functions_of_kinds,
)  # fmt: skip


def covering(cases: Iterable[Case], seed: int = 0) -> list[Case]:
    """Cases in which every pair of a name, a type, a kind or a parameter occurs that occurs in one of the cases."""
    every = list(cases)
    random.Random(seed).shuffle(every)
    covered: set[Any] = set()
    chosen = []
    for case in every:
        factors = list(enumerate(map(str, (case.name, *case.told))))
        new = set(itertools.combinations(factors, 2)) - covered
        if new:
            covered |= new
            chosen.append(case)
    return chosen
