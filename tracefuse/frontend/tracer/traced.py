"""Traced values: names for values of the fusion that is being recorded.

A name may be bound to another value (`y += 1`). Names that may share memory in NumPy form a group, so that a change
through one of them is never missed by the others.

Knows: values of the IR, views. Must not know: how operations are recorded, NumPy's functions.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracefuse.frontend.tracer.operands import Facts
from tracefuse.ir.fusion import Shape, Value

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.recorder import Recorder


class ViewGroup:
    """Names that may share memory in NumPy: changing one in place would have to change the others."""

    __slots__ = ("members", "of_argument")

    def __init__(self, of_argument: str | None) -> None:
        self.of_argument = of_argument
        self.members: list[weakref.ref[Traced]] = []

    def change_through(self, traced: Traced, line: str) -> None:
        """The memory was changed in place through one name: the others may be used no more."""
        for member in self.members:
            other = member()
            if other is not None and other is not traced:
                other.changed = line
        self.members = [weakref.ref(traced)]


class Traced:
    """A name for a value of the fusion that is being recorded.

    weak: the kind of Python scalar that it is in promotion, or None. sized: made from sizes, so weak also under NumPy's
    functions. read: for host scalars, the value as a function of the facts of a call. changed: the line that changed
    its memory in place through another name; it stands for nothing from then on. read_only: what NumPy makes without
    leave to write, as in "the result of np.diagonal", or None.
    """

    __slots__ = ("__weakref__", "changed", "group", "number", "read", "read_only", "recorder", "sized", "weak")

    def __init__(
        self, recorder: Recorder, number: int, weak: str | None = None, read: Callable[[Facts], Any] | None = None,
        sized: bool = False,
    ) -> None:  # fmt: skip
        self.recorder, self.number, self.weak, self.read, self.sized = recorder, number, weak, read, sized
        self.group: ViewGroup | None = None
        self.changed: str | None = None
        self.read_only: str | None = None

    @property
    def value(self) -> Value:
        return self.recorder.builder.values[self.number]

    @property
    def extents(self) -> Shape:
        return tuple(self.recorder.simplify(e) for e in self.value.shape)

    @property
    def on_host(self) -> bool:
        return not self.value.is_tensor
