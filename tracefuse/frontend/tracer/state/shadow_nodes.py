"""Shadow classes as pytree nodes of JAX.

JAX looks a class up by its identity and keeps what is registered for good. So the shadow of a class that is a node of
JAX is registered once, lent to one trace at a time, and loses its methods when the trace ends.

Must not know: overlays of values.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Any

from tracefuse.frontend.tracer.state.container_records import CONTAINERS
from tracefuse.frontend.tracer.state.object_layout import ABSENT, native_base, native_dict, slot_contents, slots_of

_free: weakref.WeakKeyDictionary[type, list[type]] = weakref.WeakKeyDictionary()
"""By class of the user, its registered shadow classes that no trace has."""

_bare_names: dict[int, frozenset[str]] = {}
"""By the id of a registered shadow class, the attributes that it has between traces."""

_resting: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()
"""By metaclass, the metaclass of registered shadow classes between traces. (Only one of Python can be replaced.)"""


def is_node_of_jax(cls: type) -> bool:
    """Whether instances of a class are pytree nodes of JAX."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "tree_util"):
        return False
    base: Any = native_base(cls)
    try:
        instance = base.__new__(cls)
    except TypeError:  # an abstract class, which has no instances
        return False
    return not jax.tree_util.all_leaves([instance])


def borrowed(cls: type, metaclass: type, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
    """Returns a shadow class of `cls` that is a node of JAX, as `type.__new__` would create it."""
    free = _free.setdefault(cls, [])
    try:
        shadow = free.pop()
    except IndexError:
        resting = _resting.setdefault(type(cls), type.__new__(type, type(cls).__name__, (type(cls),), {}))
        shadow = type.__new__(resting, cls.__name__, bases, namespace)
        _bare_names[id(shadow)] = frozenset(vars(shadow))
        _register(cls, shadow)
    type.__setattr__(shadow, "__class__", metaclass)
    return shadow


def give_back(cls: type, shadow: type) -> None:
    """Makes a shadow class that `borrowed` returned available to later traces, without attributes of this one."""
    for name in vars(shadow).keys() - _bare_names[id(shadow)]:
        type.__delattr__(shadow, name)
    type.__setattr__(shadow, "__class__", _resting[type(cls)])
    _free[cls].append(shadow)


def _register(cls: type, shadow: type) -> None:
    """Registers a shadow class with the children and the metadata that JAX gives instances of `cls`.

    Methods `tree_flatten` and `tree_unflatten` run as clones.
    """
    import jax

    tree_util = jax.tree_util
    has_methods = hasattr(cls, "tree_flatten") and hasattr(cls, "tree_unflatten")

    def keyed(instance: Any) -> tuple[list[tuple[Any, Any]], Any]:
        ordinary = moved(instance, cls)
        entries, structure = tree_util.tree_flatten_with_path(ordinary, is_leaf=lambda node: node is not ordinary)
        return [(path[0], child) for path, child in entries], structure

    def flat(instance: Any) -> tuple[Any, Any]:
        if has_methods:
            return instance.tree_flatten()  # type: ignore[no-any-return]
        children, structure = keyed(instance)
        return [child for _, child in children], structure

    def keyed_as_flat(instance: Any) -> tuple[list[tuple[Any, Any]], Any]:
        entries, structure = keyed(instance)
        return entries, flat(instance)[1] if has_methods else structure

    def rebuilt(metadata: Any, children: Iterable[Any]) -> Any:
        if has_methods:
            return shadow.tree_unflatten(metadata, children)  # type: ignore[attr-defined]
        return moved(tree_util.tree_unflatten(metadata, children), shadow)

    tree_util.register_pytree_with_keys(shadow, keyed_as_flat, rebuilt, flat)


def moved(instance: Any, cls: type) -> Any:
    """Returns an instance of a class with the attributes and the contents of one of the same layout."""
    base: Any = native_base(cls)
    copy = base.__new__(cls)
    if base in CONTAINERS:
        (base.extend if CONTAINERS[base] is list else base.update)(copy, base.copy(instance))
    native_dict(copy).update(getattr(instance, "__dict__", {}))  # a shadow of captured state reads all attributes
    for _, slot in slots_of(cls):
        contents = slot_contents(instance, slot)
        if contents is not ABSENT:
            slot.__set__(copy, contents)
    return copy
