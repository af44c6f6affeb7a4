"""Why a random program may differ from NumPy: the classes of differences that docs/numerics.md explains."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from tests.programs.comparison import difference
from tests.random_programs.noisy_arrays import NoisyModule, noisy
from tests.random_programs.numpy_stand_ins import SUMS_OF_HALVES
from tests.random_programs.program_comparison import (
    Difference,
    ProgramSide,
    Skipped,
    compared_errors,
    first_difference,
    quiet,
)
from tests.random_programs.random_programs import Array, Number, RandomProgram
from tracefuse import fuse
from tracefuse.ir import reference

EXPLAINED = (
    "last bits", "undefined in NumPy", "the first of several errors", "errors of unused values",
    "integer reciprocal of 0", "order of a reduction", "errors that depend on elements", "sums of halves",
    "types that depend on elements", "partial results in out",
)  # fmt: skip
"""Differences that docs/numerics.md explains."""


class CastOnce(np.ndarray):
    """An array whose reductions into integers are computed in the type of the loop, and cast at the end."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        plain = [one.view(np.ndarray) if isinstance(one, CastOnce) else one for one in inputs]
        outputs = tuple(one.view(np.ndarray) if isinstance(one, CastOnce) else one for one in keywords.pop("out", ()))
        is_partial = method in ("reduce", "accumulate", "reduceat") and outputs and outputs[0].dtype.kind in "biu"
        if is_partial and keywords.get("dtype") is None:
            source = np.asarray(plain[0]).dtype
            loop = ufunc.resolve_dtypes((outputs[0].dtype, source, None), casting="unsafe", reduction=True)[0]
            result = getattr(ufunc, method)(*plain, **{**keywords, "dtype": loop})
            np.copyto(outputs[0], result, casting="unsafe")
            return outputs[0].view(CastOnce)
        result = getattr(ufunc, method)(*plain, **keywords, **({"out": outputs} if outputs else {}))
        if isinstance(result, tuple):
            return tuple(map(cast_once, result))
        return cast_once(result)


class Filled(np.ndarray):
    """An array of which ufuncs with `where=` and without `out=` fill the elements that NumPy leaves undefined."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        plain = [one.view(np.ndarray) if isinstance(one, Filled) else one for one in inputs]
        keywords = {name: one.view(np.ndarray) if isinstance(one, Filled) else one for name, one in keywords.items()}
        outputs = tuple(one.view(np.ndarray) if isinstance(one, Filled) else one for one in keywords.pop("out", ()))
        if outputs or method != "__call__":
            result = getattr(ufunc, method)(*plain, **keywords, **({"out": outputs} if outputs else {}))
        else:
            where = keywords.pop("where", True)
            result = ufunc(*plain, **keywords)
            if where is not True:
                results = result if isinstance(result, tuple) else (result,)
                results = tuple(np.where(where, one, np.array(77).astype(one.dtype)) for one in results)
                result = results if isinstance(result, tuple) else results[0]
        return tuple(map(filled, result)) if isinstance(result, tuple) else filled(result)


def filled(value: Any) -> Any:
    return value.view(Filled) if isinstance(value, np.ndarray) else value


def cast_once(value: Any) -> Any:
    return value.view(CastOnce) if isinstance(value, np.ndarray) else value


def depends_on_last_bits(program: RandomProgram) -> bool:
    """Whether errors of a few last places change NumPy's own results: of arguments, sums, or elementary functions."""
    has_output = "out=" in program.text
    if any(differs_with(program, partial(noisy, phase=phase)) for phase in range(2)):
        return True
    # Many functions of NumPy make plain arrays of noisy ones. Without errors, those around them change nothing.
    module = NoisyModule(np)
    if not differs_with(program, partial(noisy, phase=None), module=module) and any(
        differs_with(program, partial(noisy, phase=phase), module=module) for phase in range(2)
    ):
        return True
    return any(differs_with(program, partial(nudged, turn=turn), has_output) for turn in range(3))


