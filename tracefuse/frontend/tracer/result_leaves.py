"""The source of each leaf of a result at every call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tracefuse.ir.extents import Extent


@dataclass(frozen=True, slots=True)
class OutputLeaf:
    """An output of the fusion. position: its index among all outputs."""

    position: int


@dataclass(frozen=True, slots=True)
class ArgumentLeaf:
    """An argument, returned unchanged. position: its index among the leaves of the call."""

    position: int


@dataclass(frozen=True, slots=True, eq=False)
class ConstantLeaf:
    """The same object at every call."""

    value: Any


@dataclass(frozen=True, slots=True)
class SizeLeaf:
    """A size, returned as a Python integer."""

    extent: Extent


@dataclass(frozen=True, slots=True, eq=False)
class NumberLeaf:
    """A number that the host computes. read: computes it from the extents and scalars of the call, by id."""

    read: Callable[[Mapping[int, Any]], Any]


ResultLeaf: TypeAlias = OutputLeaf | ArgumentLeaf | ConstantLeaf | SizeLeaf | NumberLeaf
PrintedLeaf: TypeAlias = OutputLeaf | ConstantLeaf | NumberLeaf


def count_outputs(leaves: Iterable[ResultLeaf]) -> int:
    """Returns the number of leaves that are outputs of the fusion."""
    return sum(isinstance(leaf, OutputLeaf) for leaf in leaves)
