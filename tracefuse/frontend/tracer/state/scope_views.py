"""Views of globals, of the builtins and of modules, which give overlays.

A view of globals is a dict subclass: the interpreter looks up a global of a clone in it, and a global that the clone
binds lands in it. A name is read from the module when the clone looks it up first.

Must not know: overlays of values.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.effects.numpy_errors import show_user_frames
from tracefuse.frontend.tracer.libraries import library_functions
from tracefuse.frontend.tracer.python_code.called_types import called, loads_of_callees, name_of_called
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.frontend.tracer.state.container_records import has
from tracefuse.frontend.tracer.state.object_layout import UNREAD
from tracefuse.frontend.tracer.state.super_overlays import super_twin

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.state.overlays import Overlays

_ABSENT = object()
_UNREAD = frozenset({"__builtins__", "__warningregistry__"})
"""Names in a view that the function did not bind."""


class GlobalsView(dict[str, Any]):
    """Globals as a clone sees them: the overlays of the names that it read, and the names that it bound."""

    def __init__(self, overlays: Overlays, table: dict[str, Any]) -> None:
        super().__init__()
        self.table, self.loaded, self.prefix = table, {}, ""
        self._overlays = overlays
        dict.__setitem__(self, "__builtins__", BuiltinsView(overlays, self))

    loaded: dict[str, Any]

    def __missing__(self, name: str) -> Any:
        type_name = name_of_called(name)
        if type_name is not None:
            return self._overlays.called_twin(self[type_name])
        if name in self.loaded:  # deleted by the clone
            raise KeyError(name)
        show_user_frames()  # a handler looks up the class of errors that it catches
        if name not in self.table:
            self._read_presence(name)
            raise KeyError(name)
        value = self.table[name]
        if _is_of_module(name):
            return value
        where = self._overlays.line()
        place = Place(self.prefix + name, routes.to(self.table).then("entry", name), value, where)
        overlay = self._overlays.read(value, place)
        self.loaded[name] = overlay
        dict.__setitem__(self, name, overlay)
        return overlay

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        if name in self.loaded:
            return False
        self._read_presence(name)
        return name in self.table

    def _read_presence(self, name: object) -> None:
        """Makes every call compare whether the module has a name, apart from names of builtins."""
        if isinstance(name, str) and not hasattr(builtins, name) and not _is_of_module(name):
            route = routes.to(self.table).then("call", functools.partial(has, name))
            where = self._overlays.line()
            self._overlays.reads.add_value(Place(f"{name!r} in globals()", route, name in self.table, where))

    def __iter__(self) -> Iterator[str]:
        at = Place("globals()", routes.to(self.table), self.table, self._overlays.line())
        self._overlays.reads.add_value(at.derived("tuple({})", tuple, tuple(self.table)))
        deleted = {name for name in self.loaded if not dict.__contains__(self, name)}
        return iter([*(name for name in self.table if name not in deleted), *self.keys_bound()])

    def keys_bound(self) -> list[str]:
        """Returns the names in the view that the module does not have."""
        return [name for name in dict.keys(self) if name not in self.table and name not in _UNREAD]

    def __len__(self) -> int:
        return len(list(iter(self)))

    def keys(self) -> Any:
        return list(iter(self))

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def pop(self, name: str, *default: Any) -> Any:
        if name not in self and default:
            return default[0]
        value = self[name]
        del self[name]
        return value

    def __delitem__(self, name: str) -> None:
        if name in self.table:
            self.loaded.setdefault(name, UNREAD)
        dict.__delitem__(self, name)

    def changes(self) -> tuple[dict[str, Any], list[str]]:
        """Returns the names that the clone bound, with their values, and the names that it deleted."""
        bound = {
            name: dict.__getitem__(self, name)
            for name in dict.keys(self)
            if name not in _UNREAD and dict.__getitem__(self, name) is not self.loaded.get(name, _ABSENT)
        }
        return bound, [name for name in self.loaded if not dict.__contains__(self, name)]


def _is_of_module(name: str) -> bool:
    """Whether a global describes its module, as `__name__` does."""
    return name.startswith("__") and name.endswith("__")


class BuiltinsView(dict[str, Any]):
    """The builtins with recording twins. A name that it lacks is looked up in the globals.

    (In a class body the interpreter looks up globals past the methods of a view, and then the builtins.)
    """

    def __init__(self, overlays: Overlays, view: GlobalsView) -> None:
        names = {name: value for name, value in vars(builtins).items() if name not in view.table or _is_of_module(name)}
        super().__init__({name: overlays.replacements.get(id(value), value) for name, value in names.items()})
        types = {name: value for name, value in names.items() if id(value) in overlays.called}
        super().update({called(name): overlays.called[id(value)] for name, value in types.items()})
        dict.update(self, {"__import__": _importing(overlays, view), "super": super_twin(overlays)})
        self._view = view

    def __missing__(self, name: str) -> Any:
        return self._view[name]


def _importing(overlays: Overlays, view: GlobalsView) -> Any:
    """Returns `__import__` for a clone: the module as the clone sees it."""

    def import_module(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        module = __import__(name, view.table, None, fromlist, level)
        return overlays.scopes.module(module, Place(module.__name__, routes.to(module), module))

    return import_module


class ModuleOverlay(ModuleType):
    """A module of the user as a clone sees it: its names are those of the view of its globals."""

    def __init__(self, overlays: Overlays, module: ModuleType, place: Place) -> None:
        super().__init__(module.__name__)
        _state_of(self)["of"] = overlays, module, place

    def __getattribute__(self, name: str) -> Any:
        overlays, module, place = _state_of(self)["of"]
        view = overlays.scopes.globals_of(vars(module))
        if name == "__dict__":
            return view
        if _is_of_module(name) or name not in view:
            value = getattr(module, name)
            return value if _is_of_module(name) else overlays.read(value, place.attribute(name, value, overlays.line()))
        return view[name]

    def __setattr__(self, name: str, value: Any) -> None:
        overlays, module, _ = _state_of(self)["of"]
        overlays.scopes.globals_of(vars(module))[name] = value

    def __delattr__(self, name: str) -> None:
        overlays, module, _ = _state_of(self)["of"]
        view = overlays.scopes.globals_of(vars(module))
        if name in view:
            view[name]  # a name that was read can be seen to be deleted
        del view[name]

    def __dir__(self) -> list[str]:
        return list(self.__dict__)


class RecordingModule(ModuleType):
    """A library module in which recording twins replace some functions, also of the modules inside it."""

    def __init__(self, overlays: Overlays, module: ModuleType, place: Place) -> None:
        super().__init__(module.__name__)
        _state_of(self)["of"] = overlays, module, place

    def __getattr__(self, name: str) -> Any:
        overlays, module, place = _state_of(self)["of"]
        show_user_frames()
        value = getattr(module, name)
        if id(value) in overlays.replacements:
            return overlays.replacements[id(value)]
        if isinstance(value, ModuleType):
            overlays.loaded(value)
        if id(value) in overlays.library_modules or (
            isinstance(value, ModuleType) and not is_of_library(value.__name__)
        ):
            return overlays.scopes.module(value, place.attribute(name, value))
        if id(value) in overlays.called and overlays.scopes.is_called(value, sys._getframe(1)):
            return overlays.called[id(value)]
        if isinstance(value, (type, FunctionType)) and not is_of_library(value.__module__):
            return overlays.read(value, place.attribute(name, value, overlays.line()))
        return library_functions.member_twin(module, name, value)


def _state_of(module: ModuleType) -> dict[str, Any]:
    state: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__")
    return state


class ScopeViews:
    """The views of one trace."""

    def __init__(self, overlays: Overlays) -> None:
        self._overlays = overlays
        self.views: dict[int, GlobalsView] = {}
        self._loads: dict[CodeType, Mapping[int, bool]] = {}

    def is_called(self, value: Any, frame: FrameType) -> bool:
        """Whether the instruction that a frame runs loads a value, an attribute, to call it.

        The methods of a ufunc are called, too: `np.add` in `np.add.reduce(x)`.
        """
        if frame.f_code not in self._loads:
            self._loads[frame.f_code] = loads_of_callees(frame.f_code)
        loads_owner = self._loads[frame.f_code].get(frame.f_lasti)
        return loads_owner is not None and (not loads_owner or isinstance(value, np.ufunc))

    def loaded_attribute(self, value: Any, frame: FrameType) -> Any:
        """Returns what an attribute with a value is for a frame that loads it: a twin for a type that it calls."""
        is_called = isinstance(value, type) and self.is_called(value, frame)
        return self._overlays.called_twin(value) if is_called else value

    def globals_of(self, table: dict[str, Any]) -> GlobalsView:
        """Returns the view of the globals of a module; a view itself."""
        if isinstance(table, GlobalsView):
            return table
        if id(table) not in self.views:
            self.views[id(table)] = GlobalsView(self._overlays, table)
        return self.views[id(table)]

    def forget(self) -> None:
        """Empties the views."""
        for view in self.views.values():
            view.loaded.clear()
            dict.clear(view)

    def module(self, module: ModuleType, place: Place) -> Any:
        """Returns what a clone sees in place of a module."""
        known = self._overlays.original_overlay(module)
        if known is not None:
            return known
        if id(module) in self._overlays.library_modules:
            overlay: Any = RecordingModule(self._overlays, module, place)
        elif is_of_library(module.__name__) or not isinstance(module, ModuleType):
            self._overlays.containers.read_sets()
            return module
        else:
            overlay = ModuleOverlay(self._overlays, module, place)
            self.globals_of(vars(module)).prefix = f"{place.path}."
        return self._overlays.remember(module, overlay, place)


def is_created(value: Any) -> bool:
    """Whether a value is a function that a clone created."""
    return isinstance(value, FunctionType) and isinstance(value.__globals__, GlobalsView)
