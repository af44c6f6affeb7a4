"""Products that a library computes with a bias, a residual and an activation, and those that it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import DataType, FusionDefinition, ShapeDtype, fuse, options
from tracefuse.diagnostics.explain import Explanation
from tracefuse.ir.reference import evaluate
from tracefuse.passes.separate_biases import separate_biases

M, K, N = 320, 576, 128
"""A product with more terms than a kernel of the GPU takes."""


def explained(function: Callable[..., Any], dtype: Any = np.float16, **settings: Any) -> Explanation:
    arguments = [ShapeDtype(shape, dtype) for shape in ((M, K), (K, N), (N,), (M, N), (M, 1))]
    with options(target="cuda", **settings):
        return fuse(function).explain(*arguments)


def epilogues(explanation: Explanation) -> list[str]:
    """The epilogues of the products of a plan."""
    functions = [function for segment in explanation.plan.segments for function in segment.functions]
    return [str(function.epilogue) for function in functions if hasattr(function, "epilogue")]


def gelu(y: Any) -> Any:
    return 0.5 * y * (1 + np.tanh(0.7978845608 * (y + 0.044715 * y**3)))


def other_gelu(y: Any) -> Any:
    return y * (0.5 + 0.5 * np.tanh(float(np.sqrt(2 / np.pi)) * (y + 0.044715 * y * y * y)))


COMPUTED: dict[str, tuple[Callable[..., Any], str]] = {
    "bias": (lambda x, w, b, r, c: x @ w + b, "bias"),
    "bias first": (lambda x, w, b, r, c: b + x @ w, "bias"),
    "a row": (lambda x, w, b, r, c: x @ w + b[None, :], "bias"),
    "a spread bias": (lambda x, w, b, r, c: x @ w + np.broadcast_to(b, (x.shape[0], b.shape[0])), "bias"),
    "residual": (lambda x, w, b, r, c: r + x @ w, "residual"),
    "both": (lambda x, w, b, r, c: r + (x @ w + b), "bias + residual"),
    "both, the residual first": (lambda x, w, b, r, c: x @ w + r + b, "bias + residual"),
    "relu": (lambda x, w, b, r, c: np.maximum(x @ w + b, 0), "bias + relu"),
    "relu alone": (lambda x, w, b, r, c: np.maximum(0.0, x @ w), "relu"),
    "scale": (lambda x, w, b, r, c: x @ w * 0.3 + b, "scale 0.3 + bias"),
    "a power of two": (lambda x, w, b, r, c: x @ w / 8 + r, "scale 0.125 + residual"),
    "gelu": (lambda x, w, b, r, c: gelu(x @ w + b), "bias + gelu"),
    "another gelu": (lambda x, w, b, r, c: other_gelu(x @ w + r + b), "bias + residual + gelu"),
    "a transposed weight": (lambda x, w, b, r, c: x @ np.ascontiguousarray(w.T).T + b, "bias"),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_an_epilogue_is_one_call_with_its_product(name: str) -> None:
    function, epilogue = COMPUTED[name]
    assert epilogues(explained(function)) == [epilogue]


def test_the_positive_part_of_a_definition_is_a_relu() -> None:
    with FusionDefinition() as fd:
        x, w = (fd.define_tensor([-1, -1], [True, True], dtype=DataType.Half) for _ in range(2))
        fd.add_output(fd.ops.relu(fd.ops.matmul(x, w)))
    with options(target="cuda"):
        assert epilogues(fd.explain([ShapeDtype((M, K), np.float16), ShapeDtype((K, N), np.float16)])) == ["relu"]


@pytest.mark.parametrize("axes", [2, 3])
def test_the_bias_of_a_linear_layer_of_a_definition_is_an_epilogue(axes: int) -> None:
    with FusionDefinition() as fd:
        ranks = (axes, 2, 1)
        x, w, b = (fd.define_tensor([-1] * n, [True] * n, dtype=DataType.Half) for n in ranks)
        fd.add_output(fd.ops.relu(fd.ops.linear(x, w, b)))
    shapes = ((M, K) if axes == 2 else (2, M, K), (N, K), (N,))
    with options(target="cuda"):
        assert epilogues(fd.explain([ShapeDtype(shape, np.float16) for shape in shapes])) == ["bias + relu"]
    arrays = [np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((3, 4), (5, 4), (5,))]
    with FusionDefinition() as fd:
        x, w, b = (fd.define_tensor([-1] * n, [True] * n) for n in (2, 2, 1))
        fd.add_output(fd.ops.linear(x, w, b))
    separated = separate_biases(fd.fusion)
    assert [node.op.name for node in separated.nodes] == ["linear", "broadcast", "add"]
    (result,) = evaluate(separated, arrays)
    np.testing.assert_allclose(result, arrays[0] @ arrays[1].T + arrays[2], rtol=1e-6)


APART: dict[str, Callable[..., Any]] = {
    "one value for each row": lambda x, w, b, r, c: x @ w + c,
    "a product that is returned": lambda x, w, b, r, c: (y := x @ w, y + b),
    "a product that is read twice": lambda x, w, b, r, c: (x @ w + b) * (x @ w),
    "silu": lambda x, w, b, r, c: (y := x @ w) / (1 + np.exp(-y)),
    "other numbers than a gelu's": lambda x, w, b, r, c: (y := x @ w) * (0.5 + 0.5 * np.tanh(0.8 * (y + 0.045 * y**3))),
    "another limit": lambda x, w, b, r, c: np.maximum(x @ w, 0.5),
    "another type": lambda x, w, b, r, c: (x @ w).astype(np.float32) + 1,
    "a vector": lambda x, w, b, r, c: x @ w[:, 0] + c[:, 0],
    "work that a kernel does as well": lambda x, w, b, r, c: np.tanh(x @ w + b) * r,
}


@pytest.mark.parametrize("name", APART)
def test_other_work_after_a_product_is_a_kernel(name: str) -> None:
    assert epilogues(explained(APART[name])) == []


def test_a_stored_part_of_what_follows_is_an_epilogue() -> None:
    """The kernel that goes on from the sum would store it, too."""

    def block(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
        y = r + (x @ w + b)
        return y, y / np.sqrt((y * y).mean(-1, keepdims=True))

    explanation = explained(block)
    assert epilogues(explanation) == ["bias + residual"]
    assert [segment.template for segment in explanation.plan.segments] == ["library", "row"]


def test_refusals_are_explained() -> None:
    def both(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
        return x @ w + b + r

    single = explained(both, np.float32)
    assert epilogues(single) == []
    assert "adding the residual before the bias rounds differently" in single.segmentation.divided_products.values()
    assert "products that are computed without what follows:\n  T" in str(single)
    assert "cuBLASLt has no epilogues in float64" in str(explained(lambda x, w, b, r, c: x @ w + b, np.float64))


def test_float32_takes_one_addend() -> None:
    assert epilogues(explained(lambda x, w, b, r, c: np.maximum(x @ w + b, 0), np.float32)) == ["bias + relu"]
    assert epilogues(explained(lambda x, w, b, r, c: gelu(x @ w + b), np.float32)) == []


def test_epilogues_are_kernels_where_options_ask_for_it() -> None:
    def function(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
        return x @ w + b

    assert epilogues(explained(function, disable="product_epilogues")) == []
    assert epilogues(explained(function, exact_half=True)) == []
