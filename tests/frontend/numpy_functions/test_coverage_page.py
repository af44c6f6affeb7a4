"""docs/coverage.md lists the functions of NumPy and CuPy that record; the tests compare it with the code.

The NumPy part follows from the dispatch tables; test_numpy_coverage.py calls each entry. The CuPy part is tried out:
where CuPy can be imported, the test calls each of its functions on traced arrays; elsewhere it keeps the list. After
a change:

    python -m tests.frontend.numpy_functions.test_coverage_page

It writes the CuPy part only where there is CuPy.
"""

from __future__ import annotations

import re
import textwrap
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontend.numpy_functions import numpy_samples
from tracefuse import fuse
from tracefuse.frontend.numpy_api.hints import refusals
from tracefuse.frontend.numpy_api.protocols.dispatch import FUNCTIONS
from tracefuse.frontend.numpy_api.protocols.ufuncs import COMPOSED, INSTEAD, UFUNC_OPS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "coverage.md"

HEAD = """# Supported functions

The functions of NumPy and CuPy that a fused function can call on its arrays, besides operators, methods and indexing.
`python -m tests.frontend.numpy_functions.test_coverage_page` writes this page, and a test compares it with the code.
The tests call every function listed as recording and compare its values with NumPy's.

Calls of a function with any other one [run the function itself](questions.md#when-the-function-itself-runs), after a
warning with the line and what to write instead.
"""

MIDDLE = """## NumPy functions without a protocol

Functions that create arrays (`np.arange`, `np.zeros`, `np.array`, ...) record, with symbolic sizes, in the fused
function and in the functions and methods of yours that it calls. In functions of installed packages they run during
the trace: their result is a constant of the trace, and a size of a traced array that they use becomes a guard. See
[functions of other installed packages](library_functions.md#functions-of-other-installed-packages).
`tracefuse.xp` and the functions that end in `_like` keep sizes symbolic there too.

Calls that convert an argument to numbers (`np.asarray_chkfinite`, `dot` of a NumPy array, indexing a NumPy array) raise
`TraceError`, which names the call and what to write instead: `np.take`, `np.stack`.

## CuPy
"""


def dispatching(module: Any) -> dict[str, Any]:
    found = {name: getattr(module, name) for name in module.__all__}
    return {n: f for n, f in sorted(found.items()) if isinstance(f, np.ufunc) or hasattr(f, "_implementation")}


def records(function: Any) -> bool:
    return function in FUNCTIONS or function in UFUNC_OPS or function in COMPOSED


def names(found: list[str]) -> str:
    return textwrap.fill(", ".join(f"`{name}`" for name in found), 118, break_long_words=False, break_on_hyphens=False)


def table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| function | what to write |", "|---|---|", *(f"| `{name}` | {hint} |" for name, hint in rows)])


def numpy_part() -> str:
    parts = []
    for title, module in (("NumPy", np), ("numpy.linalg", np.linalg), ("numpy.fft", np.fft)):
        functions = dispatching(module)
        recorded = [name for name, function in functions.items() if records(function)]
        refused = {name: function for name, function in functions.items() if not records(function)}
        ufuncs = sum(isinstance(functions[name], np.ufunc) for name in recorded)
        parts.append(f"## {title}\n\n{len(recorded)} of {len(functions)} record"
                     + (f", {ufuncs} of them ufuncs" if ufuncs else "") + f":\n\n{names(recorded)}\n")  # fmt: skip
        hints = {**refusals.INSTEAD, **INSTEAD}
        rows = [(name, hints.get(name, refusals.OUTSIDE)) for name in refused]
        if rows:
            parts.append(f"These raise:\n\n{table(rows)}\n")
        if module is np:
            methods = "`ufunc.reduce`, `accumulate`, `outer` and `at` record for these ufuncs: `reduce` of add, "
            methods += "multiply, maximum, minimum, logical_and, logical_or, logical_xor, logaddexp and logaddexp2, "
            methods += "`accumulate` of the first six, `outer` of all, `at` of add and subtract. These functions "
            methods += "change their first argument: " + ", ".join(f"`{n}`" for n in numpy_samples.CHANGES) + "."
            parts.append(textwrap.fill(methods, 118, break_long_words=False, break_on_hyphens=False) + "\n")
    return "\n".join(parts)


