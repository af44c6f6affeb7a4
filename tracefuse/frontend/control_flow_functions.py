"""`while_loop`, `fori_loop`, `scan` and `cond`, with the signatures of jax.lax.

Outside of a trace they run plain Python on arrays. In a fused function, each body is recorded once as a fusion of its
own, and the host runs its compiled segments. Carried values are pytrees of arrays and numbers. Their types and shapes
are the same before and after a step. Carried arrays are copies: a body may change them in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracefuse import pytrees, source
from tracefuse.dtypes import bool_, int64
from tracefuse.errors import ShapeError, TraceError, shown
from tracefuse.frontend.numpy_api.creation import recording
from tracefuse.frontend.tracer import traced_ops
from tracefuse.frontend.tracer.carried_types import (
    LeafType,
    as_leaf,
    converted,
    is_value,
    joined,
    require_same_objects,
    require_same_shape,
    require_same_structure,
    type_of,
)
from tracefuse.frontend.tracer.code_names import CodeNames
from tracefuse.frontend.tracer.recorder import Recorder, current
from tracefuse.frontend.tracer.sub_recording import CutBody, SubRecording, operands_of, record_op
from tracefuse.frontend.tracer.symbolic_size import SymbolicSize, wrap
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Literal
from tracefuse.ops.loop_ops import branch, counted_loop
from tracefuse.ops.loop_ops import while_loop as while_op

_CHANGES = "the carried value {first} is {second} after a step"


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
        return _record_while(recorder, cond_fun, body_fun, init_val)
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
    fused function `i` is a traced integer. unroll: accepted for jax.lax; a step is always one iteration.
    """
    recorder = current.get()
    if recorder is not None:
        recorder.check_alive()
        if _is_on_host(recorder, lower) and _is_on_host(recorder, upper):
            record = _CountedRecording(recorder, "fori_loop", "body_fun", init_val)
            return record.run(lambda k, value, slices: (body_fun(k, value), ()), lower, upper)[0]
        return _record_while(
            recorder, lambda c: c[0] < upper, lambda c: (c[0] + 1, body_fun(*c)), (lower, init_val), "fori_loop"
        )[1]
    value = _copied(init_val)
    for k in range(int(lower), int(upper)):
        value = body_fun(k, value)
    return value


@source.hides_own_frames
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: Any = None, reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:  # fmt: skip
    """Carries a value over the slices of arrays along axis 0, and stacks what each step returns.

    f: takes the carried value and a slice of each array in `xs`, and returns the carried value and a pytree of arrays.
    init: see `init_val` of `while_loop`. xs: a pytree of arrays with the same extent of axis 0. length: that extent;
    required if `xs` has no array. reverse: from the last slice to the first; the stack keeps the order of `xs`.
    unroll: accepted for jax.lax; a step is always one iteration. Returns the carried value and the stacked pytree.
    Raises ShapeError for arrays of different extents, and what `while_loop` raises.
    """
    recorder = current.get()
    leaves, structure = pytrees.flatten(xs)
    length = _length_of([leaf for leaf in leaves if leaf is not None], length, recorder)
    if recorder is None:
        return _scan_plainly(f, init, leaves, structure, length, reverse)
    recorder.check_alive()
    record = _CountedRecording(recorder, "scan", "f", init, leaves, reverse)

    def step(_: Any, value: Any, slices: Sequence[Any]) -> tuple[Any, Any]:
        result = f(value, pytrees.unflatten(structure, slices))
        _check_pair(result)
        return result[0], result[1]

    return record.run(step, 0, length)


@source.hides_own_frames
def cond(
    pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any
) -> Any:
    """Returns `true_fun(*operands)` if `pred` is true, else `false_fun(*operands)`; only that one runs.

    pred: a number or an array without axes. In a fused function both functions are recorded, and return the same
    structure, types and shapes; else TraceError, DtypeError or ShapeError is raised, before anything runs.
    """
    recorder = current.get()
    if recorder is None or not isinstance(pred, Traced):
        return (true_fun if pred else false_fun)(*operands)
    recorder.check_alive()
    return _record_cond(recorder, pred, true_fun, false_fun, operands)


