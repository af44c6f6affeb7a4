"""Records the body of a loop or a branch as a fusion of its own.

The body is recorded by the recorder of the enclosing function, so it may use every value and size of that function, and
what it assumes about sizes is guarded there. Afterwards its tensor ops are cut out: the values that they read become
inputs of the sub-fusion, and operands of the op that runs it. Host scalars do not depend on what a step computes, so
they stay outside.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from types import CellType
from typing import Any

from tracefuse import source
from tracefuse.dtypes import DType
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.control_flow.carried_types import LeafType
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.record.cut_fusions import CutFusion, cut_fusion
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.state.state_writes import changes_of
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.collective_kinds import Collective
from tracefuse.ir.control_flow import ControlFlow, exchanges_data
from tracefuse.ir.extents import symbol
from tracefuse.ir.fusion import Node, Shape, SubFusion, Type, Value
from tracefuse.ops.loop_ops import WITH_EFFECTS


class SubRecording:
    """One body, while it is recorded: `with SubRecording(recorder, "while_loop") as body`.

    name: of the body in messages. functions: what the body calls, whose closure variables it must not write.
    placeholders: the numbers of its placeholders, in order. may_draw: whether it may draw random numbers.
    """

    def __init__(
        self, recorder: Recorder, name: str, functions: Sequence[Any] = (), may_draw: bool = True
    ) -> None:  # fmt: skip
        self.recorder, self.builder, self.name, self.may_draw = recorder, recorder.builder, name, may_draw
        self.last_effect, self.last_exchange = recorder.last_effect, recorder.last_exchange
        self.outside: SubRecording | None = None
        self.first_number = self.builder.next_number
        self.first_node = len(self.builder.nodes)
        self.prints = len(recorder.prints)
        self.placeholders: list[int] = []
        # Where conditions under which numbers of Python are exact are checked after the loop: these, with their lines.
        self.conditions: dict[int, str | None] | None = None
        # The integers that it reads as sizes, if it may.
        self.integers: Any = None
        self._rebound: list[tuple[Traced, tuple[int, int]]] = []
        self._functions = functions
        self._written: set[Any] = set()
        self._closures: dict[tuple[int, str], Any] = {}

    def __enter__(self) -> SubRecording:
        self._written = set(self.state_writes())
        self._closures = _closure_contents(self._functions)
        self.outside, self.recorder.body = self.recorder.body, self
        self.recorder.last_exchange = None
        return self

    def __exit__(self, *error: object) -> None:
        self.recorder.body, self.recorder.last_effect = self.outside, self.last_effect
        self.recorder.last_exchange = self.last_exchange
        for traced, state in reversed(self._rebound):
            traced.restore(state)
        self.recorder.inside_bodies.update(self.placeholders)
        nodes: list[Node] = []
        for node in self.builder.nodes[self.first_node :]:
            if self.builder.values[node.outputs[0]].is_tensor:
                self.recorder.inside_bodies.update(node.outputs)
            else:
                nodes.append(node)
        self.builder.nodes[self.first_node :] = nodes

    def placeholder(self, dtype: DType, shape: Shape, weak: str | None, name: str, where: str | None) -> Traced:
        """Returns the placeholder of a value at every step, or in every branch."""
        number = self.builder.new_number()
        self.builder.values[number] = Value(number, Type(dtype, shape), "tensor", None, None, name, where)
        self.placeholders.append(number)
        return self.recorder.traced_type(self.recorder, number, weak)

    # -- names of the enclosing function ------------------------------------------------------------------------------

    def check_inside(self, owner: Traced) -> None:
        """Raises UnsupportedError for an in-place change of an array that the body does not own."""
        number = owner.state()[0]
        if number < self.first_number or number in self.builder.inputs or self.recorder.capture_of(owner) is not None:
            name = self.recorder.describe(owner.number, owner)
            raise UnsupportedError(
                f"in-place change of {name} inside the body of {self.name}, which it does not belong to",
                hint="carry it: pass it to the body and return the new array", where=source.user_line(),
                runs_function=False,
            )  # fmt: skip

    def before_bind(self, traced: Traced) -> None:
        """Remembers the value of a name of the enclosing function that the body is about to read anew."""
        state = traced.state()
        if state[0] < self.first_number:
            self._rebound.append((traced, state))

    def state_writes(self) -> dict[Any, str]:
        """Returns the paths of the state that the trace has written so far, by what was written where."""
        overlays = self.recorder.overlays
        changes = () if overlays is None else changes_of(overlays, ())
        return {(change.kind, change.path, id(change.value)): change.path for change in changes}

    def check_state(self) -> None:
        """Raises UnsupportedError for a write of state in the body, which is recorded once and not at every step."""
        written = [path for key, path in self.state_writes().items() if key not in self._written]
        now = _closure_contents(self._functions)
        written += [key[1] for key, before in self._closures.items() if key in now and not _are_same(before, now[key])]
        if written:
            raise UnsupportedError(
                f"a write of {written[0]} inside the body of {self.name}, which is recorded once for all steps",
                hint="carry it: pass the value to the body, return the new one, and assign it after the loop",
                where=source.user_line(), runs_function=False,
            )  # fmt: skip

    # -- cutting ------------------------------------------------------------------------------------------------------

    def cut(self, outputs: Sequence[Traced]) -> CutFusion:
        """Cuts out the ops that compute `outputs`, which are tensors."""
        self.check_state()
        if len(self.recorder.prints) > self.prints:
            raise UnsupportedError(
                f"a line printed inside the body of {self.name}", hint="return the value and print it after the loop",
                where=source.user_line(), runs_function=False,
            )  # fmt: skip
        for node in self.builder.nodes[self.first_node :]:
            if node.op.effect and not self.may_draw and not isinstance(node.op, Collective):
                raise UnsupportedError(
                    f"a random draw in the condition of {self.name}", hint="draw in the body, and carry the number",
                    where=node.where, runs_function=False,
                )  # fmt: skip
        numbers = self._computed(outputs)
        nodes, numbers = self.with_inner_loops(self._needed(numbers), numbers)
        return cut_fusion(self.builder.values, nodes, numbers, self.recorder.simplify)

    def with_inner_loops(self, nodes: list[Node], numbers: list[int]) -> tuple[list[Node], list[int]]:
        """Returns the nodes of the body, with inner loops in place of some of them, and the outputs."""
        return nodes, numbers

    def sizes_read_by(self, node: Node) -> Iterable[int]:
        """Returns the values that the body computes and on which sizes of a node depend."""
        return ()

    def _computed(self, outputs: Sequence[Traced]) -> list[int]:
        """Returns the numbers of the outputs, each computed by a node of the body and by no other output's."""
        computed = {n for node in self.builder.nodes[self.first_node :] for n in node.outputs}
        numbers: list[int] = []
        for output in outputs:
            number = output.number
            if number not in computed or number in numbers:
                number = traced_ops.copy(output).number
            numbers.append(number)
        return numbers

    def _needed(self, numbers: Sequence[int]) -> list[Node]:
        live, needed = set(numbers), []
        for node in reversed(self.builder.nodes[self.first_node :]):
            if (node.op.effect or not live.isdisjoint(node.outputs)) and self.builder.values[node.outputs[0]].is_tensor:
                live.update(node.inputs, self.sizes_read_by(node))
                needed.append(node)
        return needed[::-1]


