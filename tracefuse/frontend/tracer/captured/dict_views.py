"""Views of dicts: `d.keys()`, `d.values()`, `d.items()` and `types.MappingProxyType(d)`, kept as objects of their own.

A trace sees a view of the overlay of the dict that the view shows.

Must not know: overlays of values.
"""

from __future__ import annotations

import gc
from types import MappingProxyType
from typing import Any

_METHODS: dict[type, str] = {
    type({}.keys()): "keys",
    type({}.values()): "values",
    type({}.items()): "items",
}
DICT_VIEWS: tuple[type, ...] = (*_METHODS, MappingProxyType)
"""The classes of views; those of ordered dicts are subclasses."""


def dict_of(view: Any) -> Any:
    """Returns the dict, or the other mapping, that a view shows."""
    return gc.get_referents(view)[0]


def view_of(mapping: Any, like: Any) -> Any:
    """Returns a view of a mapping of the same kind as another view."""
    if isinstance(like, MappingProxyType):
        return MappingProxyType(mapping)
    name = next(name for cls, name in _METHODS.items() if isinstance(like, cls))
    return getattr(mapping, name)()
