"""Overlays: what a traced function sees in place of the state around it.

The traced function runs as a clone. A name that it looks up gives the overlay of the value: a traced value for an
array, a clone for a function of the user, a shadow object for an instance of a class of the user, a copy that knows its
original for a container. An overlay is made at the first read and stays the overlay of its object for the whole trace.
Writes land in overlays only; real modules, objects and other threads never see a traced value.

Must not know: fusions, NumPy's functions, calls.
"""

from __future__ import annotations

import functools
import io
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import TraceError, TracefuseError, UnsupportedError
from tracefuse.frontend.tracer.captured import buffer_copies, captures, routes
from tracefuse.frontend.tracer.captured.captures import PLAIN, Place, is_array, places_within, snapshot
from tracefuse.frontend.tracer.captured.dict_views import DICT_VIEWS, dict_of, view_of
from tracefuse.frontend.tracer.captured.inner_objects import is_table, python_function
from tracefuse.frontend.tracer.captured.state_reads import StateReads
from tracefuse.frontend.tracer.libraries import library_functions, library_objects
from tracefuse.frontend.tracer.libraries.library_objects import is_sparse
from tracefuse.frontend.tracer.python_code.code_names import CodeNames
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.frontend.tracer.record.captured_inputs import is_number
from tracefuse.frontend.tracer.state import cached_calls
from tracefuse.frontend.tracer.state.computed_keys import note_routes
from tracefuse.frontend.tracer.state.container_overlays import OVERLAY_BASES, OVERLAY_CLASSES, ContainerOverlays
from tracefuse.frontend.tracer.state.container_records import CONTAINERS
from tracefuse.frontend.tracer.state.environment_reads import ContextVariableTwin, referent_twin
from tracefuse.frontend.tracer.state.function_clones import FunctionClones
from tracefuse.frontend.tracer.state.object_layout import lacks_all, native_base, slots_of
from tracefuse.frontend.tracer.state.outside_objects import OutsideObjects, refused_iterator
from tracefuse.frontend.tracer.state.scope_views import ScopeViews, is_created
from tracefuse.frontend.tracer.state.shadow_objects import ShadowObjects
from tracefuse.runtime.argument_leaves import classify
from tracefuse.runtime.devices import arrays

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.record.recorder import Recorder

Replacements = Mapping[int, Any]
"""Recording twins by the id of what each replaces."""


