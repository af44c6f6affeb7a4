"""The worked example of a definition, as it prints, and how a printed definition is run."""

from __future__ import annotations

import itertools
from typing import Any

from tracefuse.definition.fusion_definition import FusionDefinition

DEFINITION = """\
def nvfuser_fusion_id1(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    T1 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)
    T2 = fd.ops.sum(T0, dims=[1], keepdim=False, dtype=DataType.Float)
    T3 = fd.ops.broadcast(T2, is_broadcast_dim=[False, True])
    T4 = fd.ops.add(T1, T3)
    fd.add_output(T4)"""


def run_text(text: str, number: int) -> FusionDefinition:
    """The definition that a printed one records."""
    namespace: dict[str, Any] = {}
    exec(f"from tracefuse import *\n{text}", namespace)
    with FusionDefinition(ids=itertools.count(number)) as fd:
        namespace[f"nvfuser_fusion_id{number}"](fd)
    return fd


def worked_example() -> FusionDefinition:
    return run_text(DEFINITION, 1)
