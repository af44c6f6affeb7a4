"""Every operation of nvFuser's frontend is there under its name, or has a reason not to be."""

from __future__ import annotations

import pytest

from tracefuse.definition import FusionDefinition
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

OPERATIONS = " ".join((UNARY, BINARY, TERNARY, REDUCTIONS, MOVEMENT, CREATION, LIBRARY)).split()

NOT_YET: dict[str, str] = {
    **dict.fromkeys(("complex", "real", "imag"), "kernels do not compute complex numbers"),
}
"""Operations that are missing, with the reason."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_operation_is_there(name: str) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.define_tensor([-1]))
        if name in NOT_YET:
            pytest.xfail(NOT_YET[name])
        assert callable(getattr(fd.ops, name))
        assert name in dir(fd.ops)
        assert getattr(fd.ops, name).__doc__


def test_an_unknown_operation_is_refused_with_close_names() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.define_tensor([-1]))
        with pytest.raises(UnsupportedError, match=r"fd.ops has no operation 'cumsun'"):
            fd.ops.cumsun()
