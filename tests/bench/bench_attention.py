"""Attention on a GPU beside torch's flash attention: device times of forward and backward calls in float16.

python -m tests.bench.bench_attention [NAME ...]: the rows whose names contain one of the NAMEs. Needs CuPy, torch and a
GPU. Each row prints the time of tracefuse, that of torch, their quotient and the largest relative error against
float32. Short calls are bound by the host.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tracefuse import DataType, FusionDefinition

ROUNDS, CALLS = 5, 10
TOKENS = 16384


def forward(causal: bool) -> Any:
    """The definition of scaled dot product attention, with the logarithms of its sums."""
    with FusionDefinition() as fd:
        query, key, value = tensors(fd, 3)
        output, log_sumexp, _, _ = fd.ops.sdpfa_fwd(query, key, value, is_causal=causal)
        fd.add_output(output)
        fd.add_output(log_sumexp)
    return fd


def backward(causal: bool) -> Any:
    """The definition of its gradients."""
    with FusionDefinition() as fd:
        query, key, value, grad, output = tensors(fd, 5)
        log_sumexp = fd.define_tensor(shape=[-1] * 3, contiguity=[True] * 3, dtype=DataType.Float)
        for result in fd.ops.sdpfa_bwd(grad, query, key, value, output, log_sumexp, is_causal=causal):
            fd.add_output(result)
    return fd


def tensors(fd: Any, count: int) -> list[Any]:
    return [fd.define_tensor(shape=[-1] * 4, contiguity=[True] * 4, dtype=DataType.Half) for _ in range(count)]


def device_time(call: Callable[[], Any]) -> float:
    """The device time of a call in microseconds: the median of several rounds of several calls."""
    import torch

    times = []
    call()
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / CALLS)
    return statistics.median(times)


def rows() -> Iterator[tuple[str, tuple[int, int, int, int], bool]]:
    """The names of the rows, their batch, heads, length and features, and whether they are causal."""
    for features in (64, 128):
        for length in (512, 2048, 8192):
            for causal in (False, True):
                batch = TOKENS // length
                yield f"{'causal ' if causal else ''}{batch}x16x{length}x{features}", (
                    batch, 16, length, features,
                ), causal  # fmt: skip


def measured(shape: tuple[int, ...], causal: bool, direction: str) -> tuple[float, float, float]:
    """The times of tracefuse and torch in microseconds, and the largest relative error of the first batch."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend = torch.nn.functional.scaled_dot_product_attention
    inputs = [torch.randn(shape, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]
    grad = torch.randn(shape, device="cuda", dtype=torch.float16)
    with sdpa_kernel(SDPBackend.MATH):
        part = [t[:1].detach().float().requires_grad_() for t in inputs]
        exact = [attend(*part, is_causal=causal)]
        if direction == "backward":
            exact = list(torch.autograd.grad(exact[0], part, grad[:1].float()))
    plain = [t.detach() for t in inputs]
    fd = forward(causal)
    output, log_sumexp = fd.execute(plain)
    results, arguments = [output], plain
    if direction == "backward":
        fd, arguments = backward(causal), [*plain, grad, output, log_sumexp]
        results = fd.execute(arguments)
    pairs = zip(results, (one.detach() for one in exact), strict=True)
    error = max(float((result[:1].float() - reference).norm() / reference.norm()) for result, reference in pairs)
    time = device_time(lambda: fd.execute(arguments))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        if direction == "forward":
            return time, device_time(lambda: attend(*plain, is_causal=causal)), error
        result = attend(*inputs, is_causal=causal)
        return time, device_time(lambda: torch.autograd.grad(result, inputs, grad, retain_graph=True)), error


def main(names: list[str]) -> None:
    import torch

    torch.manual_seed(0)
    for direction in ("forward", "backward"):
        for row, shape, causal in rows():
            name = f"{direction} {row}"
            if names and not any(part in name for part in names):
                continue
            time, peer, error = measured(shape, causal, direction)
            print(
                f"{name:40} {time:10.1f} us  torch {peer:10.1f} us  {time / peer:6.2f}  error {error:.1e}", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])
