"""Shadows of the user's classes and of their instances.

A shadow class is a subclass of the user's class, of the same layout, with clones of its methods. A shadow instance is
an instance of it that reads each attribute from the original when the trace reads it first. `isinstance`, properties,
slots, dataclasses and `super()` work as on the original. Calls create ordinary instances in the place of those that the
trace creates.

Must not know: overlays of values.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections import ChainMap, UserDict, UserList
from types import FunctionType, MemberDescriptorType, MethodDescriptorType, SimpleNamespace, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.frontend.tracer.state import settled_methods, shadow_nodes
from tracefuse.frontend.tracer.state.cached_calls import cached_twin, is_cached
from tracefuse.frontend.tracer.state.container_overlays import OVERLAY_METHODS
from tracefuse.frontend.tracer.state.container_records import CONTAINERS, read_shared
from tracefuse.frontend.tracer.state.object_layout import (
    ABSENT,
    UNREAD,
    has_own,
    is_processed_by_package,
    is_special,
    kept_in,
    lacks,
    makes_plain_classes,
    native_base,
    native_dict,
    refuse_calls_by_metaclass,
    runs_users_code_for_subclasses,
    slot_contents,
    slots_of,
)
from tracefuse.frontend.tracer.state.super_overlays import SkipsInitSubclass

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.state.overlays import Overlays

_PLAIN_LIBRARY_CLASSES = (SimpleNamespace, argparse.Namespace, ChainMap, UserDict, UserList)
_OF_CLASSES = (FunctionType, property, staticmethod, classmethod)
"""What statements of a class make, apart from descriptors of other classes."""
_OWN_METHODS = ("__getattribute__", "__delattr__", "__reduce_ex__")


class ShadowInstance:
    """The state of a shadow instance. loaded: the overlay of each attribute at its first read, or ABSENT.

    of_class: names that the trace found on the class, or nowhere; the instance itself must not have them.
    """

    def __init__(self, overlay: Any, original: Any, place: Place) -> None:
        self.overlay, self.original, self.place = overlay, original, place
        self.loaded: dict[str, Any] = {}
        self.of_class: set[str] = set()
        self.has_read_all = False


class ShadowObjects:
    """The shadow classes and shadow instances of one trace."""

    def __init__(self, overlays: Overlays) -> None:
        self._overlays = overlays
        self.instances: dict[int, ShadowInstance] = {}
        # By the user's class: its shadow, and the overlays of its attributes at the first read.
        self.classes: dict[type, type] = {}
        self._borrowed: dict[type, type] = {}
        self.loaded: dict[type, dict[str, Any]] = {}
        self.initial: dict[type, dict[str, Any]] = {}
        self._users_class: dict[int, type] = {}
        self._read_of_class: set[tuple[type, str]] = set()
        self._mirrored: dict[tuple[type, str], Any] = {}
        self._metaclasses: dict[type, type] = {}

    # -- classes ------------------------------------------------------------------------------------------------------

    @staticmethod
    def has_shadow(cls: type) -> bool:
        """Whether instances of a class have shadows."""
        if cls in _PLAIN_LIBRARY_CLASSES:
            return True
        is_plain = not is_of_library(cls.__module__) and makes_plain_classes(type(cls))
        return is_plain and native_base(cls) is not None and not is_processed_by_package(cls)

    def users_class(self, cls: Any) -> Any:
        """Returns the user's class for a shadow class; any other object as it is."""
        return self._users_class.get(id(cls), cls)

    def is_shadow(self, cls: type) -> bool:
        """Whether a class is the shadow of a class of the user."""
        return id(cls) in self._users_class

    def shadow_class(self, cls: type, place: Place) -> Any:
        """Returns the shadow of a class, or the class itself where it has none."""
        if cls in self.classes:
            return self.classes[cls]
        if not self.has_shadow(cls):
            return self._overlays.remember(cls, refuse_calls_by_metaclass(cls, place), place)
        base: Any = native_base(cls)
        namespace: dict[str, Any] = {
            "__slots__": (), "__is_shadow__": True, "__module__": cls.__module__, "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__, **OVERLAY_METHODS.get(base, {}),
        }  # fmt: skip
        bases = (SkipsInitSubclass, cls) if runs_users_code_for_subclasses(cls) else (cls,)
        metaclass: Any = self._metaclass(type(cls))
        if shadow_nodes.is_node_of_jax(cls):
            shadow = self._borrowed[cls] = shadow_nodes.borrowed(cls, metaclass, bases, namespace)
        else:
            shadow = type.__new__(metaclass, cls.__name__, bases, namespace)
        self.classes[cls], self._users_class[id(shadow)], self.loaded[cls] = shadow, cls, {}
        self._overlays.remember(cls, shadow, Place(cls.__qualname__, routes.to(cls), cls, place.where))
        self._add_clones(cls, shadow)
        if bases[0] is SkipsInitSubclass:
            clone = self.method(kept_in("__init_subclass__", cls), cls, "__init_subclass__")
            type.__setattr__(shadow, "__clone_of_init_subclass__", clone)
        self.initial[cls] = dict(vars(shadow))
        return shadow

    def _metaclass(self, meta: type) -> type:
        """Returns a metaclass whose classes read their attributes through overlays."""
        if meta not in self._metaclasses:
            objects = self

            def __getattribute__(cls: type, name: str) -> Any:
                if not is_special(name):
                    objects.mirror(objects.users_class(cls), name)
                    objects._overlays.complete()
                value = type.__getattribute__(cls, name)
                return objects._overlays.scopes.loaded_attribute(value, sys._getframe(1))

            def __delattr__(cls: type, name: str) -> None:
                users = objects.users_class(cls)
                type.__delattr__(cls, name)
                if name in vars(users):
                    objects.loaded[users].setdefault(name, UNREAD)

            namespace = {
                "__getattribute__": __getattribute__,
                "__delattr__": __delattr__,
                "mro": lambda cls: type.mro(objects.users_class(cls)),
                "__instancecheck__": lambda cls, value: isinstance(value, objects.users_class(cls))
                if id(cls) in objects._users_class else type.__instancecheck__(cls, value),
                "__subclasscheck__": lambda cls, other: type.__subclasscheck__(
                    objects.users_class(cls), objects.users_class(other)
                ),
                "__eq__": lambda cls, other: objects.users_class(cls) is objects.users_class(other),
                "__hash__": lambda cls: type.__hash__(objects.users_class(cls)),
            }  # fmt: skip
            self._metaclasses[meta] = type.__new__(type, meta.__name__, (meta,), namespace)
        return self._metaclasses[meta]

    def _add_clones(self, cls: type, shadow: type) -> None:
        """Gives a shadow class clones of the methods of the user's class and of its bases."""
        seen: set[str] = {"__init_subclass__", "__class_getitem__", "__dict__", "__weakref__", "__slots__", "__doc__"}
        users: dict[str, Any] = {}
        for owner in cls.__mro__:
            for name, entry in list(vars(owner).items()):
                if name in seen:
                    continue
                seen.add(name)
                cloned = entry if is_of_library(owner.__module__) else self.method(entry, owner, name)
                if name in _OWN_METHODS:
                    users[name] = cloned
                elif cloned is not entry:
                    if is_special(name) and isinstance(entry, FunctionType):  # Python itself calls it
                        cloned = self._comparing(cls, shadow, name, cloned)
                    type.__setattr__(shadow, name, cloned)
        self._add_own_methods(cls, shadow, users)

    def _comparing(self, cls: type, shadow: type, name: str, clone: Any) -> Any:
        """Returns a method that Python looks up itself: its first call makes later calls compare it."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            type.__setattr__(shadow, name, settled_methods.settled(name, clone))
            self.compare_method(cls, name)
            return clone(*arguments, **keywords)

        return settled_methods.settled(name, call)

    def _add_own_methods(self, cls: type, shadow: type, users: dict[str, Any]) -> None:
        """Adds the methods that load an attribute before the methods of the user's class run."""
        objects = self
        get, delete, reduce = (users.get(name, getattr(cls, name)) for name in _OWN_METHODS)
        reads_by_itself = isinstance(get, FunctionType)  # of the user: it may read past `load`

        def __getattribute__(self: Any, name: str) -> Any:
            objects.load(self, "__dict__" if reads_by_itself else name)
            return objects._overlays.scopes.loaded_attribute(get(self, name), sys._getframe(1))

        def __delattr__(self: Any, name: str) -> None:
            objects.load(self, name)
            is_own = has_own(self, name)
            delete(self, name)
            if is_own and id(self) in objects.instances:
                objects.instances[id(self)].loaded.setdefault(name, UNREAD)

        def __reduce_ex__(self: Any, protocol: Any) -> Any:
            objects.load(self, "__dict__")
            return reduce(self, protocol)

        for method in (__getattribute__, __delattr__, __reduce_ex__):
            type.__setattr__(shadow, method.__name__, method)
        if all(getattr(cls, name) is getattr(object, name) for name in ("__hash__", "__eq__")):
            type.__setattr__(shadow, "__hash__", lambda self: object.__hash__(objects.users_object(self)))
            is_same: Any = lambda self, other: objects.users_object(self) is objects.users_object(other)  # noqa: E731
            type.__setattr__(shadow, "__eq__", lambda self, other: is_same(self, other) or NotImplemented)

    def users_object(self, value: Any) -> Any:
        """Returns the original of a shadow instance; any other object as it is."""
        record = self.instances.get(id(value))
        return value if record is None else record.original

    def method(self, entry: Any, owner: type, name: str) -> Any:
        """Returns an entry of a class with its functions cloned; an entry without functions as it is."""
        if is_cached(entry):
            return cached_twin(entry, self._overlays)
        clone, place = self._overlays.functions.clone, Place(f"{owner.__name__}.{name}", routes.to(entry), entry)
        if isinstance(entry, FunctionType):
            return clone(entry, place)
        if isinstance(entry, (WrapperDescriptorType, MethodDescriptorType)):  # as in `__getattr__ = dict.__getitem__`
            return OVERLAY_METHODS.get(entry.__objclass__, {}).get(entry.__name__, entry)
        if isinstance(entry, (staticmethod, classmethod)):
            function = entry.__func__
            if is_cached(function):
                return type(entry)(cached_twin(function, self._overlays))
            return type(entry)(clone(function, place)) if isinstance(function, FunctionType) else entry
        if type(entry) is property:
            parts: Any = (entry.fget, entry.fset, entry.fdel)
            parts = [clone(f, place) if isinstance(f, FunctionType) else f for f in parts]
            return property(parts[0], parts[1], parts[2], entry.__doc__)
        if type(entry) is functools.cached_property and isinstance(entry.func, FunctionType):
            cached: Any = functools.cached_property(clone(entry.func, place))
            cached.attrname = name
            return cached
        if hasattr(type(entry), "__get__") and self.has_shadow(type(entry)):
            return self.instance(entry, place)
        return entry

    def load_of_class(self, cls: type, name: str) -> None:
        """Reads an attribute of a class, a value that is no method, into the shadow of the class that has it."""
        owner = self._owner(cls, name)
        if owner is None and not hasattr(cls, name):
            place = Place(cls.__qualname__, routes.to(cls), cls, self._overlays.line())
            self._overlays.reads.add_value(place.derived(f"{{}} lacks {name}", functools.partial(lacks, name), True))
        if owner is None or not self.has_shadow(owner):
            return
        shadow: Any = self.shadow_class(owner, Place(owner.__qualname__, routes.to(owner), owner))
        loaded, entry = self.loaded[owner], vars(owner).get(name, ABSENT)
        is_bound = name in vars(shadow) and vars(shadow)[name] is not loaded.get(name, ABSENT)
        if hasattr(type(entry), "__get__") and not isinstance(entry, MemberDescriptorType):
            self.compare_method(cls, name)
        if is_bound or entry is ABSENT or hasattr(type(entry), "__get__") or (cls, name) in self._read_of_class:
            return
        self._read_of_class.add((cls, name))
        where = self._overlays.line()
        place = Place(cls.__qualname__, routes.to(cls), cls, where).attribute(name, entry, where)
        loaded[name] = self._overlays.read(entry, place)
        type.__setattr__(shadow, name, loaded[name])

    def _owner(self, cls: type, name: str) -> type | None:
        """Returns the class of the user, `cls` or a base, that has a name or got it during the trace."""
        for base in cls.__mro__:
            if name in vars(base):
                return base
            value = vars(self.classes[base]).get(name, ABSENT) if base in self.classes else ABSENT
            if value is not ABSENT and value is not self._mirrored.get((base, name)):
                return base
        return None

    def mirror(self, cls: type, name: str) -> None:
        """Gives the shadow of a class the traced value of an attribute of a base.

        (The shadow of a class is no subclass of the shadow of a base.)
        """
        self.load_of_class(cls, name)
        owner, shadow = self._owner(cls, name), self.classes.get(cls)
        if shadow is None or owner is None or owner is cls or owner not in self.classes:
            return
        value = vars(self.classes[owner]).get(name, ABSENT)
        if value is not ABSENT and vars(shadow).get(name, ABSENT) is not value and not hasattr(type(value), "__get__"):
            type.__setattr__(shadow, name, value)
            self.loaded[cls][name] = self._mirrored[cls, name] = value

    # -- instances ----------------------------------------------------------------------------------------------------

    def instance(self, original: Any, place: Place) -> Any:
        """Returns the shadow of an instance."""
        shadow = self.shadow_class(type(original), place)
        base: Any = native_base(type(original))
        overlay = base.__new__(shadow)
        if place.route.before is not None:
            self._overlays.reads.add_value(place.derived("type({})", type, type(original)))
        self.instances[id(overlay)] = ShadowInstance(overlay, original, place)
        self._overlays.remember(original, overlay, place)
        if base in CONTAINERS:
            self._overlays.containers.fill(overlay, original, place)
        return overlay

    def become_shadow(self, instance: Any, place: Place) -> None:
        """Makes an instance that the trace owns an instance of the shadow of its class, where that is possible."""
        if self.has_shadow(type(instance)) and not runs_users_code_for_subclasses(type(instance)):
            object.__setattr__(instance, "__class__", self.shadow_class(type(instance), place))

    def load(self, instance: Any, name: str) -> None:
        """Reads an attribute of a shadow instance from its original, unless it was read or written before."""
        record = self.instances.get(id(instance))
        read_shared(native_dict(instance))
        if name == "__dict__" and record is not None:
            self._load_all(record)
        if is_special(name):
            return
        cls = type(instance) if record is None else type(record.original)
        entry = kept_in(name, cls)
        if name in native_dict(instance) and (record is not None or not hasattr(type(entry), "__set__")):
            return
        if record is not None and name not in record.loaded:
            if isinstance(entry, MemberDescriptorType):
                self._load_slot(record, name, entry)
                return
            instance_dict = native_dict(record.original)
            if name in instance_dict and not hasattr(type(entry), "__set__"):
                value = instance_dict[name]
                record.loaded[name] = self._read(record, name, value)
                native_dict(instance)[name] = record.loaded[name]
                return
            if not hasattr(type(entry), "__set__"):
                record.of_class.add(name)
        if not hasattr(type(entry), "__get__"):
            self.mirror(self.users_class(cls), name)
        else:
            self.compare_method(self.users_class(cls), name)

    def compare_method(self, cls: type, name: str) -> None:
        """Makes every call compare the function, property or other descriptor of a name in a class."""
        entry = kept_in(name, cls)
        can_change = isinstance(entry, _OF_CLASSES) or type(entry).__module__ != "builtins"
        if (cls, name) not in self._read_of_class and can_change and hasattr(type(entry), "__get__"):
            self._read_of_class.add((cls, name))
            place = Place(cls.__qualname__, routes.to(cls), cls, self._overlays.line())
            if getattr(cls, name, ABSENT) is entry:
                at = place.attribute(name, entry)
            else:  # the class gives another object at each read, or none
                at = place.derived(f"{{}}.{name}", functools.partial(kept_in, name), entry)
            self._overlays.reads.add_value(at)

    def _load_slot(self, record: ShadowInstance, name: str, slot: MemberDescriptorType) -> None:
        if slot_contents(record.overlay, slot) is not ABSENT:
            return
        value = slot_contents(record.original, slot)
        record.loaded[name] = ABSENT
        if value is ABSENT:
            function = functools.partial(lacks, name)
            self._overlays.reads.add_value(record.place.derived(f"{{}} lacks {name}", function, True))
        else:
            record.loaded[name] = self._read(record, name, value)
            slot.__set__(record.overlay, record.loaded[name])

    def _read(self, record: ShadowInstance, name: str, value: Any) -> Any:
        return self._overlays.read(value, record.place.attribute(name, value, self._overlays.line()))

    def _load_all(self, record: ShadowInstance) -> None:
        """Reads every attribute of an instance, and which there are."""
        if record.has_read_all:
            return
        record.has_read_all = True
        instance_dict = native_dict(record.original)
        if hasattr(record.original, "__dict__"):
            at = record.place.attribute("__dict__", instance_dict)
            self._overlays.reads.add_value(at.derived("tuple({})", tuple, tuple(instance_dict)))
        for name in (*instance_dict, *(name for name, _ in slots_of(type(record.original)))):
            self.load(record.overlay, name)

    def forget(self) -> None:
        """Empties the shadow instances and the shadow classes."""
        for record in self.instances.values():
            native_dict(record.overlay).clear()
            record.loaded.clear()
            for _, slot in slots_of(type(record.original)):
                if slot_contents(record.overlay, slot) is not ABSENT:
                    slot.__delete__(record.overlay)
        for cls, shadow in self.classes.items():
            for name in [name for name in vars(shadow) if name not in self.initial[cls]]:
                type.__delattr__(shadow, name)
            self.loaded[cls].clear()
        self.instances.clear()
        self._mirrored.clear()
        self.give_back()

    def give_back(self) -> None:
        """Makes the shadow classes that JAX has registered available to later traces."""
        while self._borrowed:
            shadow_nodes.give_back(*self._borrowed.popitem())