# -- CuPy --------------------------------------------------------------------------------------------------------------


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, (tuple, list)):
        return len(found) == len(expected) and all(map(_same, found, expected))
    if isinstance(expected, (type, np.dtype)):
        return bool(found == expected)
    found, expected = np.asarray(found), np.asarray(expected)
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    return np.allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def _records_in_cupy(cupy: Any, call: str) -> bool:
    """Whether CuPy's function of the same name, called on traced arrays, returns what NumPy's returns."""
    arguments = {name: numpy_samples.NAMES[name] for name in numpy_samples.used(call)}
    given = ", ".join(arguments)
    traced = eval(f"lambda {given}: cupy{call.removeprefix('np')}", {"cupy": cupy, "np": np})
    expected = eval(f"lambda {given}: {call}", {"np": np})
    try:
        with np.errstate(all="ignore"):
            return _same(fuse(traced, target="reference")(*arguments.values()), expected(*arguments.values()))
    except Exception:  # whatever CuPy raises over what is not its own
        return False


def cupy_functions(cupy: Any) -> dict[str, bool]:
    """The functions of CuPy's namespace that NumPy has as functions of arrays, and whether each records."""
    found = {}
    for name in sorted(dir(cupy)):
        function = getattr(cupy, name)
        if name.startswith("_") or isinstance(function, (type, types.ModuleType)) or not callable(function):
            continue
        calls = [c for c in numpy_samples.SAMPLES.get(name, ()) if c.startswith(f"np.{name}(")]
        if calls:
            found[name] = _records_in_cupy(cupy, calls[0])
        elif name in dispatching(np):
            found[name] = False
    return found


def cupy_part(cupy: Any) -> str:
    functions = cupy_functions(cupy)
    recorded = [name for name, works in functions.items() if works]
    by_numpy = [n for n, works in functions.items() if not works and records(getattr(np, n))]
    neither = [n for n, works in functions.items() if not works and not records(getattr(np, n))]
    return f"""
CuPy's ufuncs, and its functions that call a method of their argument, record on traced arrays. Of the {len(functions)}
functions that CuPy {cupy.__version__} shares with NumPy these {len(recorded)} do:

{names(recorded)}

These {len(by_numpy)} take CuPy arrays only and raise on traced arrays. Write NumPy's function of the same name, which
returns CuPy arrays for CuPy arrays (`np.concatenate` for `cupy.concatenate`):

{names(by_numpy)}

These {len(neither)} record under neither name; the reasons are above:

{names(neither)}
"""


def page(cupy_text: str) -> str:
    return f"{HEAD}\n{numpy_part()}\n{MIDDLE}{cupy_text}"


def kept_cupy_part() -> str:
    return PAGE.read_text().partition("## CuPy\n")[2]


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.4.0", reason="the page is about NumPy 2.4")
def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(kept_cupy_part()), "run python -m tests.frontend.numpy_functions.test_coverage_page"


def test_the_counts_of_the_page_are_those_of_its_lists() -> None:
    text = PAGE.read_text()
    counted = re.findall(r"(\d+)(?: of \d+ record| do(?=:)| take CuPy| record under)(?s:.*?):\n\n((?:`.*\n)+)", text)
    assert len(counted) == 6
    for count, listed in counted:
        assert int(count) == listed.count("`") // 2


def test_the_readme_says_how_many_record() -> None:
    counts = re.findall(r"(\d+) of (\d+) record", PAGE.read_text())
    recorded, all_of_them = (sum(int(count[k]) for count in counts) for k in (0, 1))
    readme = (PAGE.parents[1] / "README.md").read_text()
    assert f"{recorded} of NumPy's {all_of_them}" in " ".join(readme.split())


def test_the_part_of_cupy_is_current() -> None:
    cupy = pytest.importorskip("cupy")
    listed = re.search(r"shares with NumPy these \d+ do:\n\n((?:`.*\n)+)", kept_cupy_part())
    assert listed is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cupy_functions(cupy)
    stated = set(re.findall(r"`(\w+)`", listed[1]))
    assert {name for name in stated if name in found and not found[name]} == set()


if __name__ == "__main__":
    try:
        import cupy
    except ImportError:
        PAGE.write_text(page(kept_cupy_part()))
    else:
        warnings.simplefilter("ignore")
        PAGE.write_text(page(cupy_part(cupy)))
