"""Scripts in nvFuser's calls: movements, indexing, orders in memory, updates, scalars, random and complex numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.nvfuser.script_table import normal, script
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
