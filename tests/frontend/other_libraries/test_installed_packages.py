"""Functions of installed packages: fused ones are code of the user, others run as they are or between two stages."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracefuse import TraceError, fuse

_NAMES = (f"installed_package_{k}" for k in itertools.count())

FUSED = """
    import numpy as np
    from tracefuse import fuse

    weights = np.ones(3)
    calls = 0

    class Model:
        def __init__(self):
            self.total, self.calls = np.zeros(3), 0

        @fuse
        def step(self, x):
            self.calls += 1
            self.total = self.total + x
            return self.total * 2

    def scaled(x):
        return np.asarray(x) * weights.sum()

    @fuse
    def apply(x):
        global calls
        calls += 1
        return scaled(x) + weights
"""

PLAIN = """
    import numpy as np

    factor = 2.0

    def doubled(x):
        return np.asarray(x) * factor

    def added(x, y):
        return x + y

    def written(x):
        x += 1
        return np.asarray(x)

    def counted(x, bins):
        counts = np.zeros(bins, int)
        for value in np.asarray(x):
            counts[int(value * bins)] += 1
        return {"counts": counts, "bins": bins}

    def caught(x):
        try:
            return np.asarray(x) * 2
        except TypeError:
            raise ValueError("no array") from None

    class Converted:
        def __init__(self, x):
            self.array = caught(x)

    class Mean:
        def __init__(self, x):
            self.value = float(sum(np.asarray(x).tolist())) / len(x)

        def minus(self, x):
            return x - self.value

    def failing(x):
        if np.asarray(x).sum() > 100:
            raise ValueError("too large")
        return np.asarray(x)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Returns a function that installs a package of the given code, and imports it."""
    folder, installed = tmp_path / "site-packages", []
    monkeypatch.syspath_prepend(str(folder))

    def write(code: str) -> Any:
        name = next(_NAMES)
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(textwrap.dedent(code))
        installed.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    for name in installed:
        del sys.modules[name]


def test_the_state_of_a_package_with_fused_functions_is_never_stale(install: Callable[[str], Any]) -> None:
    package, x = install(FUSED), np.arange(3.0)
    np.testing.assert_array_equal(package.apply(x), x * 3 + 1)
    package.weights[:] = 2
    np.testing.assert_array_equal(package.apply(x), x * 6 + 2)
    package.weights = np.full(3, 5.0)
    np.testing.assert_array_equal(package.apply(x), x * 15 + 5)
    assert package.calls == 3


def test_objects_of_a_package_with_fused_methods_change_as_in_python(install: Callable[[str], Any]) -> None:
    model, x = install(FUSED).Model(), np.arange(3.0)
    for count in (1, 2, 3):
        np.testing.assert_array_equal(model.step(x), count * x * 2)
        np.testing.assert_array_equal(model.total, count * x)
        assert model.calls == count


def test_the_package_of_a_function_that_is_fused_elsewhere_is_traced(install: Callable[[str], Any]) -> None:
    package = install(PLAIN)
    doubled, x = fuse(package.doubled), np.arange(4.0)
    np.testing.assert_array_equal(doubled(x), 2 * x)
    package.factor = 3.0
    np.testing.assert_array_equal(doubled(x), 3 * x)
    assert len(doubled.segments(x)) == 1


def test_a_function_that_asks_for_elements_runs_between_two_stages(install: Callable[[str], Any]) -> None:
    package = install(PLAIN)

    @fuse
    def program(x):
        return package.doubled(x * x) + 1, package.counted(x * 0.5, 4), package.added(x, x)

    for size in (5, 5, 9):
        x = np.linspace(0, 1, size)
        doubled, counted, added = program(x)
        np.testing.assert_allclose(doubled, 2 * x * x + 1)
        expected = package.counted(x * 0.5, 4)
        np.testing.assert_array_equal(counted["counts"], expected["counts"])
        assert counted["bins"] == 4
        np.testing.assert_array_equal(added, 2 * x)
    package.factor = 3.0
    np.testing.assert_allclose(program(x)[0], 3 * x * x + 1)
    assert program.cache_info().traces == 1


def test_an_error_that_a_package_raises_after_ours_is_ours(install: Callable[[str], Any]) -> None:
    package, x = install(PLAIN), np.ones(3)
    np.testing.assert_array_equal(fuse(lambda x: package.caught(x * 2) + 1)(x), x * 5)

    class Own(package.Converted):
        pass

    with pytest.raises(TraceError, match="of a traced array, which depends on x"):
        fuse(lambda x: Own(x).array, target="reference")(x)


def test_an_object_of_a_package_whose_class_asks_for_elements_is_created_in_each_call(
    install: Callable[[str], Any],
) -> None:
    package = install(PLAIN)

    def program(x: Any) -> Any:
        mean = package.Mean(x * 2)
        return mean.minus(x) + mean.value

    fused = fuse(program, target="reference")
    for size in (4, 4, 7):
        x = np.arange(float(size))
        np.testing.assert_allclose(fused(x), program(x))


ESTIMATORS = """
    import numpy as np

    class Line:
        def __init__(self):
            self.fits = 0

        def fit(self, x, y):
            self.fits += 1
            self.slope = float(np.asarray(x) @ np.asarray(y)) / float(np.asarray(x) @ np.asarray(x))
            return self

        def predict(self, x):
            return np.asarray(x) * self.slope