def differs_with(
    program: RandomProgram, change: Callable[[Any], Any], with_arguments: bool = True, module: Any = np
) -> bool:
    """Whether NumPy's results, or what it writes into arguments, differ if arguments and captured values are changed.

    with_arguments: whether to compare the arguments, which the change leaves alone or changes by last places. module:
    what the changed program has for NumPy.
    """
    plain, other_side = ProgramSide(program, lambda one: one), ProgramSide(program, lambda one: one)
    other_side.globals["np"] = module
    for call in program.calls:
        right, other = plain.prepare(call), other_side.prepare(call, change)
        expected, error = quiet(lambda: plain(right))  # noqa: B023
        result, other_error = quiet(lambda: other_side(other))  # noqa: B023
        if error is not None or other_error is not None:
            return False
        result = [np.asarray(one) if isinstance(one, np.ndarray) else one for one in result]
        changed = [np.asarray(one) if isinstance(one, np.ndarray) else one for one in other]
        if difference(result, expected, "result") or difference(other_side.state, plain.state, "state"):
            return True
        if with_arguments and difference(changed, list(right), "arguments"):
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
    if why.kind == "no error" and "LinAlgError" in why.text and not raises_nudged(program, why.call):
        return Difference("last bits", 0, "")
    writable = [replace(call, layouts=("C",) * len(call.layouts)) for call in program.calls]
    if "read-only" in why.text and first_difference(replace(program, calls=writable), settings) is None:
        return Difference("the first of several errors", 0, "")
    if "All-NaN slice" in why.text and raising_depends_on_last_bits(program, why.call):
        return Difference("last bits", 0, "")  # of products of complex numbers that are not finite
    if why.kind == "no error" and is_of_unused_part(program, why, settings):
        return Difference("errors of unused values", 0, "")
    if why.kind in ("error differs", "no error") and is_of_other_statement(program, why.call, settings):
        of_unused = why.kind == "no error"
        return Difference("errors of unused values" if of_unused else "the first of several errors", 0, "")
    if why.kind == "error" and depends_on_function(program, settings, "reciprocal"):  # a mask of other size
        return Difference("integer reciprocal of 0", 0, "")
    depends_on_values = "division by zero" in why.text or "LinAlgError" in why.text
    # Sizes, types and sums that data decide; IndexError and UFuncTypeError are raised by NumPy between two stages.
    of_data = ("ShapeError", "OutOfRangeError", "NoElementsError", "ScalarError: Geo", "IndexError", "UFuncTypeError")
    is_of_data = why.kind == "no error" or why.text.startswith(of_data)
    if why.kind in ("no error", "error", "internal error") and is_of_data and casts_outside(program, settings):
        return Difference("undefined in NumPy", 0, "")
    if not why.kind.endswith("differs") and not depends_on_values:
        return None
    of_where = "where" in program.text and differs_with(program, filled)
    is_of_numpy = of_where or transforms_nothing(program) or depends_on_function(program, settings, "negative")
    if is_of_numpy or casts_outside(program, settings):
        return Difference("undefined in NumPy", 0, "")
    if "out=" in program.text and first_difference(program, settings, changed_of_plain=cast_once) is None:
        return Difference("partial results in out", 0, "")
    typed = with_one_type_of_quantiles(program)
    is_of_quantile = typed != program and first_difference(typed, settings) is None
    if ": dtype " in why.text and (is_of_quantile or first_difference(program, settings, ones_like) is None):
        return Difference("types that depend on elements", 0, "")
    if depends_on_last_bits(program):
        return Difference("last bits", 0, "")
    if first_difference(with_wide_sums(program), settings) is None:
        return Difference("sums of halves", 0, "")
    if ".reduce" in program.text and first_difference(with_reductions_in_order(program), settings) is None:
        return Difference("order of a reduction", 0, "")
    if depends_on_function(program, settings, "reciprocal"):
        return Difference("integer reciprocal of 0", 0, "")
    return None


def is_of_types(program: RandomProgram, why: Difference, settings: dict[str, Any]) -> bool:
    """Whether the error follows from the types alone: NumPy raises it too for arrays of other sizes and elements.

    It is raised at the trace, before an error that follows from the sizes of a call.
    """
    calls = [replace(call, extents=dict.fromkeys(call.extents, size)) for call in program.calls[-1:] for size in (3, 4)]
    wide = replace(program, parameters={name: with_extents(spec) for name, spec in program.parameters.items()})
    for call in calls:
        other = replace(wide, calls=[call])
        fused = ProgramSide(other, lambda one: fuse(one, **settings))
        plain = ProgramSide(other, lambda one: one)
        mine, right = fused.prepare(call, changed=ones_like), plain.prepare(call, changed=ones_like)
        try:
            (_, error), (_, expected) = quiet(partial(fused, mine)), quiet(partial(plain, right))
        except Skipped:  # more elements than memory
            return False
        if error is not None and expected is not None and compared_errors(error, expected, 1) is None:
            first = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            return without_digits(first) == without_digits(why.text.partition("; NumPy:")[0])
    return False


def with_extents(spec: Array | Number) -> Array | Number:
    """An array to make with an extent of the call in place of 0 and 1; a number as it is."""
    if isinstance(spec, Number):
        return spec
    return replace(spec, axes=tuple("n" if axis in (0, 1) else axis for axis in spec.axes))


def without_digits(message: str) -> str:
    """The text of a message before the user's line, without sizes."""
    return "".join(c for c in message.partition(" (")[0] if not c.isdigit())


def ones_like(value: Any) -> Any:
    """An array of ones of the same type and shape; another value unchanged."""
    return np.ones_like(value) if isinstance(value, np.ndarray) else value


def raises_nudged(program: RandomProgram, count: int) -> bool:
    """Whether NumPy raises also if floats are moved by the last places: a product of matrices is singular by chance."""
    plain = ProgramSide(program, lambda one: one)
    change = partial(nudged, turn=1)
    return any(quiet(partial(plain, plain.prepare(call, change)))[1] for call in program.calls[:count])


