"""Arguments and results as pytrees: leaves, structure, and the path of each leaf as Python source.

Tuples, lists, dicts, NamedTuples, OrderedDict and deque are nodes. Classes that are nodes of JAX, dataclasses and attrs
classes are registered on first use, other classes by `register_pytree_node`. An array of JAX's typed random keys is a
node whose child is the array of their words. None is a leaf.

Must not know: arrays, tracing.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import optree

from tracefuse.caches import CLEAR_CACHES, Cache, register
from tracefuse.errors import TraceError

_NAMESPACE = "tracefuse"
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_registered: set[type] = set()
# Field names of registered dataclasses and attrs classes.
_field_names: dict[type, list[str]] = {}
# Leaf types that are known not to be nodes.
_plain: set[type] = set()
register(Cache(
    "pytrees._plain", "types of leaves that are not nodes", "type", "types defined in C", cleared_by=CLEAR_CACHES,
    clear=_plain.clear,
))  # fmt: skip


def register_pytree_node(
    cls: type, flatten: Callable[[Any], tuple[Iterable[Any], Any]], unflatten: Callable[[Any, Iterable[Any]], Any]
) -> None:
    """Registers `cls` as a pytree node.

    flatten(instance) returns (children, metadata). The metadata is part of the structure, and must be hashable and
    comparable. unflatten(metadata, children) rebuilds the instance. Raises ValueError if the class is registered.
    """
    if cls in _registered:
        raise ValueError(f"{cls.__name__} is already a pytree node")
    optree.register_pytree_node(cls, flatten, unflatten, namespace=_NAMESPACE)
    _registered.add(cls)


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Returns (leaves, structure). is_leaf: whether a node counts as a leaf.

    Raises TraceError for a tree that contains itself.
    """
    try:
        leaves, structure = optree.tree_flatten(tree, is_leaf, none_is_leaf=True, namespace=_NAMESPACE)
    except RecursionError as error:
        message = "an argument or a result contains itself, or is nested more deeply than a pytree can be"
        raise TraceError(message, hint="pass or return the arrays in a list that holds each of them") from error
    if _register_new(leaves):
        return flatten(tree, is_leaf)
    return leaves, structure


def unflatten(structure: Any, leaves: Iterable[Any]) -> Any:
    """Returns the pytree of this structure with these leaves."""
    return optree.tree_unflatten(structure, leaves)


LEAF = optree.treespec_leaf(none_is_leaf=True, namespace=_NAMESPACE)
"""The structure of a leaf."""


def paths(structure: Any, name: str) -> list[str]:
    """The path of every leaf as Python source, such as `name['w'][0]`."""
    return [accessor.codify(name) for accessor in optree.treespec_accessors(structure)]


def _register_new(leaves: list[Any]) -> bool:
    """Registers the nodes of JAX, dataclasses and attrs classes among the leaves; returns whether there were any."""
    new = {type(leaf): leaf for leaf in leaves if type(leaf) not in _plain}
    has_registered = False
    for cls, leaf in new.items():
        if cls in _registered:
            continue
        names = _fields(cls)
        if is_random_keys(leaf):
            _register_random_keys(cls)
            has_registered = True
        elif _is_node_of_jax(leaf):
            _register_as_jax(cls)
            has_registered = True
        elif names is not None:
            _register_fields(cls, names)
            has_registered = True
        elif not cls.__flags__ & _HEAP_TYPE:
            _plain.add(cls)  # a C type; a class defined in Python may be collected
    return has_registered


def _is_node_of_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")
    if jax is None or value is None or "__is_shadow__" in type(value).__dict__:
        return False
    return not bool(jax.tree_util.all_leaves([value]))


def _register_as_jax(cls: type) -> None:
    """Registers a class with the children and the metadata that JAX gives its instances."""
    import jax

    def flatten_node(instance: Any) -> tuple[list[Any], Any, tuple[str, ...]]:
        keyed, structure = jax.tree_util.tree_flatten_with_path(instance, is_leaf=lambda node: node is not instance)
        names = tuple(_name_of_key(path, position) for position, (path, _) in enumerate(keyed))
        return [child for _, child in keyed], structure, names

    def unflatten_node(structure: Any, children: Iterable[Any]) -> Any:
        return jax.tree_util.tree_unflatten(structure, children)

    optree.register_pytree_node(
        cls, flatten_node, unflatten_node, path_entry_type=optree.GetAttrEntry, namespace=_NAMESPACE
    )
    _registered.add(cls)


