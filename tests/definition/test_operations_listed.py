"""Tests that every operation of nvFuser's frontend exists under its name or is listed with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import DataType
from tracefuse.errors import UnsupportedError

UNARY = """
abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf erfc erfcinv erfinv exp exp2 expm1 floor frac imag
isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2 logical_not neg real reciprocal relu round
rsqrt segment_set set sigmoid sign signbit silu sin sinh sqrt tan tanh trunc
"""
BINARY = """
add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor complex div eq fmod gcd ge gt le
logical_and logical_or logical_right_shift lt maximum minimum mod mul ne nextafter pow remainder sub truediv
"""
TERNARY = "addcmul clamp lerp threshold where"
REDUCTIONS = "max min prod sum var var_mean welford cummax cummin cumprod cumsum"
MOVEMENT = """
broadcast broadcast_in_dim cat expand pad permute reshape slice squeeze stride_order triu at shape size embedding_fwd
gather index_put_accumulate index_select scatter select take_along_axis
"""
CREATION = "full iota normal uniform rand_like randn_like cast"
LIBRARY = "argsort linear matmul topk sdpfa_fwd sdpfa_bwd grouped_mm"

X, I, B = "X", "I", "B"

OPERATIONS = " ".join((UNARY, BINARY, TERNARY, REDUCTIONS, MOVEMENT, CREATION, LIBRARY)).split()

OF_TRUTH_VALUES = ("logical_and", "logical_or", "logical_not")
OF_INTEGERS = ("bitwise_not", "gcd", "logical_right_shift", *(name for name in BINARY.split() if "bitwise" in name))

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(UNARY.split(), (X,)),
    **dict.fromkeys(BINARY.split(), (X, X)),
    **dict.fromkeys(("clamp", "lerp", "threshold"), (X, X, X)),
    **dict.fromkeys(OF_INTEGERS, (I, I)),
    **dict.fromkeys(OF_TRUTH_VALUES, (B, B)),
    **dict.fromkeys(("cummax", "cummin", "cumprod", "cumsum", "argsort"), (X, 0)),
    **{name: (X, [1]) for name in ("max", "min", "prod", "sum", "var", "var_mean", "welford")},
    **dict.fromkeys(("rand_like", "randn_like"), (X, 1, 0)),
    **{name: (0.0, 1.0, [2, 3], 7, 0) for name in ("normal", "uniform")},
    "bitwise_not": (I,), "logical_not": (B,), "addcmul": (X, X, X, 2.0), "where": (B, X, X),
    "cast": (X, DataType.Half), "full": ([2, 3], 1.0, DataType.Float), "iota": (6,),
    "broadcast": (X, [False, True, False]), "broadcast_in_dim": (X, [5, 3, 3], [1, 2]), "cat": ([X, X], 1),
    "expand": (X, [4, 3, 3]), "pad": (X, [1, 0]), "permute": (X, [1, 0]), "reshape": (X, [9]),
    "slice": (X, [0, 1], [2, 3]), "stride_order": (X, [1, 0]), "triu": (X,), "size": (X, 0), "shape": (X,),
    "select": (X, 1, 0), "topk": (X, 2), "matmul": (X, X), "linear": (X, X), "sdpfa_fwd": (X, X, X),
    "gather": (X, I, 1), "take_along_axis": (X, I, 1), "scatter": (X, I, X, 1), "embedding_fwd": (I, X),
}  # fmt: skip
"""What each operation is called with: X, I and B stand for matrices of floats, integers and truth values."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_operation_is_there_and_runs(name: str) -> None:
    with FusionDefinition() as fd:
        types = {X: DataType.Float, I: DataType.Int, B: DataType.Bool}
        made = {key: fd.define_tensor([-1, -1], True, dtype) for key, dtype in types.items()}
        operation = getattr(fd.ops, name)
        assert name in dir(fd.ops)
        assert operation.__doc__
        called = operation(*(_replaced(a, made) for a in _arguments(fd, name, made)))
        results = called if isinstance(called, tuple) else (called,)
        for result in results:
            fd.add_output(fd.ops.at(result, 0) if hasattr(result, "elements") else result)
    values = [np.eye(3, dtype=np.float32) / 2 + 0.25, np.arange(9).reshape(3, 3) % 3, np.eye(3) > 0]
    outputs = fd.execute(values)
    assert len(outputs) == len(results)
    again: dict[str, Any] = {}
    exec("from tracefuse import *\n" + repr(fd), again)
    with FusionDefinition() as recorded:
        again[f"nvfuser_fusion_id{fd.id()}"](recorded)
    for own, other in zip(outputs, recorded.execute(values), strict=True):
        assert name == "sdpfa_fwd" or np.array_equal(own, other, equal_nan=np.asarray(own).dtype.kind in "fc")


def _arguments(fd: FusionDefinition, name: str, made: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of an operation; those that are no matrix are made of them."""
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    row = fd.ops.select(made[I], 0, 0)
    match name:
        case "squeeze":
            return (fd.ops.broadcast(made[X], [True, False, False]), [0])
        case "at":
            return (fd.ops.shape(made[X]), 1)
        case "index_select":
            return (X, row, 1)
        case "index_put_accumulate":
            return (X, row, X)
        case "grouped_mm":
            return (X, X, fd.ops.add(row, 1))
        case "sdpfa_bwd":
            output, log_sum, seed, offset = fd.ops.sdpfa_fwd(made[X], made[X], made[X])
            return (X, X, X, X, output, log_sum, None, None, seed, offset)
    raise AssertionError(f"{name}: say in ARGUMENTS how it is called")


def _replaced(argument: Any, made: dict[str, Any]) -> Any:
    if isinstance(argument, list):
        return [_replaced(a, made) for a in argument]
    return made.get(argument, argument) if isinstance(argument, str) else argument


def test_an_unknown_operation_is_refused_with_close_names() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.define_tensor([-1]))
        with pytest.raises(UnsupportedError, match=r"fd.ops has no operation 'cumsun'"):
            fd.ops.cumsun()