def raising_depends_on_last_bits(program: RandomProgram, count: int) -> bool:
    """Whether NumPy raises in one of two programs whose inexact operations err by a few last places, or in one call."""
    outcomes = set()
    for phase in range(2):
        plain = ProgramSide(program, lambda one: one)
        plain.globals["np"] = NoisyModule(np)
        change = partial(noisy, phase=phase)
        raised = (quiet(partial(plain, plain.prepare(call, change)))[1] for call in program.calls[:count])
        outcomes.add(any(raised))
    return len(outcomes) > 1


def transforms_nothing(program: RandomProgram) -> bool:
    """Whether the program transforms no complex number to several reals: NumPy reads memory that it has not set."""
    original, found = np.fft._pocketfft._raw_fft, False

    def transform(a: Any, n: Any, axis: Any, is_real: Any, is_forward: Any, *more: Any, **keywords: Any) -> Any:
        nonlocal found
        found |= is_real and not is_forward and np.shape(a)[axis] == 0
        return original(a, n, axis, is_real, is_forward, *more, **keywords)

    plain = ProgramSide(program, lambda one: one)
    with mock.patch.object(np.fft._pocketfft, "_raw_fft", transform):
        for call in program.calls if "fft" in program.text else ():
            quiet(partial(plain, plain.prepare(call)))
    return found


def with_one_type_of_quantiles(program: RandomProgram) -> RandomProgram:
    """The program with quantiles whose type does not depend on whether their elements are NaN."""
    statements = [QUANTILES.sub(r"typed_\1(", one) for one in program.statements]
    return program if statements == program.statements else replace(program, statements=statements)


def is_of_unused_part(program: RandomProgram, why: Difference, settings: dict[str, Any]) -> bool:
    """Whether both raise the error if the program returns what a part of an expression computes.

    So the value is unused: the expression around it needs its shape or its type alone.
    """
    for place, statement in enumerate(program.statements):
        for part in calls_in(statement):
            statements = [*program.statements[:place], f"used = {part}"]
            whole = replace(program, statements=statements, results=["used"], calls=program.calls[: why.call])
            plain = ProgramSide(whole, lambda one: one)
            errors = [quiet(partial(plain, plain.prepare(call)))[1] for call in whole.calls]
            if errors[-1] is not None and str(errors[-1])[:60] in why.text:
                return first_difference(whole, settings) is None
    return False


def calls_in(statement: str) -> list[str]:
    """The calls inside of an assignment of one expression, as text, the inner ones first."""
    tree = ast.parse(statement).body[0]
    if not isinstance(tree, ast.Assign):
        return []
    calls = [node for node in ast.walk(tree.value) if isinstance(node, ast.Call) and node is not tree.value]
    return [ast.unparse(node) for node in reversed(calls)]


def is_of_other_statement(program: RandomProgram, call: int, settings: dict[str, Any]) -> bool:
    """Whether the statements until the one at which NumPy raises raise as in NumPy.

    A later one raised first, as its error follows from sizes alone, or nothing uses the value of this one but its
    shape.
    """
    program = replace(program, statements=[one.removesuffix(".shape") for one in program.statements])
    for length in range(1, len(program.statements) + 1):
        names = re.findall(r"^\s*(\w+) = ", "\n".join(program.statements[:length]), re.MULTILINE)
        first = replace(program, statements=program.statements[:length], calls=program.calls[:call])
        first = replace(first, results=list(dict.fromkeys(names)))
        plain = ProgramSide(first, lambda one: one)
        outcomes = [quiet(partial(plain, plain.prepare(one))) for one in first.calls]
        if outcomes[-1][1] is not None:
            return first_difference(first, settings) is None
    return False


QUANTILES = re.compile(r"np\.((?:nan)?(?:quantile|percentile))\(")
REDUCED = re.compile(r"(np\.\w+)\.(reduce|reduceat)\(")
WIDE = re.compile(rf"np\.({'|'.join(SUMS_OF_HALVES)})\(|\b(\w+(?:\[[^]]*\]|\.T)*)\.({'|'.join(SUMS_OF_HALVES)})\(")
WIDE_METHODS = re.compile(r"np\.(add|multiply)\.(reduce|accumulate|reduceat)\(")


def with_wide_sums(program: RandomProgram) -> RandomProgram:
    """The program with sums, products and variances of float16 computed in float32."""
    statements = [WIDE.sub(r"wide_\1\3(\2, ", one).replace("(, ", "(") for one in program.statements]
    return replace(program, statements=[WIDE_METHODS.sub(r"wide_\1_\2(", one) for one in statements])


def with_reductions_in_order(program: RandomProgram) -> RandomProgram:
    """The program with reductions by ufuncs of arrays that lie in memory in the order of their elements."""
    statements = [REDUCED.sub(r"in_order(\1).\2(", one) for one in program.statements]
    return replace(program, statements=statements)


def depends_on_function(program: RandomProgram, settings: dict[str, Any], name: str) -> bool:
    """Whether NumPy has no difference with the function of a name that stands in for its own."""
    statements = [one.replace(f"np.{name}(", f"{name}(") for one in program.statements]
    return statements != program.statements and (
        first_difference(replace(program, statements=statements), settings) is None
    )


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
