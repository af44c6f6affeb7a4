"""Arguments of a definition: the exact errors before anything runs, and the arrays that need no copy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tracefuse import DataType, FusionDefinition
from tracefuse.compiler.executable import Executable
from tracefuse.errors import DeviceError, DtypeError, FusionError, ScalarError, ShapeError
from tracefuse.partition.segmentation import segment_fusion

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def scaled() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4], contiguity=True, dtype=DataType.Float)
        s = fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.mul(x, s))
    return fd


REFUSED = [
    (
        [X],
        FusionError,
        "the definition takes 2 inputs, got 1 (call)\n"
        "  hint: give one for each define_tensor and define_scalar(None), in order",
    ),
    ([X[0], 2], ShapeError, "input T0 has 1 axes, not 2 (test_call_facts.py:21)\n  hint: its shape is (4,)"),
    (
        [X[:, :3], 2],
        ShapeError,
        "input T0 has 3 elements on axis 1, not 4 (test_call_facts.py:21)\n"
        "  hint: define the axis with -1 for any number of elements",
    ),
    (
        [X.astype(np.float64), 2],
        DtypeError,
        "input T0 is float64, not float32 (test_call_facts.py:21)\n  hint: pass x.astype('float32')",
    ),
    ([3.0, 2], DtypeError, "input T0 is a float, not an array (call)\n  hint: pass an array"),
    ([X, 2.5], DtypeError, "input S1 is int64, got 2.5 (test_call_facts.py:22)\n  hint: pass a Python int"),
    ([X, "two"], DtypeError, "input S1 is int64, got 'two' (test_call_facts.py:22)\n  hint: pass a Python int"),
    (
        [X, 1 << 70],
        ScalarError,
        f"input S1 is int64, got {1 << 70} (test_call_facts.py:22)\n"
        f"  hint: give an integer from {-(2**63)} to {2**63 - 1}",
    ),
]


@pytest.mark.parametrize(("inputs", "kind", "message"), REFUSED, ids=[kind.__name__ for _, kind, _ in REFUSED])
@pytest.mark.parametrize("warm", [False, True])
def test_what_does_not_fit_is_refused_word_for_word(
    inputs: list[Any], kind: type[Exception], message: str, warm: bool
) -> None:
    fd = scaled()
    if warm:
        fd.execute([X, 2])
    with pytest.raises(kind) as caught:
        fd.execute(inputs)
    line = sys._getframe().f_lineno - 1
    assert str(caught.value) == message.replace("(call)", f"(test_call_facts.py:{line})")


def test_sizes_that_do_not_go_together_are_refused_before_anything_runs() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.add(x, y))
    fd.execute([X[0], X[0]])
    with pytest.raises(ShapeError, match=r"add: extents differ on axis 0: 4 and 3 \(test_call_facts.py:"):
        fd.execute([X[0], X[0, :3]])


@pytest.mark.parametrize("two", [2, np.int32(2), np.array(2), True])
def test_a_scalar_may_be_any_number_of_the_kind(two: Any) -> None:
    np.testing.assert_array_equal(scaled().execute([X, two])[0], X * int(two))


@pytest.mark.parametrize("make", [lambda: X[::-1], lambda: np.broadcast_to(X[:1], (3, 4)), lambda: X.view(Subclass)])
def test_strided_broadcast_and_derived_arrays_are_taken_as_they_are(make: Any) -> None:
    given = make()
    result = scaled().execute([given, 3])[0]
    np.testing.assert_array_equal(result, np.asarray(given) * 3)
    assert type(result) is np.ndarray


class Subclass(np.ndarray[Any, Any]):
    """A class of a user's own."""


def test_kernels_for_the_cpu_take_numpy_arrays() -> None:
    class NoArray:
        shape, dtype = (3, 4), np.dtype(np.float32)

    executable = Executable(segment_fusion(scaled().fusion))
    with pytest.raises(DeviceError, match=r"NoArray is no NumPy array\n  hint: pass np.asarray\(x\)"):
        executable([NoArray(), 2])


def test_jax_arrays_come_and_go() -> None:
    jax = pytest.importorskip("jax")
    (result,) = scaled().execute([jax.numpy.asarray(X), 2])
    assert isinstance(result, jax.Array)
    np.testing.assert_array_equal(np.asarray(result), X * 2)
