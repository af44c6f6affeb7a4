"""Hints that contain code are tried: a function with the code in the place of the refused call gives its value."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import fuse

scipy = pytest.importorskip("scipy")
for _name in ("scipy.special", "scipy.stats"):
    importlib.import_module(_name)

P = np.array([0.2, 0.5, 0.9])
Q = np.array([1.5, 0.25, 2.0])
TABLE = np.zeros((3,))


def function_of(expression: str, parameters: str = "p, q") -> Callable[..., Any]:
    """A function that returns an expression, with its line known to messages."""
    names: dict[str, Any] = {"np": np, "scipy": scipy, "jax": sys.modules.get("jax"), "tracefuse": tracefuse}
    text = f"def function({parameters}):\n    return {expression}\n"
    filename = f"<{expression}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), names)
    return names["function"]  # type: ignore[no-any-return]


def refusal_of(function: Callable[..., Any], *arguments: Any) -> tracefuse.TracefuseError:
    with pytest.raises(tracefuse.TracefuseError) as caught:
        fuse(function, target="reference")(*arguments)
    return caught.value


def check_code(expression: str, expected: Any, tolerance: float = 1e-12) -> None:
    """The call is refused at its own line, and the code of the hint gives the expected value."""
    error = refusal_of(function_of(expression), P, Q)
    assert error.where == f"<{expression}>:2"
    assert error.hint is not None
    assert error.hint.startswith("write ")
    result = fuse(function_of(error.hint.removeprefix("write ")), target="reference")(P, Q)
    np.testing.assert_allclose(result, expected, rtol=tolerance)


@pytest.mark.parametrize(
    "expression",
    [
        "scipy.stats.norm.cdf(p)", "scipy.stats.norm.cdf(p, q.mean(), 2)", "scipy.stats.norm.sf(p - 1)",
        "scipy.stats.norm.pdf(p, loc=0.5, scale=q)", "scipy.stats.norm.pdf(-p)", "scipy.stats.norm.logpdf(p, 1)",
        "scipy.stats.norm.logcdf(p)", "scipy.stats.zscore(p + q)",
        *(f"scipy.special.{name}(p)" for name in (
            "cosdg", "cosm1", "entr", "exp10", "log_expit", "log_ndtr", "logit", "ndtr", "ndtri", "sindg", "exp2",
            "cbrt", "j0", "softmax", "log_softmax", "logsumexp",
        )),
        *(f"scipy.special.{name}(p, q - 0.125)" for name in (
            "boxcox", "betaln", "huber", "pseudo_huber", "rel_entr", "kl_div", "xlog1py", "xlogy",
        )),
    ],
)  # fmt: skip
def test_functions_of_scipy_record(expression: str) -> None:
    function = function_of(expression)
    result = fuse(function, target="reference")(P, Q)
    np.testing.assert_allclose(result, function(P, Q), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        *((f"jax.nn.{name}(p - 0.5)", f"jax.nn.{name}") for name in (
            "elu", "gelu", "leaky_relu", "log_sigmoid", "log_softmax", "relu", "relu6", "sigmoid", "silu", "softmax",
            "softplus",
        )),
        ("jax.numpy.exp(p)", "jax.numpy.exp"), ("jax.lax.rsqrt(q)", "jax.lax.rsqrt"),
        ("jax.lax.select(p > 0.3, p, q)", "jax.lax.select"), ("jax.lax.erf(p)", "jax.lax.erf"),
        ("jax.lax.stop_gradient(p)", "jax.lax.stop_gradient"),
    ],
)  # fmt: skip
def test_functions_of_jax(call: str, name: str) -> None:
    pytest.importorskip("jax")
    error = refusal_of(function_of(call), P, Q)
    assert error.message.startswith(
        (f"{name}() of a traced array, which depends on p", f"{name}() only takes JAX arrays")
    )
    code, _, frontend = error.hint.removeprefix("write ").partition(", or name the frontend: ")  # type: ignore[union-attr]
    assert frontend == "@fuse(frontend='jax')"
    by_jax = fuse(function_of(call), target="reference", frontend="jax")(P, Q)
    np.testing.assert_allclose(by_jax, np.asarray(function_of(call)(P, Q)), rtol=2e-5, atol=1e-6)
    code = call.replace("jax.numpy.exp", "np.exp") if name == "jax.numpy.exp" else code
    result = fuse(function_of(code), target="reference")(P, Q)
    np.testing.assert_allclose(result, np.asarray(function_of(call)(P, Q), np.float64), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        "jax.lax.scan(lambda c, y: (c + y, c), 0.0, p)", "jax.lax.fori_loop(0, 3, lambda k, c: c + 1, p)",
        "jax.lax.while_loop(lambda c: c.sum() < 100, lambda c: c + 1, p)",
        "jax.lax.cond(p.sum() > 0, lambda x: x, lambda x: -x, p)", "jax.grad(lambda x: (x * x).sum())(p)",
        "jax.value_and_grad(lambda x: (x * x).sum())(p)", "jax.vjp(lambda x: x * 2, p)[0]",
        "jax.jvp(lambda x: x * x, (p,), (q,))", "jax.checkpoint(lambda x: x * 2)(p)",
    ],
)  # fmt: skip
def test_functions_of_jax_that_tracefuse_has(call: str) -> None:
    jax = pytest.importorskip("jax")
    error = refusal_of(function_of(call), P, Q)
    code = error.hint.removeprefix("write ").partition(", or name the frontend: ")[0]  # type: ignore[union-attr]
    assert code.startswith(f"tracefuse.{call.partition('(')[0].rpartition('.')[2]}(")
    tail = "[0]" if call.endswith("[0]") else ""
    result = fuse(function_of(code + tail), target="reference")(P, Q)
    expected = function_of(call)(jax.numpy.asarray(P), jax.numpy.asarray(Q))
    for actual, wanted in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-5)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("jax.lax.map(lambda x: x * 2, p)", "write a Python loop over the rows, and np.stack of its results"),
        ("jax.lax.switch(1, [abs, lambda x: -x], p)", "branch on the index with if, or nest tracefuse.cond"),
        ("jax.vmap(lambda x: x * 2)(p)", "write the function for arrays with one more axis"),
    ],
)
def test_functions_of_jax_that_take_functions(call: str, hint: str) -> None:
    pytest.importorskip("jax")
    error = refusal_of(function_of(call), P, Q)
    name = call.partition("(")[0]
    assert error.message == f"{name}() of a traced array, which depends on p"
    assert error.hint == f"{hint}, or name the frontend: @fuse(frontend='jax')"


@pytest.mark.parametrize("call", ["np.exp(p)", "np.maximum(1.5, p)"])
@pytest.mark.parametrize("values", [[1.0, 2.0, 4.0], [[1.0, 2.0], [3.0, 5.0]]])
def test_functions_of_lists_of_numbers(call: str, values: Any) -> None:
    fused = fuse(function_of(call, "p"), target="reference")
    np.testing.assert_array_equal(fused(values), function_of(call, "p")(values))


@pytest.mark.parametrize("call", ["np.exp(p)", "np.maximum(1.5, p)"])
@pytest.mark.parametrize("values", [(1.0, np.float64(2.0)), [P, Q]])
def test_functions_of_lists_of_arrays(call: str, values: Any) -> None:
    fused = fuse(function_of(call, "p"), target="reference")
    np.testing.assert_allclose(fused(values), function_of(call, "p")(values), rtol=1e-14)


def fill_foreign(x: Any) -> Any:
    own = importlib.import_module("numpy")  # what a library function returns has no overlay
    table = own.zeros((2, 3))
    table[0] = x
    return table


def fill_imported(x: Any) -> Any:
    import numpy as own

    table = own.zeros((2, 3))
    table[0] = x
    return table


def fill_recorded(x: Any) -> Any:
    own = importlib.import_module("numpy")
    table = own.zeros((2, 3))
    table = np.zeros_like(x, shape=table.shape)
    table[0] = x
    return table


def test_filling_an_array_that_no_trace_knows() -> None:
    error = refusal_of(fill_foreign, P)
    code = "table = np.zeros_like(x, shape=table.shape)"
    assert error.hint == f"begin with {code}, of a traced array x, and assign to it"
    for function in (fill_recorded, fill_imported):
        np.testing.assert_array_equal(fuse(function, target="reference")(P), fill_foreign(P))


def test_assignment_as_jax_writes_it() -> None:
    error = refusal_of(lambda x: x.at[0].set(7), P)
    assert error.hint == "copy the array and assign: y = x.copy(); y[index] = value"

    def assigned(x: Any, index: Any, value: Any) -> Any:
        y = x.copy()
        y[index] = value
        return y

    np.testing.assert_array_equal(fuse(assigned, target="reference")(P, 0, 7), [7, 0.5, 0.9])


def test_a_boundary_names_the_value_of_its_step() -> None:
    explanation = fuse(lambda x: np.exp(x @ x)).explain(np.ones((3, 3)))
    reason = "this step always runs as a segment of its own (step='step 0 (T1 = matmul)')"
    assert str(explanation.boundaries[0, 1]) == reason