class RandomKeys:
    """Stands for an array of JAX's typed random keys while its words are traced. implementation: of the keys, by name.

    For JAX a node that it rebuilds as the keys themselves, from arrays or from tracers of its own.
    """

    def __init__(self, words: Any, implementation: str) -> None:
        self.words, self.implementation = words, implementation


def is_random_keys(value: Any) -> bool:
    """Whether a value is an array of JAX's typed random keys, or JAX's tracer of one."""
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(value, jax.Array):
        return False
    return bool(jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key))


def with_words(tree: Any) -> Any:
    """Returns a pytree of JAX with the words of random keys in place of the keys; JAX rebuilds them with the tree."""
    import jax

    return jax.tree_util.tree_map(lambda leaf: _words_of(leaf) if is_random_keys(leaf) else leaf, tree)


def _words_of(keys: Any) -> RandomKeys:
    import jax

    _register_stand_in()
    return RandomKeys(jax.random.key_data(keys), str(jax.random.key_impl(keys)))


def _keys_of(implementation: str, children: Iterable[Any]) -> Any:
    """Rebuilds random keys from their words; a stand-in where these are not values of JAX."""
    import jax

    (words,) = children
    if isinstance(words, jax.Array):
        return jax.random.wrap_key_data(words, impl=implementation)
    return RandomKeys(words, implementation)


def _register_random_keys(cls: type) -> None:
    def flatten_keys(keys: Any) -> tuple[list[Any], str]:
        stand_in = _words_of(keys)
        return [stand_in.words], stand_in.implementation

    optree.register_pytree_node(cls, flatten_keys, _keys_of, namespace=_NAMESPACE)
    _registered.add(cls)


def _register_stand_in() -> None:
    """Makes the stand-in a node of JAX, once."""
    import jax

    if RandomKeys not in _registered:
        jax.tree_util.register_pytree_node(RandomKeys, lambda keys: ((keys.words,), keys.implementation), _keys_of)
        _register_as_jax(RandomKeys)


def _name_of_key(path: Sequence[Any], position: int) -> str:
    """The name of a child of a node of JAX, from its path."""
    (key,) = path
    name = getattr(key, "name", getattr(key, "key", position))
    return name if isinstance(name, str) else f"child{position}"


def _fields(cls: type) -> list[str] | None:
    # The shadow of a class lives as long as one trace, which creates the instances for its results itself.
    if "__is_shadow__" in cls.__dict__ or getattr(cls, "pytree_leaf", False):
        return None
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    attributes = getattr(cls, "__attrs_attrs__", None)
    return None if attributes is None else [attribute.name for attribute in attributes]


def _register_fields(cls: type, names: list[str]) -> None:
    def flatten_fields(instance: Any) -> tuple[list[Any], None, list[str]]:
        return [getattr(instance, name) for name in names], None, names

    def unflatten_fields(_: None, children: Iterable[Any]) -> Any:
        # Bypasses __init__, which may convert or check values that are tracers here.
        instance: Any = object.__new__(cls)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(instance, name, child)
        return instance

    optree.register_pytree_node(
        cls, flatten_fields, unflatten_fields, path_entry_type=optree.GetAttrEntry, namespace=_NAMESPACE
    )
    _registered.add(cls)
    _field_names[cls] = names


def children(node: Any) -> list[Any]:
    """Returns the children of a node; an empty list for a leaf."""
    if optree.tree_is_leaf(node, none_is_leaf=True, namespace=_NAMESPACE):
        return []
    return list(optree.tree_flatten_one_level(node, none_is_leaf=True, namespace=_NAMESPACE)[0])


def is_registered(cls: type) -> bool:
    """Whether a class is a pytree node by registration."""
    return cls in _registered


def field_names(cls: type) -> Sequence[str] | None:
    """The fields of a registered dataclass or attrs class, or of a NamedTuple; None for other classes."""
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
