"""Scripts in nvFuser's calls: normalizations, softmax, attention, products, lookups. Each has a reference in PyTorch.

A script records through `fd` and gets the input tensors; numbers among the inputs are host scalars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tests.nvfuser.script_table import normal, script
from tracefuse.nvfuser import DataType
from tracefuse.nvfuser.pytorch_utils import torch_dtype_to_nvfuser_dtype

# -- normalizations ----------------------------------------------------------------------------------------------------


def norm_by_sizes(
    fd: Any, tensors: Sequence[Any], batch_in_statistics: bool, channels_last: bool, momentum: Any, eps: Any
) -> Any:
    """A normalization of any rank from the sizes of its input, with running statistics that it updates."""
    x, weight, bias, mean_so_far, var_so_far = tensors
    sizes = fd.ops.tensor_sizes(x)
    rank = len(sizes)
    channel = rank - 1 if channels_last else 1
    kept = [channel] if batch_in_statistics else [0, channel]
    reduced = [axis for axis in range(rank) if axis not in kept]
    is_reduced = [axis in reduced for axis in range(rank)]
    not_channel = [axis != channel for axis in range(rank)]
    count = fd.define_scalar(1)
    for axis in reduced:
        count = fd.ops.mul(count, sizes[axis])
    variance, mean = fd.ops.var_mean(x, reduced, 0)
    complement = fd.ops.sub(fd.define_scalar(1.0), momentum)
    unbiased = fd.ops.mul(variance, fd.ops.truediv(count, fd.ops.sub(count, fd.define_scalar(1))))
    for running, new in ((mean_so_far, mean), (var_so_far, unbiased)):
        if not batch_in_statistics:
            new = fd.ops.mul(fd.ops.sum(new, [0]), fd.ops.reciprocal(sizes[0]))
        mixed = fd.ops.add(fd.ops.mul(running, complement), fd.ops.mul(new, momentum))
        fd.add_output(mixed, alias_input=running)
    inverse = fd.ops.rsqrt(fd.ops.add(variance, eps))
    result = fd.ops.mul(fd.ops.sub(x, fd.ops.broadcast(mean, is_reduced)), fd.ops.broadcast(inverse, is_reduced))
    result = fd.ops.mul(result, fd.ops.broadcast(weight, not_channel))
    return fd.ops.add(result, fd.ops.broadcast(bias, not_channel)), mean, inverse


def _norm_inputs(*shape: int, channels: int) -> Callable[[torch.Generator], list[Any]]:
    def make(draw: torch.Generator) -> list[Any]:
        x = torch.randn(shape, generator=draw)
        vectors = [torch.rand(channels, generator=draw) + 0.5 for _ in range(4)]
        return [x, *vectors, 0.1, 1e-5]

    return make


def _record_norm(fd: Any, inputs: Sequence[Any], **how: Any) -> None:
    tensors = [fd.from_pytorch(tensor) for tensor in inputs[:5]]
    momentum, eps = fd.define_scalar(DataType.Double), fd.define_scalar(DataType.Double)
    for value in norm_by_sizes(fd, tensors, momentum=momentum, eps=eps, **how):
        fd.add_output(value)


def _batch_norm(x: Any, w: Any, b: Any, m: Any, v: Any, momentum: float, eps: float) -> Any:
    axes = [axis for axis in range(x.dim()) if axis != 1]
    variance, mean = torch.var_mean(x, axes, correction=0)
    return F.batch_norm(x, m, v, w, b, True, momentum, eps), mean, (variance + eps).rsqrt(), m, v


def _channels_last(x: Any, *rest: Any) -> Any:
    out, *others = _batch_norm(x.movedim(-1, 1), *rest)
    return out.movedim(1, -1), *others


def _instance_norm(x: Any, w: Any, b: Any, m: Any, v: Any, momentum: float, eps: float) -> Any:
    variance, mean = torch.var_mean(x, list(range(2, x.dim())), correction=0)
    return F.instance_norm(x, m, v, w, b, True, momentum, eps), mean, (variance + eps).rsqrt(), m, v


@script(_norm_inputs(4, 3, 6, 5, channels=3), _batch_norm)
def batch_norm_2d(fd: Any, *inputs: Any) -> None:
    _record_norm(fd, inputs, batch_in_statistics=True, channels_last=False)


@script(_norm_inputs(4, 3, 7, channels=3), _batch_norm)
def batch_norm_1d(fd: Any, *inputs: Any) -> None:
    _record_norm(fd, inputs, batch_in_statistics=True, channels_last=False)


@script(_norm_inputs(2, 5, 4, 6, channels=6), _channels_last)
def batch_norm_channels_last(fd: Any, *inputs: Any) -> None:
    _record_norm(fd, inputs, batch_in_statistics=True, channels_last=True)


@script(_norm_inputs(3, 4, 5, 6, channels=4), _instance_norm)
def instance_norm_2d(fd: Any, *inputs: Any) -> None:
    _record_norm(fd, inputs, batch_in_statistics=False, channels_last=False)


@script(_norm_inputs(2, 3, 4, 5, 6, channels=3), _instance_norm)
def instance_norm_3d(fd: Any, *inputs: Any) -> None:
    _record_norm(fd, inputs, batch_in_statistics=False, channels_last=False)


@script(_norm_inputs(4, 3, 6, 5, channels=3), _batch_norm)
def batch_norm_op(fd: Any, *inputs: Any) -> None:
    tensors = [fd.from_pytorch(tensor) for tensor in inputs[:5]]
    momentum, eps = fd.define_scalar(None, DataType.Double), fd.define_scalar(None, DataType.Double)
    for value in fd.ops.batch_norm(*tensors, momentum, eps, True, False):
        fd.add_output(value)


@script(
    _norm_inputs(4, 3, 6, 5, channels=3),
    lambda x, w, b, m, v, momentum, eps: F.batch_norm(x, m, v, w, b, False, momentum, eps),
)
def batch_norm_op_without_training(fd: Any, *inputs: Any) -> None:
    tensors = [fd.from_pytorch(tensor) for tensor in inputs[:5]]
    momentum, eps = fd.define_scalar(None, DataType.Double), fd.define_scalar(None, DataType.Double)
    fd.add_output(fd.ops.batch_norm(*tensors, momentum, eps, False)[0])


@script(normal((6, 8, 32), (32,), (32,)), lambda x, w, b: F.layer_norm(x, (32,), w, b))
def layer_norm_forward(fd: Any, x: Any, w: Any, b: Any) -> None:
    t0 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)
    t1 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float)
    t2 = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float)
    variance, mean = fd.ops.var_mean(t0, dims=[2], correction=0, keepdim=True)
    scaled = (t0 - mean) * fd.ops.rsqrt(variance + fd.define_scalar(1e-5))
    sizes = t0.shape()
    weight = fd.ops.broadcast_in_dim(t1, shape=sizes, broadcast_dims=[2])
    fd.add_output(scaled * weight + fd.ops.broadcast_in_dim(t2, shape=sizes, broadcast_dims=[2]))


def _layer_norm_gradients(g: Any, x: Any, w: Any) -> Any:
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    bias = torch.zeros_like(w).requires_grad_()
    F.layer_norm(leaves[0], (x.shape[-1],), leaves[1], bias).backward(g)
    return leaves[0].grad, leaves[1].grad, bias.grad


@script(normal((6, 16), (6, 16), (16,)), _layer_norm_gradients, 1e-4)
def layer_norm_backward(fd: Any, g: Any, x: Any, w: Any) -> None:
    grad, data, weight = (fd.from_pytorch(tensor) for tensor in (g, x, w))
    n = data.size(1)
    variance, mean = fd.ops.var_mean(data, [1], 0, True)
    inverse = fd.ops.rsqrt(fd.ops.add(variance, 1e-5))
    normed = fd.ops.mul(fd.ops.sub(data, mean), inverse)
    inner = fd.ops.mul(grad, fd.ops.broadcast_in_dim(weight, data.shape(), [1]))
    first = fd.ops.truediv(fd.ops.sum(inner, [1], True), n)
    second = fd.ops.truediv(fd.ops.sum(fd.ops.mul(inner, normed), [1], True), n)
    fd.add_output(fd.ops.mul(inverse, fd.ops.sub(fd.ops.sub(inner, first), fd.ops.mul(normed, second))))
    fd.add_output(fd.ops.sum(fd.ops.mul(grad, normed), [0]))
    fd.add_output(fd.ops.sum(grad, [0]))


@script(
    normal((4, 24), (24,), dtype=torch.bfloat16),
    lambda x, w: (x.float() * (x.float().square().mean(-1, True) + 1e-6).rsqrt()).bfloat16() * w, 2e-2,
)  # fmt: skip
def rms_norm_of_bfloat16(fd: Any, x: Any, w: Any) -> None:
    t0, t1 = fd.from_pytorch(x), fd.from_pytorch(w)
    wide = fd.ops.cast(t0, dtype=DataType.Float)
    mean = fd.ops.truediv(fd.ops.sum(fd.ops.mul(wide, wide), dims=[1], keepdim=True), t0.size(1))
    normed = fd.ops.cast(fd.ops.mul(wide, fd.ops.rsqrt(fd.ops.add(mean, 1e-6))), dtype=DataType.BFloat16)
    spread = fd.ops.cast(fd.ops.broadcast_in_dim(t1, t0.shape(), [1]), dtype=DataType.Float)
    scaled = fd.ops.mul(fd.ops.cast(normed, dtype=DataType.Float), spread)
    fd.add_output(fd.ops.cast(scaled, dtype=DataType.BFloat16))


@script(normal((2, 32, 4, 5), (32,), (32,)), lambda x, w, b: F.group_norm(x, 8, w, b))
def group_norm_by_size_arithmetic(fd: Any, x: Any, w: Any, b: Any) -> None:
    data, weight, bias = (fd.from_pytorch(tensor) for tensor in (x, w, b))
    groups = fd.define_scalar(8, dtype=DataType.Int)
    in_group = fd.ops.div(fd.ops.size(data, dim=1), groups)
    sizes = [fd.ops.size(data, dim=axis) for axis in (0, 2, 3)]
    split = fd.define_vector([sizes[0], groups, in_group, sizes[1], sizes[2]], dtype=DataType.Int)
    grouped = fd.ops.reshape(data, new_shape=split)
    variance, mean = fd.ops.var_mean(grouped, dims=[2, 3, 4], correction=0, keepdim=True)
    normed = fd.ops.mul(fd.ops.sub(grouped, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
    whole = fd.ops.reshape(normed, new_shape=fd.ops.shape(data))
    spread = [fd.ops.broadcast_in_dim(t, fd.ops.shape(data), [1]) for t in (weight, bias)]
    fd.add_output(fd.ops.add(fd.ops.mul(whole, spread[0]), spread[1]))


@script(normal((3, 40)), lambda x: torch.var_mean(x, 1))
def welford_as_variance(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    mean, squares, count = fd.ops.welford(t0, [1])
    fd.add_output(fd.ops.truediv(squares, fd.ops.sub(count, 1)))
    fd.add_output(mean)


@script(normal((4, 5, 6)), lambda x: torch.var_mean(x, [0, 2], correction=1, keepdim=True))
def var_mean_with_correction(fd: Any, x: Any) -> None:
    for value in fd.ops.var_mean(fd.from_pytorch(x), [0, 2], correction=1, keepdim=True):
        fd.add_output(value)


# -- softmax and attention ---------------------------------------------------------------------------------------------


@script(normal((5, 7, 33)), lambda x: F.softmax(x, -1))
def softmax(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    shifted = fd.ops.sub(t0, fd.ops.broadcast_in_dim(fd.ops.max(t0, dims=[2]), [5, 7, 1], [0, 1]))
    weights = fd.ops.exp(shifted)
    total = fd.ops.sum(weights, dims=[2], keepdim=False, dtype=DataType.Null)
    fd.add_output(fd.ops.div(weights, fd.ops.broadcast(total, [False, False, True])))


@script(normal((6, 11)), lambda x: F.log_softmax(x, 1))
def log_softmax(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    shifted = t0 - fd.ops.max(t0, [1], True)
    fd.add_output(shifted - fd.ops.log(fd.ops.sum(fd.ops.exp(shifted), [1], True)))


def _masked(scores: Any, mask: Any) -> Any:
    return F.softmax((scores * 0.125).masked_fill(mask[:, :, :8, :8] == 0, -math.inf), -1)


@script(lambda draw: [torch.randn(2, 3, 8, 8, generator=draw), torch.ones(1, 1, 16, 16).tril()], _masked)
def masked_attention_weights(fd: Any, scores: Any, mask: Any) -> None:
    t0 = fd.define_tensor(shape=[-1, -1, -1, -1], contiguity=[True] * 4)
    t1 = fd.define_tensor(shape=[1, 1, -1, -1], contiguity=[None, None, True, True])
    scaled = fd.ops.mul(t0, fd.define_scalar(0.125))
    part = fd.ops.slice(t1, start_indices=[0, 0, 0, 0], end_indices=[1, 1, 8, 8], strides=[1, 1, 1, 1])
    hidden = fd.ops.broadcast_in_dim(fd.ops.eq(fd.define_scalar(0.0), part), [2, 3, 8, 8], [0, 1, 2, 3])
    kept = fd.ops.where(hidden, fd.define_scalar(-math.inf), scaled)
    weights = fd.ops.exp(kept - fd.ops.max(kept, [3], True))
    fd.add_output(weights / fd.ops.sum(weights, [3], True))


@script(normal(*[(2, 3, 8, 16)] * 3), lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), 1e-4)
def attention_forward(fd: Any, q: Any, k: Any, v: Any) -> None:
    tensors = [fd.from_pytorch(tensor) for tensor in (q, k, v)]
    fd.add_output(fd.ops.sdpfa_fwd(*tensors, fd.define_scalar(0.0), fd.define_scalar(True), None)[0])


def _attention_gradients(q: Any, k: Any, v: Any, g: Any) -> Any:
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    F.scaled_dot_product_attention(*leaves).backward(g)
    return [leaf.grad for leaf in leaves]


@script(normal(*[(2, 2, 6, 8)] * 4), _attention_gradients, 1e-4)
def attention_backward(fd: Any, q: Any, k: Any, v: Any, g: Any) -> None:
    query, key, value, grad = (fd.from_pytorch(tensor) for tensor in (q, k, v, g))
    output, log_sum, seed, offset = fd.ops.sdpfa_fwd(query, key, value, 0.0, False, None)
    for one in fd.ops.sdpfa_bwd(grad, query, key, value, output, log_sum, 0.0, False, seed, offset, None):
        fd.add_output(one)


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


@script(lambda draw: [torch.randn(2, 3, 5, 8, generator=draw), *torch.randn(2, 5, 8, generator=draw)], _rotated)
def rotary_embedding(fd: Any, x: Any, cos: Any, sin: Any) -> None:
    data, c, s = (fd.from_pytorch(tensor) for tensor in (x, cos, sin))
    first = fd.ops.slice(data, [0, 0, 0, 0], [2, 3, 5, 4], [1, 1, 1, 1])
    second = fd.ops.slice(data, [0, 0, 0, 4], [2, 3, 5, 8], [1, 1, 1, 1])
    turned = fd.ops.cat([fd.ops.neg(second), first], dim=-1)
    spread = [fd.ops.broadcast_in_dim(t, [2, 3, 5, 8], [2, 3]) for t in (c, s)]
    fd.add_output(fd.ops.add(fd.ops.mul(data, spread[0]), fd.ops.mul(turned, spread[1])))


@script(normal((2, 5, 8), (5, 4), (5, 4)), lambda x, c, s: _rotated(x, c.repeat(1, 2), s.repeat(1, 2)))
def rotary_embedding_by_pads(fd: Any, x: Any, cos: Any, sin: Any) -> None:
    data, c, s = (fd.from_pytorch(tensor) for tensor in (x, cos, sin))
    half = fd.ops.div(data.size(2), 2)
    left = fd.ops.slice(data, [0, 0, 0], [data.size(0), data.size(1), half])
    right = fd.ops.slice(data, [0, 0, half], [data.size(0), data.size(1), data.size(2)])
    c, s = (fd.ops.broadcast(t, [True, False, False]) for t in (c, s))
    front = fd.ops.sub(fd.ops.mul(left, c), fd.ops.mul(right, s))
    back = fd.ops.add(fd.ops.mul(right, c), fd.ops.mul(left, s))
    fd.add_output(fd.ops.add(fd.ops.pad(front, [0, half]), fd.ops.pad(back, [half, 0])))


# -- products and lookups ----------------------------------------------------------------------------------------------


@script(normal((7, 12), (12, 5)), torch.matmul)
def matrix_product(fd: Any, a: Any, b: Any) -> None:
    fd.add_output(fd.ops.matmul(fd.from_pytorch(a), fd.from_pytorch(b)))


@script(normal((3, 7, 12), (12, 5)), torch.matmul)
def batched_product(fd: Any, a: Any, b: Any) -> None:
    fd.add_output(fd.ops.matmul(fd.from_pytorch(a), fd.from_pytorch(b)))


@script(lambda draw: [torch.randn(6, 8, generator=draw), torch.randn(8, 6, generator=draw).t()], lambda a, b: a.t() @ b)
def product_of_transposed(fd: Any, a: Any, b: Any) -> None:
    t0, t1 = fd.from_pytorch(a), fd.from_pytorch(b)
    fd.add_output(fd.ops.matmul(fd.ops.permute(t0, [1, 0]), t1))


@script(normal((4, 6, 8), (5, 8), (5,)), F.linear)
def linear_with_bias(fd: Any, x: Any, w: Any, b: Any) -> None:
    fd.add_output(fd.ops.linear(fd.from_pytorch(x), fd.from_pytorch(w), fd.from_pytorch(b)))


@script(
    normal((4, 8), (5, 8), dtype=torch.bfloat16), lambda x, w: F.gelu(F.linear(x, w).float(), approximate="tanh"), 2e-2
)
def linear_then_gelu(fd: Any, x: Any, w: Any) -> None:
    y = fd.ops.cast(fd.ops.linear(fd.from_pytorch(x), fd.from_pytorch(w)), DataType.Float)
    inner = fd.ops.mul(math.sqrt(2 / math.pi), fd.ops.add(y, fd.ops.mul(0.044715, fd.ops.pow(y, 3.0))))
    fd.add_output(fd.ops.mul(fd.ops.mul(0.5, y), fd.ops.add(1.0, fd.ops.tanh(inner))))


@script(
    normal((6, 8), (8, 5), (6, 1), (1, 5), ()),
    lambda a, b, s, t, alpha: alpha * ((a * s) @ (b * t)),
)
def scaled_product(fd: Any, a: Any, b: Any, s: Any, t: Any, alpha: Any) -> None:
    tensors = [fd.from_pytorch(tensor) for tensor in (a, b, s, t, alpha)]
    result, _, _ = fd.ops.scaled_mm(*tensors, bias=None, beta=None, dtype=DataType.Float)
    fd.add_output(result)


def _lookup(**options: Any) -> Callable[..., Any]:
    return lambda index, weight, *rest: F.embedding(index, weight.clone(), **options)


def _indices(most: int, *shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda draw: torch.randint(0, most, shape, generator=draw)


@script(lambda draw: [_indices(10, 7)(draw), torch.randn(10, 3, generator=draw)], _lookup())
def embedding(fd: Any, index: Any, weight: Any) -> None:
    fd.add_output(fd.ops.embedding_fwd(fd.from_pytorch(index), fd.from_pytorch(weight), None, None, None, None, None))


@script(
    lambda draw: [_indices(10, 2, 7)(draw), torch.randn(10, 3, generator=draw), 4, 1e-3, 3.0, True, False],
    _lookup(max_norm=1e-3, norm_type=3.0), 1e-4,
)  # fmt: skip
def embedding_with_all_options_as_inputs(fd: Any, index: Any, weight: Any, *rest: Any) -> None:
    tensors = [fd.from_pytorch(tensor) for tensor in (index, weight)]
    types = (DataType.Int, DataType.Float, DataType.Float, DataType.Bool, DataType.Bool)
    fd.add_output(fd.ops.embedding_fwd(*tensors, *(fd.define_scalar(value=None, dtype=dtype) for dtype in types)))


@script(
    lambda draw: [_indices(10, 6)(draw), torch.randn(10, 3, generator=draw).bfloat16()], _lookup(max_norm=0.5), 2e-2
)
def embedding_with_a_largest_norm(fd: Any, index: Any, weight: Any) -> None:
    tensors = [fd.from_pytorch(tensor) for tensor in (index, weight)]
    fd.add_output(fd.ops.embedding_fwd(*tensors, None, fd.define_scalar(0.5), fd.define_scalar(2.0)))


@script(
    lambda draw: [torch.randn(3, 5, generator=draw), torch.tensor([0, 4, 1])],
    lambda x, y: F.cross_entropy(x, y, reduction="none"),
)
def cross_entropy(fd: Any, x: Any, y: Any) -> None:
    logits, labels = fd.from_pytorch(x), fd.from_pytorch(y)
    shifted = logits - fd.ops.max(logits, [1], True)
    log_weights = shifted - fd.ops.log(fd.ops.sum(fd.ops.exp(shifted), [1], True))
    picked = fd.ops.take_along_axis(log_weights, fd.ops.broadcast(labels, [False, True]), 1)
    fd.add_output(fd.ops.neg(fd.ops.squeeze(picked, [1])))


def converted(tensor: torch.Tensor) -> DataType:
    """The DataType of a tensor."""
    return torch_dtype_to_nvfuser_dtype(tensor.dtype)
