"""Functions of Python on computed numbers that no op expresses, between two stages: `round(x, 2)`, `math.gamma(x)`.

Their results are inputs of what follows, so that another number needs no other trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracefuse import pytrees
from tracefuse.frontend.tracer.array_ops.state_calls import NOT_OF_STATE, call_on_state
from tracefuse.frontend.tracer.array_ops.traced_ops import as_tensor
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced


def is_computed(value: Any) -> bool:
    """Whether a value is a traced number or an array without axes that the call computes."""
    return isinstance(value, Traced) and not value.value.shape


def call_with_numbers(
    function: Callable[..., Any], name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:  # fmt: skip
    """Returns what a function returns for computed numbers, traced.

    NotImplemented where no argument is a computed array or number, where no call can go on with the result, and where
    the result may be an integer beyond 64 bits: the function then asks for the numbers themselves.
    """
    leaves, structure = pytrees.flatten((tuple(arguments), dict(keywords)))
    leaves = [_computed(leaf) for leaf in leaves]
    arguments, keywords = structure.unflatten(leaves)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Traced) and leaf.value.is_tensor]
    if not tensors or function in _OF_LONG_INTEGERS:
        return NotImplemented
    result = call_on_state(function, arguments, keywords, name=name)
    if result is not NOT_OF_STATE:
        return result
    recorder = tensors[0].recorder
    if recorder.answers is None or recorder.body is not None or recorder.device is not None:
        return NotImplemented
    return call_between_stages(function, name, arguments, keywords)


def _computed(value: Any) -> Any:
    """A number that the caller passes, or a size, as one that the call computes; any other value as it is."""
    if isinstance(value, SymbolicSize):
        tensor = as_tensor(value)
        return tensor.recorder.python_number(tensor, "int")
    if not isinstance(value, Traced) or value.value.is_tensor or value.weak is None:
        return value
    return value.recorder.python_number(as_tensor(value), value.weak)


_OF_LONG_INTEGERS = frozenset({
    math.floor, math.ceil, math.trunc, math.factorial, math.comb, math.perm, math.gcd, math.lcm, math.isqrt, math.prod,
    getattr(math, "sumprod", math.prod),
})  # fmt: skip
"""Functions whose results are integers for some arguments, which may need more than 64 bits."""
