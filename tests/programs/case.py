"""A whole program with what a run of it needs: arguments for a size, its object, changes between calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Generator = np.random.Generator


@dataclass(frozen=True)
class Case:
    """One program.

    function: a plain function, or a method of a class (then `instance` makes the object), or a function that returns
        the function to call (then `closure` makes its arguments).
    arguments: the positional arguments for a generator and a size.
    between: changes state before each call but the first; it receives the object, the closure, or else the module.
    sizes: the sizes that the calls use in turn; a new size makes a new object or closure.
    layouts: whether the program also runs on strided, reversed, transposed and Fortran-ordered arrays.
    """

    function: Callable[..., Any]
    arguments: Callable[[Generator, int], tuple[Any, ...]]
    instance: Callable[[Generator, int], Any] | None = None
    closure: Callable[[Generator, int], tuple[Any, ...]] | None = None
    between: Callable[[Any, Generator], Any] | None = None
    sizes: tuple[int, ...] = (8, 13)
    layouts: bool = True

    @property
    def name(self) -> str:
        return self.function.__qualname__
