"""Elements that steps of compiled loops keep in registers: which loads become registers, and which stay loads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.test_hoisted_conditions import number, value_of
from tracefuse.dtypes import float32, float64, int64
from tracefuse.kernel.kernel_ir import Buffer, Constant, Expression, Kernel, Let, Load, Store, Variable, call
from tracefuse.kernel.llvm.kept_elements import KeptElements, PointedMemory, polynomial, slope_of, with_kept_elements
from tracefuse.kernel.loop_driver import CountedSteps, DriverStatement, OffsetPointer, RunKernel

K, N, M, E0 = (Variable(name, int64) for name in ("k", "n", "m", "e0"))
MEMORY = {"y": PointedMemory("y"), "z": PointedMemory("z"), "t": PointedMemory("t", is_exclusive=True)}


def kernel(*distances: int, read: Expression = E0) -> Kernel:
    """Returns `store[0] = load[read - d] + ...` over the distances."""
    load, store = Buffer("load", float64), Buffer("store", float64, written=True)
    loads = [Load(load, call("sub", read, number(distance))) for distance in distances]
    total: Expression = Constant(0.0, float64)
    for one in loads:
        total = call("add", total, one)
    value = Variable("value", float64)
    return Kernel("body", (load, store, E0), (), (Let(value, total), Store(store, number(0), value)), "cpu")


def step(read: str = "y", written: str = "y", by: Expression = K) -> tuple[DriverStatement, ...]:
    return OffsetPointer("p", written, by, float64), RunKernel(0, (read, "p", K))


def kept(
    *distances: int, body: tuple[DriverStatement, ...] = step(), reverse: bool = False, read: Expression = E0
) -> KeptElements | None:
    loop = CountedSteps(K, N, M, reverse, body)
    return with_kept_elements(loop, [kernel(*distances, read=read)], MEMORY, "kept")


def loads(result: KeptElements | None) -> list[str]:
    assert result is not None
    (body,) = result.kernels
    return [b.name for b in body.parameters if b.name.startswith("kept")]


def test_loads_of_what_earlier_steps_stored_are_kept() -> None:
    assert loads(kept(1)) == ["kept0", "kept1"]
    assert loads(kept(1, 3, 0, -2)) == ["kept0", "kept1", "kept3"]
    assert loads(kept(-2, reverse=True)) == ["kept0", "kept2"]
    assert loads(kept(2, 1, body=step(by=call("mul", number(2), K)), read=call("mul", number(2), E0))) == [
        "kept0", "kept1",
    ]  # fmt: skip
    rows = call("add", call("mul", N, M), K)
    assert loads(kept(1, body=step(by=rows), read=call("add", E0, call("mul", M, N)))) == ["kept0", "kept1"]


@pytest.mark.parametrize("distances", [(0,), (-1,), (5,), (-3, 7)])
def test_other_distances_stay_loads(distances: tuple[int, ...]) -> None:
    assert kept(*distances) is None


def test_what_is_not_sure_stays_a_load() -> None:
    assert kept(1, body=step(read="z")) is None
    assert kept(1, body=step(by=call("floordiv", K, number(2)))) is None
    assert kept(1, body=step(by=call("mul", K, N))) is None
    assert kept(1, body=step(by=N)) is None
    assert kept(1, body=(*step(), RunKernel(0, ("z", "y", K)))) is None  # another store to the array
    assert kept(1, body=(*step(), RunKernel(0, ("y", "z", K)))) is None  # one to an array that may overlap it
    assert kept(1, body=(*step(), RunKernel(0, ("y", "t", K)))) is not None
    assert kept(1, body=(OffsetPointer("p", "y", K, float32), step()[1])) is None


POLYNOMIALS = st.recursive(
    st.one_of(st.sampled_from([K, N, M]), st.integers(-3, 3).map(number)),
    lambda inner: st.builds(call, st.sampled_from(["add", "sub", "mul"]), inner, inner),
    max_leaves=6,
)


@given(POLYNOMIALS, st.integers(-5, 5), st.integers(-5, 5), st.integers(-5, 5))
def test_polynomials_have_the_values_of_expressions(e: Expression, k: int, n: int, m: int) -> None:
    numbers = {"k": k, "n": n, "m": m}
    found = polynomial(e)
    assert found is not None

    def evaluated() -> int:
        total = 0
        for key, count in found.items():
            for name in key:
                count *= numbers[name]
            total += count
        return total

    assert evaluated() == value_of(e, numbers)
    growth = slope_of(found, "k")
    if growth is not None:
        assert value_of(e, numbers | {"k": k + 1}) - value_of(e, numbers) == growth
