"""Attention of `fd.ops`: forward and backward, written with matrix products, softmax and random bits.

softmax(query @ key.T * scale + bias) @ value over the last two axes, in float32 for halves; axes before those are
batches. The products are library calls, what stands between them is fused. Nothing keeps the probabilities: the
backward pass computes them again from the logarithm of their sums, and dropout from its seed and offset.

Knows: `fd.ops` by name. Must not know: rows, kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracefuse.dtypes import DataType, dtype_of
from tracefuse.errors import ShapeError, TraceError

NEVER = -math.inf


def sdpfa_fwd(
    ops: Any, query: Any, key: Any, value: Any, *rest: Any, bias: Any = None, mask: Any = None, dropout_p: Any = None,
    is_causal: Any = None, scale: Any = None,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """(output, log_sumexp, philox_seed, philox_offset) of scaled dot product attention.

    query (..., L, E), key (..., S, E), value (..., S, V) of one type; output (..., L, V) has it too, log_sumexp
    (..., L) is float32 (float64 of doubles). bias is added to the scores, mask (bool) says where to look; both
    broadcast to (..., L, S). dropout_p: the probability that a weight is dropped. is_causal: position i sees positions
    up to i. scale: 1 / sqrt(E) where it is None. By position, what follows value is (bias, mask, dropout_p, is_causal,
    scale), or the last three of these, as older definitions have it.
    """
    names = ("dropout_p", "is_causal", "scale")
    if len(rest) > 3 or any(hasattr(r, "ndim") for r in rest):
        names = ("bias", "mask", *names)  # type: ignore[assignment]
    if len(rest) > len(names):
        raise TraceError(
            f"sdpfa_fwd: takes 3 tensors and at most {len(names)} values by position, got {len(rest)} more",
            hint=f"it is sdpfa_fwd(query, key, value, {', '.join(names)})",
        )
    given: dict[str, Any] = dict(zip(names, rest, strict=False))
    named = {"bias": bias, "mask": mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    named.update((k, v) for k, v in given.items() if v is not None)
    attention = _Attention(ops, query, key, value, **named)
    seed = ops.fresh_seed() if attention.drops else 0
    scores = attention.scores()
    largest = ops.max(scores, [-1], True)
    # A row that may look nowhere has minus infinity everywhere; what is taken off it must be finite.
    shift = ops.where(ops.isfinite(largest), largest, 0.0)
    weights = ops.exp(ops.sub(scores, shift))
    total = ops.sum(weights, [-1], True)
    rank = query.ndim
    log_sum = ops.squeeze(ops.add(ops.log(total), shift), [rank - 1])
    probabilities = attention.dropped(ops.truediv(weights, total), seed, 0)
    output = ops.cast(attention.product(probabilities, value), query.dtype)
    return output, log_sum, ops.full([], seed, DataType.Int), ops.full([], 0, DataType.Int)


def sdpfa_bwd(
    ops: Any, grad_output: Any, query: Any, key: Any, value: Any, output: Any, log_sumexp: Any, dropout_p: Any = None,
    is_causal: Any = None, philox_seed: Any = None, philox_offset: Any = None, scale: Any = None, *, bias: Any = None,
    mask: Any = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """(grad_query, grad_key, grad_value) of `sdpfa_fwd`, from its results and the same parameters."""
    attention = _Attention(ops, query, key, value, bias, mask, dropout_p, is_causal, scale)
    rank = query.ndim
    column = [k == rank - 1 for k in range(rank)]
    probabilities = ops.exp(ops.sub(attention.scores(), ops.broadcast(log_sumexp, column)))
    draw = (_first(ops, philox_seed), _first(ops, philox_offset))
    given = attention.dropped(probabilities, *draw)
    grad_value = attention.product(attention.turned(given), grad_output)
    grad_given = attention.product(grad_output, attention.turned(value))
    grad_weights = attention.dropped(grad_given, *draw)
    wide = attention.wide
    along = ops.sum(ops.mul(ops.cast(grad_output, wide), ops.cast(output, wide)), [-1], True)
    grad_scores = ops.mul(ops.mul(probabilities, ops.sub(grad_weights, along)), attention.factor)
    grad_query = attention.product(grad_scores, key)
    grad_key = attention.product(attention.turned(grad_scores), query)
    made = zip((grad_query, grad_key, grad_value), (query, key, value), strict=True)
    first, second, third = (ops.cast(grad, operand.dtype) for grad, operand in made)
    return first, second, third


def _first(ops: Any, state: Any) -> Any:
    """A seed or offset as an operand without axes: a scalar, a tensor without axes, or the first element of one."""
    if getattr(state, "ndim", 0) == 0:
        return 0 if state is None else state
    if state.ndim != 1:
        raise ShapeError(f"a random state with {state.ndim} axes", hint="give a scalar or a tensor of one axis")
    return ops.select(state, 0, 0)


@dataclass(slots=True)
class _Attention:
    """One attention while it is recorded. wide: the type of scores and sums."""

    ops: Any
    query: Any
    key: Any
    value: Any
    bias: Any
    mask: Any
    dropout_p: Any
    is_causal: Any
    scale: Any

    def __post_init__(self) -> None:
        self.dropout_p, self.is_causal, self.scale = map(self._known, (self.dropout_p, self.is_causal, self.scale))
        ranks = {t.ndim for t in (self.query, self.key, self.value)}
        if len(ranks) != 1 or min(ranks) < 2:
            raise ShapeError(
                f"attention over tensors with {', '.join(map(str, sorted(ranks)))} axes",
                hint="query, key and value are (..., length, features), of one rank",
            )

    def _known(self, parameter: Any) -> Any:
        """A parameter as a Python number where it is a constant."""
        number = None if parameter is None else self.ops._number(parameter)
        return parameter if number is None else number

    @property
    def wide(self) -> Any:
        return dtype_of(self.query.dtype).compute

    @property
    def drops(self) -> bool:
        """Whether there is dropout: not where the probability is no argument and is 0."""
        return self.dropout_p is not None and not (isinstance(self.dropout_p, int | float) and self.dropout_p == 0)

    @property
    def factor(self) -> Any:
        if self.scale is not None:
            return self.scale
        return self.ops.rsqrt(self.ops.cast(self.ops.size(self.query, -1), DataType.Double))

    def product(self, left: Any, right: Any) -> Any:
        return self.ops.matmul(left, right, dtype=self.wide)

    def turned(self, tensor: Any) -> Any:
        """The last two axes exchanged."""
        rank = tensor.ndim
        return self.ops.permute(tensor, [*range(rank - 2), rank - 1, rank - 2])

    def shape(self) -> Sequence[Any]:
        """(..., L, S)."""
        return (*self.query._value.shape[:-1], self.key._value.shape[-2])

    def scores(self) -> Any:
        """What softmax is taken of: minus infinity where nothing is looked at."""
        ops = self.ops
        scores = ops.mul(self.product(self.query, self.turned(self.key)), self.factor)
        if self.bias is not None:
            scores = ops.add(scores, ops.cast(self.bias, self.wide))
        if self.mask is not None:
            scores = ops.where(self.mask, scores, NEVER)
        if self.is_causal is not None and self.is_causal is not False:
            rows = ops.broadcast(ops.iota(ops.size(self.query, -2)), [False, True])
            seen = ops.le(ops.iota(ops.size(self.key, -2)), rows)
            if self.is_causal is not True:
                seen = ops.logical_or(seen, ops.logical_not(self.is_causal))
            scores = ops.where(seen, scores, NEVER)
        return scores

    def dropped(self, weights: Any, seed: Any, offset: Any) -> Any:
        """Weights of which a random part is 0 and the others are larger by as much."""
        if not self.drops:
            return weights
        ops = self.ops
        bits = ops.logical_right_shift(ops.random_bits(seed, offset, self.shape()), 40)
        kept = ops.ge(ops.mul(ops.cast(bits, DataType.Float), 2.0**-24), self.dropout_p)
        return ops.where(kept, ops.truediv(weights, ops.sub(1.0, self.dropout_p)), 0.0)