"""


def test_an_estimator_that_is_created_without_arrays_is_fitted_in_each_call(
    install: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = install(ESTIMATORS)
    package.Line.__module__ = "hmmlearn.lines"  # one of the packages of estimators
    trained = package.Line().fit(np.arange(3.0), np.arange(3.0) * 4)

    def program(x: Any, y: Any) -> Any:
        line = package.Line()
        line.fit(x * 2, y)
        return line.predict(x) - y, line.fits, line.fit(x, x).slope, line.fits, trained.predict(x) + 1

    fused, rng = fuse(program, target="reference"), np.random.default_rng(0)
    for size in (5, 5, 8):
        x, y = rng.random((2, size))
        for result, expected in zip(fused(x, y), program(x, y), strict=True):
            np.testing.assert_allclose(result, expected)
    assert trained.fits == 1


class CompiledByNumba:
    """Stands for a function of `numba.njit`, which does not compile for read-only arrays that it writes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.function(*map(np.asarray, arguments))
        except ValueError:
            raise AttributeError("no type for a read-only array") from None


CompiledByNumba.__module__ = "numba.core.registry"


@CompiledByNumba
def total(x: Any) -> Any:
    return float(sum(value * value for value in x.tolist()))


@CompiledByNumba
def filled(x: Any, out: Any) -> None:
    for k in range(x.size):
        out[k] = 2 * x[k]


@CompiledByNumba
def raised(x: Any) -> Any:
    x += 1
    return x


def test_functions_of_numba_run_between_two_stages() -> None:
    def program(x: Any) -> Any:
        return total(x * 2) + x

    fused = fuse(program, target="reference")
    for size in (4, 4, 9):
        np.testing.assert_allclose(fused(np.arange(float(size))), program(np.arange(float(size))))


def test_functions_of_numba_write_their_arguments() -> None:
    def program(x: Any) -> Any:
        out = np.empty_like(x)
        filled(x * 3, out)
        y = raised(x)
        y[0] = 7
        return out + 1, y * 2

    fused = fuse(program, target="reference")
    for size in (4, 4, 9):
        x, expected_x = np.arange(float(size)), np.arange(float(size))
        for result, expected in zip(fused(x), program(expected_x), strict=True):
            np.testing.assert_allclose(result, expected)
        np.testing.assert_array_equal(x, expected_x)


def test_an_exception_of_a_package_arrives(install: Callable[[str], Any]) -> None:
    package = install(PLAIN)
    program = fuse(lambda x: package.failing(x * 2) + 1)
    np.testing.assert_array_equal(program(np.ones(3)), np.full(3, 3.0))
    with pytest.raises(ValueError, match="too large"):
        program(np.full(3, 100.0))


def test_a_function_that_has_changed_its_argument_runs_again_as_a_part_of_the_whole(
    install: Callable[[str], Any],
) -> None:
    package = install(PLAIN)

    def program(x: Any) -> Any:
        y = x * 2
        return package.written(y) + y

    with pytest.raises(TraceError, match=r"np\.asarray\(\) of a traced array"):
        fuse(program, target="reference")(np.ones(3))
    with pytest.warns(UserWarning, match=r"np\.asarray\(\) of a traced array.*from there on, calls run the function"):
        np.testing.assert_array_equal(fuse(program)(np.ones(3)), program(np.ones(3)))
