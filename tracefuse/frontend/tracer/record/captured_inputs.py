"""Arrays and numbers of the captured state as inputs of a trace.

A captured array has one traced value, which becomes an input when it is used first.

Must not know: overlays of values, ops.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType, int64
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.captured.known_contents import KnownContents
from tracefuse.frontend.tracer.python_code.text_flow import TextFlow
from tracefuse.frontend.tracer.record.assumptions import Assumptions
from tracefuse.frontend.tracer.record.trace_builder import TraceBuilder
from tracefuse.frontend.tracer.values.host_numbers import HostNumber
from tracefuse.frontend.tracer.values.traced import Memory, Traced
from tracefuse.ir.extents import Extent, symbol
from tracefuse.runtime.argument_leaves import Leaf
from tracefuse.runtime.devices import arrays


class AnotherAttempt(BaseException):
    """Ends a trace that has to begin again with what it learned. (User code must not catch it.)"""


@dataclass(slots=True)
class Capture:
    """An array or a number that the function closes over.

    place: where calls read it; None for an array that was created during the trace. traced: its traced value; None for
    a number. number: its input; None before it is used. contents: the elements of an array without a place when it was
    captured, since the function may write it afterwards.
    """

    array: Any
    place: Place | None
    traced: Traced | None
    number: int | None = None
    contents: Any = None

    @property
    def constant(self) -> Any:
        """The array as the trace read it."""
        return self.array if self.contents is None else self.contents

    @property
    def is_written(self) -> bool:
        """Whether the function wrote the array since it was captured."""
        return self.contents is not None and self.contents.tobytes() != self.array.tobytes()


class ComputedOutside(NamedTuple):
    """How an input between two stages was computed. operands: the numbers of the values that it depends on."""

    operands: Sequence[int]
    name: str
    where: str | None


class CapturedInputs(Assumptions):
    """The captured arrays of one trace by the id of the array, and the numbers of the state that are inputs."""

    builder: TraceBuilder
    contents: KnownContents
    traced_type: type[Traced]

    def __init__(self) -> None:
        super().__init__()
        self.captures: dict[int, Capture] = {}
        self.numbers: list[Capture] = []
        # What a library that traces the function itself gives it in place of a captured array, and what it keeps from
        # one attempt to the next, by its call in program order.
        self.represent: Callable[[Any, Place], Any] | None = None
        self.kept_alive: dict[int, Any] = {}
        self.calls_traced_outside = 0
        # Captured arrays that the function changes: their elements are read as those of arguments are.
        self.changing: dict[int, Any] = {}
        # How inputs that a library computed between two stages depend on recorded values, by number.
        self.computed_outside: dict[int, ComputedOutside] = {}
        # Those whose arrays nothing else refers to after the call, so that it may return them.
        self.fresh_inputs: set[int] = set()
        # How many of the functions that run are differentiated.
        self.differentiated = 0
        # Values whose texts each call makes, and what tells where a text goes.
        self.texts: list[tuple[Traced, str | None]] = []
        self.text_flow: TextFlow | None = None
        # Inputs whose arrays promote as Python numbers.
        self.weak_inputs: set[int] = set()
        # Results of functions of JAX that promote as Python numbers.
        self.weak_results: set[int] = set()
        # By the id of the traced value: captures, and those that are not inputs yet.
        self._captured: dict[int, Capture] = {}
        self._waiting: dict[int, Capture] = {}
        self._axes = 0
        # How the host computes the sizes among the inputs that are integers of the call, by number.
        self.host_sizes: dict[int, HostNumber] = {}
        # The numbers of host scalars by the integer that they hold.
        self._scalars: dict[Extent, int] = {}

    @property
    def weak_outputs(self) -> frozenset[int]:
        """The positions of outputs that promote as Python numbers."""
        return frozenset(k for k, number in enumerate(self.builder.outputs) if number in self.weak_results)

    @abstractmethod
    def scalar_argument(self, value: Any, dtype: DType, weak: str | None, name: str, where: str | None) -> Any:
        """Adds a host scalar."""

    def tensor_input(self, array_shape: Sequence[int], dtype: DType, name: str, where: str | None) -> int:
        """Adds an array input. Extents of 1 are static; others are symbolic, with the current sizes as hints."""
        for axis, extent in enumerate(array_shape):
            self.hints[-(self._axes + axis + 1)] = int(extent)
        self._axes += len(array_shape)
        shape = [1 if e == 1 else -1 for e in array_shape]
        return self.builder.tensor_input(dtype, shape, name=name, where=where)

    def size_input(self, value: int, where: str | None) -> int:
        """Adds an integer that the call computes, as a host scalar. If `value` is above 1, it is in every call."""
        number = self.builder.next_number
        extent = symbol(f"s{number}", number, minimum=2 if value > 1 else -(2**63))
        self.builder.scalar_input(int64, name="a computed size", where=where, extent=extent)
        self.hints[number] = value
        self._scalars[extent] = number
        return number

    def path_of(self, array: Any) -> str:
        """Returns how code reaches an array, for messages."""
        overlays = getattr(self, "overlays", None)
        places = () if overlays is None else overlays.reads.unrecorded
        return next((place.path for place in places if place.value is array), "array")

    def capture(self, array: Any) -> Traced:
        """Returns the traced value of an array that is not an argument: an input, one for each object."""
        known = self.captures.get(id(array))
        if known is not None and known.traced is not None:
            if not known.is_written:
                return known.traced
            self.captures[id(known.contents)] = known
        if arrays.is_of_subclass(array):
            arrays.dtype_of_argument(array, self.path_of(array))
        traced = self.capture_later(array, None)
        if isinstance(array, np.ndarray) and array.flags.writeable:
            self.captures[id(array)].contents = array.copy()
        return traced

    def capture_later(self, array: Any, place: Place | None) -> Traced:
        """Returns a traced value for an array, which becomes an input when it is used first.

        place: where calls read it. An array without a place was created during the trace; its elements are known.
        """
        recorder: Any = self
        traced = self.traced_type(recorder, -1)
        traced.memory = Memory("a constant array" if place is None else place.path)
        self.captures[id(array)] = Capture(array, place, traced)
        self._waiting[id(traced)] = self._captured[id(traced)] = self.captures[id(array)]
        return traced

    def capture_of(self, traced: Traced) -> Capture | None:
        """Returns the capture of a traced value; None for a value that is not captured."""
        return self._captured.get(id(traced))

    def admit(self, traced: Traced) -> int:
        """Makes a captured array an input, and returns its number."""
        self.check_alive()
        capture = self._waiting.pop(id(traced))
        array, place = capture.array, capture.place
        name = f"captured{len(self.captures)}" if place is None else place.path
        number = capture.number = self.tensor_input(
            array.shape, arrays.dtype_of_array(array), name, None if place is None else place.where
        )
        assert traced.memory is not None
        if place is not None:  # else the trace made the array: its updates are not those of a later call
            traced.memory.input = number
        traced.layout = self.add_strides(number, self.builder.values[number].shape, arrays.element_strides(array))
        overlays = getattr(self, "overlays", None)
        if place is not None and overlays is not None and place.route.identity in overlays.numbers:
            self.changing[number] = array
            return number
        self.contents.add_axes(number)
        self.builder.add_constant(number, capture.constant, is_state=place is not None)
        return number

    def capture_number(self, value: Any, place: Place, leaf: Leaf) -> Any:
        """Returns an input for a number of the state that the function changes."""
        assert leaf.dtype is not None
        item = value.item() if isinstance(value, np.generic) else value
        traced = self.scalar_argument(item, leaf.dtype, leaf.weak, place.path, place.where)
        self.numbers.append(Capture(value, place, None, self.builder.inputs[-1]))
        return traced

    def forget(self) -> None:
        """Drops the traced values of the captures."""
        self.captures.clear()
        self.changing.clear()
        self.texts.clear()
        self._captured.clear()
        self._waiting.clear()


def is_number(value: Any) -> bool:
    """Whether a value is a Python or NumPy number other than a truth value, which an input of a trace can replace."""
    return type(value) in _NUMBERS and (type(value) is not int or value in _INT64)


_INT64 = range(-(2**63), 2**63)
_NUMBERS = {
    *(int, float, complex),
    *(kind for kind in (np.float16, np.float32, np.float64, np.complex64, np.complex128)),
    *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
}
