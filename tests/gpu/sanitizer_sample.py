"""What compute-sanitizer looks at: a sample of programs, small enough for its tools. `run.sh sanitize` runs it.

Programs with streams, kernels of the templates, a graph, given and donated memory. Every result is compared with NumPy.
Each array is an allocation of its own rather than a part of CuPy's pool, so that what a kernel reads or writes beside
its arrays is seen. Exits with status 1 where a result is wrong.

    compute-sanitizer --tool memcheck python tests/gpu/sanitizer_sample.py [seconds of random programs] [part ...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
import cupy
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.random_programs.test_random_fusions import predicates
from tests.random_programs.test_random_streams import marked, run_on_streams
from tests.runtime.stream_parallel import chunks, pointwise, sets
from tests.runtime.test_stream_results import rows_of_sums, softmax, whole_between
from tracefuse import FusionDefinition, fuse, options, rules

COUNTS = (1, 3, 4, 20)
RANDOM = np.random.default_rng(0)
SECONDS = 60.0


def compare(actual: Any, expected: Any, what: str) -> None:
    """Raises AssertionError where arrays, or tuples of them, differ by more than rounding."""
    several = isinstance(expected, tuple)
    for own, wanted in zip(actual if several else [actual], expected if several else [expected], strict=True):
        np.testing.assert_allclose(cupy.asnumpy(own), wanted, rtol=1e-3, atol=1e-3, err_msg=what)


def array(*shape: int) -> Any:
    return RANDOM.random(shape, dtype=np.float32)


def ran(function: Callable[..., Any], *arguments: Any, **given: Any) -> None:
    """The fused function twice: the second call runs what the first has made."""
    expected = function(*(np.array(a) for a in arguments))
    fused = fuse(function, **given)
    for _ in range(2):
        compare(fused(*map(cupy.asarray, arguments)), expected, function.__name__)


# ---------------------------------------------------------------------------------------------------------------------
# streams


def copies_on_streams() -> None:
    """The three programs of examples/streams.py."""
    x = array(7, 33)
    for marks in ((True,), (True, True), (True, False, True)):
        for disable in ("", "loop_buffer_reuse"):
            fd = sets(*marks)
            with options(disable=disable):
                fd.segment(merge=rules.one_op_a_segment)
                for count in COUNTS:
                    (result,) = fd.execute([cupy.asarray(x)], number_of_streams=count)
                    compare(result, x, f"copies {marks}, {count} streams")


def functions_on_streams() -> None:
    for function in (pointwise, softmax, rows_of_sums, chunks, whole_between):
        for count in COUNTS:
            ran(function, array(7, 5, 6), number_of_streams=count)


def branches(x: Any) -> Any:
    left, right = np.exp(x).sum(0), np.sin(x).sum(1)
    return left * 2, right + right.sum(), (x * 3).max(0)


def independent_segments() -> None:
    for count in (2, 3, 8):
        ran(branches, array(40, 50), streams=count, merge=rules.one_op_a_segment)


def random_programs() -> None:
    """As many as there is time for, the same ones in the same order every time."""
    end, seen = time.monotonic() + SECONDS, 0

    @settings(
        max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )  # fmt: skip
    @given(drawn=marked("exact"), merge=predicates(), count=st.sampled_from([1, 3, 4, 9]), reuses=st.booleans())
    def holds(drawn: Any, merge: Any, count: int, reuses: bool) -> None:
        nonlocal seen
        if time.monotonic() < end:
            try:
                run_on_streams(drawn, merge, "cuda", "exact", count, reuses)
            except Exception as error:
                print(f"{FusionDefinition.from_fusion(drawn[0])!r}\n{merge=} {count=} {reuses=}\n{error!r}")
                raise
            seen += 1

    holds()
    print(f"  {seen} random programs, three ways each", flush=True)
    assert seen, "there was no time for random programs"


# ---------------------------------------------------------------------------------------------------------------------
# kernels


def rows_softmax(x: Any) -> Any:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def columns_softmax(x: Any) -> Any:
    shifted = np.exp(x - x.max(0))
    return shifted / shifted.sum(0)


def total(x: Any) -> Any:
    return (x * 2).sum()


def turned(x: Any) -> Any:
    return x.T + 1


def moved(x: Any) -> Any:
    return np.concatenate([np.roll(x, 3, 0), x[::-1]], 1) + np.pad(x, ((0, 0), (1, x.shape[1] - 1)))


def largest(x: Any) -> Any:
    return x.argmax(1), x.argmax(0), x.argmin()


def middle(x: Any) -> Any:
    return x.std(1), x.mean((0, 2))


def scan(x: Any) -> Any:
    return np.cumsum(x, 1) * 2


def templates() -> None:
    for shape in ((5, 40_000), (300, 17), (70, 1000), (1, 3)):
        ran(rows_softmax, array(*shape))
    for shape in ((4000, 5), (17, 300), (129, 129)):
        ran(columns_softmax, array(*shape))
    for shape in ((300_001,), (33, 47), (2, 3)):
        ran(total, array(*shape))
    for function in (turned, moved):
        for shape in ((129, 65), (7, 300), (64, 64)):
            ran(function, array(*shape))
    ran(middle, array(6, 70, 9))
    ran(scan, array(9, 130))


def arguments_of_extremes() -> None:
    for shape in ((5, 5000), (300, 17), (4, 4)):
        x = array(*shape)
        wide = cupy.asarray(np.repeat(np.repeat(x, 2, 0), 3, 1))
        views = (cupy.asarray(x), wide[::2, ::3], wide[::-2, ::-3], cupy.asarray(x.T.copy()).T)
        for own, wanted in zip(views, (x, x, x[::-1, ::-1], x), strict=True):
            for result, expected in zip(fuse(largest)(own), largest(wanted), strict=True):
                np.testing.assert_array_equal(cupy.asnumpy(result), expected)


# ---------------------------------------------------------------------------------------------------------------------
# graphs and memory


def layers(x: Any) -> Any:
    for _ in range(3):
        x = x - x.mean(0)
        x = np.tanh(x * x.sum(1, keepdims=True))
    return x


def graphs() -> None:
    for shape in ((40, 33), (7, 300)):
        ran(layers, array(*shape), graph=True)


def output_buffers() -> None:
    for shape in ((33, 47), (64, 64)):
        x = array(*shape)
        expected = rows_softmax(x)
        for out in (cupy.empty(shape, np.float32), cupy.empty((shape[0], 2 * shape[1]), np.float32)[:, ::2]):
            fuse(rows_softmax)(cupy.asarray(x), out=out)
            compare(out, expected, "out=")
        own = cupy.asarray(x)
        fuse(moved_rows)(own, out=own)
        compare(own, moved_rows(x), "out= an argument")
        for _ in range(2):
            compare(fuse(scaled, donate_argnums=0)(cupy.asarray(x)), scaled(x), "donated")


def moved_rows(x: Any) -> Any:
    return x + np.roll(x, 1, 0)


def scaled(x: Any) -> Any:
    return np.exp(x) * x + 1


PARTS = (
    copies_on_streams, functions_on_streams, independent_segments, templates, arguments_of_extremes, graphs,
    output_buffers, random_programs,
)  # fmt: skip


def main() -> None:
    global SECONDS
    seconds, *names = [*sys.argv[1:], *([] if sys.argv[1:] else [str(SECONDS)])]
    SECONDS = float(seconds)
    cupy.cuda.set_allocator(None)
    begin = time.monotonic()
    for part in PARTS:
        if not names or part.__name__ in names:
            part()
            cupy.cuda.get_current_stream().synchronize()
            print(f"{time.monotonic() - begin:6.1f} s  {part.__name__}", flush=True)


if __name__ == "__main__":
    main()
