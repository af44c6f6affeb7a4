"""Objects that a call between two stages returns: `CubicSpline(t, y)`, `gaussian_kde(x)`, `Rotation.from_euler(...)`.

Each call of the traced function creates an object of its own. What follows sees a `StageObject` in its place: methods,
operators and attributes are calls between stages, in program order, so that the object may also change itself.

Must not know: fusions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse import source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.values.traced import ComputedObject, Memory, Traced


@dataclass(slots=True)
class SharedArrays:
    """Traced arrays that an object may refer to, with the version of each when the object received or returned it."""

    versions: list[tuple[Memory, int]] = field(default_factory=list)

    @staticmethod
    def among(values: Iterable[Any]) -> SharedArrays:
        """Returns the arrays among values, and those that objects among them may refer to.

        Raises UnsupportedError if one of the latter was written since: in the program, the object would see it.
        """
        shared = SharedArrays()
        for value in values:
            if isinstance(value, StageObject):
                arrays: SharedArrays = value._shared
                arrays.check(value._name)
                shared.versions += arrays.versions
            else:
                shared.add(value)
        return shared

    def add(self, value: Any) -> None:
        """Adds an array; any other value is left out."""
        if isinstance(value, Traced) and not value.is_immutable:
            memory = value.own_memory()
            self.versions.append((memory, memory.version))

    def check(self, name: str) -> None:
        """Raises UnsupportedError if one of the arrays was written. name: of the object."""
        for memory, version in self.versions:
            if memory.version != version:
                raise UnsupportedError(
                    f"{name} is used after an array that it may refer to was written ({memory.written_at})",
                    hint="give it a copy of the array, or create it after the update", where=source.user_line(),
                )  # fmt: skip


class StageObject(ComputedObject):
    """An object of a call, in what follows the stage that created it.

    number: of the object among the values of the call. example: the object of the call that is traced, which gives its
    class and the names of its methods. name: how the user wrote its creation. shared: the arrays that it may refer to.
    call: calls a function between two stages.
    """

    def __init__(
        self, recorder: Any, number: int, example: Any, name: str, shared: SharedArrays, call: Callable[..., Any]
    ) -> None:  # fmt: skip
        self.__dict__.update(recorder=recorder, number=number, _example=example, _name=name, _shared=shared, _call=call)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__dict__["_example"])

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._run(_apply, f"{self._name}()", arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["_example"], name)  # raises what the object raises
        path = f"{self._name}.{name}"
        if callable(value) and not hasattr(value, "shape"):
            return lambda *arguments, **keywords: self._run(_apply_method, path, (name, *arguments), keywords)
        attribute = self._run(getattr, path, (name,), {})
        self._shared.add(attribute)
        return attribute

    def __setattr__(self, name: str, value: Any) -> None:
        self._shared.add(value)
        self._run(setattr, f"{self._name}.{name} = ...", (name, value), {})

    def __eq__(self, other: object) -> Any:
        if "__eq__" not in {name for cls in type(self._example).__mro__[:-1] for name in vars(cls)}:
            return self is other
        return self._run(operator.eq, f"{self._name} ==", (other,), {})

    __hash__ = ComputedObject.__hash__

    def __bool__(self) -> bool:
        cls = type(self._example)
        if not hasattr(cls, "__bool__") and not hasattr(cls, "__len__"):
            return True
        return bool(self._run(bool, f"bool({self._name})", (), {}))

    def __iter__(self) -> Iterator[Any]:
        raise self._refusal("iterating over")

    def __len__(self) -> int:
        raise self._refusal("len() of")

    def __str__(self) -> str:
        raise self._refusal("the text of")

    __repr__ = __str__

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        raise self._refusal("an array of")

    __array_ufunc__: Any = None

    def _run(self, function: Callable[..., Any], name: str, arguments: tuple[Any, ...], keywords: Any) -> Any:
        return self._call(function, name, (self, *arguments), keywords)

    def _refusal(self, use: str) -> UnsupportedError:
        kind = type(self._example).__name__
        return UnsupportedError(
            f"{use} a {kind}, which {self._name} creates in each call",
            hint="call its methods and return their results, or use it outside the fused function",
            where=source.user_line(),
        )  # fmt: skip


def _apply(value: Any, /, *arguments: Any, **keywords: Any) -> Any:
    return value(*arguments, **keywords)


def _apply_method(value: Any, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    return getattr(value, name)(*arguments, **keywords)


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[StageObject, Any], Any]:
    return lambda self, right: self._run(function, f"{self._name} {function.__name__}", (right,), {})


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[StageObject, Any], Any]:
    def swapped(right: Any, left: Any) -> Any:
        return function(left, right)

    return lambda self, left: self._run(swapped, f"{self._name} {function.__name__}", (left,), {})


def _in_place(function: Callable[[Any, Any], Any]) -> Callable[[StageObject, Any], Any]:
    def operate(self: StageObject, right: Any) -> Any:
        if isinstance(self, StageArray):
            raise self._change(f"{self._name} {function.__name__}")
        return self._run(function, f"{self._name} {function.__name__}", (right,), {})

    return operate


def _unary(function: Callable[[Any], Any]) -> Callable[[StageObject], Any]:
    return lambda self: self._run(function, f"{function.__name__} {self._name}", (), {})


class StageArray(StageObject):
    """A masked array of a call. It stays as it was created: views of it may be arrays of the trace."""

    def share(self, values: Iterable[Any]) -> None:
        """Notes values that a call returned for the array: arrays among them may be views of it."""
        for value in values:
            self._shared.add(value)

    def __getattr__(self, name: str) -> Any:
        if name in _CHANGING:
            raise self._change(f"{self._name}.{name}()")
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise self._change(f"{self._name}.{name} = ...")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self._change(f"{self._name}[...] = ...")

    def __len__(self) -> int:
        return int(self._run(len, f"len({self._name})", (), {}))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        return self._call(function, f"np.{ufunc.__name__}", inputs, keywords)

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        return self._call(function, f"np.{function.__name__}", arguments, keywords)

    def _change(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{what} changes a {type(self._example).__name__}, which is created between two stages of each call",
            hint="compute another one: np.ma.where(condition, values, m), np.ma.array(m, mask=mask) or m + 1",
            where=source.user_line(),
        )  # fmt: skip


_CHANGING = frozenset({
    "fill", "harden_mask", "itemset", "mini", "partition", "put", "resize", "set_fill_value", "setfield", "setflags",
    "shrink_mask", "soften_mask", "sort", "unshare_mask", "byteswap",
})  # fmt: skip
"""Methods that change a masked array."""

for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    _function = getattr(operator, _name, None) or getattr(operator, f"{_name}_")
    setattr(StageObject, f"__{_name}__", _binary(_function))
    setattr(StageObject, f"__r{_name}__", _reflected(_function))
    setattr(StageObject, f"__i{_name}__", _in_place(getattr(operator, f"i{_name}")))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(StageObject, f"__{_name}__", _unary(getattr(operator, _name)))
for _name in ("lt", "le", "gt", "ge", "getitem", "contains"):
    setattr(StageObject, f"__{_name}__", _binary(getattr(operator, _name)))
