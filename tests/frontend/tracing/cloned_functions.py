"""Functions and classes of the kinds that a trace clones."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np

from tracefuse import fuse

X = np.arange(4.0)
W = np.full(4, 2.0)
K = 3.0
reference = functools.partial(fuse, target="reference")


class Activation(abc.ABC):
    made: ClassVar[list[str]] = []

    def __init_subclass__(cls, **keywords: Any) -> None:
        Activation.made.append(cls.__name__)

    @abc.abstractmethod
    def __call__(self, x: Any) -> Any: ...

    @staticmethod
    def scaled(x: Any) -> Any:
        return x * K

    @classmethod
    def named(cls, x: Any) -> Any:
        return x + len(cls.__name__)


class Shifted(Activation):
    def __init__(self) -> None:
        self.shift = np.ones(4)

    def __call__(self, x: Any) -> Any:
        return self.scaled(self.named(x)) + self.shift + np.zeros(len(x))


class Lazy:
    def __init__(self) -> None:
        self.table = {"a": np.ones(4), "b": 2.0}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["table"][name]
        except KeyError:
            raise AttributeError(name) from None


class Descriptor:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance, self.name, 1.0) * K

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance, self.name, value)


class Described:
    size = Descriptor()

    def __init__(self) -> None:
        self.size = 4.0


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    w: Any
    name: str = "w"

    def scaled(self) -> Any:
        return self.w * len(self.name)


@dataclasses.dataclass
class Parent:
    child: Frozen
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.extra.setdefault("n", 1)


ACTIVATION, LAZY, DESCRIBED, PARENT = Shifted(), Lazy(), Described(), Parent(Frozen(np.ones(4), "name"))
