"""How the outcomes of calls differ from NumPy's.

Calls are recorded many in one trace and evaluated by the reference implementation. What differs on purpose is in
`explanation`, and in docs/numerics.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.ops.type_cases import Case
from tracefuse import ScalarError, TraceError, UnsupportedError, fuse
from tracefuse.frontend.tracer.values.traced import Traced


def outcome(call: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call(*arrays)
    except Exception as error:
        return error


def traced_outcomes(cases: Sequence[Case], target: str = "reference") -> list[Any]:
    """What the calls give in one fused function; where one of them fails at the call, by halves.

    A result is a pair of its value and whether it is an immutable scalar, as NumPy's scalars are. A reduce or
    accumulate has a trace of its own: NumPy leaks the operands of an override that raises, so the trace would not end.
    """
    alone = len(cases) == 1
    if not alone and any(is_leaky(case) for case in cases):
        singles = {k: traced_outcomes([case], target)[0] for k, case in enumerate(cases) if is_leaky(case)}
        others = iter(traced_outcomes([case for case in cases if not is_leaky(case)], target))
        return [singles[k] if k in singles else next(others) for k in range(len(cases))]
    arrays = {id(x): x for case in cases for x in case.arrays}
    position = {key: k for k, key in enumerate(arrays)}
    operands = [[position[id(x)] for x in case.arrays] for case in cases]
    calls = [case.call for case in cases]
    outcomes: list[Any] = []

    def all_of_them(given: list[Any]) -> list[Any]:
        every = [outcome(call, [given[k] for k in which]) for call, which in zip(calls, operands, strict=True)]
        if alone and isinstance(every[0], Exception):
            raise every[0]
        outcomes[:] = [without_frames(one) if isinstance(one, Exception) else is_immutable(one) for one in every]
        return [one for one in every if not isinstance(one, Exception)]

    try:
        results = iter(fuse(all_of_them, target=target, exact_half=True)(list(arrays.values())))
    except Exception as error:  # a reference implementation raises what NumPy raises
        middle = len(cases) // 2
        if not middle:
            return [error]
        return [*traced_outcomes(cases[:middle], target), *traced_outcomes(cases[middle:], target)]
    return [one if isinstance(one, Exception) else (next(results), one) for one in outcomes]


def is_leaky(case: Case) -> bool:
    """Whether NumPy leaks the operands of the call if an override raises."""
    return case.name.endswith((".reduce", ".accumulate"))


def without_frames(error: Exception) -> Exception:
    """The error without what leads to traced values: its frames, the errors before it, the object of an attribute."""
    if isinstance(error, AttributeError):
        error.obj = None
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def is_immutable(traced: Any) -> Any:
    """Whether a traced value is a scalar that an in-place operation binds anew; for each entry of a tuple."""
    if isinstance(traced, (tuple, list)):
        return [is_immutable(one) for one in traced]
    return traced.is_immutable if isinstance(traced, Traced) else None


UNSTABLE_ORDER = ("argpartition", "partition", "x.partition")


def explanation(case: Case, expected: Any, found: Any) -> str | None:
    """Why an outcome differs from NumPy's on purpose; docs/numerics.md has these classes."""
    if isinstance(found, UnsupportedError):
        return "refused with a hint"
    if isinstance(found, ScalarError | TraceError) and not isinstance(expected, Exception):
        return "refused with a hint"
    told = [str(t) for t in (case.name, *case.told)]
    if case.name.split(".")[0] == "reciprocal":
        return "the reciprocal of the integer 0 is 0"
    if "AttributeError" in repr(expected) or case.name == "x @ x":
        return "methods that CuPy's arrays have, and products of scalars, are other errors"
    if case.name.startswith(("histogram", "unwrap", "ediff1d", "gradient")):
        return "histogram, unwrap, ediff1d and gradient of narrow types"
    if isinstance(expected, IndexError) and isinstance(found, TypeError):
        return "an index of another type is a TypeError"
    if case.name in UNSTABLE_ORDER:
        return "the order within the parts of a partition"
    if any("argsort" in t or "lexsort" in t for t in told):
        return "sorts are stable"
    return None


def difference(expected: Any, found: Any, immutable: Any, is_of_halves: bool) -> str | None:
    """In what two outcomes differ."""
    if isinstance(expected, Exception) or isinstance(found, Exception):
        kinds = TypeError, ValueError, OverflowError, IndexError, RuntimeError, ZeroDivisionError
        if not isinstance(expected, Exception):
            return f"raises {found!r}"
        if not isinstance(found, Exception):
            return f"gives a result where NumPy raises {expected!r}"
        same = isinstance(found, UnsupportedError) or any(
            isinstance(expected, k) and isinstance(found, k) for k in kinds
        )
        return None if same else f"raises {found!r} where NumPy raises {expected!r}"
    if isinstance(expected, (tuple, list)):
        if len(expected) != len(found):
            return f"{len(found)} results, not {len(expected)}"
        each = immutable if isinstance(immutable, list) else [None] * len(found)
        entries = zip(expected, found, each, strict=True)
        return next((d for e, f, i in entries if (d := difference(e, f, i, is_of_halves))), None)
    if immutable is not None and immutable != isinstance(expected, (np.generic, bool, int, float)):
        return f"{'a scalar' if immutable else 'an array'}, not {type(expected).__name__}"
    a, b = np.asarray(expected), np.asarray(found)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{b.dtype}{b.shape}, not {a.dtype}{a.shape}"
    if a.dtype.kind in "biu":
        return None if np.array_equal(a, b) else "another value"
    if a.dtype.kind not in "fc":
        return None
    unit = 8 * float(np.finfo(np.float16 if is_of_halves else a.dtype).eps)
    wide = complex if a.dtype.kind == "c" else float
    with np.errstate(all="ignore"):
        close = np.allclose(a.astype(wide), b.astype(wide), rtol=unit, atol=unit, equal_nan=True)
    return None if close else "another value"


def differences(cases: Sequence[Case], target: str = "reference", batch: int = 400) -> Iterator[tuple[Case, str, str]]:
    """Yields (case, difference, explanation) for each case whose outcome is not NumPy's."""
    for start in range(0, len(cases), batch):
        some = cases[start : start + batch]
        for case, traced in zip(some, traced_outcomes(some, target), strict=True):
            found, immutable = traced if isinstance(traced, tuple) else (traced, None)
            expected = outcome(case.call, [x.copy() for x in case.arrays])
            is_of_halves = any(x.dtype.name in ("float16", "bool", "int8", "uint8") for x in case.arrays)
            differs = difference(expected, found, immutable, is_of_halves)
            if differs:
                yield case, differs, explanation(case, expected, found) or ""
