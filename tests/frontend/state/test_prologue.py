"""Work on captured state alone: questions are guarded, other calls are steps of the prologue, both by contents."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

K = np.eye(4)
W = np.ones(5)
M = np.array([True, False, True, False])
I = np.array([1, 2])
X = np.arange(4.0) + 1


@pytest.fixture(autouse=True)
def _state_as_it_was() -> None:
    K[...], W[...], M[...], I[...] = np.eye(4) * 4 + 0.5, 1, [True, False, True, False], [1, 2]


def check(function: Callable[[Any], Any], *changes: Callable[[], Any], traces: int) -> Any:
    """Compares calls with the plain function before and after each change; returns the fused function."""
    fused = fuse(function, target="reference")
    for change in (lambda: None, *changes):
        change()
        for _ in range(2):
            expected = function(X)
            result = fused(X)
            np.testing.assert_allclose(result, expected, rtol=1e-12)
            assert result.dtype == np.asarray(expected).dtype
    assert fused.cache_info().traces == traces
    return fused


def to_contents(array: Any, contents: Any) -> Callable[[], None]:
    return lambda: array.__setitem__(..., contents)


def factor_or_zero(x: Any) -> Any:
    try:
        return np.linalg.cholesky(K) @ x
    except np.linalg.LinAlgError:
        return x * 0


def rolled(x: Any) -> Any:
    for offset in I:
        x = np.roll(x, offset) + 1
    return x


def horner(x: Any) -> Any:
    y = 0.0
    for coefficient in W:
        y = y * x + coefficient
    return y


class Opaque(type):
    """A metaclass with an attribute: instances of its classes have no overlays, and traces see none of their code."""

    order = 0


NEVER_TRACED_AGAIN = [
    lambda x: x + W.sum(),
    lambda x: x * (W * 2)[0] + np.sqrt(W)[1],
    lambda x: K.T @ K @ x,
    lambda x: np.linalg.cholesky(K) @ x,
    lambda x: np.linalg.solve(K + np.eye(K.shape[0]), np.ones(K.shape[0])) + x,
    lambda x: np.linalg.eigh(K).eigenvalues + x * np.linalg.det(K),
    lambda x: np.linalg.inv(K[: x.shape[0], : x.shape[0]]) @ x,
    lambda x: np.linalg.matrix_power(K, x.shape[0] - 2) @ x,
    lambda x: x + np.histogram(W, bins=3)[0].sum() + W.nonzero()[0].sum(),
    lambda x: x + np.unique(np.append(W, [7, 8])).sum() + np.linalg.norm(K, axis=1),
    lambda x: np.frexp(W)[0].sum() + x,
    lambda x: x + sum(W) / len(W),
    horner,
]


@pytest.mark.parametrize("function", NEVER_TRACED_AGAIN)
def test_work_on_captured_contents_is_never_traced_again(function: Callable[[Any], Any]) -> None:
    rng = np.random.default_rng(0)
    half = rng.uniform(size=(4, 4))
    check(function, to_contents(K, half @ half.T + np.eye(4)), to_contents(W, rng.uniform(size=5)), traces=1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[M],
        lambda x: x[M] * 2 + np.arange(4.0)[M],
        lambda x: np.concatenate([x[M] * 2, x]),
        lambda x: x[M].max() - x[M].mean() + x,
        lambda x: x[np.nonzero(M)[0]],
        lambda x: np.outer(x, x)[M][:, M],
        lambda x: np.outer(x, x)[np.ix_(M, M)],
        lambda x: np.where(M, x, -x)[np.flatnonzero(M)],
    ],
)
def test_a_captured_mask_selects_any_number_of_elements(function: Callable[[Any], Any]) -> None:
    check(function, to_contents(M, [False, True, True, True]), to_contents(M, [True, True, False, False]), traces=1)


def test_captured_tables_are_indexed_by_arguments() -> None:
    table, index = np.arange(12.0).reshape(4, 3), np.array([1, 0, 2])
    for function in (
        lambda i: table[i], lambda i: table[0, i], lambda i: np.take(table, i, axis=0), lambda i: table.dot(i),
    ):  # fmt: skip
        np.testing.assert_allclose(fuse(function, target="reference")(index), function(index))


def test_elements_under_a_captured_mask_are_assigned() -> None:
    def function(x: Any) -> Any:
        y, z = x.copy(), np.zeros((2, 4))
        y[M] *= 3
        z[:, M] = y[M]
        return z + y

    check(function, to_contents(M, [False, True, True, True]), traces=1)


@pytest.mark.parametrize(
    ("function", "same", "other"),
    [
        (lambda x: x * 2 if M.any() else x - 1, to_contents(M, [False, False, True, True]), to_contents(M, False)),
        (lambda x: x * 2 if W.sum() > 3 else x - 1, to_contents(W, 2), to_contents(W, -2)),
        (lambda x: x * 2 if 2 in I else x - 1, to_contents(I, [2, 0]), to_contents(I, 0)),
        (lambda x: x * len(range(int(W[0]))), to_contents(W, 1.5), to_contents(W, 2.5)),
        (lambda x: x.sum(axis=int(I[0]) - 1) + x, to_contents(I, [1, 3]), to_contents(I, [0, 3])),
        (lambda x: x if np.allclose(W, W[0]) else -x, to_contents(W, 3), to_contents(W, [1, 2, 3, 4, 5])),
        (rolled, to_contents(I, [1, 2]), to_contents(I, [2, 1])),
        (lambda x: x[: I[1]] * 2, to_contents(I, [0, 2]), to_contents(I, [0, 3])),
        (lambda x: x * len(np.zeros(I[1])), to_contents(I, [0, 2]), to_contents(I, [0, 3])),
        (lambda x: x + W.tolist()[0], to_contents(W, 1), to_contents(W, 2)),
        (factor_or_zero, to_contents(K, np.eye(4)), to_contents(K, -1)),
    ],
)
def test_only_another_answer_is_another_trace(
    function: Callable[[Any], Any], same: Callable[[], None], other: Callable[[], None]
) -> None:
    fused = check(function, same, other, traces=2)
    for change in (same, other, same):  # both traces stay
        change()
        np.testing.assert_allclose(fused(X), function(X))
    assert fused.cache_info().traces == 2


def test_a_step_runs_again_only_for_contents_that_it_reads() -> None:
    calls: SimpleQueue[int] = SimpleQueue()  # not compared at a call

    class Step(metaclass=Opaque):
        def __call__(self, line: Any) -> Any:
            calls.put(1)
            return line[0] ** 2

    step = Step()
    fused = fuse(lambda x: x * np.apply_along_axis(step, 0, W) + np.linalg.det(K), target="reference")
    fused(X)
    fused(X)
    K[0, 0] = 9
    fused(X)
    assert calls.qsize() == 1
    W[0] = 3
    assert np.allclose(fused(X), X * 9 + np.linalg.det(K))
    assert calls.qsize() == 2
    assert fused.cache_info().traces == 1


def test_a_list_among_the_arguments_of_a_step_outlives_the_trace() -> None:
    bins = [0.0, 1.0, 2.0, 9.0]
    fused = fuse(lambda x: x[:3] + np.histogram(W, bins=bins)[0], target="reference")
    for change in (lambda: None, to_contents(W, range(5)), lambda: bins.__setitem__(1, 1.5), to_contents(W, 1.2)):
        change()
        for _ in range(2):
            assert np.array_equal(fused(X), X[:3] + np.histogram(W, bins=bins)[0])


def test_another_size_is_no_new_trace_and_another_rank_is() -> None:
    table = np.arange(6.0)

    def function(x: Any) -> Any:
        return np.unique(table).sum() + table[table > 1].mean() + x

    fused = fuse(function, target="reference")
    for new, traces in (
        (table, 1), (np.arange(9.0), 1), (np.array([1.0, 2, 2, 5]), 1), (np.ones((3, 2)) * 3, 2),
        (np.arange(3, dtype=np.float32), 3),
    ):  # fmt: skip
        table = new
        result, expected = fused(X), function(X)
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-6)
        assert fused.cache_info().traces == traces


def test_questions_about_arguments_beside_questions_about_state() -> None:
    def function(x: Any) -> Any:
        y = np.linalg.cholesky(K) @ x if x.sum() > 0 else x * W.sum()
        return y + 1 if M.any() else y

    fused, rng = fuse(function, target="reference"), np.random.default_rng(1)
    for _ in range(30):
        array, contents = [(K, np.eye(4) * rng.uniform(1, 5)), (W, rng.uniform(-3, 3)), (M, rng.uniform(size=4) < 0.4)][
            rng.integers(3)
        ]
        array[...] = contents
        x = rng.uniform(-1, 1, 4)
        np.testing.assert_allclose(fused(x), function(x), rtol=1e-12)
    assert fused.cache_info().traces <= 4


def test_exceptions_of_a_step_are_the_users() -> None:
    fused = fuse(lambda x: np.linalg.cholesky(K) @ x, target="reference")
    fused(X)
    K[...] = -1
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite") as caught:
        fused(X)
    assert caught.traceback[1].path.name == "test_prologue.py"
    K[...] = np.eye(4)
    assert np.allclose(fused(X), X)
    assert fused.cache_info().traces == 1


def test_a_library_function_is_a_step() -> None:
    linalg = pytest.importorskip("scipy.linalg")
    factor, solve = linalg.cho_factor, linalg.cho_solve
    fused = check(lambda x: solve(factor(K), np.ones(4)) + linalg.expm(K / 9) @ x, to_contents(K, np.eye(4)), traces=1)
    assert "scipy.linalg.expm() of K (test_prologue.py:" in str(fuse(lambda x: linalg.expm(K) @ x).explain(X))
    assert fused.cache_info().hits >= 3


def test_what_python_mutates_of_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="read"):
        fuse(lambda x: (K * 2).setfield(1.0, np.float64) or x, target="reference").definition(X)


def test_explain_lists_questions_and_steps_with_lines_and_bytes() -> None:
    def function(x: Any) -> Any:
        if M.any():
            x = x * abs(complex(format(W[0])))
        return np.linalg.cholesky(K) @ x

    fused = fuse(function)
    line = function.__code__.co_firstlineno
    assert fused.explain(X).prologue == (
        f"bool() of M is True (test_prologue.py:{line + 1})",
        f"str() of W is np.float64(1.0) (test_prologue.py:{line + 2})",
        f"np.linalg.cholesky() of K (test_prologue.py:{line + 3})",
        "compared at every call: M (4 B), W (40 B), K (128 B)",
    )
    fused(X)
    M[...] = False
    assert fused.explain(X).guard_failures == f"no longer so: bool() of M is True (test_prologue.py:{line + 1})"


# -- arrays that bypassed recording -----------------------------------------------------------------------------------


class Reads(metaclass=Opaque):
    """Gives an array to code that no trace sees."""

    def __init__(self, array: Any) -> None:
        self.array = array


def by_another_name(owner: Reads) -> Any:
    return getattr(owner, "arr" + "ay")


def test_what_bypassed_recording_is_compared_by_all_its_bytes() -> None:
    owner = Reads(np.arange(50.0))

    def function(x: Any) -> Any:
        return x * by_another_name(owner).tobytes()[-2] + (0 if owner.array is None else 1)

    fused = fuse(function, target="reference")
    for array, traces in (
        (owner.array, 1), (owner.array.copy(), 1), (np.arange(50.0) * 2, 2), (np.arange(50), 3), (np.arange(50.0), 3),
    ):  # fmt: skip
        owner.array = array
        assert np.array_equal(fused(X), function(X))
        assert fused.cache_info().traces == traces
    owner.array[-1] = 1e9  # the same object
    assert np.array_equal(fused(X), function(X))
    assert fused.cache_info().traces == 4
    assert fused.cache_info().hits > 0


def test_a_large_array_that_bypassed_recording_warns_once_and_explain_has_the_bytes() -> None:
    owner = Reads(np.zeros(200_000))

    def function(x: Any) -> Any:
        return x * by_another_name(owner).tobytes()[-2] + (0 if owner.array is None else 1)

    fused = fuse(function)
    with pytest.warns(UserWarning, match=r"1\.6 MB") as caught:
        fused(X)
    path = fused.explain(X).compared[0].partition(":")[0]
    assert [str(one.message) for one in caught] == [
        f"each call of function compares 1.6 MB, most of them of {path}: code that is not traced may have read the "
        f"array, so that its contents are part of the trace; pass {path} as an argument"
    ]
    assert fused.explain(X).compared == (f"{path}: 1600000 bytes",)
    assert np.array_equal(fused(X), X * 0 + 1)


def test_state_that_another_thread_changes_during_the_trace_is_no_stale_answer() -> None:
    owner, base = Reads(np.zeros(3)), np.zeros((1, 3))
    changes: SimpleQueue[float] = SimpleQueue()
    changes.put(5.0)

    class Writer(metaclass=Opaque):
        def __call__(self) -> None:
            if not changes.empty():
                thread = threading.Thread(target=base.__setitem__, args=(0, changes.get()))
                thread.start()
                thread.join()

    owner.array, write = base[0], Writer()

    def function(x: Any) -> Any:
        seen = by_another_name(owner).tobytes()[-2] + (0 if owner.array is None else 1)
        write()
        return x * seen + W.sum()

    fused = fuse(function, target="reference")
    assert np.array_equal(fused(X), function(X))  # a trace that read the contents from before the change serves no call
    assert fused.cache_info().traces == 1


def test_an_object_without_overlay_is_compared_by_what_the_traced_code_reads_of_it() -> None:
    class Part:
        weight, factor = W, 2.0

    class Scale(metaclass=Opaque):
        def __init__(self) -> None:
            self.array, self.factor, self.part = np.ones(4), 2.0, Part()

        def __call__(self, x: Any) -> Any:
            return x * self.array * self.factor + self.part.weight[0] * self.part.factor

    model = Scale()
    changes: list[Callable[[], Any]] = [
        lambda: model.array.__setitem__(0, 3), lambda: setattr(model, "array", np.ones(4) * 5),
        lambda: setattr(model, "factor", 3.0), lambda: setattr(model.part, "weight", np.ones(5) * 7),
        lambda: setattr(model.part, "factor", 4.0), lambda: setattr(model, "part", Part()),
    ]  # fmt: skip
    fused = fuse(lambda x: model(x) + model.part.factor, target="reference")
    for change in (lambda: None, *changes):
        change()
        assert np.array_equal(fused(X), model(X) + model.part.factor)


# -- snapshots --------------------------------------------------------------------------------------------------------


def test_a_question_about_an_argument_is_no_step_of_the_prologue() -> None:
    stages = fuse(lambda x: x if (x * W[:4]).any() else -x).definition(X)
    assert str(stages).startswith("# bool() of T")


def test_order_statistics_of_captured_arrays_go_into_out() -> None:
    captured = np.array([[3.0, 1.0, 2.0], [5.0, 4.0, 7.0]])

    def program(x: Any) -> Any:
        named, placed = np.zeros(2), np.zeros(3)
        np.median(captured, axis=1, out=named)
        np.nanmedian(captured, 0, placed)
        return named + x, placed, np.quantile(captured, 0.5, axis=1, out=np.zeros(2))

    fused = fuse(program, target="reference")
    for made, right in zip(fused(1.0), program(1.0), strict=True):
        assert np.array_equal(made, right)
