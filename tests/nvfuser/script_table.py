"""The table of scripts in nvFuser's calls, each with its inputs and a reference in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Script:
    """make: the inputs, for a generator. record: the script. reference: the outputs by PyTorch, from the inputs.

    tolerance: relative and absolute. random: its outputs differ from call to call; `reference` checks them.
    """

    name: str
    make: Callable[[torch.Generator], list[Any]]
    record: Callable[..., None]
    reference: Callable[..., Any]
    tolerance: float
    random: bool = False


SCRIPTS: list[Script] = []


def script(
    make: Callable[[torch.Generator], list[Any]], reference: Callable[..., Any], tolerance: float = 2e-5,
    random: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:  # fmt: skip
    def add(record: Callable[..., None]) -> Callable[..., None]:
        SCRIPTS.append(Script(record.__name__, make, record, reference, tolerance, random))
        return record

    return add


def normal(*shapes: Sequence[int], dtype: torch.dtype = torch.float32) -> Callable[[torch.Generator], list[Any]]:
    """Makes tensors of these shapes with normal entries."""
    return lambda draw: [torch.randn(tuple(shape), generator=draw).to(dtype) for shape in shapes]
