"""What the body of a recorded loop changes: arrays that it writes, and variables that it rebinds.

When an iteration begins, every array that the body may write gets a placeholder for its contents, and every variable
that the body rebinds and reads gets one for its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tracefuse import source
from tracefuse.dtypes import bool_
from tracefuse.frontend.control_flow.carried_types import LeafType
from tracefuse.frontend.control_flow.iteration_conditions import outside_of
from tracefuse.frontend.control_flow.read_integers import ReadIntegers
from tracefuse.frontend.control_flow.sub_recording import SubRecording
from tracefuse.frontend.tracer.array_ops.in_place import ReboundByLoop
from tracefuse.frontend.tracer.python_code.frame_locals import UNBOUND
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.fusion import Node, Type, Value

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_iteration import RecordedIteration


class LoopBody(SubRecording):
    """The recording of the body of a `for` loop. Arrays that have placeholders are written in place."""

    def __init__(self, recorder: Recorder, name: str, iteration: RecordedIteration) -> None:
        super().__init__(recorder, name, may_draw=True)
        self.iteration = iteration
        self.conditions = {}
        self.arrays: list[CarriedArray] = []
        self.owners: set[int] = set()
        self.integers = ReadIntegers(self)

    def with_inner_loops(self, nodes: list[Node], numbers: list[int]) -> tuple[list[Node], list[int]]:
        return self.integers.in_inner_loops(nodes, numbers) if self.integers.known else (nodes, numbers)

    def sizes_read_by(self, node: Node) -> Iterable[int]:
        if not self.integers.known:
            return ()
        return [
            self.integers.known[number].value
            for number in (*node.inputs, *self.integers.read_by(node))
            if number in self.integers.known
        ]

    def new_placeholder(self, like: Traced, name: str | None) -> int:
        """Returns the number of a placeholder, in every iteration, for a value of the type of `like`."""
        number = self.builder.new_number()
        value = Value(number, Type(like.value.dtype, like.extents), "tensor", None, None, name, source.user_line())
        self.builder.values[number] = value
        self.placeholders.append(number)
        if self.iteration.is_branch:
            self.builder.same_as[number] = self.builder.same_as.get(like.number, like.number)
        return number

    def state_writes(self) -> dict[Any, str]:
        """Returns nothing, as the iteration compares the state that it reaches."""
        return {}

    def check_inside(self, owner: Traced) -> None:
        if id(owner) not in self.owners:
            super().check_inside(owner)


class CarriedArray:
    """An array that exists before the loop: its contents before, and those of the current iteration."""

    def __init__(self, body: LoopBody, array: Traced) -> None:
        self.array, self.memory = array, array.memory
        self.number, self.version = array.state()
        self.name = body.builder.values[self.number].name or source.local_name(array)
        self.placeholder = body.new_placeholder(array, self.name)
        if self.memory is not None:
            self.memory.version += 1  # views read again, from the placeholder
            self.version_inside = self.memory.version
        self._set(self.placeholder)

    def _set(self, number: int) -> None:
        self.array.restore((number, 0 if self.memory is None else self.memory.version))

    @property
    def is_written(self) -> bool:
        """Whether the iteration wrote the array."""
        return self.array.number != self.placeholder

    def leave(self) -> None:
        """Restores the contents before the loop."""
        if self.memory is not None and self.memory.version == self.version_inside:
            self.memory.version -= 1  # what views have read is as it was
        elif self.memory is None and self.array.memory is not None:
            self.array.memory.version += 1
            self.array.restore((self.number, self.array.memory.version))
            return
        elif self.memory is not None:
            self.memory.version += 1
        self._set(self.number)

    def write(self, number: int, line: str | None) -> None:
        """Sets the contents after the loop."""
        memory = self.array.own_memory()
        memory.version += 1
        memory.written_at = line
        self.array.restore((number, memory.version))


class CarriedVariable:
    """A variable that the body rebinds and reads: its value before the loop, and its value in an iteration.

    type: in which the loop carries it. own: its type before the loop, where it is a number that begins in another.
    is_shared: whether another variable may hold the same array after an iteration.
    """

    def __init__(self, name: str, before: Any, initial: Traced, leaf: LeafType, own: LeafType | None = None) -> None:
        self.name, self.before, self.initial, self.type, self.own = name, before, initial, leaf, own or leaf
        self.inside: Any = None
        self.is_shared = self.is_writable = False

    @property
    def is_written(self) -> bool:
        """Whether the iteration wrote the array that the variable held when it began."""
        return self.is_writable and self.inside.state()[0] != self.placeholder

    def enter(self, body: LoopBody) -> Any:
        """Returns the placeholder for the value in an iteration."""
        recorder = body.recorder
        number = body.new_placeholder(self.initial, self.name)
        self.placeholder = number
        self.inside = value_of_type(recorder, number, self.type)
        if self.type.shape or is_array(self.inside):  # values without axes are arrays on a GPU
            iteration, rotating = body.iteration, recorder.loops.decisions.rotating
            self.is_writable = iteration.place in rotating and not iteration.is_branch and self.before is not None
            if self.is_writable:
                body.owners.add(id(self.inside))
            else:
                self.inside.read_only = ReboundByLoop(iteration.place)
        return self.inside


def truth_variable(body: LoopBody, name: str, initial: Any) -> CarriedVariable:
    """Returns a truth value that the loop carries besides the variables. initial: before it, traced or not."""
    with outside_of(body):
        if isinstance(initial, bool):
            initial = body.recorder.movement("full", [initial], shape=(), dtype=bool_)
    one = CarriedVariable(name, UNBOUND, initial, LeafType(bool_, (), None))
    one.enter(body)
    return one


def check_apart(variables: Sequence[CarriedVariable], written: Sequence[CarriedArray]) -> None:
    """Raises NotInEveryIteration for a variable that begins as an array that iterations write by another name."""
    owners = {id(views.owner_of(one.array)) for one in written}
    for variable in variables:
        before = variable.before
        if isinstance(before, Traced) and is_array(before) and id(views.owner_of(before)) in owners:
            raise NotInEveryIteration(f"{variable.name} begins as an array that the loop writes by another name")


def value_of_type(recorder: Recorder, number: int, leaf: LeafType) -> Traced:
    """Returns the name of a value: a number of Python, or an array."""
    kind = recorder.traced_type if leaf.weak is None else recorder.number_type
    return kind(recorder, number, leaf.weak)


def is_array(value: Any) -> bool:
    """Whether a value can be changed in place."""
    if isinstance(value, Traced):
        return not value.is_python and value.weak is None and not value.is_immutable
    return hasattr(value, "__setitem__")


def is_ordered(array: Traced) -> bool:
    """Whether an array is C-contiguous in NumPy, so that a loop can carry it; guarded."""
    if array.layout is None or len(array.extents) < 2:
        return True
    return views.is_contiguous(array, "the layout of an array that a loop rebinds")


def may_be_written(array: Traced, first_number: int) -> bool:
    """Whether the body of a loop may write an array that existed before it."""
    if array.is_unused or array.parent is not None or array.read_only is not None or array.on_host:
        return False
    recorder = array.recorder
    if recorder.capture_of(array) is not None or array.state()[0] in recorder.inside_bodies:
        return False
    return is_array(array) and array.state()[0] < first_number
