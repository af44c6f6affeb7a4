"""The source of each leaf of a result at every call."""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.values.host_numbers import HostNumber
from tracefuse.ir.extents import Extent


@dataclass(frozen=True, slots=True)
class OutputLeaf:
    """An output of the fusion. position: its index among all outputs."""

    position: int


@dataclass(frozen=True, slots=True)
class ArgumentLeaf:
    """An argument, returned unchanged. position: its index among the leaves of the call."""

    position: int


@dataclass(frozen=True, slots=True, eq=False)
class ConstantLeaf:
    """The same object at every call."""

    value: Any


@dataclass(frozen=True, slots=True)
class SizeLeaf:
    """A size, returned as a Python integer."""

    extent: Extent


@dataclass(frozen=True, slots=True, eq=False)
class NumberLeaf:
    """A number that the host computes from the extents and scalars of the call."""

    read: HostNumber


@dataclass(frozen=True, slots=True)
class ScalarLeaf:
    """An output of the fusion without axes, as a NumPy scalar. position: its index among all outputs."""

    position: int


@dataclass(frozen=True, slots=True)
class PythonLeaf:
    """An output of the fusion without axes, as a number of Python. position: its index among all outputs."""

    position: int


@dataclass(frozen=True, slots=True, eq=False)
class PlaceLeaf:
    """The object at a place of the captured state or of the arguments, as it was before the call."""

    place: Place


@dataclass(frozen=True, slots=True)
class NewLeaf:
    """An object that each call creates. position: its index among the new objects of a trace."""

    position: int


@dataclass(frozen=True, slots=True, eq=False)
class TextLeaf:
    """A text with the texts of computed values, see `LaterText`. values: the leaf of each."""

    texts: tuple[str, ...]
    specifications: tuple[str | None, ...]
    values: tuple[ResultLeaf, ...]


ResultLeaf: TypeAlias = (
    OutputLeaf | ArgumentLeaf | ConstantLeaf | SizeLeaf | NumberLeaf | ScalarLeaf | PythonLeaf | PlaceLeaf | NewLeaf
    | TextLeaf
)  # fmt: skip


@dataclass(slots=True, eq=False)
class NewObject:
    """How to create an object of a result or of the state: an empty one, which is then filled.

    base: the class of containers that it is laid out as, `tuple`, `object`, or the class itself of functions and cells.
    entries: of a list, a tuple or a set, the contents of a cell, the cells of a function; items: of a dict; attributes:
    of an instance. arguments: of a deque, its length; of a defaultdict, its factory; of a function, its code, globals
    and name; of `ListedRows`, how entries are made of rows.
    """

    cls: type
    base: type
    entries: list[ResultLeaf] = field(default_factory=list)
    items: list[tuple[Any, ResultLeaf]] = field(default_factory=list)
    attributes: list[tuple[str, ResultLeaf]] = field(default_factory=list)
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """A change of the state that every call makes once its segments have succeeded.

    target: the place of the object that is changed. kind: a key of `WRITES`. key: the attribute, entry or position.
    (the leaf of the key for a kind in `COMPUTED`). value: what is stored, or None.
    """

    kind: str
    target: Place
    key: Any = None
    value: ResultLeaf | None = None


def _set_cell(cell: Any, _: Any, value: Any) -> None:
    cell.cell_contents = value


def _delete_attribute(target: Any, key: str, _: Any) -> None:
    with contextlib.suppress(AttributeError):  # an attribute that the function sets and deletes may be absent
        object.__delattr__(target, key)


def _delete_class_attribute(target: type, key: str, _: Any) -> None:
    if key in vars(target):
        delattr(target, key)


def _empty_cell(cell: Any, _: Any, value: Any) -> None:
    with contextlib.suppress(ValueError):
        del cell.cell_contents


def _set_contents(target: Any, _: Any, value: Any) -> None:
    if isinstance(target, list):
        target[:] = value
    else:
        target.clear()
        (target.extend if hasattr(target, "extend") else target.update)(value)


_SET_ENTRY: Mapping[Any, Callable[..., None]] = {
    dict: dict.__setitem__, OrderedDict: OrderedDict.__setitem__, list: list.__setitem__, deque: deque.__setitem__,
}  # fmt: skip
_DELETE_ENTRY: Mapping[Any, Callable[..., Any]] = {dict: dict.pop, OrderedDict: OrderedDict.pop}
WRITES: Mapping[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "attribute": (object.__setattr__, "store({0}, {1}, {2})"),
    "plain attribute": (setattr, "{0}.{3} = {2}"),
    "class attribute": (setattr, "setattr({0}, {1}, {2})"),
    "no attribute": (_delete_attribute, "store({0}, {1}, None)"),
    "no class attribute": (_delete_class_attribute, "store({0}, {1}, None)"),
    "entry": (lambda target, key, value: _SET_ENTRY[_container(target)](target, key, value), "store({0}, {1}, {2})"),
    "computed entry": (
        lambda target, key, value: _SET_ENTRY[_container(target)](target, key, value), "store({0}, {1}, {2})",
    ),
    "no computed entry": (
        lambda target, key, _: _DELETE_ENTRY[_container(target)](target, key, None), "store({0}, {1}, None)",
    ),
    "plain entry": (lambda target, key, value: target.__setitem__(key, value), "{0}[{1}] = {2}"),
    "no entry": (lambda target, key, _: _DELETE_ENTRY[_container(target)](target, key, None), "store({0}, {1}, None)"),
    "append": (lambda target, _, value: target.append(value), "{0}.append({2})"),
    "contents": (_set_contents, "store({0}, None, {2})"),
    "no cell contents": (_empty_cell, "store({0}, None, None)"),
    "cell": (_set_cell, "{0}.cell_contents = {2}"),
    "add": (lambda target, _, value: target.add(value), "{0}.add({2})"),
    "discard": (lambda target, _, value: target.discard(value), "{0}.discard({2})"),
}  # fmt: skip
"""Each kind of write: a function of target, key and value, and its text in the code of a call.

(In the text, {0} is the target, {1} the key, {2} the value, {3} the key as a name, and `store` the function.)
"""


COMPUTED = ("computed entry", "no computed entry")
"""Kinds of writes whose keys each call computes."""


def _container(value: Any) -> Any:
    """Returns the class of containers whose methods change a container past the methods of its own class."""
    return next(cls for cls in (OrderedDict, dict, list, deque) if isinstance(value, cls))


PrintedLeaf: TypeAlias = OutputLeaf | ConstantLeaf | NumberLeaf | SizeLeaf


def count_outputs(leaves: Iterable[ResultLeaf]) -> int:
    """Returns the number of leaves that are outputs of the fusion."""
    return sum(isinstance(leaf, OutputLeaf) for leaf in leaves)
