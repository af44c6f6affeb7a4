"""Random chains of views and writes: statements over names that share memory, checked against NumPy.

A program gets two arrays and creates more; its statements take views of them, write through these views in the ways
that NumPy has, and copy. It returns every name that it has. Elements are small integers, so that results are exact.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np

from tracefuse import UnsupportedError, fuse

SHAPES = ((6,), (1,), (4, 3), (3, 3), (1, 5), (5, 1), (2, 3, 4), (2, 2, 2), (0, 3))
LAYOUTS = ("C", "Fortran", "strided", "reversed", "transposed")
SHARED = ("{x}", "{x}[::-1]", "{x}[1:]", "{x}.T", "{x}[..., ::2]", "{x}.reshape(-1)[1:]", "{x}.view()", "{x}[:1]")
"""Second arguments that lie in the memory of the first."""
REFUSED = ("lies in the same memory", "as_strided of an array that is not contiguous", "rows that begin inside")

VIEWS = (
    "{a}[{key}]", "{a}[{key}]", "{a}[{key}]", "{a}.T", "{a}.transpose({order})", "np.swapaxes({a}, 0, -1)",
    "np.moveaxis({a}, 0, -1)", "{a}.reshape({shape})", "{a}.reshape({shape})", "{a}.ravel()", "{a}.ravel(order='F')",
    "{a}.reshape(-1, order='F')", "np.squeeze({a})", "np.expand_dims({a}, -1)", "np.flip({a})", "np.flip({a}, 0)",
    "np.rot90({a})", "np.atleast_2d({a})", "{a}.view()", "np.diagonal({a})", "np.diag({a})", "np.split({a}, 2)[1]",
    "np.array_split({a}, 2, axis=-1)[0]", "np.broadcast_to({a}, (2, *{a}.shape))",
    "np.asarray({a})", "{a}.real", "{a}.copy()", "{a} + 1", "np.array({a})", "np.zeros_like({a})",
    "np.ascontiguousarray({a})", "np.atleast_1d({a})[::-1]", "{a}.squeeze()", "{a}.swapaxes(-1, 0)",
    "np.lib.stride_tricks.sliding_window_view({a}, 2, axis=-1)", "np.vsplit({a}, [1])[0]", "{a}.diagonal()",
    "{a}.flatten()", "np.resize({a}, {shape})", "np.concatenate([{a}, {a}])", "next(iter({a}))",
    "list({a})[-1]", "np.rollaxis({a}, -1)", "np.fliplr({a})", "np.flipud({a})", "np.unstack({a})[-1]", "np.real({a})",
    "np.lib.stride_tricks.as_strided({a}, (2,), ({a}.itemsize,))", "np.einsum('...ij->...ji', {a})", "{a}.view('i8')",
    "np.lib.stride_tricks.as_strided({a}, (2, 2), ({a}.itemsize * 2, {a}.itemsize))", "{a}.view('f8')", "{a}.mT",
    "np.require({a}, requirements='C')", "np.asfortranarray({a})", "({a} * 1j).imag", "{a}.view('i4')",
    "np.permute_dims({a}, {order})", "np.astype({a}, {a}.dtype, copy=False)", "np.reshape({a}, {shape}, order='A')",
)  # fmt: skip

WRITES = (
    "{a}[{key}] = {n}", "{a}[{key}] = {b}", "{a}[{key}] = {a}[{key}][::-1]", "{a}[...] = {b}", "{a}[:] = {a}[::-1]",
    "{a} += {n}", "{a} -= {b}", "{a} *= {n}", "{a}[{key}] += {n}", "{a}[{key}] -= {b}", "{a}[{key}] *= 2",
    "{a}[1:] = {a}[:-1]", "{a}[:-1] += {a}[1:]", "{a}[{a} > {n}] = {n}", "{a}[{a} < {n}] += 1",
    "{a}[{a} % 2 > 0] = {a}[{a} % 2 > 0] * 3",
    "{a}[{ints}] = {n}", "{a}[{ints}] += {n}", "{a}[{ints}] = {b}[:2]", "{a}[..., {ints}] = {n}",
    "np.add({a}, {b}, out={a})", "np.add({a}, {n}, out={a}, where={a} > 1)", "np.negative({b}, out={a})",
    "np.multiply({a}, 2, out={a}[{key}])", "np.copyto({a}, {b})", "np.copyto({a}, {b}, where={b} > 1)",
    "np.copyto({a}, {n}, where={a} < 2)", "{a}.fill({n})", "{a}.sort()", "{a}.sort(axis=0)",
    "np.put({a}, [0, -1], {n})",
    "np.place({a}, {a} > 2, [7, 8])", "np.putmask({a}, {a} < 1, {b})", "np.fill_diagonal({a}, {n})",
    "np.clip({a}, 0, {n}, out={a})", "np.cumsum({a}, axis=0, out={a})", "np.maximum({a}, {b}, out={a})",
    "np.add.at({a}, {ints}, {n})", "{a}[0], {a}[-1] = {a}[-1].copy(), {a}[0].copy()", "{a}[[0, -1]] = {a}[[-1, 0]]",
    "{a}.flat = {n}", "{a}.flat[1] = {n}", "{a}.flat[::2] = {n}", "{a}.put(0, {n})",
    "np.put_along_axis({a}, np.argsort({a}, axis=0)[:1], {n}, axis=0)", "{a}.partition(1)",
    "np.sqrt(abs({a})).round(out={a})",
    "{a}[np.ix_([0, -1])] = {n}", "{a}[np.nonzero({a})] -= 1", "{a}[np.arange(len({a})) % 2 == 0] = {n}",
    "{a}[np.newaxis, {key}] = {n}", "np.subtract({a}[{key}], {a}[{key}], out={a}[{key}])",
    "np.take({b}, {ints}, out={a}[:2])", "np.nan_to_num({a}, copy=False)",
    "{a}.swapaxes(0, -1)[0] = {n}", "{a}.reshape({shape})[0] = {n}", "{a}.T[0] += 1",
)  # fmt: skip


def laid_out(array: Any, layout: str) -> Any:
    """An array with these elements in another layout."""
    if layout == "Fortran":
        return np.asfortranarray(array)
    if layout == "strided":
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if layout == "reversed":
        return array[::-1].copy()[::-1]
    if layout == "transposed":
        return array.T.copy().T
    return array.copy()


class ViewProgram:
    """One program. text: its source. layouts: of its two arguments, a pair for each call."""

    def __init__(self, seed: int, shares: bool = False) -> None:
        rng = self.rng = random.Random(seed)
        self.second = rng.choice(SHARED) if shares else None
        self.shapes = [rng.choice(SHAPES) for _ in range(2)]
        self.dtypes = [rng.choice(("f8", "f8", "i8", "f4")) for _ in range(2)]
        self.layouts = [[rng.choice(LAYOUTS) for _ in range(2)] for _ in range(3)]
        self.seed, self.lines, self.names = seed, [], ["x", "y"]
        values = dict(zip("xy", self.arguments(0), strict=True))
        for _ in range(rng.randint(3, 9)):
            self._extend(values)
        body = "\n".join(f"    {line}" for line in self.lines)
        self.text = f"def function(x, y):\n{body}\n    return {', '.join(self.names)}\n"

    def arguments(self, call: int) -> list[Any]:
        numbers = np.random.default_rng((self.seed, call))
        drawn = [
            numbers.integers(-3, 5, shape).astype(one) for shape, one in zip(self.shapes, self.dtypes, strict=True)
        ]
        arrays = [laid_out(array, layout) for array, layout in zip(drawn, self.layouts[call], strict=True)]
        return arrays if self.second is None else [arrays[0], eval(self.second.format(x="x"), {"x": arrays[0]})]

    def _extend(self, values: dict[str, Any]) -> None:
        """Adds a statement that NumPy accepts."""
        for _ in range(30):
            name = self.rng.choice(self.names)
            is_view = len(self.names) < 7 and self.rng.random() < 0.5
            if not (is_view or values[name].flags.writeable):
                continue  # some functions of NumPy write into what is read-only
            new = f"v{len(self.names)}"
            template = self.rng.choice(VIEWS if is_view else WRITES)
            if "as_strided" in template and not self._may_be_restrided(name, values):
                continue  # it would reach memory of others, here or in a call with another layout
            line = self._filled(template, name, values)
            line = f"{new} = {line}" if is_view else line
            attempt = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in values.items()}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    exec(line, {"np": np}, attempt)  # copies share no memory: this checks shapes and types alone
                    if is_view and not isinstance(attempt[new], np.ndarray):
                        continue
                    exec(line, {"np": np}, values)
            except Exception:
                continue
            self.lines.append(line)
            if is_view:
                self.names.append(new)
            return

    def _may_be_restrided(self, name: str, values: dict[str, Any]) -> bool:
        """Whether four elements follow the first one of an array in memory, in each layout of the calls."""
        if name != "x" and (name != "y" or self.second is not None):
            return False
        layouts = [pair["xy".index(name)] for pair in self.layouts]
        return bool(values[name].flags.c_contiguous) and values[name].size > 3 and "reversed" not in layouts

    def _filled(self, template: str, name: str, values: dict[str, Any]) -> str:
        shape = values[name].shape
        return template.format(
            a=name, b=self.rng.choice(self.names), n=self.rng.randint(-2, 4),
            key=self._key(shape), ints=self.rng.choice(("[0, -1]", "np.array([0, 0])", "[-1, 0]", "[1, 1, 0]")),
            order=self.rng.sample(range(len(shape)), len(shape)), shape=self._other_shape(values[name].size),
        )  # fmt: skip

    def _key(self, shape: tuple[int, ...]) -> str:
        parts = []
        for extent in shape[: self.rng.randint(0, len(shape))]:
            integer = str(self.rng.randint(-extent, extent - 1)) if extent else ":"
            steps = ("::2", "1:", ":-1", "::-1", "::-2", ":", "-2:", "2:0:-1", ":2", "1::3")
            parts.append(integer if self.rng.random() < 0.3 else self.rng.choice(steps))
        if self.rng.random() < 0.2:
            parts.insert(self.rng.randint(0, len(parts)), "None")
        if self.rng.random() < 0.2 or not parts:
            parts.insert(self.rng.randint(0, len(parts)), "...")
        return ", ".join(parts)

    def _other_shape(self, size: int) -> tuple[int, ...]:
        fitting = [n for n in (1, 2, 3, 4, 5, 6, 12) if size and size % n == 0]
        first = self.rng.choice(fitting or [size])
        return self.rng.choice(((size,), (first, size // (first or 1)), (size // (first or 1), 1, first)))


def check_views(seed: int, target: str, shares: bool = False) -> None:
    """Checks a program: results, arguments, and which results are read-only or raise.

    shares: its arguments lie in the same memory; with some targets a call may be refused, and leaves them as they are.
    """
    program = ViewProgram(seed, shares)
    names: dict[str, Any] = {"np": np}
    exec(program.text, names)
    fused = fuse(names["function"], target=target)
    for call in (0, 1, 2, 0):
        given, right = program.arguments(call), program.arguments(call)
        text = f"seed {seed}, call {call}, {program.layouts[call]}\n{program.text}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected, error = _outcome(names["function"], right)
            results, raised = _outcome(fused, given)
        if error is not None:
            assert isinstance(raised, type(error)), f"{raised!r} instead of {error!r}\n{text}"
            return
        if isinstance(raised, UnsupportedError) and any(text in raised.message for text in REFUSED):
            assert shares or any(one in program.text for one in ("as_strided", ".view('f8')", ".view('i8')"))
            for mine, one in zip(given, program.arguments(call), strict=True):
                np.testing.assert_array_equal(mine, one, err_msg=text)
            return
        if raised is not None:
            raise raised
        compared = zip(
            (*results, *given), (*expected, *right), (*program.names, "argument x", "argument y"), strict=True
        )
        for mine, one, name in compared:
            assert (mine.shape, mine.dtype) == (one.shape, one.dtype), f"{name}\n{text}"
            np.testing.assert_array_equal(mine, one, err_msg=f"{name}\n{text}")


def _outcome(function: Any, arguments: list[Any]) -> tuple[Any, Exception | None]:
    try:
        return function(*arguments), None
    except Exception as error:
        return None, error
