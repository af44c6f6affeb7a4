"""Draws from random generators: effects, which run in program order and are never dropped or merged.

A draw reads and advances its generator when its segment runs, so that the values are those of the plain program. Every
draw has a second result, the token, and the next draw takes it as its first operand: that orders them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import bool_
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops.families import register
from tracefuse.ops.native_draws import native_draw


class RandomSource(ABC):
    """What draws come from. zeros: makes an array of the array library that draws."""

    zeros: Callable[..., Any] = staticmethod(np.zeros)

    @abstractmethod
    def generator(self) -> Any:
        """Returns the object whose methods draw."""

    @property
    def exists(self) -> bool:
        """Whether the generator exists before the call draws."""
        return True

    @property
    def identity(self) -> int:
        """Equal for sources that draw from one generator."""
        return id(self)


class SharedSource(RandomSource):
    """A generator that exists outside of the function, also used by other code."""

    def __init__(self, generator: Any, zeros: Callable[..., Any] = np.zeros) -> None:
        self._generator, self.zeros = generator, zeros

    def generator(self) -> Any:
        return self._generator

    @property
    def identity(self) -> int:
        return id(self._generator)

    def __repr__(self) -> str:
        return repr(self._generator)


class SourceOfCall(RandomSource):
    """A generator that every call creates. make: makes it from the seed. Each thread has one of its own."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make, self._made = make, threading.local()

    def start(self, seed: Any) -> None:
        """Makes the generator of a call."""
        self._made.generator = self.make(seed)

    def generator(self) -> Any:
        return self._made.generator

    @property
    def exists(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"{self.make.__name__}(...)"


class ArgumentSource(RandomSource):
    """The generator that a call passes as an argument. Each thread has one of its own."""

    def __init__(self, path: str) -> None:
        self._path, self._given = path, threading.local()

    def bind(self, generator: Any) -> None:
        """Sets the generator of a call."""
        self._given.generator = generator

    def generator(self) -> Any:
        return self._given.generator

    def __repr__(self) -> str:
        return self._path


@dataclass(frozen=True, slots=True)
class OperandPlace:
    """The place of an operand among the arguments of a draw. position: of the operand, without the token."""

    position: int


def _filled(argument: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(argument, OperandPlace):
        return arrays[argument.position]
    return tuple(_filled(entry, arrays) for entry in argument) if isinstance(argument, tuple) else argument


def _draw(
    *operands: Any, source: RandomSource, method: str, arguments: tuple[Any, ...], names: tuple[str, ...],
    ordered: bool, shape: Shape, dtype: Any,
) -> Any:  # fmt: skip
    arrays = operands[ordered:]
    values = [_filled(argument, arrays) for argument in arguments]
    count = len(values) - len(names)
    draw = getattr(source.generator(), method)
    drawn = draw(*values[:count], **dict(zip(names, values[count:], strict=True)))
    return source.zeros(shape, dtype.numpy) if drawn is None else drawn, _token(source)  # `seed` returns nothing


def _shuffle(*operands: Any, source: RandomSource, axis: Any, ordered: bool) -> Any:
    """Shuffles a copy; who asks for it writes it back."""
    copy = operands[-1].copy()
    source.generator().shuffle(copy, *(() if axis is None else (axis,)))
    return copy, _token(source)


def _start(*operands: Any, source: Any, seed: Any, ordered: bool) -> Any:
    source.start(seed)
    return _token(source)


def _token(source: RandomSource) -> Any:
    """Returns a new token: the memory of the last one may be released before the next draw."""
    return source.zeros((), np.bool_)


def _drawn_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    return tuple(attributes["shape"]), ()


def _effect(name: str, numpy: Callable[..., Any], doc: str, **more: Any) -> WholeArrayOp:
    op = WholeArrayOp(name=name, numpy=numpy, doc=doc, arity=None, effect=True, distinct=True, **more)
    return register(op)  # type: ignore[no-any-return]


_effect(
    "random_draw", _draw, "A draw of a random generator, by its `method`; and the token of the next one.",
    shape=_drawn_shape, dtypes=lambda operands, attributes: (attributes["dtype"], bool_),
    attributes=(
        ("source", None), ("method", "random"), ("arguments", ()), ("names", ()), ("ordered", False), ("shape", ()),
        ("dtype", None),
    ),
    native=native_draw,
)  # fmt: skip
_effect(
    "random_shuffle", _shuffle, "The operand shuffled by a random generator; and the token of the next draw.",
    shape=lambda shapes, attributes, require: (shapes[-1], ()),
    dtypes=lambda operands, attributes: (operands[-1], bool_),
    attributes=(("source", None), ("axis", None), ("ordered", False)),
)  # fmt: skip
_effect(
    "random_start", _start, "Makes the random generator of a call from its seed; gives the token of the next draw.",
    shape=lambda shapes, attributes, require: ((),), dtypes=lambda operands, attributes: (bool_,),
    attributes=(("source", None), ("seed", None), ("ordered", False)),
)  # fmt: skip
