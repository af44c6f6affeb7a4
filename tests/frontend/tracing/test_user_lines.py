"""Tests the user's line in messages for files, lambdas, `python -c`, standard input and notebooks."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest

from tracefuse import TraceError, fuse, source

X = np.ones((2, 3), np.float32)

FAILING = """\
import numpy as np
from tracefuse import fuse

@fuse
def f(x):
    y = x + 1
    return float(y)  # line 7

f(np.ones(3))
"""


def where_of(code: str, filename: str) -> str | None:
    """Where the error of FAILING is, compiled under a filename."""
    with pytest.raises(TraceError) as caught:
        exec(compile(code, filename, "exec"), {"__name__": "__main__"})
    return caught.value.where


@pytest.mark.parametrize(
    ("filename", "where"),
    [
        ("model.py", "model.py:7"),
        ("/home/me/some where/model.py", "model.py:7"),
        ("<string>", "<string>:7"),
        ("<stdin>", "<stdin>:7"),
        ("<ipython-input-12-0a1b2c3d>", "cell 12:7"),
        ("/tmp/ipykernel_4711/1234567890.py", "cell:7"),
        ("<doctest model[3]>", "<doctest model[3]>:7"),
    ],
)
def test_code_of_every_origin_has_its_line(filename: str, where: str) -> None:
    assert where_of(FAILING, filename) == where


def test_a_cell_of_a_notebook_has_the_number_that_it_was_run_under(monkeypatch: pytest.MonkeyPatch) -> None:
    # What IPython keeps: which execution each compiled file was.
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map={"/tmp/ipykernel_4711/99.py": 3}))
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert where_of(FAILING, "/tmp/ipykernel_4711/99.py") == "cell 3:7"
    assert where_of(FAILING, "/tmp/ipykernel_4711/100.py") == "cell:7"


def test_lambdas_and_nested_functions_have_the_line_of_the_operation() -> None:
    first = sys._getframe().f_lineno + 1
    function = lambda x: (  # noqa: E731
        float(
            x
        )
    )  # fmt: skip
    with pytest.raises(TraceError) as caught:
        fuse(function)(X)
    assert caught.value.where in {f"test_user_lines.py:{first + k}" for k in (0, 1, 2)}

    def outer(x: Any) -> Any:
        def inner(y: Any) -> Any:
            return bool(y)

        return inner(x * 2)

    with pytest.raises(TraceError) as caught:
        fuse(outer)(X)
    assert caught.value.where == f"test_user_lines.py:{sys._getframe().f_lineno - 6}"


@pytest.mark.parametrize("way", ["-c", "-"])
def test_python_c_and_standard_input(way: str) -> None:
    arguments = [sys.executable, "-c", FAILING] if way == "-c" else [sys.executable, "-"]
    run = subprocess.run(arguments, input=None if way == "-c" else FAILING, capture_output=True, text=True, check=False)
    name = "<string>" if way == "-c" else "<stdin>"
    lines = run.stderr.splitlines()
    assert lines[-2:] == [
        f"tracefuse.errors.TraceError: float() of a traced array, which depends on x ({name}:7)",
        "  hint: keep it an array; np.where chooses elements",
    ]
    assert [line.strip() for line in lines if line.startswith("  File")] == [
        f'File "{name}", line 9, in <module>', f'File "{name}", line 7, in f',
    ]  # fmt: skip


def test_values_know_the_line_that_made_them() -> None:
    names: dict[str, Any] = {}
    exec(compile("f = lambda x: (x + 1).sum()", "<stdin>", "exec"), names)
    definition = fuse(names["f"]).definition(X)
    assert [node.where for node in definition.fusion.nodes] == ["<stdin>:1", "<stdin>:1"]


def test_files_of_tracefuse_are_told_from_a_users_file_of_the_same_name() -> None:
    own = os.path.join(os.path.dirname(source.__file__), "trace.py")
    assert source.is_internal(own)
    assert not source.is_internal(os.path.join("home", "me", "tracefuse", "trace.py"))
    assert not source.is_internal(os.path.join(os.path.dirname(os.path.dirname(source.__file__)), "model.py"))