# -- outside of a trace ---------------------------------------------------------------------------------------------------


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
        None if leaf is None else traced_ops_stack([leaves[k] for leaves, _ in ordered])
        for k, leaf in enumerate(ordered[0][0])
    ]
    return value, pytrees.unflatten(ordered[0][1], stacked)


def traced_ops_stack(values: Sequence[Any]) -> Any:
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
            one, two = recorder.plain(first), recorder.plain(size)
            if recorder.known(one) == recorder.known(two):
                recorder.builder.require(one, "==", two, message, "their axes 0 must agree", source.user_line())
                continue
        if int(size) != int(first):
            text = message.format(left=int(first), right=int(size))
            raise ShapeError(text, hint="their axes 0 must agree", where=source.user_line())
    return first


# -- carried values -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Carry:
    """A carried pytree. initial: its arrays and numbers as traced tensors. objects: all its leaves. names: of the leaves."""

    structure: Any
    objects: list[Any]
    initial: list[Traced]
    names: list[str]

    @classmethod
    def of(cls, recorder: Recorder, tree: Any, name: str) -> _Carry:
        objects, structure = pytrees.flatten(tree)
        names = pytrees.paths(structure, name)
        values = [(as_leaf(recorder, leaf), path) for leaf, path in zip(objects, names, strict=True) if is_value(leaf)]
        return cls(structure, objects, [value for value, _ in values], [path for _, path in values])

    def tree(self, values: Sequence[Any]) -> Any:
        """Returns the pytree with other arrays and numbers."""
        rest = iter(values)
        return pytrees.unflatten(self.structure, [next(rest) if is_value(leaf) else leaf for leaf in self.objects])

    def values_of(self, recorder: Recorder, tree: Any, name: str, function: str) -> list[Traced]:
        """Returns the arrays and numbers of the pytree that a step returned."""
        leaves, structure = pytrees.flatten(tree)
        what = f"{function} returns {{second}}, where the carried value is {{first}}"
        require_same_structure(name, self.structure, structure, what)
        require_same_objects(name, self.objects, leaves)
        return [as_leaf(recorder, leaf) for leaf in leaves if is_value(leaf)]


def _placeholders(body: SubRecording, carry: _Carry, types: Sequence[LeafType]) -> list[Traced]:
    where = source.user_line()
    return [
        body.placeholder(leaf.dtype, leaf.shape, leaf.weak, name, where)
        for leaf, name in zip(types, carry.names, strict=True)
    ]


def _types_after(
    recorder: Recorder, name: str, carry: _Carry, types: Sequence[LeafType], results: Sequence[Traced]
) -> list[LeafType]:
    """Returns the types of the carried values, with numbers in the type that a step gives them."""
    after = []
    for path, before, result in zip(carry.names, types, map(type_of, results), strict=True):
        what = f"{path} is {{first}}, and {{second}} after a step"
        require_same_shape(recorder, name, before, result, what)
        new = joined(name, before, result, what)
        if before.weak is None and new.dtype is not before.dtype:
            joined(name, before, LeafType(result.dtype, result.shape, None), what)
        after.append(new)
    return after


def _start(recorder: Recorder, carry: _Carry, types: Sequence[LeafType]) -> list[int]:
    """Returns the numbers of the initial values, in the types of the loop."""
    return [converted(value, leaf).number for value, leaf in zip(carry.initial, types, strict=True)]


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return recording(function, CodeNames())(*arguments)


# -- recording ------------------------------------------------------------------------------------------------------------


def _record_while(
    recorder: Recorder, cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init_val: Any,
    name: str = "while_loop",
) -> Any:  # fmt: skip
    carry = _Carry.of(recorder, init_val, "init_val")
    if not carry.initial:
        raise TraceError(f"{name}: init_val has no array and no number", hint="carry what the loop changes")
    types = [type_of(value) for value in carry.initial]
    while True:
        with SubRecording(recorder, name) as body:
            inside = _placeholders(body, carry, types)
            results = carry.values_of(recorder, _call(body_fun, carry.tree(inside)), name, "body_fun")
            after = _types_after(recorder, name, carry, types, results)
            if after == types:
                cut = body.cut([converted(r, t) for r, t in zip(results, types, strict=True)])
                break
        types = after
    with SubRecording(recorder, name) as test:
        inside_test = _placeholders(test, carry, types)
        answer = as_leaf(recorder, _call(cond_fun, carry.tree(inside_test)))
        if answer.extents:
            raise ShapeError(
                f"{name}: cond_fun returns {type_of(answer)}, not one truth value",
                hint="reduce it with .any() or .all()", where=source.user_line(),
            )  # fmt: skip
        condition = test.cut([converted(answer, LeafType(bool_, (), None))])
    return _record_loop(recorder, while_op, carry, types, [condition, cut], [inside_test, inside])


