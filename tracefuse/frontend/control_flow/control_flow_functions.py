"""`while_loop`, `fori_loop`, `scan` and `cond`, with the signatures of jax.lax.

Outside of a trace they run plain Python on arrays. In a fused function, each body is recorded once as a fusion of its
own, and the host runs its compiled segments. Carried values are pytrees of arrays and numbers. Their types and shapes
are the same before and after a step. Carried arrays are copies: a body may change them in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse import pytrees, source
from tracefuse.errors import ShapeError, TraceError, shown
from tracefuse.frontend.control_flow.carried_types import is_value
from tracefuse.frontend.control_flow.recorded_control_flow import RecordedCount, is_on_host, record_cond, record_while
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced


@source.hides_own_frames
def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    """Returns the carried value after `while cond_fun(value): value = body_fun(value)`, starting from `init_val`.

    init_val: a pytree of arrays and numbers. body_fun returns the same structure, types and shapes; cond_fun returns a
    number or an array without axes. Raises TraceError, DtypeError or ShapeError, before anything runs, if body_fun
    returns another structure, type or shape. In a fused function a Python number becomes an array without axes.
    """
    recorder = current.get()
    if recorder is not None:
        recorder.check_alive()
        return record_while(recorder, cond_fun, body_fun, init_val, "while_loop")
    value = _copied(init_val)
    while cond_fun(value):
        value = body_fun(value)
    return value


@source.hides_own_frames
def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: int | bool | None = None
) -> Any:
    """Returns the carried value after `for i in range(lower, upper): value = body_fun(i, value)`.

    lower, upper: integers, sizes, or integer arrays without axes. init_val, and what is raised: see `while_loop`. In a
    fused function `i` is a traced integer. unroll: how many iterations a step makes there, whose kernels then are
    compiled together; True: all of them, which makes their number a constant of the trace.
    """
    group = _group_size("fori_loop", unroll)
    recorder = current.get()
    if recorder is not None:
        recorder.check_alive()
        if is_on_host(recorder, lower) and is_on_host(recorder, upper):
            return _count(recorder, lower, upper, body_fun, init_val, group)
        return record_while(
            recorder, lambda c: c[0] < upper, lambda c: (c[0] + 1, body_fun(*c)), (lower, init_val), "fori_loop"
        )[1]
    value = _copied(init_val)
    for k in range(int(lower), int(upper)):
        value = body_fun(k, value)
    return value


def _group_size(name: str, unroll: Any) -> int | None:
    """Returns the number of iterations of a step; None for all of them."""
    if isinstance(unroll, Traced) and unroll.on_host:
        unroll = traced_ops.as_number(unroll)
    if isinstance(unroll, SymbolicSize):
        unroll = int(unroll)
    if unroll is None or unroll is False:
        return 1
    if unroll is True:
        return None
    if not isinstance(unroll, int) or unroll < 1:
        raise TraceError(
            f"{name}: unroll cannot be {shown(unroll)}", hint="give a positive integer, or True for all iterations",
            where=source.user_line(),
        )  # fmt: skip
    return unroll


def _count(recorder: Recorder, lower: Any, upper: Any, body: Callable[..., Any], init: Any, group: int | None) -> Any:
    """Records a loop whose steps make `group` iterations each, and one for the iterations that are left."""

    def run(first: Any, last: Any, value: Any, size: int, start: Any = 0) -> Any:
        def step(k: Any, carried: Any, slices: Sequence[Any]) -> tuple[Any, Any]:
            for place in range(size):
                carried = body(k if size == 1 else start + k * size + place, carried)
            return carried, ()

        return RecordedCount(recorder, "fori_loop", "body_fun", value, "init_val", functions=[body]).run(
            step, first, last
        )[0]

    if group is None:
        lower, upper = int(lower), int(upper)
        group = max(upper - lower, 1)
    if group == 1:
        return run(lower, upper, init, 1)
    steps = (upper - lower) // group
    steps = max(steps, 0) if isinstance(steps, int) else np.maximum(steps, 0)
    value = run(0, steps, init, group, lower)
    end = lower + steps * group
    return value if isinstance(end, int) and isinstance(upper, int) and end >= upper else run(end, upper, value, 1)


@source.hides_own_frames
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: Any = None, reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:  # fmt: skip
    """Carries a value over the slices of arrays along axis 0, and stacks what each step returns.

    f: takes the carried value and a slice of each array in `xs`, and returns the carried value and a pytree of arrays.
    init: see `init_val` of `while_loop`. xs: a pytree of arrays with the same extent of axis 0. length: that extent;
    required if `xs` has no array. reverse: from the last slice to the first; the stack keeps the order of `xs`.
    unroll: how many slices a step takes in a fused function; True: all of them. Other values than 1 make the number of
    slices a constant of the trace. Returns the carried value and the stacked pytree. Raises ShapeError for arrays of
    different extents, and what `while_loop` raises.
    """
    recorder = current.get()
    leaves, structure = pytrees.flatten(xs)
    length = _length_of([leaf for leaf in leaves if leaf is not None], length, recorder)
    if recorder is None:
        return _scan_plainly(f, init, leaves, structure, length, reverse)
    recorder.check_alive()

    def step(_: Any, value: Any, slices: Sequence[Any]) -> tuple[Any, Any]:
        result = f(value, pytrees.unflatten(structure, slices))
        _check_pair(result)
        return result[0], result[1]

    group = _group_size("scan", unroll)
    if group == 1:
        result: tuple[Any, Any] = RecordedCount(recorder, "scan", "f", init, "init", leaves, reverse, [f]).run(
            step, 0, length
        )
        return result
    return _scan_in_groups(recorder, f, step, init, leaves, int(length), reverse, group)


def _scan_in_groups(
    recorder: Recorder, f: Any, step: Callable[..., tuple[Any, Any]], init: Any, leaves: Sequence[Any], length: int,
    reverse: bool, group: int | None,
) -> tuple[Any, Any]:  # fmt: skip
    """Records a scan whose steps take `group` slices each, and one for the slices that are left at the end."""
    size = max(length, 1) if group is None else group
    grouped_length = length // size * size

    def grouped(_: Any, value: Any, slices: Sequence[Any]) -> tuple[Any, Any]:
        rows: list[Any] = [None] * size
        for place in reversed(range(size)) if reverse else range(size):
            value, row = step(_, value, [None if leaf is None else leaf[place] for leaf in slices])
            rows[place], structure = pytrees.flatten(row)
        return value, pytrees.unflatten(structure, [_stacked(parts) for parts in zip(*rows, strict=True)])

    def run(value: Any, first: int, last: int, steps: int, function: Callable[..., Any]) -> tuple[Any, Any]:
        parts = [None if leaf is None else traced_ops.as_array(leaf)[first:last] for leaf in leaves]
        if function is grouped:
            parts = [None if leaf is None else leaf.reshape((steps, size, *leaf.shape[1:])) for leaf in parts]
        result: tuple[Any, Any] = RecordedCount(recorder, "scan", "f", value, "init", parts, reverse, [f]).run(
            function, 0, steps
        )
        return result

    order = [(0, grouped_length, grouped_length // size, grouped)] * (grouped_length > 0 or length == 0)
    order += [(grouped_length, length, length - grouped_length, step)] * (grouped_length < length)
    value, stacks = init, {}
    for first, last, steps, function in order[::-1] if reverse else order:
        value, stacked = run(value, first, last, steps, function)
        rows, structure = pytrees.flatten(stacked)
        stacks[first] = [_ungrouped(row) if function is grouped else row for row in rows]
    joined = [_joined(parts) for parts in zip(*(stacks[first] for first, *_ in order), strict=True)]
    return value, pytrees.unflatten(structure, joined)


def _stacked(parts: Sequence[Any]) -> Any:
    return np.stack([traced_ops.as_array(part) for part in parts]) if is_value(parts[0]) else parts[0]


def _ungrouped(rows: Any) -> Any:
    return rows.reshape((-1, *rows.shape[2:])) if is_value(rows) else rows


def _joined(parts: Sequence[Any]) -> Any:
    return np.concatenate(parts) if len(parts) > 1 and is_value(parts[0]) else parts[0]


@source.hides_own_frames
def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
    """Returns `true_fun(*operands)` if `pred` is true, else `false_fun(*operands)`; only that one runs.

    pred: a number or an array without axes. In a fused function both functions are recorded, and return the same
    structure, types and shapes; else TraceError, DtypeError or ShapeError is raised, before anything runs.
    """
    recorder = current.get()
    if recorder is None or not isinstance(pred, Traced):
        return (true_fun if pred else false_fun)(*operands)
    recorder.check_alive()
    return record_cond(recorder, pred, true_fun, false_fun, operands)


# -- outside of a trace ------------------------------------------------------------------------------------------------


def _copied(tree: Any) -> Any:
    leaves, structure = pytrees.flatten(tree)
    return pytrees.unflatten(structure, [leaf.copy() if _is_array(leaf) else leaf for leaf in leaves])


def _is_array(leaf: Any) -> bool:
    return is_value(leaf) and getattr(leaf, "shape", ()) != () and hasattr(leaf, "copy")


def _scan_plainly(
    f: Callable[..., Any], init: Any, leaves: Sequence[Any], structure: Any, length: int, reverse: bool
) -> tuple[Any, Any]:
    value, rows = _copied(init), []
    for k in reversed(range(length)) if reverse else range(length):
        slices = [None if leaf is None else _copied(leaf[k]) for leaf in leaves]
        result = f(value, pytrees.unflatten(structure, slices))
        _check_pair(result)
        value = result[0]
        rows.append(pytrees.flatten(result[1]))
    if not rows:
        raise TraceError(
            "scan over no slices, outside of a fused function: the shapes of what it stacks are not known",
            hint="call it in a fused function",
        )
    ordered = rows[::-1] if reverse else rows
    stacked = [
        None if leaf is None else _stack([leaves[k] for leaves, _ in ordered]) for k, leaf in enumerate(ordered[0][0])
    ]
    return value, pytrees.unflatten(ordered[0][1], stacked)


def _stack(values: Sequence[Any]) -> Any:
    namespace = getattr(values[0], "__array_namespace__", None)
    return (np if namespace is None else namespace()).stack([np.asarray(v) if namespace is None else v for v in values])


def _check_pair(result: Any) -> None:
    if not isinstance(result, tuple) or len(result) != 2:
        raise TraceError(
            f"scan: f returned {type(result).__name__}, not the carried value and a result",
            hint="return (carry, y), with y = None for none", where=source.user_line(),
        )  # fmt: skip


def _length_of(arrays: Sequence[Any], length: Any, recorder: Recorder | None) -> Any:
    """Returns the number of slices. Raises ShapeError if the arrays, or `length`, differ in it."""
    if not arrays and length is None:
        raise TraceError("scan: neither an array in xs nor a length", hint="give length=n", where=source.user_line())
    for array in arrays:
        if not getattr(array, "shape", ()):
            raise ShapeError(
                f"scan: xs has {shown(array)}, which has no axis 0", hint="give arrays with an axis to scan over",
                where=source.user_line(),
            )  # fmt: skip
    sizes = [array.shape[0] for array in arrays]
    first = sizes[0] if length is None else length
    for size in sizes:
        message = "scan: {left} slices, then {right}"
        if recorder is not None and (isinstance(size, SymbolicSize) or isinstance(first, SymbolicSize)):
            first_length, second_length = recorder.plain(first), recorder.plain(size)
            if recorder.known(first_length) == recorder.known(second_length):
                recorder.builder.require(
                    first_length, "==", second_length, message, "their axes 0 must agree", source.user_line()
                )
                continue
        if int(size) != int(first):
            text = message.format(left=int(first), right=int(size))
            raise ShapeError(text, hint="their axes 0 must agree", where=source.user_line())
    return first
