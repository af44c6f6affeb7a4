"""Random NumPy programs against NumPy: `python -m tests.soaks.programs SEED N [--target T] [--no-state] [--show K]
[--uses] [--cover FILE] [--seconds S]`.

Runs N programs from a seed, each several times with changed values, layouts, sizes and captured state. Compares results
with their types, arguments, reachable state and errors with the plain function. Prints each new kind of difference with
a program that was made as short as possible, then the counts, and how often each function met each class of types.

The text of a program is the same for a seed on every machine. With `--cover` programs have 3 to 6 statements, of the
functions that met their class of types least often, by the counts in the file, which the run updates. The root of the
repository must be on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import copy
import re
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from tests.programs.comparison import difference
from tests.random_programs.program_coverage import LEAST_USES, Coverage
from tests.random_programs.program_placeholders import CLASSES
from tests.random_programs.program_statements import words
from tests.random_programs.random_programs import (
    HELPERS,
    SUMS_OF_HALVES,
    VALUES,
    WRITES,
    Box,
    Call,
    RandomProgram,
    compiled,
    program_of,
    values_of,
)  # fmt: skip
from tracefuse import clear_caches, fuse, options
from tracefuse.errors import InternalError, TracefuseError
from tracefuse.ir import reference

STRICT = {"contract": False, "exact_half": True}
"""With these options kernels round as NumPy does, except in sums and elementary functions."""

LIMIT_SECONDS = 60

MOST_SHORTENED = 4
"""How many programs with one kind of difference are made short."""

EXPLAINED = (
    "last bits", "undefined in NumPy", "the first of several errors", "errors of unused values",
    "integer reciprocal of 0", "order of a reduction", "errors that depend on elements", "sums of halves",
    "types that depend on elements",
)  # fmt: skip
"""Differences that docs/numerics.md explains."""


class Difference(NamedTuple):
    """What differs: the kind, the number of the call (from 1), and how."""

    kind: str
    call: int
    text: str

    @property
    def key(self) -> str:
        """Equal for differences that are probably one."""
        return f"{self.kind}: {''.join(c for c in self.text.partition(' (')[0] if not c.isdigit())[:70]}"


class Skipped(Exception):
    """NumPy leaves a value of this program undefined."""


class ProgramSide:
    """A program with globals and an object of its own."""

    def __init__(self, program: RandomProgram, wrap: Callable[[Any], Any]) -> None:
        self.program = program
        self.globals: dict[str, Any] = dict(HELPERS)
        self.function = wrap(compiled(program.text, self.globals))
        self.owner = type("Owner", (Box,), {"program": self.function})
        self.box: Any = None
        self.extents: dict[str, int] | None = None

    def prepare(self, call: Call, changed: Callable[[Any], Any] = lambda one: one) -> tuple[Any, ...]:
        """Changes the captured state as the call wants it, and makes its arguments. changed: of each value."""
        arguments, captured, box = values_of(self.program, call)
        is_new = self.extents != call.extents
        self.extents = call.extents
        arguments, captured = tuple(map(changed, arguments)), {k: changed(v) for k, v in captured.items()}
        for name, value in captured.items():
            if is_new or call.change == "rebind":
                self.globals[name] = value
            elif call.change == "in place" and isinstance(self.globals[name], np.ndarray):
                target = self.globals[name]
                if target.flags.writeable:
                    target[...] = value
        if box is not None:
            self.change_object(box, is_new, call.change)
        return arguments

    def change_object(self, box: Box, is_new: bool, change: str) -> None:
        if is_new or change == "new object":
            self.box = self.owner(**vars(box))
        elif change == "rebind":
            self.box.state, self.box.rate = box.state, box.rate
        elif change == "in place" and isinstance(self.box.state, np.ndarray) and self.box.state.flags.writeable:
            try:
                self.box.state[...] = box.state
            except ValueError:
                self.box.state = box.state

    def __call__(self, arguments: tuple[Any, ...]) -> Any:
        return self.box.program(*arguments) if self.box is not None else self.function(*arguments)

    @property
    def state(self) -> dict[str, Any]:
        state = {name: self.globals[name] for name in self.program.captured}
        return {**state, **({"self": vars(self.box)} if self.box is not None else {})}


EXACT = frozenset(
    words("""
    add subtract multiply divide sqrt negative positive absolute conjugate equal not_equal less less_equal greater
    greater_equal maximum minimum fmax fmin logical_and logical_or logical_not logical_xor isnan isinf isfinite sign
    signbit copysign floor ceil trunc rint square bitwise_and bitwise_or bitwise_xor invert left_shift right_shift
    spacing nextafter