def _record_loop(
    recorder: Recorder, op: Any, carry: _Carry, types: Sequence[LeafType], bodies: Sequence[CutBody],
    insides: Sequence[Sequence[Traced]],
) -> Any:  # fmt: skip
    # Both bodies read the carried values: the placeholders of the condition become those of the body.
    same = {a.number: b.number for a, b in zip(*insides, strict=True)}
    condition = CutBody(bodies[0].fusion, tuple(same.get(number, number) for number in bodies[0].read))
    operands, parts = operands_of(
        recorder, [], {"condition": condition, "body": bodies[1]}, [p.number for p in insides[1]],
        _start(recorder, carry, types),
    )  # fmt: skip
    attributes = {**parts, "carried": len(types), "shapes": tuple(leaf.shape for leaf in types)}
    results = record_op(recorder, op, operands, attributes, [(t.dtype, t.weak) for t in types], carry.names)
    return carry.tree(results)


class _CountedRecording:
    """Records a loop with a trip count, which may read slices of arrays and stack results."""

    def __init__(
        self, recorder: Recorder, name: str, function: str, init: Any, sliced: Sequence[Any] = (),
        reverse: bool = False,
    ) -> None:  # fmt: skip
        self.recorder, self.name, self.function, self.reverse = recorder, name, function, reverse
        self.carry = _Carry.of(recorder, init, "init_val" if name == "fori_loop" else "init")
        self.objects = sliced
        self.sliced = [traced_ops.as_tensor(leaf) for leaf in sliced if leaf is not None]

    def run(self, step: Callable[[Any, Any, Sequence[Any]], tuple[Any, Any]], lower: Any, upper: Any) -> Any:
        """Returns the carried value and the stacked pytree. step: called with the counter, the value and the slices."""
        recorder, carry = self.recorder, self.carry
        types = [type_of(value) for value in carry.initial]
        while True:
            with SubRecording(recorder, self.name) as body:
                where = source.user_line()
                counter = body.placeholder(int64, (), "int", "i", where)
                inside = _placeholders(body, carry, types)
                slices = [body.placeholder(s.value.dtype, s.extents[1:], None, "x", where) for s in self.sliced]
                rest = iter(slices)
                leaves = [None if leaf is None else next(rest) for leaf in self.objects]
                value, stacked = _call(step, counter, carry.tree(inside), leaves)
                results = carry.values_of(recorder, value, self.name, self.function)
                after = _types_after(recorder, self.name, carry, types, results)
                if after == types:
                    rows, structure = pytrees.flatten(stacked)
                    stacks = [as_leaf(recorder, leaf) for leaf in rows if is_value(leaf)]
                    kept = [converted(r, t) for r, t in zip(results, types, strict=True)]
                    stack_types = [type_of(leaf) for leaf in stacks]
                    cut = body.cut([*kept, *stacks])
                    break
            types = after
        length = recorder.plain(wrap(_difference(recorder, upper, lower), recorder))
        operands, parts = operands_of(
            recorder, [recorder.resolve(lower).operand, recorder.resolve(upper).operand], {"body": cut},
            [p.number for p in (*inside, *slices)],
            [*_start(recorder, carry, types), *(s.number for s in self.sliced)], counter.number,
        )  # fmt: skip
        shapes = [leaf.shape for leaf in types] + [(length, *leaf.shape) for leaf in stack_types]
        attributes = {
            **parts, "carried": len(types), "sliced": len(slices), "reverse": bool(self.reverse),
            "shapes": tuple(shapes),
        }  # fmt: skip
        if not shapes:
            return carry.tree([]), stacked
        all_types = [(t.dtype, t.weak) for t in types] + [(t.dtype, None) for t in stack_types]
        names = [*carry.names, *["ys"] * len(stacks)]
        results = record_op(recorder, counted_loop, operands, attributes, all_types, names)
        made = iter(results[len(types) :])
        rows = [next(made) if is_value(leaf) else leaf for leaf in rows]
        return carry.tree(results[: len(types)]), pytrees.unflatten(structure, rows)