def _closure_contents(functions: Sequence[Any]) -> dict[tuple[int, str], Any]:
    """Returns the closure variables of functions, and of functions among these, with copies of their containers.

    The keys are the id of the cell and the name.
    """
    variables: dict[tuple[int, str], Any] = {}
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        names = getattr(getattr(function, "__code__", None), "co_freevars", ())
        for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
            if (id(cell), name) not in variables:
                contents = cell.cell_contents if _is_bound(cell) else None
                variables[id(cell), name] = contents, _entries_of(contents)
                waiting.append(contents)
    return variables


def _is_bound(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _entries_of(value: Any) -> list[Any]:
    """Returns what a list, a set or a dictionary holds; nothing of other values."""
    if type(value) is dict:
        return [*value, *value.values()]
    return [*value] if type(value) in (list, set) else []


def _are_same(before: tuple[Any, list[Any]], now: tuple[Any, list[Any]]) -> bool:
    """Whether a variable has the same object, and that the same entries."""
    (first, entries), (second, entries_now) = before, now
    return first is second and len(entries) == len(entries_now) and all(map(operator.is_, entries, entries_now))


def operands_of(
    recorder: Recorder, before: Sequence[Any], bodies: Mapping[str, CutFusion], placeholders: Sequence[int],
    after: Sequence[Any], counter: int | None = None, integers: Sequence[int] = (),
) -> tuple[list[Any], dict[str, SubFusion]]:  # fmt: skip
    """Returns the operands of an op that runs bodies, and its sub-fusions by name.

    before: the first operands. placeholders: the numbers that `after`, the last operands, replace. counter: the number
    that operand 0 replaces. integers: those that the operands after it replace.
    """
    replaced = {*placeholders, *integers, *(() if counter is None else (counter,))}
    captured: dict[int, Any] = {}
    for body in bodies.values():
        for number in body.read:
            if number not in replaced and number not in captured:
                extent = None if number >= 0 else symbol(f"i{-number - 1}", number)
                captured[number] = number if extent is None else recorder.scalar(extent).number
    operands = [*before, *captured.values(), *after]
    position = {number: len(before) + k for k, number in enumerate(captured)}
    position |= {number: len(operands) - len(after) + k for k, number in enumerate(placeholders)}
    position |= {number: 1 + k for k, number in enumerate(integers)}
    if counter is not None:
        position[counter] = 0
    parts = {name: SubFusion(body.fusion, tuple(position[n] for n in body.read)) for name, body in bodies.items()}
    return operands, parts


def record_op(
    recorder: Recorder, op: ControlFlow, operands: Sequence[Any], attributes: Mapping[str, Any],
    types: Sequence[LeafType], names: Sequence[str | None],
) -> list[Traced]:  # fmt: skip
    """Records a control-flow op and returns its results.

    One with draws or exchanges among its steps is itself an effect. Its exchanges follow the last one before it, whose
    result it reads, and are before the next one.
    """
    bodies = [part for part in attributes.values() if isinstance(part, SubFusion)]
    effects = [node for body in bodies for node in body.fusion.nodes if node.op.effect]
    exchanges = any(map(exchanges_data, effects))
    draws = len(effects) > 0 and not all(isinstance(node.op, Collective) for node in effects)
    op = WITH_EFFECTS[op] if effects else op
    if exchanges and recorder.last_exchange is not None:
        operands, attributes = op.with_operands(operands, attributes, [recorder.last_exchange[0].number])
    numbers = recorder.builder.node(
        op, operands, attributes, types[0].dtype, [leaf.dtype for leaf in types], where=source.user_line(), names=names
    )
    results = [recorder.traced_type(recorder, n, leaf.weak) for n, leaf in zip(numbers, types, strict=True)]
    if draws:
        recorder.last_effect = recorder.traced_type(recorder, numbers[0])
    if exchanges:
        after = recorder.traced_type(recorder, numbers[0])
        recorder.last_exchange = after, after
    return results