""")
)
"""Ufuncs whose results have NumPy's bits; of others, and of sums, the last bits are free."""


class Noisy(np.ndarray):
    """An array whose inexact operations err by a few last places: shows which programs depend on last bits.

    phase: which elements err upwards, those at even positions (0) or at odd ones (1).
    """

    phase = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        plain = [one.view(np.ndarray) if isinstance(one, Noisy) else one for one in inputs]
        keywords = {name: one.view(np.ndarray) if isinstance(one, Noisy) else one for name, one in keywords.items()}
        outputs = keywords.get("out")
        if outputs is not None:
            keywords["out"] = tuple(one.view(np.ndarray) if isinstance(one, Noisy) else one for one in outputs)
        if outputs is not None and method == "__call__" and is_rounded(ufunc, outputs):
            return self.truncated(ufunc, plain, keywords)
        result = getattr(ufunc, method)(*plain, **keywords)
        is_sum = method in ("reduce", "accumulate") and ufunc.__name__ in ("add", "multiply")
        if ufunc.__name__ not in EXACT or is_sum:
            largest = sizes_of(plain) if is_sum or ufunc.__name__ in SUMS_OF_PRODUCTS else 0.0
            least = loop_precision(ufunc, plain) if outputs is not None else 0.0
            result = tuple(map(shaken, result)) if isinstance(result, tuple) else shaken(result, largest, least)
            result = infinite(result) if ufunc.__name__ in OF_LIBRARIES else result
        if outputs is not None and result is not None and not isinstance(result, tuple):
            outputs[0].view(np.ndarray)[...] = result
            return outputs[0]
        return tuple(noisy(one) for one in result) if isinstance(result, tuple) else noisy(result)

    def truncated(self, ufunc: Any, plain: Any, keywords: Any) -> Any:
        """The result of an inexact ufunc in an array of integers, shaken before it is cast."""
        (output,), where = keywords.pop("out"), keywords.pop("where", True)
        keywords.pop("casting", None)
        own = output.view(np.ndarray)
        np.copyto(own, shaken(ufunc(*plain, **keywords)), casting="unsafe", where=where)
        return output

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        result = super().__array_function__(function, types, arguments, keywords)
        return infinite(shaken(result, sizes_of(arguments))) if function in PRODUCTS else result


def is_rounded(ufunc: Any, outputs: Any) -> bool:
    """Whether integers take the result of an inexact ufunc."""
    return len(outputs) == 1 and np.asarray(outputs[0]).dtype.kind in "iub" and ufunc.__name__ not in EXACT


SUMS_OF_PRODUCTS = ("matmul", "vecdot", "matvec", "vecmat")
"""Ufuncs whose rounding errors are relative to the sizes of their operands."""
OF_LIBRARIES = (*SUMS_OF_PRODUCTS, "power", "float_power")
"""Ufuncs of which complex results that are not finite are NaN or infinite, as a library computes them."""


def infinite(value: Any) -> Any:
    """Complex numbers with those that are not finite replaced by infinity, or by NaN in the other phase."""
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind != "c":
        return value
    other = complex(np.inf, np.inf) if Noisy.phase == 0 else complex(np.nan, np.nan)
    result = np.where(np.isfinite(value), value, other).astype(value.dtype)
    return result if isinstance(value, np.ndarray) else result[()]


PRODUCTS = (
    np.dot, np.inner, np.vdot, np.tensordot, np.einsum, np.trace, np.convolve, np.correlate, np.interp, np.cov,
    np.corrcoef, np.polyval, np.gradient, np.trapezoid, np.average, np.linalg.norm,
)  # fmt: skip
"""Functions of sums of products that are not made of ufuncs, or make arrays of their own."""


