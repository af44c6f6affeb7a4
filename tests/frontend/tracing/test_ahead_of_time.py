"""The steps of a call by the names of jax.stages, beside JAX's own figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tracefuse
from tracefuse import ShapeDtype, fuse


def layer(parameters: Any, x: Any, scale: float = 1.0) -> Any:
    hidden = jnp.tanh(parameters["w"] @ x) + scale
    return {"hidden": hidden, "total": hidden.sum(axis=1)}


SHAPES = ({"w": jax.ShapeDtypeStruct((4, 8), jnp.float32)}, jax.ShapeDtypeStruct((8, 16), jnp.float32))


def arrays_of(rows: int) -> tuple[Any, Any]:
    random = np.random.default_rng(rows)
    return {"w": jnp.asarray(random.random((rows, 8), np.float32))}, jnp.asarray(random.random((8, 16), np.float32))


def test_the_steps_describe_arguments_and_results_as_jax_does() -> None:
    ours, theirs = fuse(layer).trace(*SHAPES), jax.jit(layer).trace(*SHAPES)
    compiled = ours.lower().compile()
    for step in (ours, ours.lower(), compiled):
        (parameters, x), keywords = step.args_info
        assert (parameters["w"].shape, x.dtype, x.donated, keywords) == ((4, 8), np.float32, False, {})
        assert {name: (one.shape, one.dtype) for name, one in step.out_info.items()} == {
            name: (one.shape, one.dtype) for name, one in theirs.out_info.items()
        }
        assert (step.in_tree.num_leaves, step.out_tree.num_leaves) == (2, 2)
        assert step.fun_name == "layer"
    assert fuse(layer).eval_shape(*SHAPES)["total"].shape == (4,)


def test_a_compiled_call_computes_what_the_function_does() -> None:
    fused = fuse(layer)
    compiled = fused.lower(*SHAPES).compile()
    for _ in range(3):
        result = compiled(*arrays_of(4))
        assert isinstance(result["hidden"], jax.Array)
        for name, expected in layer(*arrays_of(4)).items():
            assert jnp.allclose(result[name], expected, atol=1e-5)
    assert compiled(*arrays_of(5))["total"].shape == (5,)
    assert fused.cache_info()[:2] == (1, 1)


def test_a_compiled_call_neither_traces_nor_compiles() -> None:
    fused = fuse(layer)
    compiled = fused.lower(*SHAPES).compile()
    parameters, x = arrays_of(4)
    for args, message in (
        ((parameters,), "the arguments were"),
        (({"w": parameters["w"].astype(int)}, x), "parameters['w'] was float32"),
        (({"w": np.ones((4, 8), np.float32)}, np.ones((8, 16), np.float32)), "the arrays were of jax, now of numpy"),
        (({"w": parameters["w"][:1]}, x), "parameters['w'] was"),
        ((parameters, x, 2.0), "the arguments were"),
    ):
        with pytest.raises(tracefuse.TraceError) as raised:
            compiled(*args)
        assert message in str(raised.value)
        assert "trace and compile it for these arguments" in str(raised.value)
    strided = fuse(lambda x: x + 1.0)
    with pytest.raises(tracefuse.ShapeError, match="not compiled for these sizes and layouts"):
        strided.lower(ShapeDtype((4, 4), float)).compile()(np.ones((4, 8))[:, ::2])
    assert fused.cache_info()[:2] == strided.cache_info()[:2] == (1, 1)


@pytest.mark.parametrize(
    "function", [lambda x, y: x @ y, lambda x, y: jnp.exp(x), lambda x, y: y * 2 + 1, lambda x, y: jnp.tanh(x @ y) - 1]
)
def test_costs_are_those_that_xla_counts(function: Any) -> None:
    types = jax.ShapeDtypeStruct((16, 32), jnp.float32), jax.ShapeDtypeStruct((32, 8), jnp.float32)
    ours = fuse(function).lower(*types).compile().cost_analysis()
    theirs = jax.jit(function).lower(*types).compile().cost_analysis()
    assert ours["flops"] == pytest.approx(theirs.get("flops", 0), rel=0.01)
    assert ours["transcendentals"] == theirs.get("transcendentals", 0)
    assert ours["bytes accessed"] == pytest.approx(theirs["bytes accessed"], rel=0.25)
    assert ours["launches"] >= 1


def test_a_loop_counts_each_of_its_steps() -> None:
    def steps(x: Any, rows: Any) -> Any:
        return tracefuse.scan(lambda carry, row: (np.tanh(carry) + row, carry), x, rows)

    def cost_of(count: int) -> dict[str, float]:
        return fuse(steps).lower(ShapeDtype((8,), float), ShapeDtype((count, 8), float)).cost_analysis()

    assert (cost_of(10)["flops"], cost_of(10)["transcendentals"]) == (80.0, 80.0)
    assert cost_of(30)["bytes accessed"] == 3 * cost_of(10)["bytes accessed"]
    counted = fuse(lambda x: tracefuse.fori_loop(0, 6, lambda k, y: y * 2, x)).lower(ShapeDtype((8,), float))
    assert counted.cost_analysis()["flops"] == 48.0


def test_memory_is_what_arguments_results_and_temporaries_take() -> None:
    def function(x: Any, y: Any) -> Any:
        return np.exp(x) * y

    shapes = (ShapeDtype((1000,), float),) * 2
    plain = fuse(function).lower(*shapes).compile().memory_analysis()
    assert (plain.argument_size_in_bytes, plain.output_size_in_bytes) == (16000, 8000)
    assert (plain.alias_size_in_bytes, plain.temp_size_in_bytes, plain.peak_memory_in_bytes) == (0, 0, 24000)
    fused = fuse(function, donate_argnums=(0,))
    compiled = fused.lower(*shapes).compile()
    assert compiled.memory_analysis().alias_size_in_bytes == 8000
    assert compiled.memory_analysis().peak_memory_in_bytes == 16000
    assert compiled.donate_argnums == (0,)
    assert np.array_equal(compiled(np.zeros(1000), np.ones(1000)), np.ones(1000))
    assert fused.cache_info().compiles == 1


def test_texts_show_every_segment() -> None:
    fused = fuse(lambda x: np.sort(np.exp(x)) + 1)
    lowered = fused.lower(ShapeDtype((50,), float))
    count = len(fused.segments(ShapeDtype((50,), float)))
    assert lowered.as_text("fusion").startswith("fusion(")
    assert lowered.as_text("segments").count("def nvfuser_fusion_id") == count
    for dialect in ("kernel", "source"):
        assert lowered.as_text(dialect).count("# segment ") == count
    assert "target cpu" in lowered.as_text()
    assert "define" in lowered.compile().as_text()
    assert [node.op.name for node in fused.trace(ShapeDtype((50,), float)).fusion.nodes] == ["exp", "sort", "add"]
    with pytest.raises(tracefuse.OptionError, match="use one of fusion, segments, kernel, source"):
        lowered.as_text("stablehlo")


def test_methods_and_state_are_those_of_the_call() -> None:
    class Scaled(SimpleNamespace):
        @fuse
        def apply(self, x: Any) -> Any:
            self.calls += 1
            return x * self.factor

    scaled = Scaled(factor=np.full(3, 2.0), calls=0)
    compiled = scaled.apply.lower(np.ones(3)).compile()
    assert scaled.calls == 0
    assert compiled(np.ones(3)).tolist() == [2.0] * 3
    scaled.factor = np.full(3, 5.0)
    assert compiled(np.ones(3)).tolist() == [5.0] * 3
    assert scaled.calls == 2
    scaled.factor = np.full((2, 3), 5.0)
    with pytest.raises(tracefuse.TraceError, match="factor"):
        compiled(np.ones(3))


def test_a_function_that_asks_about_values_has_no_steps() -> None:
    fused = fuse(lambda x: x + 1 if x.sum() > 0 else x)
    with pytest.raises(tracefuse.UnsupportedError, match="asks about computed values"):
        fused.trace(np.ones(3))


def test_compiled_calls_are_no_part_of_other_traces() -> None:
    compiled = fuse(lambda x: x + 1).lower(np.ones(3)).compile()
    with pytest.raises(tracefuse.TraceError, match=r"call .* itself"):
        fuse(lambda x: compiled(x))(np.ones(3))


def test_a_recorded_value_of_a_jax_function_names_the_line_of_its_operation() -> None:
    def function(x: Any) -> Any:
        y = jnp.sin(x)
        return jnp.cumsum(y) * 2

    first = function.__code__.co_firstlineno
    fusion = fuse(function, frontend="jax").trace(np.ones(3, np.float32)).fusion
    lines = {node.op.name: int(node.where.rpartition(":")[2]) - first for node in fusion.nodes}
    assert (lines["sin"], lines["cumsum"], lines["mul"]) == (1, 2, 2)