def _difference(recorder: Recorder, upper: Any, lower: Any) -> Extent:
    """Returns upper - lower, the number of slices that a loop stacks; only a loop from 0 stacks any."""
    one, two = recorder.plain(upper), recorder.plain(lower)
    return one - two if isinstance(two, int) and not isinstance(one, Traced) else 0


def _is_on_host(recorder: Recorder, bound: Any) -> bool:
    """Whether the bound of a loop is known before the loop's kernels run."""
    resolved = recorder.resolve(bound)
    if resolved.shape:
        raise ShapeError(
            f"fori_loop: a bound has {len(resolved.shape)} axes", hint="give an integer", where=source.user_line()
        )
    dtype = resolved.dtype
    value = resolved.operand.value if isinstance(resolved.operand, Literal) else 0
    if isinstance(value, float | complex) or (dtype is not None and not dtype.is_integer):
        raise TraceError(
            f"fori_loop: a bound is {shown(bound)}, not an integer", hint="convert it with int()",
            where=source.user_line(),
        )  # fmt: skip
    return resolved.traced is None or resolved.traced.on_host


def _record_cond(
    recorder: Recorder, pred: Traced, true_fun: Callable[..., Any], false_fun: Callable[..., Any],
    operands: Sequence[Any],
) -> Any:  # fmt: skip
    if pred.extents:
        raise ShapeError(
            f"cond: pred is {type_of(pred)}, not one truth value",
            hint="reduce it with .any() or .all(), or choose elements with np.where", where=source.user_line(),
        )  # fmt: skip
    wanted: list[LeafType] | None = None
    while True:
        first = _record_branch(recorder, true_fun, operands, wanted)
        second = _record_branch(recorder, false_fun, operands, wanted)
        what = "true_fun returns {first} and false_fun {second}"
        require_same_structure("cond", first.structure, second.structure, what)
        require_same_objects("cond", first.objects, second.objects)
        types = []
        for one, two in zip(first.types, second.types, strict=True):
            require_same_shape(recorder, "cond", one, two, what)
            types.append(joined("cond", one, two, what))
        if types == first.types and [t.dtype for t in types] == [t.dtype for t in second.types]:
            break
        wanted = types
    if not types:
        return pytrees.unflatten(first.structure, first.objects)
    bodies = {"on_true": first.body, "on_false": second.body}
    inputs, parts = operands_of(recorder, [recorder.resolve(pred).operand], bodies, [], [])
    attributes = {**parts, "shapes": tuple(leaf.shape for leaf in types)}
    results = record_op(recorder, branch, inputs, attributes, [(t.dtype, t.weak) for t in types], [""] * len(types))
    rest = iter(results)
    leaves = [next(rest) if is_value(leaf) else leaf for leaf in first.objects]
    return pytrees.unflatten(first.structure, leaves)


@dataclass(frozen=True, slots=True)
class _RecordedBranch:
    """A recorded branch with its result. types: of the arrays and numbers among `objects`, the leaves."""

    body: CutBody
    structure: Any
    objects: list[Any]
    types: list[LeafType]


def _record_branch(
    recorder: Recorder, function: Callable[..., Any], operands: Sequence[Any], wanted: Sequence[LeafType] | None
) -> _RecordedBranch:
    with SubRecording(recorder, "cond") as body:
        objects, structure = pytrees.flatten(_call(function, *operands))
        values = [as_leaf(recorder, leaf) for leaf in objects if is_value(leaf)]
        types = [type_of(value) for value in values]
        if wanted is not None:
            values = [converted(value, leaf) for value, leaf in zip(values, wanted, strict=True)]
            types = [LeafType(w.dtype, t.shape, w.weak) for w, t in zip(wanted, types, strict=True)]
        return _RecordedBranch(body.cut(values), structure, objects, types)
