"""Pytrees of a trace: with ordinary instances, to be taken apart, and rebuilt with shadows, for the function.

Must not know: calls, kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracefuse import pytrees
from tracefuse.frontend.tracer.array_ops.masked_elements import MaskedElements, with_elements
from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.record.recorder import Recorder


def as_ordinary(recorder: Recorder, tree: Any) -> Any:
    """Returns a pytree with ordinary containers and instances in place of the overlays that the clone creates.

    Elements under masks are taken, as arrays.
    """
    plain = tree if recorder.overlays is None else recorder.overlays.plain(tree)
    leaves, structure = pytrees.flatten(plain)
    if not any(isinstance(leaf, MaskedElements) for leaf in leaves):
        return plain
    return pytrees.unflatten(structure, list(map(with_elements, leaves)))


def rebuilt(recorder: Recorder, structure: Any, leaves: Iterable[Any]) -> Any:
    """Returns the pytree of a structure for the function: the methods of its instances are clones."""
    return with_shadows(recorder, pytrees.unflatten(structure, leaves))


def with_shadows(recorder: Recorder, tree: Any) -> Any:
    """Makes the instances of classes of the user in a new pytree instances of their shadow classes; returns it."""
    waiting = [tree]
    while waiting and recorder.overlays is not None:
        node = waiting.pop()
        children = pytrees.children(node)
        if not children:
            continue
        waiting += children
        cls = type(node)
        if pytrees.is_registered(cls):
            recorder.overlays.follow_methods(node, Place(cls.__qualname__, routes.to(cls), cls))
    return tree
