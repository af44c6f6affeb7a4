"""What `super()` gives in a clone, and the first base of shadow classes that are not to be initialised.

Must not know: overlays of values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracefuse.frontend.tracer.state.container_overlays import OVERLAY_METHODS

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.state.overlays import Overlays


class SkipsInitSubclass:
    """First base of the shadow of a class whose `__init_subclass__` must not run for the shadow.

    (The `__class__` of an instance of such a shadow cannot be set to the class, nor the reverse.)
    """

    __slots__ = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        if "__is_shadow__" not in vars(cls):
            cls.__clone_of_init_subclass__(**keywords)  # type: ignore[attr-defined]


class SuperOverlay:
    """What `super()` gives in a clone: attributes of the classes after one, with their functions cloned."""

    def __init__(self, overlays: Overlays, cls: type, instance: Any) -> None:
        object.__getattribute__(self, "__dict__")["of"] = overlays, cls, instance

    def __getattribute__(self, name: str) -> Any:
        overlays, cls, instance = object.__getattribute__(self, "__dict__")["of"]
        objects = overlays.objects
        is_class = isinstance(instance, type)
        shadow = instance if is_class else type(instance)
        order = [base for base in shadow.__mro__ if not objects.is_shadow(base) and base is not SkipsInitSubclass]
        for owner in order[order.index(cls) + 1 :]:
            if name in vars(owner):
                method = OVERLAY_METHODS.get(owner, {}).get(name)
                objects.compare_method(owner, name)
                method = method or objects.method(vars(owner)[name], owner, name)
                overlays.complete()
                bind: Callable[..., Any] | None = getattr(type(method), "__get__", None)
                if bind is not None:
                    return bind(method, None if is_class else instance, shadow)
                objects.load_of_class(owner, name)
                return vars(objects.classes.get(owner, owner)).get(name, method)
        raise AttributeError(f"'super' object has no attribute {name!r}")


def super_twin(overlays: Overlays) -> Callable[..., Any]:
    """Returns the replacement of `super` in clones."""

    def call(*arguments: Any) -> Any:
        if arguments:
            cls, instance = (*arguments, None)[:2]
        else:
            frame = sys._getframe(1)
            cls, instance = frame.f_locals["__class__"], frame.f_locals[frame.f_code.co_varnames[0]]
        users = overlays.objects.users_class(cls)
        shadows = instance if isinstance(instance, type) else type(instance)
        return (
            SuperOverlay(overlays, users, instance) if overlays.objects.is_shadow(shadows) else super(users, instance)
        )

    return call
