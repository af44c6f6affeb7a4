"""What the tests of the fast path share: arrays, containers, and a context in which no call is flattened in full."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from tracefuse.frontend.calls.call import Signature

X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = X[::-1].copy() - 5


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any
    scale: float = 2.0


class Pair(NamedTuple):
    """Its elements are not what its indices give."""

    first: Any
    second: Any

    def __getitem__(self, index: Any) -> Any:
        return Pair(self.first[index], self.second[index])


@contextmanager
def only_fast_paths() -> Iterator[None]:
    """Fails if a call leaves the fast path."""

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("a call was flattened in full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Signature, "flatten_call", refuse)
        yield


def equal(one: Any, two: Any) -> None:
    """Trees of one structure with equal leaves."""
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert list(one) == list(two)
        for key in one:
            equal(one[key], two[key])
    elif dataclasses.is_dataclass(one):
        equal(vars(one), vars(two))
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        for a, b in zip(tuple.__iter__(one) if isinstance(one, tuple) else one, two, strict=True):
            equal(a, b)
    else:
        np.testing.assert_array_equal(one, two)


def equal_values(one: Any, two: Any) -> None:
    """As `equal`; a number that is computed comes as a number of Python or as an array without axes."""
    if isinstance(two, (dict, list, tuple, Layer)):
        assert type(one) is type(two)
        for a, b in zip(children(one), children(two), strict=True):
            equal_values(a, b)
    else:
        np.testing.assert_array_equal(one, two)


def children(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        assert all(isinstance(key, (str, int)) for key in tree)
        return [tree[key] for key in tree]
    if isinstance(tree, Layer):
        return [tree.weight, tree.bias, tree.scale]
    return list(tuple.__iter__(tree) if isinstance(tree, tuple) else tree)