def sizes_of(values: Any) -> float:
    """The sum of the magnitudes of arrays: the rounding errors of a sum are relative to it."""
    arrays = [np.asarray(one) for one in values if isinstance(one, np.ndarray) and one.dtype.kind in "fciu"]
    return float(sum(np.abs(one[np.isfinite(one)]).astype(float).sum() for one in arrays))


def loop_precision(ufunc: np.ufunc, inputs: list[Any]) -> float:
    """The precision of the floats in which a ufunc computes, whatever takes its result."""
    dtypes = [np.asarray(one).dtype for one in inputs]
    try:
        loop = ufunc.resolve_dtypes((*dtypes, *[None] * ufunc.nout))[-1]
    except TypeError:
        return 0.0
    return float(np.finfo(loop).eps) if loop.kind in "fc" else 0.0


def shaken(value: Any, largest: float = 0.0, least: float = 0.0) -> Any:
    """Floats moved by two units in the last place, of themselves or of the largest number behind them."""
    phase = Noisy.phase
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "fc":
        return value
    # Up and down in turn, so that differences of neighbours move too.
    unit, real = 2 * max(float(np.finfo(value.dtype).eps), least), np.finfo(value.dtype).dtype
    signs = np.where(np.arange(value.size).reshape(np.shape(value)) % 2 == phase, unit, -unit)
    errors = (signs * min(largest, 1e30)).astype(real)  # of both parts of complex numbers
    moved = np.asarray(value) * (1 + signs).astype(real) + (errors * (1 + 1j) if value.dtype.kind == "c" else errors)
    result = np.where(np.isfinite(value), moved, value).astype(value.dtype)
    return result if isinstance(value, np.ndarray) else result[()]


def noisy(value: Any, phase: int | None = None) -> Any:
    if phase is not None:
        Noisy.phase = phase
    return value.view(Noisy) if isinstance(value, np.ndarray) else value


