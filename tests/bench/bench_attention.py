"""Attention on a GPU beside torch's flash attention: device times of forward calls in float16 and bfloat16.

python -m tests.bench.bench_attention [NAME ...]: the rows whose names contain one of the NAMEs. Needs CuPy, torch and a
GPU. Each row prints the time of tracefuse, that of torch, their quotient and the relative error against float32.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tracefuse import DataType, FusionDefinition

ROUNDS, CALLS = 5, 10


def forward(causal: bool) -> Any:
    """The definition of scaled dot product attention."""
    with FusionDefinition() as fd:
        query, key, value = (
            fd.define_tensor(shape=[-1] * 4, contiguity=[True] * 4, dtype=DataType.Half) for _ in range(3)
        )
        output, log_sumexp, _, _ = fd.ops.sdpfa_fwd(query, key, value, is_causal=causal)
        fd.add_output(output)
        fd.add_output(log_sumexp)
    return fd


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
                batch = 16384 // length
                name = f"forward {'causal ' if causal else ''}{batch}x16x{length}x{features}"
                yield name, (batch, 16, length, features), causal


def main(names: list[str]) -> None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    for name, shape, causal in rows():
        if names and not any(part in name for part in names):
            continue
        query, key, value = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))
        fd = forward(causal)
        attend = torch.nn.functional.scaled_dot_product_attention
        output, _ = fd.execute([query, key, value])
        with sdpa_kernel(SDPBackend.MATH):
            exact = attend(*(t[:1].float() for t in (query, key, value)), is_causal=causal)
        error = float((output[:1].float() - exact).norm() / exact.norm())
        own = device_time(lambda fd=fd, inputs=[query, key, value]: fd.execute(inputs))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            peer = device_time(
                lambda attend=attend, inputs=(query, key, value), causal=causal: attend(*inputs, is_causal=causal)
            )  # fmt: skip
        print(f"{name:40} {own:10.1f} us  torch {peer:10.1f} us  {own / peer:6.2f}  error {error:.1e}", flush=True)


if __name__ == "__main__":
    np.random.seed(0)
    main(sys.argv[1:])
