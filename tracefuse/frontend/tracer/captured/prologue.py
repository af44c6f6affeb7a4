"""The prologue of a trace: what depends on captured state alone and is computed before the fusion runs.

It holds the steps of a trace in order: evaluations of recorded ops, calls of functions that no op expresses, and
questions, whose answers the trace assumed. The results of steps are inputs of the fusion. A call compares the captured
arrays that the prologue reads with snapshots. If none differs, it reuses the results; else it runs the steps that
depend on a changed array again, and the trace does not apply if an answer or the type of a result differs.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from segments.lazy_dataclasses import dataclass, replace
from tracefuse import pytrees
from tracefuse.caches import Cache, register
from tracefuse.dtypes import dtype_of
from tracefuse.errors import TracefuseError, shown
from tracefuse.frontend.tracer.captured.captures import is_equal
from tracefuse.frontend.tracer.captured.snapshots import Snapshot, as_own
from tracefuse.ir.extents import Extent, evaluate
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import evaluate as evaluate_fusion
from tracefuse.runtime.argument_leaves import array_key
from tracefuse.runtime.devices import cuda_arrays

Values: TypeAlias = Mapping[int, Any]
"""Arrays and Python numbers by value number."""


class Changed(Exception):
    """A step whose answer or result type differs from the one that the trace assumed."""


@dataclass(frozen=True, slots=True)
class ValueOf:
    """A placeholder for a value in the arguments of a call. is_scalar: whether it is a NumPy scalar, not an array."""

    number: int
    is_scalar: bool


@dataclass(frozen=True, slots=True)
class SizeOf:
    """A placeholder for a size in the arguments of a call. axes: value and axis of each extent, by its id."""

    extent: Extent
    axes: Mapping[int, tuple[int, int]]

    def read(self, values: Values) -> int:
        return evaluate(self.extent, {key: values[value].shape[axis] for key, (value, axis) in self.axes.items()})

    @property
    def reads(self) -> tuple[int, ...]:
        return tuple(value for value, _ in self.axes.values())


@dataclass(frozen=True, slots=True, eq=False)
class PrologueStep(ABC):
    """One step. reads, writes: value numbers. where: the user's line."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    where: str | None

    @abstractmethod
    def run(self, values: Values) -> Sequence[Any]:
        """Returns the values of `writes`. Raises Changed if the trace does not hold for them."""

    @abstractmethod
    def what(self, names: str) -> str:
        """What the step computes. names: the captured arrays that it depends on."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation(PrologueStep):
    """Recorded ops, evaluated by the reference implementation. device: the GPU of the results, None for the host."""

    fusion: Fusion
    device: int | None

    def run(self, values: Values) -> Sequence[Any]:
        results = evaluate_fusion(self.fusion, [on_host(values[number]) for number in self.reads])
        for result in results:
            result.setflags(write=False)  # a call that writes to its arguments raises
        return [on_device(result, self.device) for result in results]

    def what(self, names: str) -> str:
        return f"{len(self.fusion.nodes)} ops on {names}"


@dataclass(frozen=True, slots=True, eq=False)
class StateCall(PrologueStep):
    """A call of a function that is not recorded.

    name: the function in the user's words. arguments: (args, kwargs) flattened, with placeholders. call_structure:
    their pytree. structure: of the result. leaves: for each leaf of the result its key, if it is an array or a number
    that becomes an input, else the leaf itself, which the trace assumed. raised: the type of its exception, or None.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    call_structure: Any
    structure: Any = None
    leaves: tuple[ResultKey, ...] = ()
    raised: type[Exception] | None = None

    def run(self, values: Values) -> Sequence[Any]:
        try:
            result = self.function_result(values)
        except Exception as error:
            if type(error) is not self.raised:
                raise
            return ()
        if self.raised is not None:
            raise Changed
        leaves, structure = pytrees.flatten(result)
        if structure != self.structure or not all(
            key.fits(leaf) for key, leaf in zip(self.leaves, leaves, strict=True)
        ):
            raise Changed
        return [own_result(leaf) for key, leaf in zip(self.leaves, leaves, strict=True) if key.is_input]

    def what(self, names: str) -> str:
        return f"{self.name}() of {names}" + ("" if self.raised is None else f" raises {self.raised.__name__}")

    def returning(
        self, writes: tuple[int, ...], structure: Any, leaves: tuple[ResultKey, ...], raised: type[Exception] | None
    ) -> StateCall:
        """This call with what it returned or raised."""
        return replace(self, writes=writes, structure=structure, leaves=leaves, raised=raised)

    def function_result(self, values: Values) -> Any:
        """Calls the function with the values in place of the placeholders."""
        arguments = [_replaced(argument, values) for argument in self.arguments]
        args, kwargs = pytrees.unflatten(self.call_structure, arguments)
        return self.function(*args, **kwargs)


