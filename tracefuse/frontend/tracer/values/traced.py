"""Traced values: names for values of the fusion that is being recorded.

A name is a handle of a NumPy array. Names that share memory form a tree: a view knows its base name and the step that
leads from the base to the view, and the root name owns the memory. A write through any name advances the version of
the memory. A name with an older version reads its elements from its base again.

Whether a reshaped argument is a view or a copy depends on its layout. Such a name is a view until a write through it,
or a read after a write to its base, asks. If it is a copy, it leaves the tree with its elements (`settle`).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.frontend.tracer.values.host_numbers import HostNumber
from tracefuse.frontend.tracer.values.nested_lists import leaves_of
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.ir.fusion import Shape, Value

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.record.recorder import Recorder


class Memory:
    """The memory that a name and its views share.

    version: the number of writes. written_at: the line of the last write. argument: the path of the argument that
    owns the memory, or None. input: the number of that argument's input.
    """

    __slots__ = ("argument", "input", "version", "written_at")

    def __init__(self, argument: str | None = None, input: int | None = None) -> None:
        self.argument, self.input = argument, input
        self.version = 0
        self.written_at: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ViewStep:
    """The step from a base name to its view.

    read: computes the view's elements from the base's. write: computes the base's elements from its own and the
    view's. key: equal for equivalent steps. is_view: whether NumPy makes a view; if it makes a copy, the name owns its
    memory. Evaluated once a write makes it matter, since the answer may depend on the layout of an argument, which is
    then guarded. None for steps that are always views.
    """

    key: tuple[Any, ...]
    read: Callable[[Traced], Traced]
    write: Callable[[Traced, Traced], Traced]
    is_view: Callable[[], bool] | None = None


@dataclass(slots=True, eq=False)
class LayoutFrom:
    """A layout that follows from other layouts, computed on demand, since it may become a guard.

    bases: the layouts that are computed first. compute: returns the strides, None for a C-contiguous array. strides:
    the result, once `is_known`.
    """

    bases: tuple[LayoutFrom, ...]
    compute: Callable[[], Shape | None]
    strides: Shape | None = None
    is_known: bool = False

    def evaluate(self) -> Shape | None:
        """Returns the strides; evaluates the layouts that they follow from first."""
        waiting = [self]
        while waiting:
            before = [base for base in waiting[-1].bases if not base.is_known]
            if before:
                waiting += before
            else:
                top = waiting.pop()
                if not top.is_known:
                    top.strides, top.is_known, top.bases = top.compute(), True, ()
        return self.strides


@dataclass(frozen=True, slots=True, eq=False)
class NumberWhere:
    """When a value is a number of Python.

    condition: a traced truth value, or True. kind: of the number. fits: what must hold if the number is kept, since
    integers of Python may have more than 64 bits.
    """

    condition: Any
    kind: str
    fits: tuple[Traced, ...] = ()


class Traced:
    """A name for a value of the fusion that is being recorded.

    weak: the kind of Python scalar in promotion, or None. sized: computed from sizes, so weak also under NumPy's
    functions. read: for host scalars, the value as a function of the facts of a call. read_only: the source of an
    array that NumPy returns read-only, as in "the result of np.diagonal", or None. parent, step: the base of a view,
    and the step from it. memory: None for a value without views that was never written. layout: the strides that the
    array has in NumPy, in elements; None if it is C-contiguous. number_where: in which iterations of a recorded loop it
    is a number of Python, or None. is_list: made of a list that is an argument of a function, some of which tell lists
    from arrays.
    """

    __slots__ = (
        "__weakref__",
        "_number",
        "_version",
        "is_list",
        "layout",
        "memory",
        "number_where",
        "parent",
        "read",
        "read_only",
        "recorder",
        "sized",
        "step",
        "weak",
    )  # fmt: skip

    is_python: ClassVar[bool] = False
    """Whether it is a number of Python that the call computes."""

    def __init__(
        self, recorder: Recorder, number: int, weak: str | None = None, read: HostNumber | None = None,
        sized: bool = False,
    ) -> None:  # fmt: skip
        self.recorder, self._number, self.weak, self.read, self.sized = recorder, number, weak, read, sized
        self.read_only: str | None = None
        self.parent: Traced | None = None
        self.step: ViewStep | None = None
        self.memory: Memory | None = None
        self.layout: Shape | LayoutFrom | None = None
        self.number_where: NumberWhere | None = None
        self.is_list = False
        self._version = 0
        recorder.names.append(weakref.ref(self))

    @property
    def number(self) -> int:
        """The number of the current value of the name."""
        if self._number < 0:
            self._number = self.recorder.admit(self)
        if self.memory is not None and self._version != self.memory.version and self.recorder.alive:
            self._read_again()
        return self._number

    @property
    def value(self) -> Value:
        return self.recorder.builder.values[self.number]

    @property
    def _first_value(self) -> Value:
        """A value of the name, which may be outdated."""
        return self.recorder.builder.values[self._number if self._number >= 0 else self.number]

    @property
    def is_unused(self) -> bool:
        """Whether it is a captured array that nothing has used yet."""
        return self._number < 0

    @property
    def extents(self) -> Shape:
        # A write changes no shape, so every value of the name has the same shape.
        return tuple(self.recorder.simplify(e) for e in self._first_value.shape)

    @property
    def on_host(self) -> bool:
        return not self._first_value.is_tensor

    @property
    def is_immutable(self) -> bool:
        """Whether it is a NumPy scalar, as NumPy's full reductions and elements are.

        CuPy returns arrays; of a call with CuPy's arrays, only scalars that are arguments are, and what they give.
        """
        if self._first_value.shape or self.memory is not None:
            return False
        return self.recorder.device is None or self.on_host

    @property
    def array_class(self) -> type:
        """The class that an array of the call has in its library: CuPy's on a GPU."""
        return np.ndarray if self.recorder.device is None else getattr(sys.modules.get("cupy"), "ndarray", np.ndarray)

    def own_memory(self) -> Memory:
        """Returns its memory, and creates it on first use so that views can share it."""
        if self.memory is None:
            self.memory = Memory()
        return self.memory

    def become_view(self, parent: Traced, step: ViewStep) -> None:
        """Makes this name, whose elements were just read from `parent`, a view of `parent`."""
        if parent.read_only is not None:
            parent.settle()  # a copy can be written, and so can views of it
        self.parent, self.step, self.memory = parent, step, parent.own_memory()
        self.read_only = self.read_only or parent.read_only
        self._version = self.memory.version

    def bind(self, number: int) -> None:
        """Sets the value of the name after a write to its memory."""
        if self.parent is not None:
            self.memory = self.parent.own_memory()
        assert self.memory is not None
        if self.recorder.body is not None:
            self.recorder.body.before_bind(self)
        self._number, self._version = number, self.memory.version

    def state(self) -> tuple[int, int]:
        """Returns the value of the name for `restore`."""
        return self._number, self._version

    def restore(self, state: tuple[int, int]) -> None:
        """Sets the name to an earlier value."""
        self._number, self._version = state

    def settle(self) -> None:
        """Decides whether the name is a view of its base; if it is a copy, the name owns its memory from now on."""
        if self.step is None or self.step.is_view is None:
            return
        if self.step.is_view():
            self.step = replace(self.step, is_view=None)
            return
        old, root = self.memory, self
        while root.parent is not None:
            root = root.parent
        self.parent, self.step, self.memory, self._version, self.layout = None, None, Memory(), 0, None
        self.read_only = None
        assert old is not None
        old.version += 1  # views of this name read again, and so notice that they have another owner
        root.bind(root._number)

    def _read_again(self) -> None:
        """Reads the elements of outdated views again, from the one nearest to the root on."""
        behind: list[Traced] = []
        name = self
        while name.parent is not None and (name.memory is None or name._version != name.memory.version):
            behind.append(name)
            name = name.parent
        for view in reversed(behind):
            view.settle()
            if view.step is not None and view.parent is not None:
                view.bind(view.step.read(view.parent).number)


class ComputedObject:
    """An object other than an array that is known in a call only, by its number among the values of the call."""

    recorder: Recorder
    number: int


class ObjectOfProgram:
    """What a trace has in place of an object of a library that the program made. original: that object."""

    @property
    def original(self) -> Any:
        raise NotImplementedError


def holds_traced(values: Any) -> bool:
    """Whether nested lists, tuples and dictionaries contain traced values, sizes or objects of the call."""
    leaves = leaves_of(values, (list, tuple, dict))
    return any(isinstance(value, (Traced, SymbolicSize, ComputedObject)) for value in leaves)
