"""Lists, complex numbers, shapes and updates are assigned to arrays as NumPy does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.compared_calls import check

LISTS = ("[1, -1]", "[1, 300]", "[1, np.int64(-1)]", "[1, 2.5]", "[True, 1j]", "[]", "[7]", "[[1, 2], [3, 4]]")
WRITES = (
    "x[:2] = {}", "np.put(x, [0, 1], {})", "np.putmask(x, x > 0, {})", "x.flat = {}", "x[[0, 1]] = {}",
    "np.copyto(x[:2], {})", "np.place(x, x > 0, {})", "x.flat[1:3] = {}", "x[...] = {}", "x = np.insert(x, [0, 1], {})",
    "x = np.array({}, x.dtype)", "x[x < 2] = {}",
)  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
def test_lists_are_assigned_as_numpy_does(write: str) -> None:
    for values in LISTS:
        for dtype in (np.uint8, np.float32):
            if values == "[1, np.int64(-1)]" and dtype is np.float32:
                continue
            check(f"{write.format(values)}; r = x * 1", np.arange(4, dtype=dtype))


COMPLEX = (
    "x[0] = {}", "x[:] = {}", "x[x > 0] = {}", "x[:2] = [{}, 1]", "x[[0, 1]] = {}, 2", "x.fill({})", "x.flat[:1] = {}",
    "np.put(x, [0, 1], [{}, 2])", "np.place(x, x > 0, [{}])", "np.putmask(x, x > 0, {})", "np.copyto(x, {})",
    "x = np.insert(x, 1, {})", "x = np.insert(x, [0, 1], [{}, 2])", "x = np.full_like(x, {})", "x[0] += {}", "x += {}",
    "x = np.full(2, {}, x.dtype)", "x = np.array([{}, 1], x.dtype)", "x = np.gradient(x, {})", "x = np.append(x, {})",
    "x = np.piecewise(x, [x > 1], [{}, 2])", "x = np.select([x > 1], [x], {})", "np.add.at(x, [0], {})",
)  # fmt: skip


@pytest.mark.parametrize("write", COMPLEX)
def test_complex_numbers_in_real_elements_end_as_in_numpy(write: str) -> None:
    for number in ("s", "1j", "np.complex64(1 - 2j)", "(x * s)[1]", "complex((x * s)[1])"):
        for dtype in (np.float32, np.int64, np.bool_):
            check(f"{write.format(number)}; r = x * 1", np.arange(4).astype(dtype), 1j)


SHAPES = (
    "y = x * 1; y.shape = (9,); y[:2] = 7; y + 0", "y = x * 1; v = y[1:]; y.shape = -1; y[3] = 50; v + 0",
    "y = x * 1; y.shape = (1, 3, 3); v = y[0]; v[0] = 7; y + 0", "y = x * 1; y.shape = (3, -1); y.shape = 9; y.sum(0)",
    "y = x * 1; y.shape = (2, 2); y", "y = x * 1; v = y[::2]; v.shape = (2, 1, 3); v += 5; y + 0",
    "y = x * 1; y.resize((2, 3)); y += 1; y * 1", "y = x * 1; y.resize((4, 3)); y[3] = 2; y * 1",
    "y = x * 1; y.resize(3); y + x[0]", "y = x * 1; y.resize((0,)); y.sum()", "v = (x * 1)[0]; v.resize((2, 2)); v",
    "x.tolist()", "(x * 0.5).tolist()[1]", "[v * 2 for v in (x * 2).ravel().tolist()]", "x.sum().tolist() + 1",
    "(x > 2).tolist()", "(x * 1j)[:0].tolist()", "np.array((x * 2).tolist()) + 1", "sum((x * 0.5).ravel().tolist())",
    "x.item(3) + 1", "x.item(1, 2) * x", "x.item((2, 0))", "x[:1, :1].item()", "x.item(99)",
    "(x * 2).item(-1)", "x.item()",
)  # fmt: skip


@pytest.mark.parametrize("text", SHAPES)
def test_arrays_change_their_shape_and_give_lists_as_in_numpy(text: str) -> None:
    check(text, np.arange(9).reshape(3, 3))


UPDATES = (
    "np.add.at(y, [0, 0, 1], 1.5)", "np.subtract.at(y, [1, -1, -1], [0.5, 1.5, 0.5])",
    "np.multiply.at(y, [1, 1, 1], 1.5)",
    "np.add.at(y, [-2, 1, 0, 1], 1.5)", "np.negative.at(y, [-2, 1, 1])",
    "np.add.at(y, [-9, 0], 1.5)", "np.add.at(y, 0, 2.5)", "np.maximum.at(y, [0, 0], 2.5)",
    "np.divide.at(y, [0, 0], 2)", "np.add.at(y, [0, 0], True)",
    "np.power.at(y, [1, 1], 2)", "np.negative.at(y, [0, 0, 1])", "np.add.at(y, slice(1, None), 1.5)",
    "np.add.at(y, [[0, 0], [1, 0]], [[1, 2], [3, 4.5]])", "np.add.at(y, [], 1.5)", "np.add.at(y, [0, 0], 1j)",
)  # fmt: skip


@pytest.mark.parametrize("update", UPDATES)
def test_updates_at_positions_cast_each_time(update: str) -> None:
    for dtype in ("bool", "int8", "uint16", "int64", "float16", "float64"):
        check(f"y = x * True; {update}; y * True", np.arange(1, 4).astype(dtype))
        check(f"y = x * True; {update}; y * True", np.arange(1, 7).reshape(3, 2).astype(dtype))
