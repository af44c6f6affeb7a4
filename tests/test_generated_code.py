"""Tests generated Python: tracebacks show its text, which is freed with its function."""

from __future__ import annotations

import ast
import gc
import linecache
import pdb
import traceback
from io import StringIO

import numpy as np
import pytest

from tests.repository.parsed_sources import mentioning, tree_of
from tracefuse import fuse, generated_code
from tracefuse.generated_code import compile_expression, compile_function, generated_texts, is_generated

DIVIDES = """def divide(a, b):
    quotient = a / b
    return quotient
"""


def test_a_traceback_shows_the_generated_line() -> None:
    divide = compile_function(DIVIDES, "divide", {}, "call")
    with pytest.raises(ZeroDivisionError) as raised:
        divide(1, 0)
    shown = "".join(traceback.format_exception(raised.value))
    assert "<tracefuse call " in shown
    assert "    quotient = a / b\n" in shown


def test_a_debugger_shows_the_generated_line() -> None:
    divide, output = compile_function(DIVIDES, "divide", {}, "call"), StringIO()
    debugger = pdb.Pdb(stdin=StringIO("step\nstep\nlist\ncontinue\n"), stdout=output, nosigint=True)
    debugger.use_rawinput = False
    debugger.runcall(divide, 6, 3)
    assert "-> quotient = a / b" in output.getvalue()


def test_equal_texts_are_files_of_their_own() -> None:
    first, second = (compile_function(DIVIDES, "divide", {}, "call") for _ in range(2))
    names = {function.__code__.co_filename for function in (first, second)}
    assert len(names) == 2
    assert all(is_generated(name) and linecache.getline(name, 2) == "    quotient = a / b\n" for name in names)


def test_lines_go_with_their_function() -> None:
    divide = compile_function(DIVIDES, "divide", {}, "call")
    name = divide.__code__.co_filename
    assert name in generated_texts()
    del divide
    gc.collect()
    assert name not in generated_texts()
    assert name not in linecache.cache


def test_a_full_table_drops_the_oldest_lines_and_keeps_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated_code, "_texts", {})
    monkeypatch.setattr(generated_code, "MOST_TEXTS", 2)
    functions = [compile_expression("v", f"v + {k}", "extent") for k in range(3)]
    assert [function(1) for function in functions] == [1, 2, 3]
    lines = [linecache.getline(function.__code__.co_filename, 2) for function in functions]  # type: ignore[attr-defined]
    assert lines == ["", "    return v + 1\n", "    return v + 2\n"]


def test_checking_linecache_against_files_keeps_generated_lines() -> None:
    divide = compile_function(DIVIDES, "divide", {}, "call")
    linecache.checkcache()
    assert linecache.getline(divide.__code__.co_filename, 1) == "def divide(a, b):\n"


def test_forgotten_plans_leave_no_lines_behind() -> None:
    def run() -> None:
        function = fuse(lambda x: np.exp(x) + x.sum())
        for dtype in (np.float32, np.float64):
            function(np.ones((3, 4), dtype))
        assert any("call" in name for name in generated_texts().keys() - before)

    gc.collect()
    before = generated_texts().keys()
    run()
    gc.collect()
    assert generated_texts().keys() <= before


def test_one_module_executes_text() -> None:
    """`exec` and `eval` outside of it would run lines that no traceback shows."""
    found = set()
    calls = r"\b(exec|eval)\("
    for path in (*mentioning("tracefuse", calls), *mentioning("segments", calls)):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("exec", "eval"):
                found.add(path.stem)
    assert found == {"generated_code"}