@dataclass(frozen=True, slots=True, eq=False)
class ResultKey:
    """What a leaf of a call's result must be. is_input: whether it is an input of the fusion, with this key."""

    is_input: bool
    key: Any

    def fits(self, leaf: Any) -> bool:
        if self.is_input:
            return bool(key_of(leaf) == self.key)
        return bool(leaf is self.key) or is_equal(leaf, self.key)


@dataclass(frozen=True, slots=True, eq=False)
class Question(PrologueStep):
    """A question about a value, and the answer that the trace assumed. question: in words."""

    question: str
    ask: Callable[[Any], Any]
    answer: Any

    def run(self, values: Values) -> Sequence[Any]:
        if not is_same_answer(self.ask(on_host(values[self.reads[0]])), self.answer):
            raise Changed
        return ()

    def what(self, names: str) -> str:
        is_element = isinstance(self.answer, np.ndarray) and not self.answer.ndim
        return f"{self.question} of {names} is {shown(self.answer[()] if is_element else self.answer)}"


def on_host(value: Any) -> Any:
    """Returns a NumPy or CuPy array as a NumPy array; Python numbers as they are."""
    return cuda_arrays.to_numpy(value) if cuda_arrays.is_array(value) else value


def on_device(value: Any, device: int | None) -> Any:
    """Returns a NumPy array as an array on a GPU; as it is for the host."""
    if device is None:
        return value
    with cuda_arrays.on_device(device):
        return cuda_arrays.namespace().asarray(value)


def is_same_answer(now: Any, before: Any) -> bool:
    """Whether two answers are interchangeable: arrays by type, shape and bytes, plain values by equality."""
    if isinstance(before, np.ndarray):
        same_type = isinstance(now, np.ndarray) and now.dtype == before.dtype and now.shape == before.shape
        return bool(same_type and now.tobytes() == before.tobytes())
    are_nan = now != now and before != before and type(now) is type(before)
    return bool(are_nan) or is_equal(now, before)


def key_of(leaf: Any) -> Any:
    """The key of a leaf of a result that can be an input of a fusion: its type and axes; None for any other leaf."""
    if type(leaf) in (int, float, complex):
        return type(leaf)
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return None
    array = as_own(leaf)
    try:
        dtype = dtype_of(array.dtype)
    except (TracefuseError, TypeError):
        return None
    return (isinstance(leaf, np.generic), *array_key(array, dtype))


def own_result(leaf: Any) -> Any:
    """A leaf of a result as an array that no other code writes to; Python numbers as they are."""
    if type(leaf) in (int, float, complex):
        return leaf
    array = np.asarray(leaf) if isinstance(leaf, np.generic) else as_own(leaf)
    array = array.copy() if array.base is not None else array
    if isinstance(array, np.ndarray):
        array.setflags(write=False)
    return array


def _replaced(argument: Any, values: Values) -> Any:
    if isinstance(argument, ValueOf):
        value = values[argument.number]
        return value[()] if argument.is_scalar else value
    return argument.read(values) if isinstance(argument, SizeOf) else argument


@dataclass(frozen=True, slots=True, eq=False)
class _PrologueState:
    """The captured arrays at one time. values: the results of calls. results: the inputs of the fusion."""

    snapshots: tuple[Snapshot, ...]
    values: Values
    results: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Rejected:
    """The captured arrays at a time when the trace did not hold, and the step that showed it."""

    snapshots: tuple[Snapshot, ...]
    step: PrologueStep | None

    def holds(self, arrays: Sequence[Any]) -> bool:
        return all(snapshot.holds(array) for snapshot, array in zip(self.snapshots, arrays, strict=True))


register(Cache(
    "frontend.tracer.captured.prologue.Prologue._state",
    "results of the prologue, and copies of the captured arrays it reads",
    "contents of these arrays", "the last contents for which the trace holds, and the last for which it does not",
    "a trace", "with the trace",
))  # fmt: skip


