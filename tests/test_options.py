"""Tests the options that change compiled code: each has a visible effect on both targets."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.ways import backend_of
from tracefuse import FusionDefinition, ShapeDtype, fuse
from tracefuse.compiler.executable import Executable
from tracefuse.config import FEATURES, PASSES, resolve
from tracefuse.diagnostics.error_bounds import bounded_outputs
from tracefuse.ir.reference import evaluate
from tracefuse.kernel.cuda.cuda_compiler import compile_many
from tracefuse.kernel.llvm import worker_pool
from tracefuse.partition.segmentation import segment_fusion

X = np.random.default_rng(0).uniform(1, 2, (64, 96)).astype(np.float32)
ON_CUDA = ShapeDtype((64, 96), np.float32)


def source(function: Any, argument: Any, **options: Any) -> str:
    with tracefuse.options(**options):
        return "\n".join(segment.source for segment in fuse(function).segments(argument))


def quotient(x: Any) -> Any:
    return np.sqrt(x) / (x + 3) + np.exp(x)


# -- fast_math ---------------------------------------------------------------------------------------------------------


def test_fast_math_sets_flags_in_llvm_and_results_stay_close() -> None:
    plain, fast = source(quotient, X), source(quotient, X, fast_math=True)
    assert "arcp" not in plain
    assert "fdiv nsz arcp afn contract" in fast
    assert re.search(r"call nsz arcp afn contract (float|<\d+ x float>) @llvm\.sqrt\.", fast)
    np.testing.assert_allclose(fuse(quotient, fast_math=True)(X), quotient(X), rtol=1e-5)


def test_fast_math_in_cuda_is_options_of_the_compiler_and_approximate_functions() -> None:
    plain = fuse(quotient, target="cuda").segments(ON_CUDA)[0]
    fast = fuse(quotient, target="cuda", fast_math=True).segments(ON_CUDA)[0]
    assert "expf(" in plain.source
    assert "__expf(" not in plain.source
    assert "__expf(" in fast.source
    assert "fast math" in fast.kernel
    assert compile_many([launch.kernel for launch in (*plain.launches, *fast.launches)], architecture="sm_90")


# -- exact_half --------------------------------------------------------------------------------------------------------


def halves(x: Any) -> Any:
    return (x * 1.1 + 0.3) * x - x


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_exact_half_rounds_after_every_operation(dtype: Any) -> None:
    fd = FusionDefinition()
    with fd:
        x = fd.define_tensor([-1], dtype={"bfloat16": tracefuse.DataType.BFloat16}.get(dtype, tracefuse.DataType.Half))
        fd.add_output((x * x + x) * x - x)
    given = np.random.default_rng(1).uniform(1, 2, 4096).astype(fd.fusion.values[0].dtype.numpy)
    (every_op,) = evaluate(fd.fusion, [given])
    (outputs_alone,) = evaluate(fd.fusion, [given], rounded=())
    assert (every_op != outputs_alone).any()
    with tracefuse.options(exact_half=True, contract=False):
        np.testing.assert_array_equal(fd.execute([given])[0], every_op)
    with tracefuse.options(contract=False):
        np.testing.assert_array_equal(fd.execute([given])[0], outputs_alone)


@pytest.mark.parametrize("backend", ["interpreter", "interpreter-cuda"])
def test_exact_half_means_the_same_in_the_kernels_of_both_targets(backend: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=tracefuse.DataType.Half)
        y = fd.ops.exp(x) * x + x
        fd.add_output(fd.ops.sum(y * y - x, [1]))
    given = np.random.default_rng(2).uniform(0, 1, (5, 9)).astype(np.float16)
    bounded, _ = bounded_outputs(fd.fusion, [given])[0]
    options = resolve({"exact_half": True})
    (result,) = Executable(segment_fusion(fd.fusion), backend_of(backend), options=options)([given])
    (every_op,) = evaluate(fd.fusion, [given])
    np.testing.assert_array_equal(result, every_op)
    assert (result != bounded.astype(np.float16)).any()


def test_exact_half_rounds_reductions_that_more_work_reads() -> None:
    x = X.astype(np.float16)

    def normalised(a: Any) -> Any:
        return a - a.mean(axis=1, keepdims=True)

    expected = (x - x.mean(axis=1, keepdims=True, dtype=np.float32).astype(np.float16)).astype(np.float16)
    np.testing.assert_array_equal(fuse(normalised, exact_half=True)(x), expected)


def test_exact_half_shows_in_cuda_kernels() -> None:
    argument = ShapeDtype((512,), np.float16)
    plain = fuse(halves, target="cuda").segments(argument)[0]
    exact = fuse(halves, target="cuda", exact_half=True).segments(argument)[0]
    assert exact.kernel.count("f32(f16(") > plain.kernel.count("f32(f16(")
    assert compile_many([launch.kernel for launch in exact.launches], architecture="sm_90")


# -- threads -----------------------------------------------------------------------------------------------------------


def test_threads_is_in_the_kernel_and_one_thread_starts_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    large = np.ones(1 << 20, np.float32)
    alone = fuse(lambda x: x * 2 + 1, threads=1)
    np.testing.assert_array_equal(alone(large), large * 2 + 1)
    assert "at most 1 workers" in alone.segments(large)[0].kernel
    written = fuse(lambda x: x * 2 + 1, target="cuda", threads=1).segments(large)[0].kernel
    assert "workers" not in written
    workers = worker_pool.get_pool()
    assert workers.address_for(0) == workers.address
    assert len({workers.address_for(k) for k in (0, 1, 2)}) == 3
    assert workers.address_for(2) == workers.address_for(2)


# -- disable -----------------------------------------------------------------------------------------------------------


def test_disable_fusion_makes_a_segment_of_each_operation() -> None:
    assert len(fuse(quotient).segments(X)) == 1
    apart = fuse(quotient, disable="fusion")
    assert len(apart.segments(X)) == 5
    np.testing.assert_allclose(apart(X), quotient(X), rtol=1e-6)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.exp(x + x))
    with tracefuse.options(disable="fusion"):
        assert len(fd.segment()) == 2


def test_disable_passes_keeps_what_was_recorded() -> None:
    def twice(x: Any) -> Any:
        return (x + 1) * (x + 1)

    assert len(fuse(twice).definition(X).fusion.nodes) == 2
    plain = fuse(twice, disable="passes")
    assert [node.op.name for node in plain.segments(X)[0].definition.fusion.nodes] == ["add", "add", "mul"]
    np.testing.assert_allclose(plain(X), twice(X), rtol=1e-6)


# -- the table ---------------------------------------------------------------------------------------------------------


def test_questions_are_answered_with_the_options_of_the_decorator() -> None:
    assert "extern" in fuse(quotient, target="cuda").segments(ON_CUDA)[0].source
    assert "no contraction" in fuse(quotient, contract=False).segments(X)[0].kernel


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"disable": "fusoin"},
            "option disable cannot hold 'fusoin' (@fuse)\n  hint: give a comma-separated list of "
            f"{', '.join((*FEATURES, *PASSES))}; did you mean 'fusion'?",
        ),
        (
            {"dump": "kernel,sources"},
            "option dump cannot hold 'sources' (@fuse)\n  hint: give a comma-separated list of fusion, passes, "
            "concretized, segments, kernel, source, host_ir, view; did you mean 'source'?",
        ),
        ({"debug": 5}, "option debug cannot be 5 (@fuse)\n  hint: give an integer from 0 to 4"),
        ({"threads": -1}, "option threads cannot be -1 (@fuse)\n  hint: give an integer from 0 to 4096"),
    ],
)
def test_lists_and_limits_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(tracefuse.OptionError) as error:
        fuse(quotient, **given)
    assert str(error.value) == message
