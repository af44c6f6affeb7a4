"""Attention on a GPU beside torch's flash attention: device times of forward and backward calls.

    python -m tests.bench.bench_attention [--features 64,128] [--lengths 512,2048,8192] [--dtypes float16]
                                          [--directions forward,backward] [--tokens 16384]

Needs CuPy, torch and a GPU. Each row prints the time of tracefuse, that of torch, their quotient and the largest
relative error against float32. Short calls are bound by the host. Torch has no flash attention in float32: its
memory-efficient one runs there.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from typing import Any

from tracefuse import DataType, FusionDefinition

ROUNDS, CALLS = 5, 10
HEADS = 16
DTYPES = {"float16": DataType.Half, "bfloat16": DataType.BFloat16, "float32": DataType.Float}


def forward(dtype: DataType, causal: bool) -> Any:
    """The definition of scaled dot product attention, with the logarithms of its sums."""
    with FusionDefinition() as fd:
        query, key, value = tensors(fd, dtype, 3)
        output, log_sumexp, _, _ = fd.ops.sdpfa_fwd(query, key, value, is_causal=causal)
        fd.add_output(output)
        fd.add_output(log_sumexp)
    return fd


def backward(dtype: DataType, causal: bool) -> Any:
    """The definition of its gradients."""
    with FusionDefinition() as fd:
        query, key, value, grad, output = tensors(fd, dtype, 5)
        log_sumexp = fd.define_tensor(shape=[-1] * 3, contiguity=[True] * 3, dtype=DataType.Float)
        for result in fd.ops.sdpfa_bwd(grad, query, key, value, output, log_sumexp, is_causal=causal):
            fd.add_output(result)
    return fd


def tensors(fd: Any, dtype: DataType, count: int) -> list[Any]:
    return [fd.define_tensor(shape=[-1] * 4, contiguity=[True] * 4, dtype=dtype) for _ in range(count)]


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


def measured(dtype: str, shape: tuple[int, ...], causal: bool, direction: str) -> tuple[float, float, float]:
    """The times of tracefuse and torch in microseconds, and the largest relative error of the first batch."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend = torch.nn.functional.scaled_dot_product_attention
    kind = getattr(torch, dtype)
    inputs = [torch.randn(shape, device="cuda", dtype=kind, requires_grad=True) for _ in range(3)]
    grad = torch.randn(shape, device="cuda", dtype=kind)
    with sdpa_kernel(SDPBackend.MATH):
        part = [t[:1].detach().float().requires_grad_() for t in inputs]
        exact = [attend(*part, is_causal=causal)]
        if direction == "backward":
            exact = list(torch.autograd.grad(exact[0], part, grad[:1].float()))
    plain = [t.detach() for t in inputs]
    fd = forward(DTYPES[dtype], causal)
    output, log_sumexp = fd.execute(plain)
    results, arguments = [output], plain
    if direction == "backward":
        fd, arguments = backward(DTYPES[dtype], causal), [*plain, grad, output, log_sumexp]
        results = fd.execute(arguments)
    pairs = zip(results, (one.detach() for one in exact), strict=True)
    error = max(float((result[:1].float() - reference).norm() / reference.norm()) for result, reference in pairs)
    time = device_time(lambda: fd.execute(arguments))
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION if dtype == "float32" else SDPBackend.FLASH_ATTENTION):
        if direction == "forward":
            return time, device_time(lambda: attend(*plain, is_causal=causal)), error
        result = attend(*inputs, is_causal=causal)
        return time, device_time(lambda: torch.autograd.grad(result, inputs, grad, retain_graph=True)), error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", default="64,128", help="comma list, as the others")
    parser.add_argument("--lengths", default="512,2048,8192")
    parser.add_argument("--dtypes", default="float16", help="of " + ", ".join(DTYPES))
    parser.add_argument("--directions", default="forward,backward")
    parser.add_argument("--tokens", type=int, default=16384, help="of all sequences together")
    options = parser.parse_args()
    import torch

    torch.manual_seed(0)
    directions, dtypes = options.directions.split(","), options.dtypes.split(",")
    features, lengths = ([int(n) for n in text.split(",")] for text in (options.features, options.lengths))
    for direction, dtype, width, length in itertools.product(directions, dtypes, features, lengths):
        for causal in (False, True):
            shape = (max(1, options.tokens // length), HEADS, length, width)
            name = f"{direction} {dtype} {'causal ' if causal else ''}{'x'.join(map(str, shape))}"
            try:
                time, peer, error = measured(dtype, shape, causal, direction)
            except Exception as problem:  # a row that one of them cannot run is a line of the table
                print(f"{name:50} {type(problem).__name__}: {str(problem)[:90]}", flush=True)
                continue
            print(
                f"{name:50} {time:10.1f} us  torch {peer:10.1f} us  {time / peer:6.2f}  error {error:.1e}", flush=True
            )


if __name__ == "__main__":
    main()
