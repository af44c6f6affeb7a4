"""Scripts in nvFuser's calls: movements, indexing, orders in memory, updates, scalars, random and complex numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.nvfuser.scripts_of_layers import normal, script
from tracefuse.nvfuser import DataType

# -- movements ---------------------------------------------------------------------------------------------------------


@script(normal((2, 4), (2, 3)), lambda a, b: torch.cat([a, b], 1))
def concatenate(fd: Any, a: Any, b: Any) -> None:
    fd.add_output(fd.ops.cat([fd.from_pytorch(a), fd.from_pytorch(b)], 1))


@script(normal((2, 4), (0, 4), (3, 4)), lambda a, b, c: torch.cat([a, b, 2 * c], 0))
def concatenate_with_an_empty_one(fd: Any, a: Any, b: Any, c: Any) -> None:
    tensors = [fd.from_pytorch(tensor) for tensor in (a, b, c)]
    fd.add_output(fd.ops.cat([*tensors[:2], fd.ops.mul(tensors[2], 2.0)], dim=0))


@script(
    normal((1, 2, 3)),
    lambda x: [F.pad(x, widths, value=value) for widths, value in (
        ([1, 1, 1, 1], 0.0), ([0, 0, 2, 3], 0.0), ([0, 0, 0, 0], 0.0), ([2, 3], 2.0), ([2, 3, 0, 0, 1, 0], 0.0),
        ([-1, 1], 0.0),
    )],
)  # fmt: skip
def pads(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    for widths in ([1, 1, 1, 1], [0, 0, 2, 3], [0, 0, 0, 0]):
        fd.add_output(fd.ops.pad(t0, widths))
    fd.add_output(fd.ops.pad(t0, [2, 3], fd.define_scalar(2.0)))
    fd.add_output(fd.ops.pad(t0, [2, 3, 0, 0, 1, 0]))
    fd.add_output(fd.ops.pad(t0, [-1, 1]))


@script(
    lambda draw: [torch.randn(0).as_strided((2, 0, 3), (0, 0, 0))], lambda x: F.pad(x, (0, 0, 1, 1, 1, 0), value=-3.5)
)
def pad_of_an_expanded_empty_tensor(fd: Any, x: Any) -> None:
    fd.add_output(fd.ops.pad(fd.from_pytorch(x), [0, 0, 1, 1, 1, 0], fd.define_scalar(-3.5)))


@script(normal((8, 6)), lambda x: F.pad(x, (4, 3)))
def pad_by_size_arithmetic(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    half = fd.ops.trunc_divide(t0.size(0), fd.define_scalar(2))
    third = fd.ops.cast(fd.ops.div(t0.size(1), 2), dtype=DataType.Int)
    fd.add_output(fd.ops.pad(t0, [half, third]))


@script(normal((10, 10)), lambda x: (x[2:4, 2:4].neg(), x[6:8, 6:9], x[0:5, 5:50]))
def slices(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    fd.add_output(fd.ops.neg(fd.ops.slice(t0, start_indices=[2, 2], end_indices=[4, 4])))
    fd.add_output(fd.ops.slice(t0, start_indices=[6, 6], end_indices=[8, 9], strides=[1, 1]))
    fd.add_output(fd.ops.slice(t0, [0, 5], [5, 50], [1, 1], manual_normalization=0))


@script(normal((10,)), lambda x: x[:2])
def slice_of_a_slice(fd: Any, x: Any) -> None:
    t0 = fd.define_tensor(shape=[-1])
    inner = fd.ops.neg(fd.ops.slice(t0, start_indices=[0], end_indices=[5]))
    fd.add_output(fd.ops.neg(fd.ops.slice(inner, start_indices=[0], end_indices=[2])))


@script(normal((4, 6, 5)), lambda x: (x.reshape(4, 30), x.exp().reshape(24, 5), x.neg().reshape(4, 2, 3, 5).sum(2)))
def reshapes_with_minus_one(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    fd.add_output(fd.ops.reshape(t0, [4, -1]))
    fd.add_output(fd.ops.reshape(fd.ops.exp(t0), [-1, 5]))
    fd.add_output(fd.ops.sum(fd.ops.reshape(fd.ops.neg(t0), [4, -1, 3, 5]), [2]))


@script(lambda draw: [torch.rand(3, 4, generator=draw), 2, 2], lambda x, a, b: x.reshape(3, a, b) + 1)
def reshape_by_scalar_inputs(fd: Any, x: Any, a: int, b: int) -> None:
    t0 = fd.define_tensor([-1, -1], [True, True])
    sizes = [fd.ops.size(t0, 0), fd.define_scalar(dtype=DataType.Int32), fd.define_scalar(dtype=DataType.Int32)]
    fd.add_output(fd.ops.add(fd.ops.reshape(t0, fd.define_vector(sizes)), 1.0))


@script(lambda draw: [torch.rand(6, 4, generator=draw), [3, 8]], lambda x, shape: x.reshape(shape).exp())
def reshape_by_a_vector_input(fd: Any, x: Any, shape: list[int]) -> None:
    t0 = fd.from_pytorch(x)
    fd.add_output(fd.ops.exp(fd.ops.reshape(t0, fd.define_vector(2))))


@script(
    lambda draw: [torch.arange(25).reshape(5, 5) % 7, torch.randn(8, 4, generator=draw)],
    lambda index, weight: weight[index],
)
def lookup_between_reshapes(fd: Any, index: Any, weight: Any) -> None:
    t0, t1 = fd.from_pytorch(index), fd.from_pytorch(weight)
    rows = fd.ops.index_select(t1, fd.ops.reshape(t0, [25]), dim=0)
    fd.add_output(fd.ops.reshape(rows, fd.define_vector([5, 5, 4], dtype=DataType.Int)))


@script(normal((3, 4, 5)), lambda x: (x.permute(2, 0, 1), x.permute(0, 2, 1) * 2))
def permutations(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    fd.add_output(fd.ops.permute(t0, [2, 0, 1]))
    fd.add_output(fd.ops.mul(fd.ops.permute(t0, dims=[0, 2, 1]), 2.0))


@script(normal((4,), (1, 4, 1), (2, 1, 4)), lambda a, b, c: a * b.squeeze() * c.sum((0, 1)))
def squeezes(fd: Any, a: Any, b: Any, c: Any) -> None:
    t0 = fd.define_tensor(shape=[-1], contiguity=[True])
    t1 = fd.define_tensor(sizes=[1, 4, 1], strides=[4, 1, 1])
    t2 = fd.define_tensor(sizes=[2, 1, 4], strides=[4, 4, 1])
    product = fd.ops.mul(t0, fd.ops.squeeze(t1, [0, -1]))
    fd.add_output(fd.ops.mul(product, fd.ops.sum(fd.ops.squeeze(t2, [-2]), [0])))


@script(normal((3, 1), (3,)), lambda a, b: a + b[:, None].expand(3, 3))
def mixed_broadcasts(fd: Any, a: Any, b: Any) -> None:
    fd.add_output(fd.ops.add(fd.from_pytorch(a), fd.ops.broadcast_in_dim(fd.from_pytorch(b), [3, 3], [0])))


@script(
    lambda draw: [
        torch.tensor(1.5),
        torch.randn(5, 5, 5, generator=draw),
        torch.eye(5).bool()[..., None].expand(5, 5, 5),
    ],
    lambda a, b, c: a + b + c,
)
def expanded_and_scalar_tensors(fd: Any, a: Any, b: Any, c: Any) -> None:
    t0, t1, t2 = (fd.from_pytorch(tensor) for tensor in (a, b, c))
    fd.add_output(fd.ops.add(t2, fd.ops.add(t0, t1)))


@script(normal((1, 1)), lambda x: x.expand(4, 3).sum(0))
def expanded_reduction(fd: Any, x: Any) -> None:
    fd.add_output(fd.ops.sum(fd.ops.expand(fd.from_pytorch(x), [4, 3]), dims=[0]))


@script(normal((4, 5)), lambda x: (x.triu(), x.triu(1)))
def upper_triangles(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    fd.add_output(fd.ops.triu(t0))
    fd.add_output(fd.ops.triu(t0, 1))


# -- orders in memory and updates --------------------------------------------------------------------------------------


@script(normal((2, 3, 4, 5)), lambda x: x + 3)
def output_in_another_order(fd: Any, x: Any) -> None:
    fd.add_output(fd.ops.add(fd.from_pytorch(x), fd.define_scalar(3.0)), (2, 0, 3, 1))


@script(normal((2, 3, 4)), lambda x: ((x * 2), x.sum(1)))
def stride_order_op(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    fd.add_output(fd.ops.stride_order(fd.ops.mul(t0, 2.0), [0, 1, 2]))
    fd.add_output(fd.ops.stride_order(fd.ops.sum(t0, [1]), stride_order=[0, 1]))


@script(
    lambda draw: [torch.randn(9, 28, generator=draw).t().contiguous().t(), torch.tensor([3, 0, 27])],
    lambda x, index: torch.index_select(x, 1, index),
)
def columns_of_a_transposed_input(fd: Any, x: Any, index: Any) -> None:
    t0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], stride_order=[0, 1])
    fd.add_output(fd.ops.index_select(t0, fd.from_pytorch(index), dim=1))


@script(
    lambda draw: [
        torch.randn(2, 3, generator=draw)[..., None].expand(2, 3, 4).transpose(2, 0),
        torch.randn(1000, generator=draw).as_strided((5, 4, 1, 5, 3), (192, 12, 4, 48, 1)),
    ],
    lambda a, b: (a * 3, b + 3),
)
def strided_inputs(fd: Any, a: Any, b: Any) -> None:
    fd.add_output(fd.ops.mul(fd.from_pytorch(a), 3.0))
    fd.add_output(fd.ops.add(fd.from_pytorch(b), 3.0))


@script(normal((5, 5)), lambda x: (x + 3, x + 1))
def update_of_an_input(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    t1 = fd.ops.add(t0, fd.define_scalar(1.0))
    fd.add_output(t1, alias_input=t0)
    fd.add_output(fd.ops.add(t1, fd.define_scalar(2.0)))


@script(normal((4, 4)), lambda x: (x + 1, x * 2, x + 1))
def an_updated_input_is_returned(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    fd.add_output(fd.ops.add(t0, 1.0), t0)
    fd.add_output(t0)
    fd.add_output(fd.ops.mul(t0, 2.0))


@script(normal((5, 5, 5)), lambda x: x.neg().relu())
def a_forced_boundary(fd: Any, x: Any) -> None:
    fd.add_output(fd.ops.relu(fd.ops.segment_set(fd.ops.neg(fd.from_pytorch(x)))))


# -- indexing ----------------------------------------------------------------------------------------------------------


@script(
    lambda draw: [torch.randn(8, 6, generator=draw), torch.tensor([5, 0, 3]), torch.tensor(2)],
    lambda x, index, one: (x.index_select(0, index), x.index_select(1, index), x.index_select(0, one), x.select(1, 2)),
)
def index_selections(fd: Any, x: Any, index: Any, one: Any) -> None:
    t0, t1, t2 = (fd.from_pytorch(tensor) for tensor in (x, index, one))
    fd.add_output(fd.ops.index_select(t0, t1, 0))
    fd.add_output(fd.ops.index_select(t0, t1, 1))
    fd.add_output(fd.ops.index_select(t0, t2, 0))
    fd.add_output(fd.ops.select(t0, fd.define_scalar(2), 1))


@script(
    lambda draw: [torch.randn(4, 6, generator=draw), torch.randint(0, 4, (2, 5), generator=draw)],
    lambda x, index: (torch.gather(x, 0, index), torch.take_along_dim(x[:2, :5], index, 1)),
)
def gathers(fd: Any, x: Any, index: Any) -> None:
    t0, t1 = fd.from_pytorch(x), fd.from_pytorch(index)
    fd.add_output(fd.ops.gather(t0, t1, 0))
    fd.add_output(fd.ops.take_along_axis(fd.ops.slice(t0, [0, 0], [2, 5]), t1, 1))


@script(
    lambda draw: [torch.randn(5, 4, generator=draw), torch.tensor([[2, 0, 3]]), torch.randn(1, 3, generator=draw)],
    lambda x, index, src: (x.scatter(1, index, src), x.scatter(1, index, 7.0)),
)
def scatters(fd: Any, x: Any, index: Any, src: Any) -> None:
    t0, t1, t2 = (fd.from_pytorch(tensor) for tensor in (x, index, src))
    fd.add_output(fd.ops.scatter(t0, t1, t2, 1))
    fd.add_output(fd.ops.scatter(t0, t1, 7.0, dim=1))


@script(
    lambda draw: [torch.randn(5, 4, generator=draw), torch.tensor([2, 0, 2]), torch.randn(3, 4, generator=draw)],
    lambda x, index, src: x.index_put((index,), src, accumulate=True),
)
def accumulation_of_rows(fd: Any, x: Any, index: Any, src: Any) -> None:
    t0, t1, t2 = (fd.from_pytorch(tensor) for tensor in (x, index, src))
    fd.add_output(fd.ops.index_put_accumulate(t0, t1, t2))


@script(normal((4, 9)), lambda x: (*x.topk(3, 1), x.argsort(1, descending=True), x.cumsum(0)))
def orders_and_scans(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    for result in fd.ops.topk(t0, fd.define_scalar(3), 1, True, True):
        fd.add_output(result)
    fd.add_output(fd.ops.argsort(t0, 1, True, True))
    fd.add_output(fd.ops.cumsum(t0, 0))


@script(
    normal(()),
    lambda x: (x.cumsum(0), x.argsort(0), *x.topk(1), x.cumprod(-1)),
)
def orders_and_scans_without_axes(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    fd.add_output(fd.ops.cumsum(t0, 0))
    fd.add_output(fd.ops.argsort(t0, 0))
    for result in fd.ops.topk(t0, 1, -1):
        fd.add_output(result)
    fd.add_output(fd.ops.cumprod(t0, -1))


# -- scalars, types, pointwise -----------------------------------------------------------------------------------------


@script(normal((2, 4), (2, 4), dtype=torch.float64), lambda a, b: (a.half() + b.half()).relu(), 2e-3)
def chain_of_casts(fd: Any, a: Any, b: Any) -> None:
    halves = [fd.ops.cast(fd.from_pytorch(tensor), DataType.Half) for tensor in (a, b)]
    fd.add_output(fd.ops.cast(fd.ops.relu(fd.ops.add(*halves)), DataType.Half))


@script(normal((16, 8, 12), dtype=torch.bfloat16), lambda x: (x.float().sum((0, 1)), x.float().sum(2)), 1e-4)
def sums_of_bfloat16(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    first, second = fd.ops.cast(t0, dtype=DataType.Float), fd.ops.cast(t0, dtype=DataType.Float)
    fd.add_output(fd.ops.sum(first, dims=[0, 1], keepdim=False, dtype=DataType.Null))
    fd.add_output(fd.ops.sum(second, dims=[2], keepdim=False, dtype=DataType.Null))


@script(
    lambda draw: [torch.randn(2, 4, generator=draw).half(), torch.randn(2, 4, generator=draw).double()],
    lambda a, b: (a + b).relu(), 1e-12,
)  # fmt: skip
def promotion_to_double(fd: Any, a: Any, b: Any) -> None:
    fd.add_output(fd.ops.relu(fd.ops.add(fd.from_pytorch(a), fd.from_pytorch(b))))


@script(lambda draw: [], lambda: (torch.tensor([0, 2]), torch.tensor([100, 101, 102], dtype=torch.int32)))
def ranges_without_inputs(fd: Any) -> None:
    for length, start, step, dtype in ((2, 0, 2, DataType.Int), (3, 100, 1, DataType.Int32)):
        scalars = [fd.define_scalar(number) for number in (length, start, step)]
        fd.add_output(fd.ops.iota(*scalars, dtype))


@script(lambda draw: [2.0, 3.0], lambda a, b: torch.full([2, 2], a + b))
def scalar_inputs_alone(fd: Any, a: float, b: float) -> None:
    total = fd.ops.add(fd.define_scalar(), fd.define_scalar())
    ones = fd.ops.full(shape=[2, 2], fill_value=fd.define_scalar(1.0, DataType.Float), dtype=DataType.Float)
    fd.add_output(fd.ops.mul(ones, total))


@script(
    lambda draw: [torch.tensor([True, False])],
    lambda c: (
        torch.where(c, 3.0, 5.0).double(), torch.where(c, 3.0, 5.0), torch.where(c, 3, 5).int(), torch.where(c, 3, 5),
        torch.where(c, 3.0, 5.0) + 0j, c,
    ),
)  # fmt: skip
def types_of_selections(fd: Any, c: Any) -> None:
    t0 = fd.from_pytorch(c)
    kinds = (DataType.Double, DataType.Float, DataType.Int32, DataType.Int, DataType.ComplexFloat)
    for dtype in kinds:
        numbers = (3, 5) if dtype in (DataType.Int32, DataType.Int) else (3.0, 5.0)
        fd.add_output(fd.ops.where(t0, *(fd.define_scalar(number, dtype) for number in numbers)))
    fd.add_output(fd.ops.where(t0, fd.define_scalar(True), fd.define_scalar(False)))


@script(normal((3, 4, 5)), lambda x: (-x, abs(x), x * (1 - x * x) / abs(x)), 1e-4)
def operators(fd: Any, x: Any) -> None:
    t0, one = fd.from_pytorch(x), fd.define_scalar(1.0)
    minus, size = -t0, abs(t0)
    fd.add_output(minus)
    fd.add_output(size)
    fd.add_output(-minus * (one - t0 * t0) / size + abs(one) ** -one - one)


@script(
    lambda draw: [torch.randint(-9, 9, (64,), generator=draw), torch.randint(1, 9, (64,), generator=draw)],
    lambda a, b: (torch.div(a, b, rounding_mode="trunc"), a / b, torch.gcd(a, b), torch.remainder(a, b), a % b, a >> 2),
)
def integer_arithmetic(fd: Any, a: Any, b: Any) -> None:
    t0, t1 = fd.from_pytorch(a), fd.from_pytorch(b)
    for result in (fd.ops.div(t0, t1), fd.ops.truediv(t0, t1), fd.ops.gcd(t0, t1), fd.ops.remainder(t0, t1), t0 % t1):
        fd.add_output(result)
    fd.add_output(fd.ops.bitwise_right_shift(t0, fd.define_scalar(2)))


@script(
    normal((4,), (4,), (4,)),
    lambda a, b, c: (torch.addcmul(a, b, c, value=0.1), a.lerp(b, c), a.clamp(-0.5, 0.5), F.threshold(a, 0.1, 9.0)),
)
def ternary_operations(fd: Any, a: Any, b: Any, c: Any) -> None:
    t0, t1, t2 = (fd.from_pytorch(tensor) for tensor in (a, b, c))
    fd.add_output(fd.ops.addcmul(t0, t1, t2, fd.define_scalar(0.1)))
    fd.add_output(fd.ops.lerp(t0, t1, t2))
    fd.add_output(fd.ops.clamp(t0, -0.5, 0.5))
    fd.add_output(fd.ops.threshold(t0, 0.1, 9.0))


@script(normal((2, 3, 4)), lambda x: (x.prod(), x.prod(1), x.prod(1, True), x.amax((0, 2)), x.amin()))
def reductions_in_every_form(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    fd.add_output(fd.ops.prod(t0, DataType.Float))
    fd.add_output(fd.ops.prod(t0, 1, False, DataType.Float))
    fd.add_output(fd.ops.prod(t0, 1, True, DataType.Float))
    fd.add_output(fd.ops.max(t0, [0, 2]))
    fd.add_output(fd.ops.min(t0))


@script(normal((4, 4)), lambda x: x + float("nan"))
def a_nan_constant(fd: Any, x: Any) -> None:
    fd.add_output(fd.ops.add(fd.from_pytorch(x), fd.define_scalar(float("nan"))))


@script(normal((0, 5)), lambda x: (x.relu(), x.sum(0)))
def empty_tensors(fd: Any, x: Any) -> None:
    t0 = fd.define_tensor(shape=[0, 5], contiguity=[True, True])
    fd.add_output(fd.ops.relu(t0))
    fd.add_output(fd.ops.sum(t0, [0]))


@script(
    lambda draw: [torch.randn(3, 4, generator=draw), torch.nn.Parameter(torch.randn(4, generator=draw))],
    lambda x, w: (x * w).detach(),
)
def inputs_that_require_grad(fd: Any, x: Any, w: Any) -> None:
    fd.add_output(fd.ops.mul(fd.from_pytorch(x), fd.from_pytorch(w)))


# -- complex and random numbers ----------------------------------------------------------------------------------------


@script(
    normal((6,), (6,), dtype=torch.complex64),
    lambda a, b: (a * (3 + 0.5j), a.rsqrt(), a.real, a.imag, torch.sigmoid(a), a * b, (a + b).sum()), 1e-4,
)  # fmt: skip
def complex_arithmetic(fd: Any, a: Any, b: Any) -> None:
    t0, t1 = fd.from_pytorch(a), fd.from_pytorch(b)
    fd.add_output(fd.ops.mul(t0, fd.define_scalar(complex(3.0, 0.5))))
    for name in ("rsqrt", "real", "imag", "sigmoid"):
        fd.add_output(getattr(fd.ops, name)(t0))
    fd.add_output(fd.ops.mul(t0, t1))
    fd.add_output(fd.ops.sum(fd.ops.add(t0, t1), [-1], False, DataType.ComplexFloat))


@script(normal((2, 32), dtype=torch.complex128), lambda x: (x.sum(-1), x.abs(), torch.view_as_real(x).sum(-1)), 1e-10)
def complex_reductions(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    fd.add_output(fd.ops.sum(t0, [-1], False, DataType.ComplexDouble))
    fd.add_output(fd.ops.abs(t0))
    fd.add_output(fd.ops.add(fd.ops.real(t0), fd.ops.imag(t0)))


def _distribution(x: torch.Tensor, mean: float, deviation: float) -> bool:
    """Whether samples have a mean and a deviation, within six standard errors of the mean."""
    error = 6 * deviation / x.numel() ** 0.5
    return abs(x.mean().item() - mean) < error and abs(x.std().item() - deviation) < error


@script(normal((64, 128)), lambda x: lambda y: _distribution(y, 3.7, 2.5) and y.dtype is torch.float64, random=True)
def normal_samples(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    scalars = fd.define_scalar(3.7), fd.define_scalar(2.5)
    fd.add_output(fd.ops.normal(*scalars, t0.shape(), dtype=DataType.Double))


@script(
    normal((64, 128)),
    lambda x: lambda y: bool(y.min() >= 1 and y.max() < 4) and _distribution(y, 2.5, 0.866),
    random=True,
)
def uniform_samples(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    fd.add_output(fd.ops.uniform(fd.define_scalar(1.0), fd.define_scalar(4.0), t0.shape(), dtype=DataType.Float))


@script(
    lambda draw: [torch.ones(40, 50), 7, 3], lambda x, seed, offset: lambda y: _distribution(y, 0.0, 1.0), random=True
)
def samples_of_a_seed(fd: Any, x: Any, seed: int, offset: int) -> None:
    t0 = fd.from_pytorch(x)
    state = fd.define_scalar(DataType.Int), fd.define_scalar(DataType.Int)
    sample = fd.ops.normal(0.0, 1.0, shape=[40, 50], rng_seed=state[0], rng_offset=state[1])
    fd.add_output(fd.ops.mul(t0, sample))


@script(
    normal((100, 80)),
    lambda x: lambda y: bool(((y == 0) | (y == 2 * x)).all()) and 0.4 < (y != 0).float().mean() < 0.6,
    random=True,
)
def dropout(fd: Any, x: Any) -> None:
    t0 = fd.from_pytorch(x)
    kept = fd.ops.lt(fd.ops.rand_like(t0), 0.5)
    fd.add_output(fd.ops.mul(fd.ops.mul(t0, fd.ops.cast(kept, DataType.Float)), 2.0))