class Prologue:
    """The prologue of one trace.

    captured: the positions, among the trace's captured arrays, of those that it reads. names: their paths by value
    number. inputs: the values that are inputs of the fusion. constants: arrays created during the trace. snapshots: of
    the captured arrays. values: all values that the trace computed.
    """

    def __init__(
        self, steps: Sequence[PrologueStep], captured: Sequence[int], names: Mapping[int, str], inputs: Sequence[int],
        constants: Values, snapshots: Sequence[Snapshot], values: Values,
    ) -> None:  # fmt: skip
        self.steps, self.captured, self.inputs = tuple(steps), tuple(captured), tuple(inputs)
        self._names, self._constants = names, constants
        self._keys = tuple(key_of(snapshot.array) for snapshot in snapshots)
        self._lock = threading.RLock()
        self._rejected: _Rejected | None = None
        self._state = _PrologueState(
            tuple(snapshots), self._kept(values), tuple(values[number] for number in self.inputs)
        )

    def results(self, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
        """The inputs that the prologue computes from the captured arrays; None if the trace does not hold for them."""
        state = self._state
        for array, snapshot in zip(arrays, state.snapshots, strict=True):
            if not snapshot.holds(array):
                return self._renewed(arrays)
        return state.results

    def listing(self) -> tuple[str, ...]:
        """The calls and questions as text, with their lines, and the bytes that each call compares."""
        texts = [self.text_of(step) for step in self.steps if not isinstance(step, Evaluation)]
        sizes = zip(self._names.values(), self._state.snapshots, strict=True)
        return (*texts, "compared at every call: " + ", ".join(f"{name} ({array.nbytes} B)" for name, array in sizes))

    def text_of(self, step: PrologueStep) -> str:
        """What a step computes of which captured arrays, with the user's line."""
        behind: dict[int, dict[str, None]] = {number: {name: None} for number, name in self._names.items()}
        for earlier in self.steps:
            names = {name: None for number in earlier.reads for name in behind.get(number, ())}
            if earlier is step:
                break
            behind.update(dict.fromkeys(earlier.writes, names))
        text = step.what(" and ".join(names) or "a constant")
        return text if step.where is None else f"{text} ({step.where})"

    def _kept(self, values: Values) -> Values:
        """The values that a later run needs although nothing they depend on has changed."""
        read = {*self.inputs, *(number for step in self.steps for number in step.reads)}
        calls = {number for step in self.steps if isinstance(step, StateCall) for number in step.writes}
        return {number: values[number] for number in {*self.inputs, *(read & calls)}}

    def first_change(self, arrays: Sequence[Any]) -> PrologueStep | None:
        """The step for which the trace does not hold, after `results` returned None for these arrays."""
        with self._lock:
            rejected = self._rejected
            return None if rejected is None or not rejected.holds(arrays) else rejected.step

    def _renewed(self, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
        """Runs the steps that depend on changed arrays. A later call with the same contents reuses the outcome."""
        with self._lock:
            state = self._state
            rejected = self._rejected
            if rejected is not None and rejected.holds(arrays):
                return None
            # Steps read the copies: another thread may write to the arrays meanwhile.
            snapshots = tuple(
                snapshot if snapshot.holds(array) else Snapshot(array)
                for snapshot, array in zip(state.snapshots, arrays, strict=True)
            )
            values, failed = self._run(state, snapshots)
            if values is None:
                self._rejected = _Rejected(snapshots, failed)
                return None
            self._state = _PrologueState(snapshots, values, tuple(values[number] for number in self.inputs))
            return self._state.results

    def _run(self, state: _PrologueState, snapshots: Sequence[Snapshot]) -> tuple[Values | None, PrologueStep | None]:
        """Runs the steps that changed snapshots affect. Returns the values to keep, or None and the step that failed.

        An exception of the user's fails a step too: the function is traced again, and raises it at the user's line.
        """
        for key, snapshot in zip(self._keys, snapshots, strict=True):
            if key_of(snapshot.array) != key:
                return None, None
        before = zip(self._names, snapshots, state.snapshots, strict=True)
        changed = {number for number, now, old in before if now is not old}
        values = {**self._constants, **state.values}
        values.update((number, copy.array) for number, copy in zip(self._names, snapshots, strict=True))
        for step in self._steps_to_run(changed, values):
            try:
                results = step.run(values)
            except Exception:
                return None, step
            values.update(zip(step.writes, results, strict=True))
        return self._kept(values), None

    def _steps_to_run(self, changed: set[int], values: Values) -> list[PrologueStep]:
        """The steps that depend on changed values, and the evaluations whose results these read, in order."""
        affected: list[bool] = []
        for step in self.steps:
            affected.append(not changed.isdisjoint(step.reads))
            if affected[-1]:
                changed.update(step.writes)
        needed = changed.intersection(self.inputs)
        run: list[PrologueStep] = []
        for step, is_affected in zip(reversed(self.steps), reversed(affected), strict=True):
            is_read = not needed.isdisjoint(step.writes)
            is_kept = all(number in values for number in step.writes)
            if (is_affected and not isinstance(step, Evaluation)) or (is_read and (is_affected or not is_kept)):
                run.append(step)
                needed.update(step.reads)
        return run[::-1]
