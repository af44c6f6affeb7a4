"""Tests of `tune`: what it measures and keeps, and that it changes nothing but the time of a call."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import ShapeDtype, fuse
from tracefuse.compiler import tuning
from tracefuse.compiler.tuning import Tuner
from tracefuse.config import TABLE, resolve
from tracefuse.errors import OptionError
from tracefuse.schedule.cpu import cpu_templates
from tracefuse.schedule.tilings import Tiling

X = np.random.default_rng(0).standard_normal((300, 401), dtype=np.float32)
Y = np.random.default_rng(1).standard_normal((401, 300), dtype=np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of its own, and short measurements."""
    monkeypatch.setattr(tuning, "SECONDS", 0.0)
    tmp_path.chmod(0o700)
    with tracefuse.options(cache_dir=str(tmp_path)):
        yield tmp_path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[Tiling]]:
    """The tilings of each measurement; the last one is always the fastest."""
    calls: list[list[Tiling]] = []

    def measure(self: Tuner, runs: Mapping[Tiling, Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        for run in runs.values():
            run(inputs, outputs)
        calls.append(list(runs))
        return {tiling: 100.0 - 10 * k for k, tiling in enumerate(runs)}

    monkeypatch.setattr(Tuner, "_measure", measure)
    return calls


def records(folder: Path) -> list[Path]:
    return sorted(folder.glob("tuned-*"))


def transposed_sum(x: Any, y: Any) -> Any:
    return x.T * 2 + y


def test_a_tuned_call_measures_once_uses_the_fastest_tiling_and_has_equal_bits(measured: Any, folder: Path) -> None:
    f = fuse(transposed_sum, tune=True)
    for _ in range(3):
        np.testing.assert_array_equal(f(X, Y), fuse(transposed_sum)(X, Y))
    assert len(measured) == 1
    explanation = f.explain(X, Y)
    (priced,) = explanation.tilings[0].values()
    assert {one.tiling for one in priced if one.measured is not None} == set(measured[0])
    assert [one.tiling for one in priced if one.is_chosen] == [measured[0][-1]]
    assert f"measured {100 - 10 * (len(measured[0]) - 1):.1f} us, chosen" in str(explanation)
    assert len(records(folder)) == 1


def test_a_record_on_disk_serves_other_functions_and_processes(measured: Any) -> None:
    fuse(transposed_sum, tune=True)(X, Y)
    tracefuse.clear_caches()
    same = fuse(lambda a, b: a.T * 2 + b, tune=True)
    same(X, Y)
    assert len(measured) == 1
    (priced,) = same.explain(X, Y).tilings[0].values()
    assert [one.tiling for one in priced if one.is_chosen] == [measured[0][-1]]


def test_a_call_of_another_size_class_measures_again_and_one_of_the_same_does_not(measured: Any) -> None:
    f = fuse(transposed_sum, tune=True)
    for rows in (300, 310, 290, 100):
        f(np.ones((rows, 901), np.float32), np.ones((901, rows), np.float32))
    assert len(measured) == 2


def test_a_damaged_record_warns_and_is_measured_again(measured: Any, folder: Path) -> None:
    fuse(transposed_sum, tune=True)(X, Y)
    (record,) = records(folder)
    record.write_bytes(record.read_bytes()[:-1])
    tracefuse.clear_caches()
    with pytest.warns(RuntimeWarning, match="instead of"):
        fuse(transposed_sum, tune=True)(X, Y)
    assert len(measured) == 2


def test_explaining_measures_nothing_and_the_next_call_does(measured: Any) -> None:
    f = fuse(transposed_sum, tune=True)
    f.explain(ShapeDtype(X.shape, X.dtype), ShapeDtype(Y.shape, Y.dtype))
    f.explain(X, Y)
    assert not measured
    f(X, Y)
    assert len(measured) == 1


def test_arguments_are_updated_once_and_output_buffers_hold_the_results(measured: Any) -> None:
    def update(x: Any, row: Any) -> None:
        x += row
        x *= 2

    x, row = np.ones((20, 9001)), np.arange(9001.0)
    fuse(update, tune=True)(x, row)
    np.testing.assert_array_equal(x, (np.ones((20, 9001)) + row) * 2)
    out = np.zeros_like(Y)
    result = fuse(transposed_sum, tune=True)(X, Y, out=out)
    assert result is out
    np.testing.assert_array_equal(out, fuse(transposed_sum)(X, Y))
    assert len(measured) == 2


def test_a_function_that_draws_random_numbers_draws_once(measured: Any) -> None:
    def noisy(x: Any, random: Any) -> Any:
        return x.T * 2 + random.standard_normal((401, 300))

    drawn = [fuse(noisy, tune=tune)(X, np.random.default_rng(5)) for tune in (False, True)]
    np.testing.assert_array_equal(*drawn)


def test_another_order_of_a_sum_needs_any_order(measured: Any) -> None:
    x = np.random.default_rng(2).standard_normal((900, 300), dtype=np.float32)
    for tune in ("on", "any_order"):
        fuse(lambda x: x.sum(0), tune=tune)(x)
    # How many of the orders are among the cheapest, which are measured, depends on the number of processors.
    assert [len({tiling.order for tiling in tilings}) > 1 for tilings in measured] == [False, True]


@pytest.mark.parametrize("tune", ["off", "on"])
def test_no_result_depends_on_the_number_of_processors(measured: Any, monkeypatch: Any, tune: str) -> None:
    random = np.random.default_rng(4)
    x, rows = random.standard_normal((900, 300), dtype=np.float32), random.integers(0, 900, 5000)
    wide, results = random.standard_normal((3, 70_000), dtype=np.float32), []

    def sums(x: Any, wide: Any, rows: Any) -> Any:
        table = np.zeros_like(x)
        np.add.at(table, rows, x[rows])
        return x.sum(0), x.sum(), wide.sum(1), x.mean(1) - x.std(0).sum(), np.exp(x - x.max(0)).sum(0), table

    for processors in (1, 2, 3, 64):
        monkeypatch.setattr(cpu_templates, "available_threads", lambda processors=processors: processors)
        results.append(fuse(sums, tune=tune)(x, wide, rows))
    for result in results[1:]:
        for own, first in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(own, first)


def test_threads_that_call_at_once_get_one_measurement_and_equal_results(measured: Any) -> None:
    f, expected, results = fuse(transposed_sum, tune=True), fuse(transposed_sum)(X, Y), []
    threads = [threading.Thread(target=lambda: results.append(f(X, Y))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(measured) == 1
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, expected)


_PROGRAM = """
import signal, sys
import numpy as np
from tracefuse import fuse
from tracefuse.compiler import tuning

tuning.SECONDS = 0.0
store, measure = tuning.TuningRecords.store, tuning.Tuner._measure

def killed_while_storing(self, key, times):
    print("storing", flush=True)
    sys.stdin.readline()
    store(self, key, times)

def counted(self, *arguments):
    print("measured", flush=True)
    return measure(self, *arguments)

tuning.Tuner._measure = counted
if sys.argv[1] == "waits":
    tuning.TuningRecords.store = killed_while_storing
x = np.arange(300 * 401, dtype=np.float32).reshape(300, 401) % 97
y = np.arange(401 * 300, dtype=np.float32).reshape(401, 300) % 89
assert np.array_equal(fuse(lambda x, y: x.T * 2 + y, tune=True)(x, y), x.T * 2 + y)
print("right", flush=True)
"""


def test_processes_tune_one_function_at_once_and_a_killed_one_leaves_nothing_half_written(folder: Path) -> None:
    environment = {**os.environ, "TRACEFUSE_CACHE_DIR": str(folder)}

    def started(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", "-c", _PROGRAM, how]
        return subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    first, second, third = (started("waits") for _ in range(3))
    for process in (first, second, third):
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["measured\n", "storing\n"]
    first.kill()
    first.communicate()
    assert records(folder) == []
    for process in (second, third):
        assert process.communicate("\n", timeout=60) == ("right\n", "")
    (record,) = records(folder)
    assert not [path for path in folder.iterdir() if path.suffix != record.suffix]
    assert started("reads").communicate(timeout=60) == ("right\n", "")  # it measures nothing


def test_real_measurements_are_positive_and_the_choice_is_among_the_fastest() -> None:
    f = fuse(transposed_sum, tune=True)
    np.testing.assert_array_equal(f(X, Y), fuse(transposed_sum)(X, Y))
    (priced,) = f.explain(X, Y).tilings[0].values()
    times = {one.tiling: one.measured for one in priced if one.measured is not None}
    assert len(times) > 1
    assert all(0 < time < 1e6 for time in times.values())
    (chosen,) = (one.tiling for one in priced if one.is_chosen)
    assert times[chosen] <= min(times.values()) / tuning.CLEARLY


@pytest.mark.parametrize(
    ("given", "value"), [(True, "on"), (False, "off"), ("any_order", "any_order"), ("on", "on"), ("off", "off")]
)
def test_tune_takes_booleans_and_words(given: Any, value: str) -> None:
    assert resolve({"tune": TABLE["tune"].check(given, "here")}).tune == value
    assert TABLE["tune"].parse({"on": "1", "off": "0"}.get(value, value)) == value


def test_another_word_for_tune_raises_with_the_choices() -> None:
    with pytest.raises(OptionError, match="tune cannot be 'any-order'") as caught:
        fuse(transposed_sum, tune="any-order")
    assert "did you mean 'any_order'?" in str(caught.value)
