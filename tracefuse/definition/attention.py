"""Scaled dot product attention of `fd.ops`, forward and backward, decomposed into products, softmax and random bits.

It computes softmax(query @ key.T * scale + bias) @ value over the last two axes, in float32 for halves; leading axes
are batch axes. The products are library calls and the ops between them fuse. The probabilities are not saved: the
backward pass recomputes them from log_sumexp, and the dropout mask from its seed and offset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DataType, dtype_of
from tracefuse.errors import ShapeError, TraceError

MASKED = -math.inf


def sdpfa_fwd(
    ops: Any, query: Any, key: Any, value: Any, *rest: Any, bias: Any = None, mask: Any = None, dropout_p: Any = None,
    is_causal: Any = None, scale: Any = None,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Returns (output, log_sumexp, philox_seed, philox_offset) of scaled dot product attention.

    query (..., L, E), key (..., S, E) and value (..., S, V) have one dtype, and so has output (..., L, V); log_sumexp
    (..., L) is float32, or float64 for doubles. bias is added to the scores; mask (bool) is True where a query may
    attend; both broadcast to (..., L, S). dropout_p: the probability of dropping a weight. is_causal: position i
    attends to positions up to i. scale: default 1 / sqrt(E). The output of a query that attends to nothing is 0.
    Positional arguments after value are (bias, mask, dropout_p, is_causal, scale), or the last three of these, as in
    older versions of nvFuser. Raises TraceError for too many arguments, ShapeError for tensors of different ranks or of
    fewer than 2 axes.
    """
    names = ("dropout_p", "is_causal", "scale")
    if len(rest) > 3 or any(hasattr(r, "ndim") for r in rest):
        names = ("bias", "mask", *names)  # type: ignore[assignment]
    if len(rest) > len(names):
        raise TraceError(
            f"sdpfa_fwd: takes 3 tensors and up to {len(names)} more positional arguments, got {len(rest)} more",
            hint=f"the signature is sdpfa_fwd(query, key, value, {', '.join(names)})",
        )
    positional: dict[str, Any] = dict(zip(names, rest, strict=False))
    named = {"bias": bias, "mask": mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    named.update((k, v) for k, v in positional.items() if v is not None)
    attention = _Attention(ops, query, key, value, **named)
    seed = ops.fresh_seed() if attention.drops else 0
    scores = attention.scores()
    largest = ops.max(scores, [-1], True)
    # A fully masked row is minus infinity everywhere; subtracting a finite shift avoids inf - inf.
    shift = ops.where(ops.isfinite(largest), largest, 0.0)
    weights = ops.exp(ops.sub(scores, shift))
    total = ops.sum(weights, [-1], True)
    rank = query.ndim
    log_sum = ops.squeeze(ops.add(ops.log(total), shift), [rank - 1])
    # The weights of a fully masked row are zeros, and so is its output.
    divisor = ops.where(ops.eq(total, 0.0), 1.0, total)
    probabilities = attention.drop(ops.truediv(weights, divisor), seed, 0)
    output = ops.cast(attention.product(probabilities, value), query.dtype)
    return output, log_sum, ops.full([], seed, DataType.Int), ops.full([], 0, DataType.Int)


def sdpfa_bwd(
    ops: Any, grad_output: Any, query: Any, key: Any, value: Any, output: Any, log_sumexp: Any, dropout_p: Any = None,
    is_causal: Any = None, philox_seed: Any = None, philox_offset: Any = None, scale: Any = None, *, bias: Any = None,
    mask: Any = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Returns (grad_query, grad_key, grad_value) of `sdpfa_fwd`, given its results and the same parameters."""
    attention = _Attention(ops, query, key, value, bias, mask, dropout_p, is_causal, scale)
    rank = query.ndim
    column = [k == rank - 1 for k in range(rank)]
    # Of a fully masked row, whose scores are minus infinity, all probabilities are zeros.
    shift = ops.where(ops.eq(log_sumexp, MASKED), 0.0, log_sumexp)
    probabilities = ops.exp(ops.sub(attention.scores(), ops.broadcast(shift, column)))
    random_state = (_as_scalar(ops, philox_seed), _as_scalar(ops, philox_offset))
    dropped = attention.drop(probabilities, *random_state)
    grad_value = attention.product(attention.transpose(dropped), grad_output)
    grad_dropped = attention.product(grad_output, attention.transpose(value))
    grad_weights = attention.drop(grad_dropped, *random_state)
    wide = attention.wide
    row_sums = ops.sum(ops.mul(ops.cast(grad_output, wide), ops.cast(output, wide)), [-1], True)
    grad_scores = ops.mul(ops.mul(probabilities, ops.sub(grad_weights, row_sums)), attention.factor)
    grad_query = attention.product(grad_scores, key)
    grad_key = attention.product(attention.transpose(grad_scores), query)
    return ops.cast(grad_query, query.dtype), ops.cast(grad_key, key.dtype), ops.cast(grad_value, value.dtype)


def _as_scalar(ops: Any, state: Any) -> Any:
    """Returns a seed or offset as an operand without axes: a scalar, a 0-d tensor, or the first element of a vector."""
    if getattr(state, "ndim", 0) == 0:
        return 0 if state is None else state
    if state.ndim != 1:
        raise ShapeError(
            f"philox_seed and philox_offset cannot have {state.ndim} axes", hint="give a scalar or a tensor of one axis"
        )
    return ops.select(state, 0, 0)


@dataclass(slots=True)
class _Attention:
    """One attention while it is recorded."""

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
        self.dropout_p, self.is_causal, self.scale = map(self._as_number, (self.dropout_p, self.is_causal, self.scale))
        ranks = {t.ndim for t in (self.query, self.key, self.value)}
        if len(ranks) != 1 or min(ranks) < 2:
            raise ShapeError(
                f"attention over tensors with {', '.join(map(str, sorted(ranks)))} axes",
                hint="query, key and value are (..., length, features), of one rank",
            )

    def _as_number(self, parameter: Any) -> Any:
        """Returns a parameter as a Python number if it is a constant."""
        number = None if parameter is None else self.ops.recording.constant_of(parameter)
        return parameter if number is None else number

    @property
    def wide(self) -> Any:
        """The dtype of scores and sums."""
        return dtype_of(self.query.dtype).compute

    @property
    def drops(self) -> bool:
        """Whether dropout is recorded: no for None and for a constant 0."""
        return self.dropout_p is not None and not (isinstance(self.dropout_p, int | float) and self.dropout_p == 0)

    @property
    def factor(self) -> Any:
        """The factor of the scores: `scale`, or 1 / sqrt(E)."""
        if self.scale is not None:
            return self.scale
        return self.ops.rsqrt(self.ops.cast(self.ops.size(self.query, -1), DataType.Double))

    def product(self, left: Any, right: Any) -> Any:
        return self.ops.matmul(left, right, dtype=self.wide)

    def transpose(self, tensor: Any) -> Any:
        """Exchanges the last two axes."""
        rank = tensor.ndim
        return self.ops.permute(tensor, [*range(rank - 2), rank - 1, rank - 2])

    def score_shape(self) -> Sequence[Any]:
        """Returns the shape of the scores, (..., L, S)."""
        return (*self.query.ir_value.shape[:-1], self.key.ir_value.shape[-2])

    def scores(self) -> Any:
        """Records the input of softmax: minus infinity where a query may not attend."""
        ops = self.ops
        scores = ops.mul(self.product(self.query, self.transpose(self.key)), self.factor)
        if self.bias is not None:
            scores = ops.add(scores, ops.cast(self.bias, self.wide))
        if self.mask is not None:
            scores = ops.where(self.mask, scores, MASKED)
        if self.is_causal is not None and self.is_causal is not False:
            rows = ops.broadcast(ops.iota(ops.size(self.query, -2)), [False, True])
            seen = ops.le(ops.iota(ops.size(self.key, -2)), rows)
            if self.is_causal is not True:
                seen = ops.logical_or(seen, ops.logical_not(self.is_causal))
            scores = ops.where(seen, scores, MASKED)
        return scores

    def drop(self, weights: Any, seed: Any, offset: Any) -> Any:
        """Records dropout: zeroes weights with probability dropout_p and divides the others by 1 - dropout_p."""
        if not self.drops:
            return weights
        ops = self.ops
        bits = ops.logical_right_shift(ops.random_bits(seed, offset, self.score_shape()), 40)
        mask = ops.ge(ops.mul(ops.cast(bits, DataType.Float), 2.0**-24), self.dropout_p)
        return ops.where(mask, ops.truediv(weights, ops.sub(1.0, self.dropout_p)), 0.0)
