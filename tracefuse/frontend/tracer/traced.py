"""Traced values: names for values of the fusion that is being recorded.

A name stands for a NumPy array. Names that share memory form a tree: a view knows its base name and the step that
leads from the base to the view, and the root name owns the memory. A write through any name advances the version of
the memory. A name with an older version reads its elements from its base again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracefuse import source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.operands import Facts
from tracefuse.ir.fusion import Shape, Value

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.recorder import Recorder


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
    view's. key: equal for equivalent steps. depends_on_layout: whether the memory layout of an argument decides
    between a view and a copy in NumPy; evaluated on demand, since the answer may be guarded.
    """

    key: tuple[Any, ...]
    read: Callable[[Traced], Traced]
    write: Callable[[Traced, Traced], Traced]
    depends_on_layout: Callable[[], bool] = bool


class Traced:
    """A name for a value of the fusion that is being recorded.

    weak: the kind of Python scalar in promotion, or None. sized: computed from sizes, so weak also under NumPy's
    functions. read: for host scalars, the value as a function of the facts of a call. read_only: the source of an
    array that NumPy returns read-only, as in "the result of np.diagonal", or None. parent, step: the base of a view,
    and the step from it. memory: None for a value without views that was never written. strides: in elements, if they
    differ from those of a C-contiguous array.
    """

    __slots__ = (
        "__weakref__", "_number", "_version", "memory", "parent", "read", "read_only", "recorder", "sized", "step",
        "strides", "weak",
    )  # fmt: skip

    def __init__(
        self, recorder: Recorder, number: int, weak: str | None = None, read: Callable[[Facts], Any] | None = None,
        sized: bool = False,
    ) -> None:  # fmt: skip
        self.recorder, self._number, self.weak, self.read, self.sized = recorder, number, weak, read, sized
        self.read_only: str | None = None
        self.parent: Traced | None = None
        self.step: ViewStep | None = None
        self.memory: Memory | None = None
        self.strides: Shape | None = None
        self._version = 0
        if recorder.answers is not None:
            recorder.names.append(weakref.ref(self))

    @property
    def number(self) -> int:
        """The number of the current value of the name."""
        if self.memory is not None and self._version != self.memory.version and self.recorder.alive:
            self._read_again()
        return self._number

    @property
    def value(self) -> Value:
        return self.recorder.builder.values[self.number]

    @property
    def extents(self) -> Shape:
        # A write changes no shape, so every value of the name has the same shape.
        return tuple(self.recorder.simplify(e) for e in self.recorder.builder.values[self._number].shape)

    @property
    def on_host(self) -> bool:
        return not self.recorder.builder.values[self._number].is_tensor

    @property
    def is_immutable(self) -> bool:
        """Whether it is a NumPy scalar, as NumPy's full reductions and elements are; CuPy returns arrays."""
        is_scalar = not self.recorder.builder.values[self._number].shape
        return is_scalar and self.memory is None and self.recorder.device is None

    def own_memory(self) -> Memory:
        """Returns its memory, and creates it on first use so that views can share it."""
        if self.memory is None:
            self.memory = Memory()
        return self.memory

    def become_view(self, parent: Traced, step: ViewStep) -> None:
        """Makes this name, whose elements were just read from `parent`, a view of `parent`."""
        self.parent, self.step, self.memory = parent, step, parent.own_memory()
        self.read_only = self.read_only or parent.read_only
        self._version = self.memory.version

    def bind(self, number: int) -> None:
        """Sets the value of the name after a write to its memory."""
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

    def _read_again(self) -> None:
        """Reads the elements of outdated views again, from the one nearest to the root on."""
        assert self.memory is not None
        behind: list[Traced] = []
        name: Traced | None = self
        while name is not None and name._version != self.memory.version:
            behind.append(name)
            name = name.parent
        for view in reversed(behind):
            assert view.step is not None
            assert view.parent is not None
            if view.step.depends_on_layout():
                raise view_or_copy(view, f"read after {self.memory.argument} was changed ({self.memory.written_at})")
            view.bind(view.step.read(view.parent).number)


def view_or_copy(view: Traced, what: str) -> UnsupportedError:
    """Returns the error for a result that is a view for some layouts of an argument, and a copy for others."""
    assert view.memory is not None
    return UnsupportedError(
        f"a reshaped view of {view.memory.argument} is {what}: whether NumPy made a view or a copy depends on the "
        "memory layout of the argument",
        hint=f"change {view.memory.argument} itself, or reshape a copy, as in x.copy().reshape(shape)",
        where=source.user_line(),
    )  # fmt: skip
