"""Tests that the representative of equal extents follows from a fusion's requirements, however it was recorded."""

from __future__ import annotations

from dataclasses import replace

from tracefuse.dtypes import dtype_of
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Symbol, as_symbol
from tracefuse.ir.fusion import Fusion


def two_inputs(equal: bool) -> Fusion:
    """Inputs of extents -1 and -2, required to be equal or not."""
    builder = FusionBuilder()
    first, second = (builder.tensor_input(dtype_of("float32"), [-1]) for _ in range(2))
    if equal:
        (a,), (b,) = builder.values[first].shape, builder.values[second].shape
        builder.require(a, "==", b, "extents differ: {left} and {right}", "give equal ones")
    builder.output(first)
    builder.output(second)
    return builder.build()


def symbols_of(fusion: Fusion) -> list[Symbol]:
    found = [as_symbol(extent) for number in fusion.inputs for extent in fusion.values[number].shape]
    return [symbol for symbol in found if symbol is not None]


def test_a_requirement_makes_the_older_symbol_stand_for_both() -> None:
    fusion = two_inputs(equal=True)
    assert fusion.shape_of(fusion.inputs[1]) == fusion.values[fusion.inputs[0]].shape


def test_replacing_requirements_derives_what_stands_for_equal_extents_again() -> None:
    equal, apart = two_inputs(equal=True), two_inputs(equal=False)
    assert replace(equal, requirements=()).representatives == {}
    assert replace(apart, requirements=equal.requirements).representatives == equal.representatives != {}
    assert equal.representatives != {}
    assert apart.representatives == {}


def test_a_copy_does_not_share_what_it_derived() -> None:
    fusion = two_inputs(equal=False)
    _, second = symbols_of(fusion)
    known = replace(fusion, equal_extents={second: 4})
    assert known.shape_of(known.inputs[1]) == (4,)
    assert replace(known, outputs=()).shape_of(known.inputs[1]) == (4,)
    assert fusion.shape_of(fusion.inputs[1]) == fusion.values[fusion.inputs[1]].shape
