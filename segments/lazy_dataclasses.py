"""Dataclasses whose methods are generated at their first use.

`dataclasses.dataclass` generates up to six methods for each class while its module is imported, which takes longer than
all else that importing a module of many classes does, and most programs use few of the methods. Here a class has its
fields at once; `__init__`, `__repr__`, `__eq__` and `__hash__` replace stubs when they are first called.

A frozen class is frozen for type checkers, which see `dataclasses.dataclass`: at run time its attributes are plain
ones, since `__init__` of a class that refuses assignments takes five times as long. Classes that users handle take
`dataclasses.dataclass`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:
    _initialized: dict[type, tuple[str, ...]] = {}

    def replace(instance: Any, /, **changes: Any) -> Any:
        """As `dataclasses.replace`, in half the time: the names of the fields are looked up once for each class."""
        cls = instance.__class__
        names = _initialized.get(cls)
        if names is None:
            names = _initialized[cls] = tuple(field.name for field in dataclasses.fields(cls) if field.init)
        for name in names:
            if name not in changes:
                changes[name] = getattr(instance, name)
        return cls(**changes)

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, eq: bool = True, repr: bool = True, **layout: bool
    ) -> Any:
        """A class with fields, as `dataclasses.dataclass` makes them, and stubs for the methods that it would add."""
        if cls is None:
            return lambda made: dataclass(made, frozen=frozen, eq=eq, repr=repr, **layout)
        written = vars(cls)
        wanted = {"__init__": layout.pop("init", True), "__repr__": repr, "__eq__": eq, "__hash__": eq and frozen}
        stubs = [name for name, is_wanted in wanted.items() if is_wanted and name not in written]
        hides_hash = eq and not frozen and "__hash__" not in written
        made = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **layout)
        for name in stubs:
            setattr(made, name, _stub(made, name))
        if hides_hash:
            made.__hash__ = None
        return made


def _stub(cls: type, name: str) -> Callable[..., Any]:
    def first_call(self: Any, *arguments: Any, **named: Any) -> Any:
        method = _generated(cls, name)
        setattr(cls, name, method)
        return method(self, *arguments, **named)

    first_call.__name__, first_call.__qualname__ = name, f"{cls.__qualname__}.{name}"
    return first_call


def _generated(cls: type, name: str) -> Any:
    """The method that `dataclasses` generates for a class of the same fields."""
    fields = [(field.name, field.type, field) for field in dataclasses.fields(cls)]
    namespace: dict[str, Any] = {"__doc__": "A twin."}  # without one, `dataclasses` writes the signature, slowly
    if hasattr(cls, "__post_init__"):
        namespace["__post_init__"] = cls.__post_init__
    try:
        twin = dataclasses.make_dataclass(
            cls.__name__,
            fields,
            namespace=namespace,
            slots=cls.__dictoffset__ == 0,
            init=name == "__init__",
            repr=name == "__repr__",
            eq=name in ("__eq__", "__hash__"),
            unsafe_hash=name == "__hash__",
        )
    except RuntimeError as error:
        # Python 3.11 replaces what interrupts `__set_name__`.
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        raise
    method = vars(twin)[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    return method
