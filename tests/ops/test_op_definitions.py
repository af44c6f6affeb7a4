"""Tests that op definitions are complete: declared errors hold, and no other layer names an op."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.repository.parsed_sources import ROOT, mentioning, tree_of
from tracefuse.diagnostics.error_bounds import bounded_outputs
from tracefuse.dtypes import bool_, float32
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import evaluate
from tracefuse.ops import REGISTRY, Pointwise, Reduction

TREE = ROOT / "tracefuse"
NAMING = {"ops", "definition", "frontend"}
"""The packages that may name ops: where they are defined, and where users call them by name."""

DECLARED = [
    op for op in REGISTRY.values() if isinstance(op, Pointwise) and op.error and op.arity and not op.extra_shape
]
COMBINED = [op for op in REGISTRY.values() if isinstance(op, Reduction) and float32 in op.domain]


def op_comparisons(tree: ast.AST) -> Iterator[str]:
    """`op.name == "add"`, `op.name in (...)` with strings, tables by name, `REGISTRY["add"]` and imported ops."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ast.Attribute(ast.Name("op") | ast.Attribute(attr="op"), "name"), _, [other]):
                if any(isinstance(c, ast.Constant) and c.value in REGISTRY for c in ast.walk(other)):
                    yield ast.unparse(node)
            case ast.Subscript(ast.Name("REGISTRY"), ast.Constant()):
                yield ast.unparse(node)
            case ast.Compare(ast.Name("name"), _, [ast.Constant(value)]) if value in OWN_NAMES:
                yield ast.unparse(node)
            case ast.ImportFrom(module) if module and module.startswith("tracefuse.ops."):
                if any(alias.name in REGISTRY for alias in node.names):
                    yield ast.unparse(node)
            case ast.Dict(keys) if len({k.value for k in keys if isinstance(k, ast.Constant)} & OWN_NAMES) > 1:
                yield ast.unparse(node)[:60]


OWN_NAMES = {
    "sum_of_squares", "segment_set", "iota", "extent", "matmul", "linear", "cast", "rsqrt", "set", "full",
    "ordered_set",
}  # fmt: skip
"""Names of ops that are neither primitives of kernels nor functions of NumPy in other tables."""


WAYS_TO_NAME = rf"op\.name\b|REGISTRY\[|tracefuse\.ops\.|[\"']({'|'.join(OWN_NAMES)})[\"']"
"""What the text of a module with such a comparison has."""


def test_no_pass_template_or_diagnostic_names_an_op() -> None:
    found = {
        str(path.relative_to(TREE)): comparisons
        for path in mentioning("tracefuse", WAYS_TO_NAME)
        if path.relative_to(TREE).parts[0] not in NAMING
        if (comparisons := list(op_comparisons(tree_of(path))))
    }
    assert found == {}


def test_the_search_for_names_of_ops_finds_each_way_to_name_one() -> None:
    code = (
        'node.op.name == "add"\nop.name in ("sum", "prod")\nop.name != "set"\nREGISTRY["cast"]\n'
        'TABLE = {"set": 1, "matmul": 2}\nname == "set"\nfrom tracefuse.ops.pointwise import set as copy\n'
        'node.op.name == name\nloop.name == "i"\nREGISTRY[name]\nfrom tracefuse.ops.roles import COPY'
    )
    lines = [line for line in code.splitlines() if list(op_comparisons(ast.parse(line)))]
    assert lines == code.splitlines()[:7]
    assert all(re.search(WAYS_TO_NAME, line) for line in lines)


def computed_from(function: str, op: Any) -> Fusion:
    """The op of what a function gives in float32, so that its operands are off."""
    builder = FusionBuilder()
    is_choice = isinstance(op, Pointwise) and op.promotion == "where"
    inputs = [builder.tensor_input(bool_ if is_choice and k == 0 else float32, [-1, 8]) for k in range(op.arity or 1)]
    first = REGISTRY[function]
    off = [
        number if builder.values[number].dtype is bool_ else builder.node(first, [number], {}, float32, [float32])[0]
        for number in inputs
    ]
    attributes = dict(op.attributes)
    if isinstance(op, Reduction):
        attributes |= {"dims": (1,)}
        result = op.result_type(float32, "numpy")
        made = builder.node(op, off, attributes, op.compute_type(float32, result), [result])
    else:
        attributes |= {"dtype": float32} if op.result == "dtype" else {}
        made = builder.node(op, off, attributes, float32, [op.result_type(float32)])
    builder.output(made[0])
    return builder.build()


@pytest.mark.parametrize("op", [*DECLARED, *COMBINED], ids=lambda op: op.name)
def test_the_declared_error_bounds_what_float32_computes(op: Any) -> None:
    fusion = computed_from("exp" if op.name == "acosh" else "sin", op)
    random = np.random.default_rng(0)
    arguments = [
        random.uniform(0.1, 1.4, (64, 8)).astype(fusion.values[number].dtype.numpy) for number in fusion.inputs
    ]
    with np.errstate(all="ignore"):
        (narrow,) = evaluate(fusion, arguments)
    ((exact, bound),) = bounded_outputs(fusion, arguments)
    known = np.isfinite(bound)
    difference = np.abs(narrow.astype(exact.dtype) - exact) if exact.dtype != bool else narrow != exact
    assert np.all(difference[known] <= bound[known])
    if narrow.dtype == np.float32:
        assert known.any()
        assert np.all(bound[known] < 1e-3 * np.maximum(1, np.abs(exact[known])))


def test_an_op_without_a_declared_error_is_compared_for_exact_operands_alone() -> None:
    op = REGISTRY["erfc"]
    assert isinstance(op, Pointwise)
    assert op.error is None
    arguments = [np.linspace(0.1, 1.4, 8, dtype=np.float32).reshape(1, 8)]
    ((_, bound),) = bounded_outputs(computed_from("sin", op), arguments)
    assert np.all(np.isinf(bound))
    builder = FusionBuilder()
    builder.output(builder.node(op, [builder.tensor_input(float32, [-1, 8])], {}, float32, [float32])[0])
    ((_, bound),) = bounded_outputs(builder.build(), arguments)
    assert np.all(bound < 1e-5)
