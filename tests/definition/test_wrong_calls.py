"""Tests wrong calls of definitions and fused functions: each raises an error of tracefuse that names the parameter."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.definition.wrong_values import ELSEWHERE, MATRIX, Recorded, Target, refusal, targets, wrong_values
from tracefuse import (
    DataType,
    FusionDefinition,
    FusionError,
    OptionError,
    OutOfRangeError,
    ShapeDtype,
    ShapeError,
    TraceError,
    TracefuseError,
    UnsupportedError,
    fuse,
    rules,
)

TARGETS = list(targets())
A = np.arange(12, dtype=np.float32).reshape(3, 4)
DRAWN = 14
"""Wrong values for each parameter of each call."""


def is_named(message: str, target: Target, parameter: str, error: TracefuseError) -> bool:
    """Whether a message begins with the call, and names the parameter where the value is of a wrong kind."""
    begins = message.startswith((f"{target.name}:", f"{target.name} "))
    return begins and (not isinstance(error, TraceError) or f"{target.name}: {parameter}" in message)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_wrong_value_is_refused_by_the_name_of_its_parameter_and_leaves_the_definition_as_it_was(
    target: Target,
) -> None:
    draw = random.Random(target.name)
    own = Recorded()
    given = target.right(own)
    builder = own.fd.recording.builder
    for parameter in (p for p in target.parameters if p.kind is not p.VAR_POSITIONAL):
        refused = 0
        for value in draw.sample(wrong_values(own), DRAWN):
            mark, before = builder.snapshot(), dict(builder.values)
            error = refusal(lambda: target.run(own, {**given, parameter.name: value}))  # noqa: B023
            if error is None:  # the value is valid there
                builder.take_back(mark)
                continue
            refused += 1
            assert isinstance(error, (TypeError, ValueError, IndexError, NotImplementedError)), repr(error)
            message = str(error)
            assert is_named(message, target, parameter.name, error), message
            assert re.search(r"\((test_wrong_calls|wrong_values).py:\d+\)", message), message
            if target.name not in ("outer_split", "axis", "size", "set_device_mesh", "parallelize"):
                assert builder.snapshot() == mark, message
                assert builder.values == before
        assert refused > 0, f"{target.name} takes everything as {parameter.name}"
    fd = own.fd
    with fd:
        fd.add_output(fd.ops.add(own.x, 1.0))
    if len(fd.fusion.inputs) == len(own.ARGUMENTS):  # where no call has defined another
        with tracefuse.options(target="reference"):
            np.testing.assert_array_equal(fd.execute(list(own.ARGUMENTS))[-1], own.ARGUMENTS[0] + 1)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_wrong_counts_and_unknown_keywords_show_how_it_is_called(target: Target) -> None:
    own = Recorded()
    given = target.right(own)
    for call in (
        lambda: target.run(own, {**given, "bogus": 1}),
        lambda: target.call_of(own)(*[own.x] * 20),
    ):
        error = refusal(call)
        assert isinstance(error, TraceError)
        assert str(error).startswith(f"{target.name}: ")
        assert f"hint: the signature is {target.name}(" in str(error) or "cannot be" in str(error)


def recorded() -> FusionDefinition:
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([-1, 4]), fd.define_scalar(dtype=DataType.Double)
        fd.add_output(fd.ops.mul(x, s))
    return fd


WRONG = wrong_values(Recorded())
ASKED: list[tuple[str, Callable[[FusionDefinition, Any], Any]]] = [
    ("execute", lambda fd, value: fd.execute(value)),
    ("first input", lambda fd, value: fd.execute([value, 2.0])),
    ("outputs", lambda fd, value: fd.execute([A, 2.0], outputs=[value])),
    ("steps", lambda fd, value: list(fd.execute_steps(value))),
    ("segment", lambda fd, value: fd.segment(value)),
    ("merge", lambda fd, value: fd.segment(merge=value)),
    ("setup", lambda fd, value: fd.setup_segmentation(value)),
    ("position", lambda fd, value: (fd.setup_segmentation(), fd.build_segment(value))),
    ("validate", lambda fd, value: fd.validate(value)),
    ("reference", lambda fd, value: fd.validate([A, 2.0], reference_outputs=value if value is not None else 0)),
    ("concretization", lambda fd, value: fd.concretization(value)),
    ("explain", lambda fd, value: fd.explain(value)),
    ("host program", lambda fd, value: fd.host_program(value)),
    ("repro", lambda fd, value: fd.repro_script_for(value)),
    ("enable", lambda fd, value: fd.execute([A, 2.0], _enable_options=value)),
]


@pytest.mark.parametrize(("name", "ask"), ASKED, ids=[name for name, _ in ASKED])
def test_a_definition_refuses_wrong_inputs_of_what_it_is_asked_and_works_on(
    name: str, ask: Callable[[FusionDefinition, Any], Any]
) -> None:
    fd = recorded()
    refused = 0
    for value in WRONG:
        try:
            refused += refusal(lambda: ask(fd, value)) is not None  # noqa: B023
        except AssertionError:  # a reference that is an array of numbers, and another one
            assert name == "reference"
    assert refused > len(WRONG) // 2
    np.testing.assert_array_equal(fd.execute([A, 2.0])[0], A * 2)


def refused_outputs() -> dict[str, Any]:
    frozen = np.empty((3, 4), np.float32)
    frozen.flags.writeable = False
    return {
        "masked": np.ma.masked_array(np.empty((3, 4), np.float32)),
        "matrix": MATRIX,
        "object": np.empty((3, 4), object),
        "structured": np.empty((3, 4), [("a", np.float32)]),
        "byte order": np.empty((3, 4), ">f4"),
        "read-only": frozen,
        "broadcast": np.broadcast_to(np.empty(4, np.float32), (3, 4)),
        "stride of 0": np.lib.stride_tricks.as_strided(np.empty(4, np.float32), (3, 4), (0, 4)),
        "shape": np.empty((4, 3), np.float32),
        "dtype": np.empty((3, 4), np.float64),
        "list": [[0.0] * 4] * 3,
    }


@pytest.mark.parametrize("name", list(refused_outputs()))
def test_memory_that_no_result_can_go_into_is_refused_in_the_first_and_in_later_calls(name: str) -> None:
    wrong, right = refused_outputs()[name], np.empty((3, 4), np.float32)
    doubled, fd = fuse(lambda x: x * 2), recorded()
    for _ in range(2):
        for call in (
            lambda: doubled(A, out=wrong),
            lambda: doubled.into(wrong, A),
            lambda: fd.execute([A, 2.0], outputs=[wrong]),
        ):
            with pytest.raises(TracefuseError):
                call()
        for _ in range(3):  # by now calls with right memory go directly
            assert doubled(A, out=right) is right
            assert fd.execute([A, 2.0], outputs=[right])[0] is right
    np.testing.assert_array_equal(right, A * 2)


def test_masked_arrays_are_no_inputs_of_a_definition() -> None:
    fd = recorded()
    with pytest.raises(UnsupportedError, match=r"input T0 is a numpy MaskedArray .*\n  hint: pass"):
        fd.execute([np.ma.masked_array(A), 2.0])


def test_a_vector_of_too_many_inputs_is_refused_at_once() -> None:
    for count in (2**70, 10**9, 65, -1):
        with pytest.raises(ShapeError, match=r"define_vector: values cannot be -?\d+ "):
            FusionDefinition().define_vector(count)


def test_a_vector_ends_where_it_is_iterated() -> None:
    fd = FusionDefinition()
    assert [fd.recording.builder.values[s.index].extent for s in fd.define_vector([2, 3])] == [2, 3]
    with pytest.raises(OutOfRangeError, match="at: index 2 is out of range for 2 elements"):
        fd.define_vector([2, 3])[2]


def test_values_of_another_definition_are_named_as_such() -> None:
    own = Recorded()
    with pytest.raises(FusionError, match=r"add: b cannot be Tensor\(T0: f32\[i0, i1\]\), which belongs to another"):
        own.fd.ops.add(own.x, ELSEWHERE[0])
    with pytest.raises(FusionError, match=r"full: shape\[0\] cannot be Scalar\(S4: i64\), which belongs to another"):
        own.fd.ops.full([ELSEWHERE[2]], 1.0)
    with pytest.raises(ShapeError, match=r"full: shape\[1\] cannot be i12"):
        own.fd.ops.full([2, ELSEWHERE[4]], 1.0)


@pytest.mark.parametrize("value", [2**70, -(2**70), float("nan"), float("inf"), 1j])
def test_numbers_that_an_integer_type_does_not_hold_are_refused(value: Any) -> None:
    own = Recorded()
    with pytest.raises(TracefuseError, match=r"full: .* does not fit int64"):
        own.fd.ops.full([2], value, DataType.Int)
    with pytest.raises(TracefuseError, match=r"define_scalar: .* does not fit int64"):
        own.fd.define_scalar(value, DataType.Int)


def test_an_operator_with_an_array_does_not_go_through_its_elements() -> None:
    own = Recorded()
    for call in (lambda: np.ones(3) + own.x, lambda: own.x + np.ones(3), lambda: np.ones(3) < own.x):
        with pytest.raises(TraceError, match=r"cannot be a ndarray of float64 with shape \(3,\)"):
            call()
    assert (np.float32(2) * own.x).dtype is DataType.Float


def two(x: Any, y: Any) -> Any:
    return x + y


@pytest.mark.parametrize("keyword", ["static_argnums", "donate_argnums", "static_argnames", "donate_argnames"])
@pytest.mark.parametrize("value", ["x y", 7, -3, True, 1.0, None, [0, 0], ["x", "x"], [None], {}, b"x", 2**70])
def test_positions_and_names_that_no_parameter_has_are_refused_by_the_name_of_the_option(
    keyword: str, value: Any
) -> None:
    with pytest.raises(TraceError, match=rf"^{keyword}[ :].*\(test_wrong_calls.py:\d+\)\n  hint: ") as caught:
        fuse(two, **{keyword: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [3, "one_op_a_segment", [], rules, np.ones(2)])
def test_a_rule_that_cannot_be_called_is_refused(value: Any) -> None:
    with pytest.raises(TraceError, match=r"^merge cannot be "):
        fuse(two, merge=value)
    with pytest.raises(TraceError, match=r"^segment: merge cannot be "):
        recorded().segment(merge=value)
    with pytest.raises(TypeError, match="a predicate must be a function of two groups"):
        rules.both(rules.library_alone, value)


def test_options_refuse_every_wrong_value_by_their_name() -> None:
    for name in tracefuse.config.TABLE:
        for value in WRONG:
            error = refusal(lambda: tracefuse.config.checked({name: value}, "options()"))  # noqa: B023
            option = tracefuse.config.TABLE[name]
            assert error is not None or type(value) in (type(option.default), bool if option.booleans else None)
            assert error is None or re.match(
                rf"option {name} cannot (be|hold) .{{1,100}} \(options\(\)\)\n", str(error)
            )
    with pytest.raises(OptionError, match="options\\(\\) takes names, got 3"), tracefuse.options(3):
        pass


def test_shapes_and_types_that_no_array_has_are_refused() -> None:
    for value in WRONG:
        for call in (lambda: ShapeDtype(value, np.float32), lambda: ShapeDtype((2,), value)):  # noqa: B023
            refusal(call)
    with pytest.raises(ShapeError, match=f"ShapeDtype: shape cannot hold {2**70}"):
        ShapeDtype((2**70,), np.float32)


def test_what_takes_more_bytes_than_there_are_addresses_is_refused() -> None:
    with FusionDefinition() as fd:
        n = fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.full([n, n], 1.0))
        with pytest.raises(ShapeError, match=r"full: shape .* has at least \d+ elements"):
            fd.ops.full([2**62, 4], 1.0)
    with pytest.raises(MemoryError):
        fd.execute([2**40])
