"""Functions of pytrees while a function is traced: they receive ordinary containers and instances in place of overlays.

The functions of optree and JAX recognise a node by its exact class, which an overlay does not have.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tracefuse.frontend.tracer.array_ops.rebuilt_trees import with_shadows
from tracefuse.frontend.tracer.record.recorder import current

MODULES = ("optree", "jax", "jax.tree", "jax.tree_util", "tracefuse.pytrees")
_NAMES = ("flatten", "leaves", "structure", "map", "map_", "reduce", "all", "any", "sum", "max", "min", "iter",
          "map_with_path", "flatten_with_path", "leaves_with_path", "unflatten", "transpose")  # fmt: skip


def tree_twins() -> Iterator[tuple[int, Callable[..., Any]]]:
    """Twins of the functions of the modules that are loaded, with the id of what each replaces."""
    for module in (sys.modules[name] for name in MODULES if name in sys.modules):
        for name in _NAMES:
            for function in (vars(module).get(name), vars(module).get(f"tree_{name}")):
                if callable(function):
                    yield id(function), functools.partial(_call, function)


def _call(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    recorder = current.get()
    if recorder is None or recorder.overlays is None:
        return function(*arguments, **keywords)
    return with_shadows(recorder, function(*map(recorder.overlays.plain, arguments), **keywords))