def quiet(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What a call returns or raises."""
    with warnings.catch_warnings(), np.errstate(all="ignore", invalid="warn"):
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message=".*encountered in cast.*")
        try:
            return function(), None
        except RuntimeWarning as warning:
            raise Skipped from warning
        except Exception as error:
            return None, error


def kind_of_error(error: BaseException) -> type:
    """The built-in class that users catch."""
    return next(one for one in type(error).__mro__ if one.__module__ == "builtins")


def compared_errors(error: BaseException | None, expected: BaseException | None, call: int) -> Difference | None:
    """The difference of two outcomes of which one is an error."""
    if str(expected).startswith("Geometric sequence cannot include zero"):
        return Difference("errors that depend on elements", call, "")
    if error is None:
        return Difference("no error", call, f"NumPy raises {type(expected).__name__}: {str(expected)[:60]}")
    first = str(error).splitlines()[0] if str(error) else ""
    if not isinstance(error, TracefuseError) and expected is None:
        return Difference("internal error", call, f"{type(error).__name__}: {first}")
    if isinstance(error, InternalError):
        return Difference("internal error", call, f"{type(error).__name__}: {first}")
    refused = type(error).__name__ in ("UnsupportedError", "TraceError", "ReadOnlyError")
    if expected is None:
        return Difference("refused" if refused else "error", call, f"{type(error).__name__}: {first}")
    if refused or isinstance(error, kind_of_error(expected)):
        return None
    return Difference(
        "error differs", call, f"{type(error).__name__}: {first}; NumPy: {type(expected).__name__}: {expected}"
    )


def first_difference(
    program: RandomProgram, settings: dict[str, Any], changed: Callable[[Any], Any] = lambda one: one
) -> Difference | None:
    """Runs all calls on both sides. changed: of each argument and captured value."""
    plain, fused = ProgramSide(program, lambda one: one), ProgramSide(program, lambda one: fuse(one, **settings))
    for number, call in enumerate(program.calls, 1):
        right, mine = plain.prepare(call, changed), fused.prepare(call, changed)
        expected, expected_error = quiet(lambda: plain(right))  # noqa: B023
        with limit():
            result, error = quiet(lambda: fused(mine))  # noqa: B023
        if isinstance(expected_error, NameError):
            return None
        if error is not None or expected_error is not None:
            if why := compared_errors(error, expected_error, number):
                return why
            return None
        text = difference(as_numbers(result, expected), expected, "result") or difference(mine, right, "arguments")
        if text := text or difference(fused.state, plain.state, "state"):
            return Difference(text.partition("[")[0].partition(":")[0] + " differs", number, text)
    return None


def as_numbers(result: Any, expected: Any) -> Any:
    """Results whose arrays without axes are Python numbers where NumPy's function returns Python numbers."""
    if isinstance(expected, list | tuple) and isinstance(result, list | tuple) and len(result) == len(expected):
        entries = [as_numbers(one, other) for one, other in zip(result, expected, strict=True)]
        return result._make(entries) if hasattr(result, "_make") else type(result)(entries)
    is_number = type(expected) in (bool, int, float, complex)
    return result.item() if is_number and isinstance(result, np.ndarray) and result.ndim == 0 else result


@contextmanager
def limit() -> Any:
    """Ends a call that takes too long."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"a call takes more than {LIMIT_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def depends_on_last_bits(program: RandomProgram) -> bool:
    """Whether errors of a few last places change NumPy's own results: of arguments, sums, or elementary functions."""
    changes = [*(partial(noisy, phase=k) for k in range(2)), *(partial(nudged, turn=k) for k in range(3))]
    return any(differs_with(program, change) for change in changes)


def differs_with(program: RandomProgram, change: Callable[[Any], Any]) -> bool:
    """Whether NumPy's results differ if arguments and captured values are changed."""
    plain, other_side = ProgramSide(program, lambda one: one), ProgramSide(program, lambda one: one)
    for call in program.calls:
        right, other = plain.prepare(call), other_side.prepare(call, change)
        expected, error = quiet(lambda: plain(right))  # noqa: B023
        result, other_error = quiet(lambda: other_side(other))  # noqa: B023
        if error is not None or other_error is not None:
            return False
        result = [np.asarray(one) if isinstance(one, np.ndarray) else one for one in result]
        if difference(result, expected, "result") or difference(other_side.state, plain.state, "state"):
            return True
    return False


def nudged(value: Any, turn: int) -> Any:
    """A value whose floats are moved by at most two units in the last place."""
    if type(value) in (float, complex):
        return value * (1 + (turn - 1) * 2**-52)
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "fc":
        return value
    units = np.random.default_rng(turn).integers(-2, 3, value.shape) * np.finfo(value.dtype).eps
    with np.errstate(all="ignore"):
        moved = np.asarray(value * (1 + units)).astype(value.dtype)
    if isinstance(value, np.generic):
        return moved[()]
    if value.flags.writeable:
        value[...] = moved
        return value
    return np.broadcast_to(moved[:1], value.shape) if value.ndim else moved


def explained(program: RandomProgram, why: Difference, settings: dict[str, Any]) -> Difference | None:
    """The explained class of a difference, None if it has none."""
    if why.kind == "error differs" and is_of_types(program, why, settings):
        return Difference("the first of several errors", 0, "")
    if why.kind == "no error" and OF_SCALARS.search(why.text) and not raises_with_other_elements(program, why.call):
        return Difference("errors that depend on elements", 0, "")
    writable = [replace(call, layouts=("C",) * len(call.layouts)) for call in program.calls]
    if "read-only" in why.text and first_difference(replace(program, calls=writable), settings) is None:
        return Difference("the first of several errors", 0, "")
    if why.kind in ("error differs", "no error") and is_of_other_statement(program, why.call, settings):
        of_unused = why.kind == "no error"
        return Difference("errors of unused values" if of_unused else "the first of several errors", 0, "")
    if not why.kind.endswith("differs") and "division by zero" not in why.text:
        return None
    if casts_outside(program, settings):
        return Difference("undefined in NumPy", 0, "")
    if ": dtype " in why.text and first_difference(program, settings, ones_like) is None:
        return Difference("types that depend on elements", 0, "")
    if depends_on_last_bits(program):
        return Difference("last bits", 0, "")
    if first_difference(with_wide_sums(program), settings) is None:
        return Difference("sums of halves", 0, "")
    if ".reduce" in program.text and first_difference(with_reductions_in_order(program), settings) is None:
        return Difference("order of a reduction", 0, "")
    if "np.reciprocal(" in program.text and first_difference(with_reciprocal_of_zero(program), settings) is None:
        return Difference("integer reciprocal of 0", 0, "")
    return None


OF_SCALARS = re.compile("out of bounds for u?int|cannot convert float")
"""What NumPy raises for a number that an integer type does not hold."""


def is_of_types(program: RandomProgram, why: Difference, settings: dict[str, Any]) -> bool:
    """Whether the error follows from the types alone: NumPy raises it too for arrays of other sizes and elements.

    It is raised at the trace, before an error that follows from the sizes of a call.
    """
    calls = [replace(call, extents=dict.fromkeys(call.extents, size)) for call in program.calls[-1:] for size in (3, 4)]
    for call in calls:
        other = replace(program, calls=[call])
        fused = ProgramSide(other, lambda one: fuse(one, **settings))
        plain = ProgramSide(other, lambda one: one)
        mine, right = fused.prepare(call, changed=ones_like), plain.prepare(call, changed=ones_like)
        _, error = quiet(partial(fused, mine))
        _, expected = quiet(partial(plain, right))
        if error is not None and expected is not None and compared_errors(error, expected, 1) is None:
            first = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            return without_digits(first) == without_digits(why.text.partition("; NumPy:")[0])
    return False


def without_digits(message: str) -> str:
    """The text of a message before the user's line, without sizes."""
    return "".join(c for c in message.partition(" (")[0] if not c.isdigit())


def ones_like(value: Any) -> Any:
    """An array of ones of the same type and shape; another value unchanged."""
    return np.ones_like(value) if isinstance(value, np.ndarray) else value


def raises_with_other_elements(program: RandomProgram, count: int) -> bool:
    """Whether NumPy raises also if all elements of arguments and captured arrays are 1."""
    plain = ProgramSide(program, lambda one: one)
    return any(quiet(partial(plain, plain.prepare(call, changed=ones_like)))[1] for call in program.calls[:count])


def is_of_other_statement(program: RandomProgram, call: int, settings: dict[str, Any]) -> bool:
    """Whether the statements until the one at which NumPy raises raise as in NumPy.

    A later one raised first, as its error follows from sizes alone, or nothing uses the value of this one.
    """
    for length in range(1, len(program.statements) + 1):
        names = re.findall(r"^\s*(\w+) = ", "\n".join(program.statements[:length]), re.MULTILINE)
        first = replace(program, statements=program.statements[:length], calls=program.calls[:call])
        first = replace(first, results=list(dict.fromkeys(names)))
        plain = ProgramSide(first, lambda one: one)
        outcomes = [quiet(partial(plain, plain.prepare(one))) for one in first.calls]
        if outcomes[-1][1] is not None:
            return first_difference(first, settings) is None
    return False


REDUCED = re.compile(r"(np\.\w+)\.(reduce|reduceat)\(")
WIDE = re.compile(rf"np\.({'|'.join(SUMS_OF_HALVES)})\(|\b(\w+)\.({'|'.join(SUMS_OF_HALVES)})\(")
WIDE_METHODS = re.compile(r"np\.(add|multiply)\.(reduce|accumulate|reduceat)\(")


def with_wide_sums(program: RandomProgram) -> RandomProgram:
    """The program with sums, products and variances of float16 computed in float32."""
    statements = [WIDE.sub(r"wide_\1\3(\2, ", one).replace("(, ", "(") for one in program.statements]
    return replace(program, statements=[WIDE_METHODS.sub(r"wide_\1_\2(", one) for one in statements])


def with_reductions_in_order(program: RandomProgram) -> RandomProgram:
    """The program with reductions by ufuncs of arrays that lie in memory in the order of their elements."""
    statements = [REDUCED.sub(r"in_order(\1).\2(", one) for one in program.statements]
    return replace(program, statements=statements)


def with_reciprocal_of_zero(program: RandomProgram) -> RandomProgram:
    """The program with 0 for the integer reciprocal of 0."""
    statements = [one.replace("np.reciprocal(", "reciprocal(") for one in program.statements]
    return replace(program, statements=statements)


def casts_outside(program: RandomProgram, settings: dict[str, Any]) -> bool:
    """Whether the program casts a float to an integer type that does not hold it, which NumPy leaves undefined."""
    outside = False
    original = reference._converted

    def converted(array: Any, dtype: Any) -> Any:
        nonlocal outside
        if dtype.is_integer and array.dtype.kind in "fc":
            limits, whole = np.iinfo(dtype.name), np.trunc(array.real.astype(np.float64))
            # The largest integer of 64 bits is no float64: the next power of two is outside.
            outside |= not np.all((whole >= float(limits.min)) & (whole < float(int(limits.max) + 1)))
        return original(array, dtype)

    fused = ProgramSide(program, lambda one: fuse(one, **{**settings, "target": "reference"}))
    with mock.patch.object(reference, "_converted", converted):
        for call in program.calls:
            arguments = fused.prepare(call)
            quiet(lambda: fused(arguments))  # noqa: B023
    return outside


def is_of_kernels(program: RandomProgram, why: Difference, settings: dict[str, Any]) -> bool:
    """Whether the recorded program is right: NumPy runs it without a difference."""
    if why.kind in ("refused", *EXPLAINED) or settings.get("target") == "reference":
        return False
    return first_difference(program, {**settings, "target": "reference"}) is None


def shortened(program: RandomProgram, wanted: Difference, settings: dict[str, Any]) -> RandomProgram:
    """The program with as few statements, results and calls as show a difference of the same kind."""

    def shows(candidate: RandomProgram) -> bool:
        try:
            seen = first_difference(candidate, settings)
        except Skipped:
            return False
        same = seen is not None and seen.key[:24] == wanted.key.removeprefix("kernels: ")[:24]
        return same and is_of_kernels(candidate, seen, settings) == wanted.kind.startswith("kernels: ")

    program = replace(program, calls=program.calls[: wanted.call])
    end = time.monotonic() + 30
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for attribute in ("statements", "results", "calls"):
            position = 0
            while position < len(getattr(program, attribute)) and time.monotonic() < end:
                entries = list(getattr(program, attribute))
                del entries[position]
                candidate = replace(program, **{attribute: entries})
                if (attribute != "calls" or entries) and shows(candidate):
                    program, changed = candidate, True
                else:
                    position += 1
    return program


def shown_value(value: Any) -> str:
    """The text of a value in one line."""
    text = f"{np.asarray(value)!r}" if isinstance(value, np.ndarray) else repr(value)
    return text.replace("\n", "")


def describe(program: RandomProgram, why: Difference, seed: int) -> str:
    """The program and its calls, as a reader runs them by hand."""
    lines = [f"-- {why.kind}, call {why.call}, seed {seed}: {why.text}", program.text]
    for call in program.calls[: why.call]:
        arguments, captured, box = values_of(program, call)
        layouts = ", ".join(call.layouts)
        shown = [one if len(one) < 400 else f"{one[:200]} ... {one[-60:]}" for one in map(shown_value, arguments)]
        lines.append(f"   call({', '.join(shown)})  # {layouts}; before it: {call.change}")
        lines += [f"      {name} = {shown_value(value)}" for name, value in captured.items()]
        lines += [f"      self: {vars(box)}".replace("\n", "")] if box is not None else []
    return "\n".join(lines)


def soak(
    first: int, count: int, settings: dict[str, Any], with_state: bool, show: int, with_table: bool, seconds: int = 0,
    coverage: Coverage | None = None,
) -> Counter[str]:  # fmt: skip
    """Runs programs and prints each new kind of difference; returns the counts."""
    outcomes: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    uses: Counter[tuple[str, str]] = Counter()
    features: Counter[str] = Counter()
    start = time.monotonic()
    for seed in range(first, first + count):
        program = program_of(seed, with_state, coverage)
        uses += program.uses
        features.update(features_of(program))
        short = None
        if seconds and time.monotonic() - start > seconds:
            count = seed - first
            break
        try:
            why = first_difference(copy.deepcopy(program), settings)
            why = why and (explained(program, why, settings) or why)
            if why is not None and is_of_kernels(program, why, settings):
                why = why._replace(kind=f"kernels: {why.kind}")
            if why is not None and why.kind not in ("refused", *EXPLAINED) and kinds[why.key] < MOST_SHORTENED:
                short = shortened(program, why, settings)
                why = explained(short, why, settings) or why
        except Skipped:
            why = Difference("undefined in NumPy", 0, "")
        outcomes[why.kind if why else "equal"] += 1
        if why is not None and why.kind not in EXPLAINED:
            kinds[why.key] += 1
            if why.kind != "refused" and short is not None and kinds[why.key] <= show:
                print(describe(short, first_difference(short, settings) or why, seed), "\n", flush=True)
        if seed % 500 == 499:
            clear_caches()
    print(f"{count} programs, {time.monotonic() - start:.0f} s: {dict(outcomes)}")
    for key, times in kinds.most_common():
        print(f"{times:5} {key}")
    rare = sum(times < LEAST_USES for times in uses.values())
    print(f"{len(uses)} pairs of a function and a class of types, {rare} of them met fewer than {LEAST_USES} times")
    if with_table:
        print_uses(uses, features)
    return outcomes


def features_of(program: RandomProgram) -> set[str]:
    """What a program has beside its functions, for the counts."""
    sizes = [size for call in program.calls for size in call.extents.values()]
    specs = [*program.parameters.values(), *program.captured.values(), *program.attributes.values()]
    return {
        *(f"layout {layout}" for call in program.calls for layout in call.layouts),
        *(f"size {size}" for size in sizes if size < 2),
        *(f"state: {call.change}" for call in program.calls[1:] if program.captured or program.attributes),
        *(["sizes change between calls"] if any(c.extents != program.calls[0].extents for c in program.calls) else []),
        *(["special values"] if any(getattr(spec, "special", False) for spec in specs) else []),
    }  # fmt: skip


def print_uses(uses: Counter[tuple[str, str]], features: Counter[str]) -> None:
    """Prints how often each function met each class of types, and how many programs have each feature."""
    print(f"{'':22}" + "".join(f"{kind:>9}" for kind in CLASSES))
    for name in sorted({name for name, _ in uses}):
        print(f"{name:22}" + "".join(f"{uses[name, kind] or '-':>9}" for kind in CLASSES))
    for feature, times in sorted(features.items()):
        print(f"{feature:32}{times:9} programs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--target", default=None, help="reference: NumPy runs what was recorded, nothing is compiled")
    parser.add_argument("--no-state", action="store_true", help="no programs with captured arrays or an object")
    parser.add_argument("--show", type=int, default=1, help="programs to print of each kind of difference")
    parser.add_argument("--uses", action="store_true", help="print how often each function met each class of types")
    parser.add_argument("--seconds", type=int, default=0, help="end after this time, with fewer programs")
    parser.add_argument("--cover", default=None, help="a file of counts, read and written: rare functions come first")
    given = parser.parse_args()
    coverage = Coverage.read(given.cover, [*VALUES, *WRITES]) if given.cover else None
    settings = {**STRICT, **({"target": given.target} if given.target else {})}
    # A fresh folder: what is compiled here is of no use to anybody else.
    with tempfile.TemporaryDirectory(prefix="tracefuse-soak-") as folder, options(cache_dir=folder):
        outcomes = soak(
            given.seed, given.count, settings, not given.no_state, given.show, given.uses, given.seconds, coverage
        )
    if coverage:
        coverage.write(given.cover)
        print(coverage)
    sys.exit(any(kind not in ("equal", "refused", *EXPLAINED) for kind in outcomes))


if __name__ == "__main__":
    main()
