"""A call of a fused function, taken apart: leaves, the key of its trace, the kind and the place of its arrays.

Knows: pytrees, static parameters, what each leaf is. Must not know: traces, compilation.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tracefuse import pytrees
from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.errors import TraceError, shown
from tracefuse.runtime.argument_leaves import Leaf, classify, static_key
from tracefuse.runtime.devices import arrays

_ARGUMENT = re.compile(r"[.\[]")

MOST_STRUCTURES = 256
"""Structures of arguments whose paths are kept; the oldest goes first."""
register(Cache(
    "frontend.calls.call.Signature._paths", "paths of the leaves of the arguments", "structure of the arguments",
    f"{MOST_STRUCTURES}, the oldest go", "a fused function", "with the function",
))  # fmt: skip


class Call(NamedTuple):
    """One call, taken apart. structure: of its positional arguments and keywords, static ones left out; rebuild: the
    arguments of the function from the leaves; device: the GPU, or None."""

    leaves: list[Leaf]
    structure: Any
    key: Any
    kind: str
    device: int | None
    rebuild: Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]


class Signature:
    """The parameters of a function: which are static, how the leaves of the others are called."""

    def __init__(
        self, function: Callable[..., Any], static_argnums: int | Sequence[int], static_argnames: str | Sequence[str],
        donate_argnums: int | Sequence[int] = (), donate_argnames: str | Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._function = function
        self.static_argnums, self.static_argnames = _named(function, static_argnums, static_argnames, "static_argnames")
        self.donated = _named(function, donate_argnums, donate_argnames, "donate_argnames")[1]
        both = self.donated & self.static_argnames
        if both:
            raise TraceError(f"{', '.join(sorted(both))}: a static argument has no memory to donate")
        self._paths: BoundedTable[Any, list[str]] = BoundedTable(MOST_STRUCTURES)
        self.leaves_out = not _takes(function, "out")
        """Whether `out=` is none of the function's own keywords."""

    def is_donated(self, path: str) -> bool:
        """Whether the leaf of a path belongs to an argument that is donated."""
        return bool(self.donated) and _ARGUMENT.split(path, maxsplit=1)[0] in self.donated

    @property
    def has_static(self) -> bool:
        return bool(self.static_argnums or self.static_argnames)

    def taken_apart(self, args: Sequence[Any], kwargs: dict[str, Any], bound: Any, is_bound: bool) -> Call:
        """Leaves, key and kind of the arguments of one call."""
        offset = int(is_bound)
        held: dict[Any, Any] = {}
        traced_args, traced_kwargs = list(args), dict(kwargs)
        for k in range(len(args)):
            if k + offset in self.static_argnums:
                held[k], traced_args[k] = args[k], None
        for name in self.static_argnames.intersection(kwargs):
            held[name] = traced_kwargs.pop(name)
        found, structure = pytrees.flatten((traced_args, traced_kwargs))
        paths = self._paths.get((structure, is_bound))
        if paths is None:
            names = pytrees.argument_names(self._function, len(args) + offset)[offset:]
            paths = self._paths[structure, is_bound] = _leaf_paths(structure, names)
        leaves = [classify(value, path) for value, path in zip(found, paths, strict=True)]
        statics = tuple((k, static_key(v, f"static argument {k}")) for k, v in held.items())
        kind, device = arrays.place_of([(leaf.value, leaf.path) for leaf in leaves if leaf.kind == "array"])
        key = (structure, statics, tuple([leaf.key for leaf in leaves]), type(bound), kind, device)

        def rebuild(given: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            positional, keywords = pytrees.unflatten(structure, given)
            for where, value in held.items():
                if isinstance(where, int):
                    positional[where] = value
                else:
                    keywords[where] = value
            return ((bound, *positional) if is_bound else tuple(positional)), keywords

        return Call(leaves, structure, key, kind, device, rebuild)


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


def _listed(given: Any, kind: type, keyword: str, expected: str) -> tuple[Any, ...]:
    """One entry, or several in a list, all of one kind."""
    entries = tuple(given) if isinstance(given, list | tuple | range | set | frozenset) else (given,)
    for entry in entries:
        if not isinstance(entry, kind) or isinstance(entry, bool):
            raise TraceError(f"{keyword} cannot be {shown(given)}", hint=f"give {expected}")
    if len(set(entries)) < len(entries):
        raise TraceError(f"{keyword} names a parameter twice: {shown(given)}", hint="name each once")
    return entries


def _named(function: Any, numbers: Any, names: Any, keyword: str) -> tuple[frozenset[int], frozenset[str]]:
    """Both spellings of some parameters, each completed from the other.

    Raises TraceError for what is no position or no name, for one that the function does not have, and for one twice.
    """
    positions = keyword.replace("names", "nums")
    numbers = _listed(numbers, int, positions, "a position, or a list of positions")
    names = _listed(names, str, keyword, "the name of a parameter, or a list of names")
    if not numbers and not names:
        return frozenset(), frozenset()
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have none
        raise TraceError(
            f"{positions}: {shown(function)} does not say its parameters", hint="wrap it in a def"
        ) from None
    parameters = list(found)
    for name in names:
        if name not in parameters:
            raise TraceError(f"{keyword}: there is no parameter {name!r}", hint=f"there are {', '.join(parameters)}")
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in found.values())
    for number in numbers:
        if number < -len(parameters) or (number >= len(parameters) and not takes_more):
            count = len(parameters)
            hint = f"positions are 0 to {count - 1}: {', '.join(parameters)}" if count else "it has no parameters"
            raise TraceError(f"{positions}: there is no parameter at position {shown(number)}", hint=hint)
    if len({n % len(parameters) if n < 0 else n for n in numbers}) < len(numbers):
        raise TraceError(f"{positions} names a parameter twice: {shown(numbers)}", hint="name each once")
    both = {*(n % len(parameters) if n < 0 else n for n in numbers), *(parameters.index(n) for n in names)}
    return frozenset(both), frozenset([*names, *(parameters[n] for n in both if n < len(parameters))])
