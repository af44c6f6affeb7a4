"""Traced values: names for values of the fusion that is being recorded.

A name stands for an array of NumPy's. Names that share memory there form a tree: a view knows the name it was taken
from and the step that leads to it, and the name at the root owns the memory. A write through any of them advances the
version of the memory, and a name that is behind reads its elements from the name it was taken from again.

Knows: values of the IR, versions of memory. Must not know: how operations are recorded, NumPy's functions.
"""

from __future__ import annotations

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
    """What a name and its views share.

    version: how many writes there were. written_at: the line of the last one. argument: the path of the argument whose
    memory it is, or None. input: the number of that argument's input.
    """

    __slots__ = ("argument", "input", "version", "written_at")

    def __init__(self, argument: str | None = None, input: int | None = None) -> None:
        self.argument, self.input = argument, input
        self.version = 0
        self.written_at: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ViewStep:
    """How a view follows from the name it was taken from.

    read: the view's elements from those of that name. write: that name's elements, from them and the view's.
    key: equal for steps that do the same. depends_on_layout: whether NumPy makes a view or a copy, by the memory layout
    of an argument; asked where it matters, since the answer may be guarded.
    """

    key: tuple[Any, ...]
    read: Callable[[Traced], Traced]
    write: Callable[[Traced, Traced], Traced]
    depends_on_layout: Callable[[], bool] = bool


class Traced:
    """A name for a value of the fusion that is being recorded.

    weak: the kind of Python scalar that it is in promotion, or None. sized: made from sizes, so weak also under NumPy's
    functions. read: for host scalars, the value as a function of the facts of a call. read_only: what NumPy makes
    without leave to write, as in "the result of np.diagonal", or None. parent, step: what a view was taken from, and
    how. memory: None for a value that has no views and was not written. strides: in elements, where they are not those
    of a C-contiguous array.
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

    @property
    def number(self) -> int:
        """The number of the value that the name stands for now."""
        if self.memory is not None and self._version != self.memory.version and self.recorder.alive:
            self._read_again()
        return self._number

    @property
    def value(self) -> Value:
        return self.recorder.builder.values[self.number]

    @property
    def extents(self) -> Shape:
        # A write changes no shape, so the shape is that of any value the name ever stood for.
        return tuple(self.recorder.simplify(e) for e in self.recorder.builder.values[self._number].shape)

    @property
    def on_host(self) -> bool:
        return not self.recorder.builder.values[self._number].is_tensor

    @property
    def is_immutable(self) -> bool:
        """Whether it is a NumPy scalar, as NumPy's full reductions and elements are; CuPy gives arrays."""
        is_scalar = not self.recorder.builder.values[self._number].shape
        return is_scalar and self.memory is None and self.recorder.device is None

    def own_memory(self) -> Memory:
        """Its memory, which from here on it can share."""
        if self.memory is None:
            self.memory = Memory()
        return self.memory

    def become_view(self, parent: Traced, step: ViewStep) -> None:
        """Makes this name, whose elements were just read from `parent`, a view of it."""
        self.parent, self.step, self.memory = parent, step, parent.own_memory()
        self.read_only = self.read_only or parent.read_only
        self._version = self.memory.version

    def bind(self, number: int) -> None:
        """Makes the name stand for a value that was written to its memory."""
        assert self.memory is not None
        self._number, self._version = number, self.memory.version

    def _read_again(self) -> None:
        """Reads the elements of views that are behind, from the one nearest to the root on."""
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
    """The refusal of a view that NumPy makes for some layouts of an argument, and a copy for others."""
    assert view.memory is not None
    return UnsupportedError(
        f"a reshaped view of {view.memory.argument} is {what}: whether NumPy made a view or a copy depends on the "
        "memory layout of the argument",
        hint=f"change {view.memory.argument} itself, or reshape a copy, as in x.copy().reshape(shape)",
        where=source.user_line(),
    )  # fmt: skip
