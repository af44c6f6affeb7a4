"""Arguments and results as trees: leaves, structure and the path of each leaf as Python spells it.

Tuples, lists, dicts, NamedTuples, OrderedDict, deque are nodes; dataclasses and attrs classes become nodes when they
are first met; `register_pytree_node` adds other classes. None is a leaf.

Knows: optree. Must not know: arrays, tracing.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import optree

from tracefuse.caches import CLEAR_CACHES, Cache, register

_NAMESPACE = "tracefuse"
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_registered: set[type] = set()
# The fields of dataclasses and attrs classes among them.
_field_names: dict[type, list[str]] = {}
# Types of leaves that were looked at and are no nodes.
_plain: set[type] = set()
register(Cache(
    "pytrees._plain", "types of leaves that are not nodes", "type", "types defined in C", cleared_by=CLEAR_CACHES,
    clear=_plain.clear,
))  # fmt: skip


def register_pytree_node(
    cls: type, flatten: Callable[[Any], tuple[Iterable[Any], Any]], unflatten: Callable[[Any, Iterable[Any]], Any]
) -> None:
    """Makes instances of `cls` nodes of pytrees.

    flatten(instance) gives (children, metadata); metadata must be hashable and comparable, it is part of the structure.
    unflatten(metadata, children) builds the instance again. Raises ValueError for a class that is registered already.
    """
    if cls in _registered:
        raise ValueError(f"{cls.__name__} is a pytree node already")
    optree.register_pytree_node(cls, flatten, unflatten, namespace=_NAMESPACE)
    _registered.add(cls)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """(leaves, structure)."""
    leaves, structure = optree.tree_flatten(tree, none_is_leaf=True, namespace=_NAMESPACE)
    if _register_new(leaves):
        return flatten(tree)
    return leaves, structure


def unflatten(structure: Any, leaves: Iterable[Any]) -> Any:
    """The tree with these leaves."""
    return optree.tree_unflatten(structure, leaves)


def paths(structure: Any, name: str) -> list[str]:
    """The path of every leaf as Python source, such as `name['w'][0]`."""
    return [accessor.codify(name) for accessor in optree.treespec_accessors(structure)]


def _register_new(leaves: list[Any]) -> bool:
    """Makes nodes of the dataclasses and attrs classes among the leaves; whether there were any."""
    new = [cls for cls in map(type, leaves) if cls not in _plain]
    found = False
    for cls in set(new) - _registered:
        names = _fields(cls)
        if names is not None:
            _register_fields(cls, names)
            found = True
        elif not cls.__flags__ & _HEAP_TYPE:
            _plain.add(cls)  # of C; a class that is defined in Python may come and go
    return found


def _fields(cls: type) -> list[str] | None:
    if getattr(cls, "pytree_leaf", False):
        return None
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    attributes = getattr(cls, "__attrs_attrs__", None)
    return None if attributes is None else [attribute.name for attribute in attributes]


def _register_fields(cls: type, names: list[str]) -> None:
    def flatten_fields(instance: Any) -> tuple[list[Any], None, list[str]]:
        return [getattr(instance, name) for name in names], None, names

    def unflatten_fields(_: None, children: Iterable[Any]) -> Any:
        # Not through __init__, which may convert or check what is a tracer here.
        instance: Any = object.__new__(cls)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(instance, name, child)
        return instance

    optree.register_pytree_node(
        cls, flatten_fields, unflatten_fields, path_entry_type=optree.GetAttrEntry, namespace=_NAMESPACE
    )
    _registered.add(cls)
    _field_names[cls] = names


def field_names(cls: type) -> Sequence[str] | None:
    """The fields of a dataclass or an attrs class whose instances are nodes, or of a NamedTuple; None for others."""
    if cls in _registered:
        return _field_names.get(cls)
    fields: Sequence[str] | None = getattr(cls, "_fields", None)
    return fields if optree.is_namedtuple_class(cls) else None


def argument_names(function: Callable[..., Any], count: int) -> list[str]:
    """The names of the first `count` positional arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [f"argument{k}" for k in range(count)]
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    star = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "arguments")
    return names + [f"{star}[{k}]" for k in range(count - len(names))]