class Overlays:
    """The overlays of one trace.

    replacements: recording twins of library functions. modules: libraries whose functions have twins. twin_of: returns
    the recording twin of a random generator or another object of a library. numbers: the identities of routes to
    numbers that the function changes, which are inputs of the trace. called: twins of types and ufuncs, in calls.
    later: makes the twins of modules that are imported when the function reads them first, by name.
    """

    def __init__(
        self, recorder: Recorder, replacements: Replacements, modules: tuple[ModuleType, ...],
        twin_of: Callable[[Any], Any], names: CodeNames, numbers: frozenset[Any] = frozenset(),
        called: Replacements = MappingProxyType({}),
        later: Mapping[str, Callable[[], Replacements]] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.recorder, self.replacements, self.numbers, self.names = recorder, replacements, numbers, names
        self.called, self._later = called, later
        self._twin_of = twin_of
        self.library_modules = {id(module) for module in modules}
        self.reads = StateReads()
        self.scopes = ScopeViews(self)
        self.functions = FunctionClones(self)
        self.objects = ShadowObjects(self)
        self.containers = ContainerOverlays(self)
        self.buffers, self.outside = buffer_copies.BufferCopies(), OutsideObjects()
        # The overlay of each object by its id, with the place where it was read first; None where it needs no place.
        self._known: dict[int, tuple[Any, Place, Any]] = {}
        # The place of the original of each overlay, by the id of the overlay.
        self._originals: dict[int, tuple[Any, Place, Any]] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_filling = False

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, value: Any, place: Place) -> Any:
        """Returns the overlay of the value at a place, and records the read."""
        overlay = self._overlay(value, place)
        self.complete()
        return overlay

    def of_inner(self, function: Any, name: str, bound: Any) -> tuple[Any, Any]:
        """Returns the overlays of a function that a clone calls, and of the object that it is bound to."""
        clone = self.read(function, Place(name, routes.to(function), function))
        return clone, self.read(bound, Place("self", routes.to(bound), bound))

    def follow_methods(self, instance: Any, place: Place) -> None:
        """Clones the methods of an instance that the trace owns, or else makes calls compare what they read."""
        cls = type(instance)
        if self.objects.has_shadow(cls):
            self.objects.become_shadow(instance, place)
        elif not is_of_library(cls.__module__) and not self.objects.is_shadow(cls):
            self.read(cls, Place(cls.__qualname__, routes.to(cls), cls))

    def called_twin(self, callee: Any) -> Any:
        """Returns what a call of a type or a ufunc runs; any other callee as it is."""
        return self.called.get(id(callee)) or library_functions.called_twin(callee)

    def line(self) -> str | None:
        """Returns the user's line that is running."""
        return source.user_line()

    def later(self, fill: Callable[[], None]) -> None:
        """Completes an overlay after the overlays that are being made, so that their depth needs no recursion."""
        self._waiting.append(fill)

    def complete(self) -> None:
        """Completes the overlays that were made, unless that is going on."""
        if self._is_filling or not self._waiting:
            return
        self._is_filling = True
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._is_filling = False

    def remember(self, original: Any, overlay: Any, place: Place) -> Any:
        """Makes `overlay` the overlay of an object, which was read at a place; returns the overlay."""
        self._known[id(original)] = (overlay, place, original)
        if overlay is not original:
            self._originals[id(overlay)] = (original, place, overlay)
        return overlay

    def original_overlay(self, original: Any) -> Any:
        """Returns the overlay of an object that was read before, or None."""
        known = self._known.get(id(original))
        return None if known is None else known[0]

    def original(self, overlay: Any) -> tuple[Any, Place] | None:
        """Returns the original of an overlay, and its place; None for any other object."""
        known = self._originals.get(id(overlay))
        return None if known is None else known[:2]

    def originals(self) -> list[tuple[Any, Place]]:
        """Returns the objects that have overlays, with their places."""
        return [known[:2] for known in self._originals.values()]

    def plain(self, value: Any) -> Any:
        """Returns a copy of a tree of overlays as ordinary containers and instances; any other value as it is."""
        cls: Any = OVERLAY_BASES.get(type(value), type(value))
        if isinstance(value, tuple):
            return tuple.__new__(cls, map(self.plain, value))
        base: Any = native_base(cls)
        if isinstance(value, dict) and base is cls:
            copy: Any = base.__new__(base)
            if isinstance(value, defaultdict):
                copy.default_factory = value.default_factory
            copy.update((key, self.plain(entry)) for key, entry in value.items())
            return copy
        if type(value) in (list, OVERLAY_CLASSES[list]):
            return [self.plain(entry) for entry in value]
        if cls is deque:
            return deque(map(self.plain, value), value.maxlen)
        users: Any = self.objects.users_class(type(value))
        if users is type(value) or native_base(users) is not object:
            return value
        instance: Any = object.__new__(users)
        names = [*vars(value)] if hasattr(value, "__dict__") else []
        for name in (*names, *(name for name, _ in slots_of(users))):
            if hasattr(value, name):
                object.__setattr__(instance, name, self.plain(getattr(value, name)))
        return instance

    def loaded(self, module: Any) -> None:
        """Adds the twins of a module that was imported just now."""
        make = self._later.get(getattr(module, "__name__", ""))
        if make is not None and id(module) not in self.library_modules:
            self.library_modules.add(id(module))
            self.replacements = {**self.replacements, **make()}

    # -- the end of the trace -----------------------------------------------------------------------------------------

    def guards(self) -> tuple[Place, ...]:
        """Returns the places whose values every call compares."""
        recorder, places = self.recorder, list(self.reads.values)
        for record in self.objects.instances.values():
            names = frozenset(record.of_class)
            if names and hasattr(record.original, "__dict__"):
                table = record.place.attribute("__dict__", None)
                text = f"{record.place.path} lacks {', '.join(sorted(names))}"
                places.append(table.derived(text, functools.partial(lacks_all, names), True))
        for capture in recorder.captures.values():
            if capture.place is None:
                continue
            if capture.number is None:
                places.append(capture.place.derived("type({})", type, type(capture.array)))
        return tuple(places)

    def end(self) -> None:
        """Ends the trace: overlays follow their originals no longer."""
        self.containers.end()

    def forget(self) -> None:
        """Drops every traced value that an overlay holds."""
        self.scopes.forget()
        self.functions.forget()
        self.objects.forget()
        self.containers.forget()
        self.buffers.forget()
        self.outside.forget()
        self._known.clear()
        self._originals.clear()

    # -- overlays by kind ---------------------------------------------------------------------------------------------

    def _overlay(self, value: Any, place: Place) -> Any:
        if isinstance(value, PLAIN):
            if hasattr(value, "__dict__"):
                self.outside.watch(place, ())
            return self._number_or_constant(value, place)
        known = self._known.get(id(value))
        if known is not None:
            if _is_compared(value):
                self.reads.add_value(place)
            else:
                self.reads.add_pair(known[1], place)
                if is_array(value):
                    self.reads.add_array(place)
            return known[0]
        if id(value) in self._originals or is_created(value):
            return value
        twin = self._twin_of(value) if isinstance(value, captures.WITH_TWINS) else self.replacements.get(id(value))
        if twin is not None:
            self.reads.add_value(place)
            return self.remember(value, twin, place)
        twin = value if id(value) in self.library_modules else library_functions.twin(value)
        if twin is not value:
            self.containers.read_sets()
            self.reads.add_value(place)
            return self.remember(value, twin, place)
        if isinstance(value, ModuleType):
            return self.scopes.module(value, place)
        if is_array(value) and not isinstance(value, type):
            return self._outside(value, place) if is_sparse(value) else self._array(value, place)
        if is_table(value):
            self._refuse_array(value, place)
        return self._object(value, place)

    def _object(self, value: Any, place: Place) -> Any:
        if isinstance(value, FunctionType):
            self.reads.add_value(place)
            return self.functions.clone(value, place)
        if cached_calls.is_cached(value):
            self.reads.add_value(place)
            return self.remember(value, cached_calls.cached_twin(value, self), place)
        if type(value) is MethodType:
            return self._method(value, place)
        if type(value) is functools.partial:
            return self._partial(value, place)
        if isinstance(value, np.ufunc) and python_function(value) is not None:
            function = python_function(value)
            clone = self._overlay(function, place.derived("{} (vectorized)", python_function, function))
            return self.remember(value, np.frompyfunc(clone, value.nin, value.nout, identity=value.identity), place)
        if type(value) is ContextVar and value.name.startswith("tracefuse_"):
            return value  # of functions such as those that `grad` returns
        if type(value) in (weakref.ref, ContextVar):
            self.reads.add_value(place)
            twin = referent_twin if type(value) is weakref.ref else ContextVariableTwin
            return self.remember(value, twin(value, place), place)
        if isinstance(value, type):
            self.reads.add_value(place)
            shadow = self.objects.shadow_class(value, place)
            if shadow is value and not is_of_library(value.__module__):
                self.outside.watch(place, self._compare_inner(place))
            return shadow
        if isinstance(value, tuple):
            return self._tuple(value, place)
        if isinstance(value, DICT_VIEWS):
            viewed = dict_of(value)
            overlay = self._overlay(viewed, place.derived("{}.mapping", dict_of, viewed))
            return self.remember(value, view_of(overlay, value), place)
        if type(value) in CONTAINERS:
            return self.containers.overlay(value, place)
        if self.objects.has_shadow(type(value)):
            return self.objects.instance(value, place)
        return self._outside(value, place)

    def _number_or_constant(self, value: Any, place: Place) -> Any:
        if place.route.identity not in self.numbers or not is_number(value):
            self.reads.add_value(place)
            return value
        number = self.recorder.capture_number(value, place, classify(value, place.path))
        note_routes(number, place, self.reads.routes)
        return number

    def _array(self, array: Any, place: Place) -> Any:
        """Returns a traced value for an array, which becomes an input when it is used first."""
        represent = self.recorder.represent
        if type(array).__module__.startswith("jax.") and type(array).__name__.endswith("Tracer"):
            raise TraceError(
                f"{place.path} is captured and traced by JAX (a {type(array).__name__})",
                hint="pass it to the fused function as an argument", where=place.where,
            )  # fmt: skip
        if arrays.kind_of(array) == "refused" and not arrays.is_of_subclass(array):
            self._refuse_array(array, place)
        try:
            if not arrays.is_own(array) and (represent is None or arrays.kind_of(array) != "jax"):
                raise TracefuseError("an array of another type")
            dtype_of(array.dtype)
        except TracefuseError:
            self.reads.unrecorded.append(place)
            self._compare_inner(place)
            return array
        self.reads.add_array(place)
        overlay = self.recorder.capture_later(array, place) if represent is None else represent(array, place)
        return self.remember(array, overlay, place)

    def _refuse_array(self, array: Any, place: Place) -> None:
        """Raises UnsupportedError, with what to write, for an array of a kind that no argument can have either."""
        try:
            arrays.dtype_of_argument(array, place.path)
        except UnsupportedError as error:
            raise UnsupportedError(error.message, hint=error.hint, where=place.where or self.line()) from None

    def _method(self, method: MethodType, place: Place) -> Any:
        at = place.attribute("__self__", method.__self__)
        if place.route.before is None:  # this very method, at every call
            at = Place(at.path, routes.to(method.__self__), method.__self__)
        else:
            self.reads.add_value(place.attribute("__func__", method.__func__))
        owner = self._overlay(method.__self__, at)
        function: Any = method.__func__
        if isinstance(function, FunctionType):
            function = self.functions.clone(function, place)
        return self.remember(method, MethodType(function, owner), place)

    def _partial(self, value: functools.partial[Any], place: Place) -> Any:
        function = self._overlay(value.func, place.attribute("func", value.func))
        arguments = self._overlay(value.args, place.attribute("args", value.args))
        at = place.attribute("keywords", value.keywords)
        self.reads.add_value(at.derived("tuple({})", tuple, tuple(value.keywords)))
        keywords = {name: self._overlay(entry, at.entry(name, entry)) for name, entry in value.keywords.items()}
        return self.remember(value, functools.partial(function, *arguments, **keywords), place)

    def _tuple(self, value: tuple[Any, ...], place: Place) -> Any:
        self.reads.add_value(place.derived("len({})", len, len(value)))
        entries = [self._overlay(entry, place.entry(k, entry)) for k, entry in enumerate(value)]
        if all(new is old for new, old in zip(entries, value, strict=True)):
            return self.remember(value, value, place)
        return self.remember(value, tuple.__new__(type(value), entries), place)

    def _outside(self, value: Any, place: Place) -> Any:
        """Returns an object that stays the real one; what its code can read by name is compared at every call."""
        if hasattr(type(value), "__next__") and not isinstance(value, io.IOBase):
            raise refused_iterator(value, place)
        if place.route is not routes.SELF:
            self.reads.add_value(place)
        if buffer_copies.is_buffer(value):
            copy, at = self.buffers.copy(place)
            self.reads.add_value(at)
            return self.remember(value, copy, place)
        self.containers.read_sets()
        twin = library_objects.object_twin(value, place.path)
        self.remember(value, twin, place)
        if type(value).__module__.startswith("tracefuse."):
            return value  # a fused function, whose function the trace calls as a clone
        contents = snapshot(place)
        if contents is not None:
            self.reads.add_value(contents)
        self.outside.watch(place, self._compare_inner(place))
        return twin

    def _compare_inner(self, place: Place) -> list[Any]:
        """Makes every call compare what code can read by name in an object without overlay; returns those values."""
        parts = []
        for inner in places_within(place, self.names):
            parts.append(inner.value)
            contents = snapshot(inner)
            if contents is not None:
                self.reads.add_value(contents)
            elif _is_compared(inner.value) or isinstance(inner.value, PLAIN):
                self.reads.add_value(inner)
            if is_array(inner.value):
                self.reads.add_array(inner)
                self.reads.unrecorded.append(inner)
        return parts


def _is_compared(value: Any) -> bool:
    """Whether every place of an object is compared by identity, not by pairs."""
    return isinstance(value, (FunctionType, type)) or (callable(value) and is_of_library(type(value).__module__))
