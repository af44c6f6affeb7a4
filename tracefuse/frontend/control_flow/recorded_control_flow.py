"""Loops and branches of a fused function: their bodies are recorded as sub-fusions of one op.

The types of carried values come from their initial values. A carried Python number takes the type that a step gives it;
the body is then recorded once more with that type. A carried value that no step changes becomes an input of the body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass, replace
from tracefuse import pytrees, source
from tracefuse.dtypes import bool_, int64
from tracefuse.errors import ShapeError, TraceError, shown
from tracefuse.frontend.control_flow.carried_types import (
    LeafType,
    as_leaf,
    converted,
    is_value,
    join_types,
    require_same_objects,
    require_same_shape,
    require_same_structure,
    type_of,
)
from tracefuse.frontend.control_flow.sub_recording import SubRecording, operands_of, record_op
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.rebuilt_trees import as_ordinary, rebuilt, with_shadows
from tracefuse.frontend.tracer.record.cut_fusions import CutFusion
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.fusion import Literal
from tracefuse.ops.loop_ops import branch, counted_loop, while_loop


class _Carry:
    """The carried pytree of one loop.

    initial: its arrays and numbers as traced tensors. names: of these. types: the current assumption about their types.
    """

    def __init__(self, recorder: Recorder, loop: str, function: str, tree: Any, name: str) -> None:
        self.recorder, self.loop, self.function = recorder, loop, function
        self.objects, self.structure = pytrees.flatten(as_ordinary(recorder, tree))
        paths = pytrees.paths(self.structure, name)
        values = [(as_leaf(recorder, v), path) for v, path in zip(self.objects, paths, strict=True) if is_value(v)]
        self.initial, self.names = [value for value, _ in values], [path for _, path in values]
        self.types = [type_of(value) for value in self.initial]

    def tree(self, values: Sequence[Any]) -> Any:
        """Returns the pytree with other arrays and numbers."""
        rest = iter(values)
        return rebuilt(self.recorder, self.structure, [next(rest) if is_value(v) else v for v in self.objects])

    def placeholders(self, body: SubRecording) -> list[Traced]:
        """Returns a traced value for each array and number: its placeholder for the value in the current step."""
        where = source.user_line()
        return [
            body.placeholder(leaf.dtype, leaf.shape, leaf.weak, name, where)
            for leaf, name in zip(self.types, self.names, strict=True)
        ]

    def accept(self, tree: Any) -> list[Traced] | None:
        """Returns the arrays and numbers that a step returned, in the types of the loop.

        Returns None if their types made the loop's types change, so that the body must be recorded once more. Raises
        TraceError, ShapeError or DtypeError if the structure, a shape or a type differs.
        """
        leaves, structure = pytrees.flatten(as_ordinary(self.recorder, tree))
        description = f"{self.function} returns {{second}}, where the carried value is {{first}}"
        require_same_structure(self.loop, self.structure, structure, description)
        require_same_objects(self.loop, self.objects, leaves)
        results = [as_leaf(self.recorder, leaf) for leaf in leaves if is_value(leaf)]
        before = self.types
        self.types = [
            self._joined(path, leaf, type_of(result))
            for path, leaf, result in zip(self.names, before, results, strict=True)
        ]
        if self.types != before:
            return None
        return [converted(result, leaf) for result, leaf in zip(results, before, strict=True)]

    def _joined(self, path: str, before: LeafType, after: LeafType) -> LeafType:
        description = f"{path} is {{first}}, and {{second}} after a step"
        require_same_shape(self.recorder, self.loop, before, after, description, "a step must keep the shape")
        return join_types(self.recorder, self.loop, before, after, description)

    def start(self) -> list[Traced]:
        """Returns the initial values in the types of the loop."""
        return [converted(value, leaf) for value, leaf in zip(self.initial, self.types, strict=True)]


@dataclass(frozen=True, slots=True)
class _Split:
    """Which carried values a step changes, by position; the others are inputs of the body."""

    changed: tuple[int, ...]

    @classmethod
    def of(cls, before: Sequence[int], results: Sequence[Traced]) -> _Split:
        changed = tuple(k for k, (n, r) in enumerate(zip(before, results, strict=True)) if r.number != n)
        return cls(changed or tuple(range(len(results))))

    def select(self, values: Sequence[Any]) -> list[Any]:
        return [values[k] for k in self.changed]

    def fixed(self, placeholders: Sequence[int], start: Sequence[Traced]) -> dict[int, int]:
        """Maps the placeholders of unchanged values to the values themselves."""
        return {n: start[k].number for k, n in enumerate(placeholders) if k not in self.changed}

    def results(self, results: Sequence[Traced], start: Sequence[Traced]) -> list[Traced]:
        """Returns all carried values after the loop. results: of those that change."""
        rest = iter(results)
        return [next(rest) if k in self.changed else traced_ops.copy(value) for k, value in enumerate(start)]


def _renamed(body: CutFusion, names: dict[int, int]) -> CutFusion:
    return replace(body, read=tuple(names.get(number, number) for number in body.read))


def record_while(
    recorder: Recorder, cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init_val: Any, name: str
) -> Any:
    """Records a loop with a condition and returns the carried value after it."""
    carry = _Carry(recorder, name, "body_fun", init_val, "init_val")
    if not carry.initial:
        raise TraceError(
            f"{name}: init_val has no array and no number", hint="carry what the loop changes",
            where=source.user_line(),
        )  # fmt: skip
    results = None
    while results is None:
        with SubRecording(recorder, name, [body_fun]) as body:
            inside = carry.placeholders(body)
            results = carry.accept(body_fun(carry.tree(inside)))
            if results is not None:
                split = _Split.of(body.placeholders, results)
                cut = body.cut(split.select(results))
    condition, tested = _record_condition(recorder, cond_fun, carry)
    start = carry.start()
    same = dict(zip(tested, body.placeholders, strict=True))
    fixed = split.fixed(body.placeholders, start)
    bodies = {"condition": _renamed(_renamed(condition, same), fixed), "body": _renamed(cut, fixed)}
    operands, parts = operands_of(
        recorder, [], bodies, split.select(body.placeholders), [value.number for value in split.select(start)]
    )
    types = split.select(carry.types)
    attributes = {**parts, "carried": len(types), "shapes": tuple(leaf.shape for leaf in types)}
    after = record_op(recorder, while_loop, operands, attributes, types, split.select(carry.names))
    return carry.tree(split.results(after, start))


def _record_condition(recorder: Recorder, cond_fun: Callable[..., Any], carry: _Carry) -> tuple[CutFusion, list[int]]:
    """Returns the condition, and the numbers of the placeholders of the carried values in it."""
    with SubRecording(recorder, carry.loop, [cond_fun], may_draw=False) as body:
        answer = as_leaf(recorder, cond_fun(carry.tree(carry.placeholders(body))))
        if answer.extents:
            raise ShapeError(
                f"{carry.loop}: cond_fun returns {type_of(answer).text(recorder)}, not one truth value",
                hint="reduce it with .any() or .all()", where=source.user_line(),
            )  # fmt: skip
        return body.cut([converted(answer, LeafType(bool_, (), None))]), body.placeholders


@dataclass(frozen=True, slots=True)
class _RecordedStep:
    """The body of a loop with a trip count, recorded once.

    counter, carried, slices: the numbers of its placeholders. stacked: the pytree whose leaves each step gives and the
    loop stacks; structure, rows: its parts. stacks: the types of the arrays and numbers among them.
    """

    cut: CutFusion
    split: _Split
    counter: int
    carried: list[int]
    slices: list[int]
    stacked: Any
    structure: Any
    rows: list[Any]
    stacks: list[LeafType]


class RecordedCount:
    """Records a loop with a trip count, which may read slices of arrays and stack results.

    name: of the public function. init_name: of its parameter for the initial value. sliced: the leaves of the arrays
    that it slices, or None. functions: of the user, which a step calls.
    """

    def __init__(
        self, recorder: Recorder, name: str, function: str, init: Any, init_name: str, sliced: Sequence[Any] = (),
        reverse: bool = False, functions: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        self.recorder, self.name, self.reverse = recorder, name, reverse
        self.carry = _Carry(recorder, name, function, init, init_name)
        self.objects, self.functions = sliced, functions
        self.sliced = [traced_ops.as_tensor(leaf) for leaf in sliced if leaf is not None]

    def run(self, step: Callable[[Any, Any, Sequence[Any]], tuple[Any, Any]], lower: Any, upper: Any) -> Any:
        """Returns the carried value and the stacked pytree.

        step: called with the counter, the carried value and the leaves of a slice.
        """
        recorder, carry, body = self.recorder, self.carry, None
        while body is None:
            body = self._recorded_step(step)
        split, start = body.split, carry.start()
        of_slices = dict(zip(body.slices, self.sliced, strict=True))
        read = [number for number in body.slices if number in body.cut.read]
        bodies = {"body": _renamed(body.cut, split.fixed(body.carried, start))}
        operands, parts = operands_of(
            recorder, [recorder.resolve(bound).operand for bound in (lower, upper)], bodies,
            [*split.select(body.carried), *read],
            [value.number for value in (*split.select(start), *(of_slices[number] for number in read))], body.counter,
        )  # fmt: skip
        length = recorder.plain(upper) if body.stacks else 0
        types = split.select(carry.types)
        types += [replace(leaf, shape=(length, *leaf.shape)) for leaf in body.stacks]
        if not types:
            return carry.tree([]), body.stacked
        attributes = {
            **parts, "carried": len(split.changed), "sliced": len(read), "reverse": bool(self.reverse),
            "shapes": tuple(leaf.shape for leaf in types),
        }  # fmt: skip
        names = [*split.select(carry.names), *["ys"] * len(body.stacks)]
        after = record_op(recorder, counted_loop, operands, attributes, types, names)
        computed = iter(after[len(split.changed) :])
        rows = [next(computed) if is_value(leaf) else leaf for leaf in body.rows]
        final = split.results(after[: len(split.changed)], start)
        return carry.tree(final), rebuilt(recorder, body.structure, rows)

    def _recorded_step(self, step: Callable[[Any, Any, Sequence[Any]], tuple[Any, Any]]) -> _RecordedStep | None:
        """Records the body; returns None if a carried number takes another type, for a second recording."""
        carry = self.carry
        with SubRecording(self.recorder, self.name, self.functions) as body:
            where = source.user_line()
            counter = body.placeholder(int64, (), "int", "i", where)
            inside = carry.placeholders(body)
            slices = [body.placeholder(s.value.dtype, s.extents[1:], None, "x", where) for s in self.sliced]
            rest = iter(slices)
            value, stacked = step(
                counter, carry.tree(inside), [None if v is None else next(rest) for v in self.objects]
            )
            results = carry.accept(value)
            if results is None:
                return None
            first, *numbers = body.placeholders
            carried = numbers[: len(inside)]
            split = _Split.of(carried, results)
            rows, structure = pytrees.flatten(as_ordinary(self.recorder, stacked))
            stacks = [as_leaf(self.recorder, leaf) for leaf in rows if is_value(leaf)]
            types = [replace(type_of(leaf), weak=None) for leaf in stacks]
            cut = body.cut([*split.select(results), *stacks])
            return _RecordedStep(cut, split, first, carried, numbers[len(inside) :], stacked, structure, rows, types)


def is_on_host(recorder: Recorder, bound: Any) -> bool:
    """Whether the bound of a loop is known before its kernels run. Raises TraceError or ShapeError for no integer."""
    resolved = recorder.resolve(bound)
    value = resolved.operand.value if isinstance(resolved.operand, Literal) else 0
    dtype = resolved.dtype
    if resolved.shape or not isinstance(value, int) or (dtype is not None and not dtype.is_integer):
        raise TraceError(
            f"fori_loop: a bound is {shown(bound)}, not an integer", hint="give an integer, as in int(n)",
            where=source.user_line(),
        )  # fmt: skip
    return resolved.traced is None or resolved.traced.on_host


@dataclass(frozen=True, slots=True)
class _RecordedBranch:
    """A recorded branch with its result. types: of the arrays and numbers among `objects`, the leaves."""

    body: CutFusion
    structure: Any
    objects: list[Any]
    types: list[LeafType]


def record_cond(
    recorder: Recorder, pred: Traced, true_fun: Callable[..., Any], false_fun: Callable[..., Any],
    operands: Sequence[Any],
) -> Any:  # fmt: skip
    """Records a choice of two functions and returns the result of the chosen one."""
    if pred.extents:
        raise ShapeError(
            f"cond: pred is {type_of(pred).text(recorder)}, not one truth value",
            hint="reduce it with .any() or .all(), or choose elements with np.where", where=source.user_line(),
        )  # fmt: skip
    wanted: list[LeafType] | None = None
    operands = [with_shadows(recorder, as_ordinary(recorder, operand)) for operand in operands]
    while True:
        first = _record_branch(recorder, true_fun, operands, wanted)
        second = _record_branch(recorder, false_fun, operands, wanted)
        types = _joined_types(recorder, first, second)
        if types == first.types and types == [
            replace(t, shape=w.shape) for t, w in zip(second.types, types, strict=True)
        ]:
            break
        wanted = types
    if not types:
        return rebuilt(recorder, first.structure, first.objects)
    bodies = {"on_true": first.body, "on_false": second.body}
    inputs, parts = operands_of(recorder, [recorder.resolve(pred).operand], bodies, [], [])
    attributes = {**parts, "shapes": tuple(leaf.shape for leaf in types)}
    rest = iter(record_op(recorder, branch, inputs, attributes, types, [None] * len(types)))
    leaves = [next(rest) if is_value(leaf) else leaf for leaf in first.objects]
    return rebuilt(recorder, first.structure, leaves)


def _joined_types(recorder: Recorder, first: _RecordedBranch, second: _RecordedBranch) -> list[LeafType]:
    """Returns the types that both branches return or can take. Raises for another structure, shape or type."""
    description = "true_fun returns {first} and false_fun {second}"
    hint = "both functions must return the same shape"
    require_same_structure("cond", first.structure, second.structure, description)
    require_same_objects("cond", first.objects, second.objects)
    types = []
    for first_type, second_type in zip(first.types, second.types, strict=True):
        require_same_shape(recorder, "cond", first_type, second_type, description, hint)
        types.append(join_types(recorder, "cond", first_type, second_type, description))
    return types


def _record_branch(
    recorder: Recorder, function: Callable[..., Any], operands: Sequence[Any], wanted: Sequence[LeafType] | None
) -> _RecordedBranch:
    """Records one branch. wanted: the types of its results, if they are known."""
    with SubRecording(recorder, "cond", [function]) as body:
        objects, structure = pytrees.flatten(as_ordinary(recorder, function(*operands)))
        values = [as_leaf(recorder, leaf) for leaf in objects if is_value(leaf)]
        types = [type_of(value) for value in values]
        if wanted is not None:
            values = [converted(value, leaf) for value, leaf in zip(values, wanted, strict=True)]
            types = [replace(w, shape=t.shape) for w, t in zip(wanted, types, strict=True)]
        return _RecordedBranch(body.cut(values), structure, objects, types)
