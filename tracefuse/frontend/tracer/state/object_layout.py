"""What Python itself keeps of an object: its own attributes, its slots, the class written in C behind its class.

Must not know: overlays of values, traces.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Iterator
from types import MemberDescriptorType, SimpleNamespace
from typing import Any, Protocol

from tracefuse.errors import TraceError
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.frontend.tracer.state.container_records import CONTAINERS

ABSENT = object()
"""The value of an attribute that an object does not have."""
UNREAD = object()
"""The contents of an attribute that the trace replaced or deleted before any read."""
_METACLASSES = (abc.ABCMeta, type(Protocol), type, object)
_OF_MAKING = frozenset((
    "__new__", "__init__", "__prepare__", "__module__", "__qualname__", "__doc__", "__static_attributes__",
    "__firstlineno__",
))  # fmt: skip
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def is_special(name: str) -> bool:
    """Whether Python defines what an attribute of this name is."""
    return name.startswith("__") and name.endswith("__")


def lacks(name: str, value: Any) -> bool:
    """Whether an object lacks an attribute."""
    return not hasattr(value, name)


def lacks_all(names: frozenset[str], table: dict[str, Any]) -> bool:
    """Whether the attributes of an object include none of the names."""
    return names.isdisjoint(table)


def kept_in(name: str, cls: type) -> Any:
    """Returns what a class or its bases keep under a name, unbound, or ABSENT."""
    return next((vars(owner)[name] for owner in cls.__mro__ if name in vars(owner)), ABSENT)


def native_dict(value: Any) -> dict[str, Any]:
    """Returns the attributes that an object itself has; an empty dict for an object without."""
    try:
        table: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return table


def native_base(cls: type) -> type | None:
    """Returns the class written in C that instances of a class are laid out as; None where shadows cannot have it."""
    base = next(
        candidate for candidate in cls.__mro__ if candidate in CONTAINERS or not candidate.__flags__ & _HEAP_TYPE
    )
    return base if base is object or base in CONTAINERS or base is SimpleNamespace else None


def slots_of(cls: type) -> Iterator[tuple[str, MemberDescriptorType]]:
    """Yields the slots of a class of the user and of its bases.

    Members of bases written in C, as the real part of a complex number, cannot be written.
    """
    for owner in cls.__mro__:
        for name, entry in vars(owner).items() if owner.__flags__ & _HEAP_TYPE else ():
            if isinstance(entry, MemberDescriptorType) and not is_special(name):
                yield name, entry


def slot_contents(instance: Any, slot: MemberDescriptorType) -> Any:
    """Returns the contents of a slot, or ABSENT."""
    try:
        return slot.__get__(instance, type(instance))
    except AttributeError:
        return ABSENT


def own_attributes(value: Any) -> dict[str, Any]:
    """Returns a copy of the attributes that an object itself has, those in slots too."""
    attributes = dict(native_dict(value))
    for name, slot in slots_of(type(value)):
        contents = slot_contents(value, slot)
        if contents is not ABSENT:
            attributes[name] = contents
    return attributes


def has_own(instance: Any, name: str) -> bool:
    """Whether an instance itself has an attribute, in a slot or beside its class."""
    entry = kept_in(name, type(instance))
    if isinstance(entry, MemberDescriptorType):
        return slot_contents(instance, entry) is not ABSENT
    return name in native_dict(instance)


def runs_users_code_for_subclasses(cls: type) -> bool:
    """Whether a subclass of a class runs an `__init_subclass__` of the user."""
    owner = next(owner for owner in cls.__mro__ if "__init_subclass__" in vars(owner))
    return not is_of_library(owner.__module__)


def is_processed_by_package(cls: type) -> bool:
    """Whether an installed package changes each subclass of a class, as flax.linen does with its modules."""
    owner = next(owner for owner in cls.__mro__ if "__init_subclass__" in vars(owner))
    package = owner.__module__.partition(".")[0]
    return is_of_library(owner.__module__) and package not in sys.stdlib_module_names


def makes_plain_classes(metaclass: type) -> bool:
    """Whether the classes of a metaclass behave as other classes do once they are made."""
    users = [vars(owner) for owner in metaclass.__mro__ if owner not in _METACLASSES]
    return not any(table.keys() - _OF_MAKING for table in users)


def refuse_calls_by_metaclass(cls: type, place: Place) -> type:
    """Returns a class; raises TraceError for a class whose calls run code of the user that no trace sees."""
    metaclass: type = type(cls)
    owner = next(candidate for candidate in metaclass.__mro__ if "__call__" in vars(candidate))
    if not is_of_library(owner.__module__):
        raise TraceError(
            f"{place.path} is a class whose calls run {owner.__qualname__}.__call__, which a trace does not see",
            hint="create the object outside of the fused function", where=place.where, runs_function=True,
        )  # fmt: skip
    return cls
