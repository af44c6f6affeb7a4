"""The arguments of a call of a fused function, flattened: leaves, trace key, array kind and device.

Must not know: compilation.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from tracefuse import pytrees
from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.errors import TraceError, shown
from tracefuse.frontend.tracer.captured.routes import CallRoots, Route
from tracefuse.frontend.tracer.state.shadow_objects import ShadowObjects
from tracefuse.ops.random_draws import ArgumentSource
from tracefuse.runtime.argument_leaves import GENERATORS, Leaf, classify, static_key
from tracefuse.runtime.devices import arrays

_ARGUMENT = re.compile(r"[.\[]")

MOST_STRUCTURES = 256
"""Argument structures whose leaf paths are cached; the oldest is evicted first."""
register(Cache(
    "frontend.calls.call.Signature._paths", "paths of the leaves of the arguments", "structure of the arguments",
    f"{MOST_STRUCTURES}, the oldest go", "a fused function", "with the function",
))  # fmt: skip
register(Cache(
    "frontend.calls.call.Signature._sources", "what draws from random generators among the arguments come from",
    "path of the argument", "the places of generators in arguments", "a fused function", "with the function",
))  # fmt: skip


class CallArguments(NamedTuple):
    """The flattened arguments of one call.

    structure: the pytree of the positional and keyword arguments without the static ones. key: of the trace. kind: the
    array library. device: the GPU, or None for the host. rebuild: unflattens leaves into (args, kwargs). roots: the
    objects that the routes of the call begin at. statics: the static arguments, by position or keyword.
    asks_conditions: see `asking`. may_run_function: whether the function itself may run on the arguments instead.
    numbers: the routes to numbers of the state that have differed between calls, which are inputs of a trace.
    """

    leaves: list[Leaf]
    structure: Any
    key: Any
    kind: str
    device: int | None
    rebuild: Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
    roots: CallRoots
    statics: Mapping[int | str, Any] = MappingProxyType({})
    asks_conditions: bool = False
    may_run_function: bool = False
    numbers: frozenset[Any] = frozenset()

    def asking(self) -> CallArguments:
        """Returns this call for a trace that asks for the conditions under which numbers are what Python computes."""
        return self._replace(key=(*self.key, "asks for conditions"), asks_conditions=True)


class Signature:
    """The parameters of a function: which are static, which are donated, and the paths of the leaves of the others."""

    def __init__(
        self, function: Callable[..., Any], static_argnums: int | Sequence[int], static_argnames: str | Sequence[str],
        donate_argnums: int | Sequence[int] = (), donate_argnames: str | Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._function = function
        self.static_argnums, self.static_argnames = _selected_parameters(
            function, static_argnums, static_argnames, "static_argnames"
        )
        self.donated = _selected_parameters(function, donate_argnums, donate_argnames, "donate_argnames")[1]
        both = self.donated & self.static_argnames
        if both:
            raise TraceError(f"{', '.join(sorted(both))}: a static argument has no memory to donate")
        self._sources: dict[str, ArgumentSource] = {}
        self._paths: BoundedTable[Any, list[str]] = BoundedTable(MOST_STRUCTURES)
        self.leaves_out = not _takes(function, "out")
        """Whether the function has no parameter `out`, so that `out=` names output buffers."""

    def is_donated(self, path: str) -> bool:
        """Whether the leaf at `path` belongs to a donated argument."""
        return bool(self.donated) and _ARGUMENT.split(path, maxsplit=1)[0] in self.donated

    def _with_source(self, leaf: Leaf) -> Leaf:
        """A leaf that is a random generator with the source of its draws, which is bound to the generator."""
        if not isinstance(leaf.value, GENERATORS):
            return leaf
        random_source = self._sources.setdefault(leaf.path, ArgumentSource(leaf.path))
        random_source.bind(leaf.value)
        return leaf._replace(generator=random_source)

    def flatten_call(self, args: Sequence[Any], kwargs: dict[str, Any], bound: Any, is_bound: bool) -> CallArguments:
        """Flattens the arguments of one call and computes their trace key.

        Raises DtypeError, DeviceError or TraceError for a leaf that no trace takes, and for a static value that cannot
        be hashed.
        """
        offset = int(is_bound)
        static_values: dict[int | str, Any] = {}
        traced_args, traced_kwargs = list(args), dict(kwargs)
        for k in range(len(args)):
            if k + offset in self.static_argnums:
                static_values[k], traced_args[k] = args[k], None
        for name in self.static_argnames.intersection(kwargs):
            static_values[name] = traced_kwargs.pop(name)
        values, structure = pytrees.flatten((traced_args, traced_kwargs))
        paths = self._paths.get((structure, is_bound))
        if paths is None:
            names = pytrees.argument_names(self._function, len(args) + offset)[offset:]
            paths = self._paths[structure, is_bound] = _leaf_paths(structure, names)
        leaves = [classify(value, path, ShadowObjects.has_shadow) for value, path in zip(values, paths, strict=True)]
        if any(leaf.is_object for leaf in leaves):
            leaves = list(map(_with_route, leaves, routes_of_leaves(structure)))
        if any(isinstance(value, GENERATORS) for value in values):
            leaves = list(map(self._with_source, leaves))
        statics = tuple((k, static_key(v, f"static argument {k}")) for k, v in static_values.items())
        kind, device = arrays.place_of([(leaf.value, leaf.path) for leaf in leaves if leaf.is_array])
        key = (structure, statics, tuple([leaf.key for leaf in leaves]), owner_key(bound), kind, device)

        def rebuild(leaf_values: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            positional, keywords = pytrees.unflatten(structure, leaf_values)
            for where, value in static_values.items():
                if isinstance(where, int):
                    positional[where] = value
                else:
                    keywords[where] = value
            return ((bound, *positional) if is_bound else tuple(positional)), keywords

        return CallArguments(
            leaves, structure, key, kind, device, rebuild, CallRoots(bound, args, kwargs), static_values
        )


def routes_of_leaves(structure: Any) -> list[Route | None]:
    """How later calls reach each leaf of the arguments; None for leaves of registered classes."""
    positional, keywords = structure.children()
    waiting: list[tuple[Any, Route | None]] = [
        *((node, Route(None, "argument", k)) for k, node in enumerate(positional.children())),
        *(
            (node, Route(None, "keyword", key))
            for key, node in zip(keywords.entries(), keywords.children(), strict=True)
        ),
    ]
    routes: list[Route | None] = []
    waiting.reverse()
    while waiting:
        node, route = waiting.pop()
        if node.is_leaf():
            routes.append(route)
            continue
        fields = pytrees.field_names(node.type)
        kind = "entry" if node.type in (dict, list, tuple) else "attribute"
        keys = node.entries() if kind == "entry" else fields
        known = route is not None and keys is not None
        inner = [route.then(kind, key) if known else None for key in keys or node.children()]  # type: ignore[union-attr]
        waiting += reversed(list(zip(node.children(), inner, strict=True)))
    return routes


def _with_route(leaf: Leaf, route: Route | None) -> Leaf:
    """An object with its route. Raises TraceError for one inside of a registered class."""
    if not leaf.is_object:
        return leaf
    return classify(leaf.value, leaf.path) if route is None else leaf._replace(route=route)


def owner_key(bound: Any) -> Any:
    """The part of a key that the object of a method adds: its class; of a method of a class the class itself."""
    return bound if isinstance(bound, type) else type(bound)


def _takes(function: Any, keyword: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have none
        return False
    return keyword in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _leaf_paths(structure: Any, names: Sequence[str]) -> list[str]:
    """The path of each leaf: `x`, `params['w']`, `batch[0].x`."""
    result = []
    for path in pytrees.paths(structure, ""):
        inner = path[1:]  # "[0][2]['w']" is leaf w of positional argument 2, "[1]['k']" the keyword k
        number, _, rest = inner.partition("]")
        first, _, rest = rest[1:].partition("]")
        result.append((names[int(first)] if number == "0" else first.strip("'\"")) + rest)
    return result


def _as_tuple(argument: Any, kind: type, keyword: str, expected: str) -> tuple[Any, ...]:
    """The entries of a list, or one entry, checked to be of one kind."""
    entries = tuple(argument) if isinstance(argument, list | tuple | range | set | frozenset) else (argument,)
    for entry in entries:
        if not isinstance(entry, kind) or isinstance(entry, bool):
            raise TraceError(f"{keyword} cannot be {shown(argument)}", hint=f"give {expected}")
    if len(set(entries)) < len(entries):
        raise TraceError(f"{keyword} names a parameter twice: {shown(argument)}", hint="name each once")
    return entries


def _selected_parameters(
    function: Any, numbers: Any, names: Any, keyword: str
) -> tuple[frozenset[int], frozenset[str]]:
    """The positions and the names of the parameters that either argument selects.

    Raises TraceError for an entry of the wrong kind, a parameter that the function does not have, and a duplicate.
    """
    positions = keyword.replace("names", "nums")
    numbers = _as_tuple(numbers, int, positions, "a position, or a list of positions")
    names = _as_tuple(names, str, keyword, "the name of a parameter, or a list of names")
    if not numbers and not names:
        return frozenset(), frozenset()
    try:
        parameters_by_name = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have none
        raise TraceError(f"{positions}: {shown(function)} has no signature", hint="wrap it in a def") from None
    parameters = list(parameters_by_name)
    for name in names:
        if name not in parameters:
            raise TraceError(f"{keyword}: there is no parameter {name!r}", hint=f"there are {', '.join(parameters)}")
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters_by_name.values())
    for number in numbers:
        if number < -len(parameters) or (number >= len(parameters) and not takes_more):
            count = len(parameters)
            hint = f"positions are 0 to {count - 1}: {', '.join(parameters)}" if count else "it has no parameters"
            raise TraceError(f"{positions}: there is no parameter at position {shown(number)}", hint=hint)
    if len({n % len(parameters) if n < 0 else n for n in numbers}) < len(numbers):
        raise TraceError(f"{positions} names a parameter twice: {shown(numbers)}", hint="name each once")
    both = {*(n % len(parameters) if n < 0 else n for n in numbers), *(parameters.index(n) for n in names)}
    return frozenset(both), frozenset([*names, *(parameters[n] for n in both if n < len(parameters))])
