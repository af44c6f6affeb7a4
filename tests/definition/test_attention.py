"""Attention and grouped matrix products of definitions, against their formulas in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.session.samples import in_suite
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import DataType, DType, bfloat16, float32, float64
from tracefuse.errors import ShapeError

TOLERANCE = {"bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-12}
UNIT = {"bfloat16": 2.0**-8, "float32": 2.0**-22, "float64": 2.0**-50}


def tensors(dtype: DType, *shapes: tuple[int, ...]) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.normal(size=shape).astype(dtype.numpy) for shape in shapes]


def probabilities(query: Any, key: Any, bias: Any, seen: Any, scale: float | None) -> tuple[Any, Any]:
    """(softmax of the scores, logarithm of their sums), in float64."""
    q, k = query.astype(np.float64), key.astype(np.float64)
    scores = q @ np.swapaxes(k, -1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = np.where(seen, scores + bias, -np.inf)
    log_sum = np.log(np.sum(np.exp(scores), -1))
    return np.exp(scores - log_sum[..., None]), log_sum


TYPES, BATCHES = (bfloat16, float32, float64), ((), (2,), (2, 3))
CASES = [(b, causal, d) for b in BATCHES for causal in (False, True) for d in TYPES]
IN_PAIRS = [(b, c, d) for b, c, d in CASES if (BATCHES.index(b) + TYPES.index(d)) % 2 == c]
"""Half of the cases, in which every two of a batch, a mask and a type meet."""


@pytest.mark.parametrize(("batch", "causal", "dtype"), in_suite(IN_PAIRS, CASES), ids=str)
def test_attention_is_its_formula_forward_and_backward(batch: tuple[int, ...], causal: bool, dtype: DType) -> None:
    q, k, v, g = tensors(dtype, (*batch, 5, 4), (*batch, 7, 4), (*batch, 7, 3), (*batch, 5, 3))
    with FusionDefinition() as fd:
        inputs = [fd.define_tensor([-1] * (len(batch) + 2), True, dtype) for _ in range(4)]
        drop, is_causal = fd.define_scalar(0.0, dtype=DataType.Double), fd.define_scalar(None, dtype=DataType.Bool)
        output, log_sum, seed, offset = fd.ops.sdpfa_fwd(*inputs[:3], drop, is_causal, None)
        grads = fd.ops.sdpfa_bwd(inputs[3], *inputs[:3], output, log_sum, drop, is_causal, seed, offset, None)
        for result in (output, log_sum, *grads):
            fd.add_output(result)
    made = fd.execute([q, k, v, g, causal])
    weights, sums = probabilities(q, k, 0.0, np.tri(5, 7, dtype=bool) if causal else True, None)
    wide = [a.astype(np.float64) for a in (q, k, v, g)]
    grad_weights = wide[3] @ np.swapaxes(wide[2], -1, -2)
    inner = weights * (grad_weights - np.sum(weights * grad_weights, -1, keepdims=True)) / math.sqrt(4)
    expected = [
        weights @ wide[2], sums, inner @ wide[1], np.swapaxes(inner, -1, -2) @ wide[0],
        np.swapaxes(weights, -1, -2) @ wide[3],
    ]  # fmt: skip
    for position, (own, wanted) in enumerate(zip(made, expected, strict=True)):
        assert own.dtype == (dtype.compute if position == 1 else dtype).numpy
        limit = TOLERANCE[dtype.name]
        np.testing.assert_allclose(own.astype(np.float64), wanted, rtol=limit, atol=limit)


def test_bias_mask_and_scale_change_the_scores() -> None:
    q, k, v, bias = tensors(float32, (2, 5, 4), (2, 7, 4), (2, 7, 3), (5, 7))
    mask = np.random.default_rng(1).random((2, 5, 7)) < 0.6
    mask[0, 1] = False
    with FusionDefinition() as fd:
        inputs = [fd.define_tensor([-1] * 3, True) for _ in range(3)]
        added, looked = fd.define_tensor([-1, -1], True), fd.define_tensor([-1] * 3, True, DataType.Bool)
        output, log_sum, *_ = fd.ops.sdpfa_fwd(*inputs, added, looked, None, None, 0.3)
        fd.add_output(output)
        fd.add_output(log_sum)
        grads = fd.ops.sdpfa_bwd(output, *inputs, output, log_sum, None, None, None, None, 0.3, bias=added, mask=looked)
        for grad in grads:
            fd.add_output(grad)
    with np.errstate(all="ignore"):
        weights, sums = probabilities(q, k, bias, mask, 0.3)
        weights[0, 1] = 0
        expected = weights @ v
    own, own_sums, grad_q, grad_k, grad_v = fd.execute([q, k, v, bias, mask])
    np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(own_sums, sums, rtol=1e-5, atol=1e-5)
    assert not own[0, 1].any(), "the output of a row that may look nowhere is 0"
    assert not grad_q[0, 1].any()
    np.testing.assert_allclose(grad_v, np.swapaxes(weights, -1, -2) @ expected, rtol=1e-4, atol=1e-5)
    assert np.isfinite(grad_k).all()


def test_dropout_of_the_backward_pass_is_that_of_the_forward_pass() -> None:
    q, k, g = tensors(float64, (3, 64, 4), (3, 64, 4), (3, 64, 64))
    one_hot = np.broadcast_to(np.eye(64), (3, 64, 64)).copy()
    with FusionDefinition() as fd:
        inputs = [fd.define_tensor([-1] * 3, True, DataType.Double) for _ in range(4)]
        rate = fd.define_scalar(dtype=DataType.Double)
        output, log_sum, seed, offset = fd.ops.sdpfa_fwd(*inputs[:3], dropout_p=rate)
        grads = fd.ops.sdpfa_bwd(inputs[3], *inputs[:3], output, log_sum, rate, None, seed, offset)
        for result in (output, grads[2], seed, offset):
            fd.add_output(result)
    # With one-hot values the output is the weights that were kept, and the gradient of the values their transpose.
    kept, grad_value, seed, offset = fd.execute([q, k, one_hot, g, 0.25])
    weights, _ = probabilities(q, k, 0.0, True, None)
    dropped = kept == 0
    assert 0.2 < dropped.mean() < 0.3
    np.testing.assert_allclose(kept[~dropped], weights[~dropped] / 0.75)
    np.testing.assert_allclose(grad_value, np.swapaxes(kept, -1, -2) @ g)
    again, _, other, _ = fd.execute([q, k, one_hot, g, 0.25])
    assert other != seed
    assert ((again == 0) != dropped).any()


def test_attention_over_other_ranks_is_refused() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1, -1])
        fd.add_output(x)
        with pytest.raises(ShapeError, match="attention over tensors with 2, 3 axes"):
            fd.ops.sdpfa_fwd(x, y, y)


@pytest.mark.parametrize("shapes", [((9, 4), (3, 4, 5)), ((3, 6, 4), (4, 9)), ((6, 9), (9, 5))])
@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
def test_grouped_products_are_one_product_a_group(shapes: Any, dtype: DType) -> None:
    a, b = tensors(dtype, *shapes)
    ends = np.array([2, 2, 8], np.int32)
    with FusionDefinition() as fd:
        first, second = (fd.define_tensor([-1] * len(shape), True, dtype) for shape in shapes)
        fd.add_output(fd.ops.grouped_mm(first, second, fd.define_tensor([-1], True, DataType.Int32)))
    (own,) = fd.execute([a, b, ends])
    wide = [t.astype(np.float64) for t in (a, b)]
    expected = np.zeros(own.shape)
    for group, (start, end) in enumerate(((0, 2), (2, 2), (2, 8))):
        if a.ndim < b.ndim:
            expected[start:end] = wide[0][start:end] @ wide[1][group]
        elif b.ndim < a.ndim:
            expected[:, start:end] = wide[0][group] @ wide[1][:, start:end]
        else:
            expected[group] = wide[0][:, start:end] @ wide[1][start:end]
    np.testing.assert_allclose(own.astype(np.float64), expected, rtol=UNIT[dtype.name], atol=16 * UNIT[dtype.name])
    with pytest.raises(IndexError, match=r"offsets \[2, 10, 8\] are no ascending positions"):
        fd.execute([a, b, np.array([2, 10, 8], np.int32)])


def test_attention_of_one_square_array_is_split_without_a_contradiction() -> None:
    """Every extent is the same, so that only what is read tells the loops of rows from those of columns."""
    (x,) = tensors(float64, (6, 6))
    with FusionDefinition() as fd:
        value = fd.define_tensor([-1, -1], True, DataType.Double)
        output, log_sum, seed, offset = fd.ops.sdpfa_fwd(value, value, value)
        for result in (output, *fd.ops.sdpfa_bwd(*[value] * 4, output, log_sum, None, None, seed, offset)):
            fd.add_output(result)
    own, grad_query, grad_key, grad_value = fd.execute([x])
    weights, _ = probabilities(x, x, 0.0, True, None)
    grad_weights = x @ x.T
    inner = weights * (grad_weights - np.sum(weights * grad_weights, -1, keepdims=True)) / math.sqrt(6)
    expected = (weights @ x, inner @ x, inner.T @ x, weights.T @ x)
    for found, wanted in zip((own, grad_query, grad_key, grad_value), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
