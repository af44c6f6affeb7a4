"""Keys of containers of the state that a call computes from its sizes and scalars, as routes that later calls follow.

Must not know: overlays of values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.frontend.tracer.captured.captures import PLAIN, Place, entry
from tracefuse.frontend.tracer.captured.routes import ComputedStep, Route
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.generated_code import compile_function
from tracefuse.ir.extents import Expression, Extent, Symbol, python_text, symbols

ENTRY, PRESENCE = "entry", "presence"
_TEXTS = {
    (dict, ENTRY): "entry(key, container)", (dict, PRESENCE): "dict.__contains__(container, key)",
    (list, ENTRY): "list.__getitem__(container, key)", (list, PRESENCE): "0 <= key < list.__len__(container)",
    (set, PRESENCE): "set.__contains__(container, key)",
}  # fmt: skip
"""What a later call computes of a container and a key, past the methods of the user's class."""


class CannotCompare(Exception):
    """Two keys may be equal in some calls, and no guard can tell."""


@dataclass(frozen=True, slots=True, eq=False)
class ComputedKey:
    """A key that sizes and scalars of a call determine. text: its expression. routes: to the numbers f0, f1, ... in it.

    constants: c0, c1, ... in it. now: the key in the call that is traced.
    """

    text: str
    routes: tuple[Route, ...]
    constants: tuple[Any, ...]
    now: Any

    def route(self, container: Route, family: Any, purpose: str) -> Route:
        """The route to the entry at the key of a container, or to whether there is one."""
        numbers = "".join(f", f{position}" for position in range(len(self.routes)))
        text = (
            f"def read(container{numbers}):\n    try:\n        key = {self.text}\n"
            "    except (ZeroDivisionError, OverflowError):\n        raise KeyError from None\n"
            f"    return {_TEXTS[family, purpose]}\n"
        )
        scope: dict[str, Any] = {"entry": entry}
        scope |= {f"c{position}": constant for position, constant in enumerate(self.constants)}
        function = compile_function(text, "read", scope, "a computed key")
        identity = (family, purpose, self.text, tuple((type(c), c) for c in self.constants))
        return container.then("computed", ComputedStep(function, self.routes, identity))


def computed_key(key: Any, routes: Mapping[int, Route]) -> ComputedKey | None:
    """A key as an expression of numbers at routes; None for a key that later calls could not compute.

    routes: by the id of the size or scalar.
    """
    used: list[Route] = []
    constants: list[Any] = []

    def number(symbol: Symbol) -> str:
        route = routes[symbol.id]  # type: ignore[index]
        if route not in used:
            used.append(route)
        return f"f{used.index(route)}"

    def text_of(part: Any) -> str:
        if type(part) is SymbolicSize:
            return python_text(part.extent, number)
        if type(part) is tuple:
            return f"({''.join(f'{text_of(inner)}, ' for inner in part)})"
        constants.append(part)
        return f"c{len(constants) - 1}"

    if not all(symbol.id in routes for size in sizes_in(key) for symbol in symbols(size.extent)):
        return None
    return ComputedKey(text_of(key), tuple(used), tuple(constants), _now(key))


def has_sizes(key: Any) -> bool:
    """Whether a key is a size or an integer of the call, or a tuple of such and of constants."""
    if type(key) is not tuple:
        return type(key) is SymbolicSize
    is_known = all(type(part) is SymbolicSize or isinstance(part, PLAIN) for part in _parts(key))
    return is_known and any(type(part) is SymbolicSize for part in _parts(key))


def note_routes(value: Any, place: Place, routes: dict[int, Route]) -> None:
    """Adds the routes to the numbers that a size, or the extents of an array, at a place stand for."""
    if type(value) is SymbolicSize:
        _note(value.extent, place.route, routes)
    elif isinstance(value, Traced) and value.number >= 0:
        shape = place.route.then("attribute", "shape")
        for axis, extent in enumerate(value.extents):
            _note(extent, shape.then("entry", axis), routes)


def _note(extent: Extent, route: Route, routes: dict[int, Route]) -> None:
    for symbol in symbols(extent):
        if symbol.id is not None and extent == Expression((((symbol,), 1),)):
            routes.setdefault(symbol.id, route)


def sizes_in(key: Any) -> Iterator[SymbolicSize]:
    """The sizes and integers of the call in a key."""
    return (part for part in _parts(key) if type(part) is SymbolicSize)


def _parts(key: Any) -> Iterator[Any]:
    waiting = [key]
    while waiting:
        part = waiting.pop()
        if type(part) is tuple:
            waiting += part
        else:
            yield part


def _now(key: Any) -> Any:
    if type(key) is tuple:
        return tuple(map(_now, key))
    return key.hint if type(key) is SymbolicSize else key


def are_equal(first: Any, second: Any) -> bool:
    """Whether two keys are one key of a dict, which later calls are guarded to agree on.

    Raises CannotCompare for keys whose comparison runs code of the user.
    """
    waiting = [(first, second)]
    while waiting:
        a, b = waiting.pop()
        if type(a) is tuple and type(b) is tuple:
            if len(a) != len(b):
                return False
            waiting += reversed(list(zip(a, b, strict=True)))
        elif not _are_equal_parts(a, b):
            return False
    return True


def _are_equal_parts(a: Any, b: Any) -> bool:
    if type(b) is SymbolicSize:
        a, b = b, a
    if not all(type(part) in (SymbolicSize, tuple) or isinstance(part, PLAIN) for part in (a, b)):
        raise CannotCompare
    if type(a) is not SymbolicSize:
        return bool(type(a) is not tuple and type(b) is not tuple and a == b and hash(a) == hash(b))
    if type(b) is SymbolicSize:
        return bool(a == b)
    number = b.item() if hasattr(b, "item") else b
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    return isinstance(number, int) and bool(a == int(number))
