"""Scripts in nvFuser's calls: casts, promotion, scalars, operators, reductions, complex and random numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.nvfuser.script_table import normal, script
from tracefuse.nvfuser import DataType


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
