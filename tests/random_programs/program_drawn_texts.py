"""Parts of statements that are drawn as a whole: chains of views and methods, einsum strings, keywords of ufuncs.

What a chain has so far is computed in NumPy, so that each step fits the axes that are there.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tests.random_programs.program_placeholders import DTYPES, Placeholders, class_of

OF_ANY = (
    "T", "ravel()", "flatten()", "reshape(-1)", "squeeze()", "copy()", "transpose()", "real", "imag", "conj()",
    "ravel('F')", "reshape(1, -1)", "reshape(-1, 1)", "astype({dt})", "clip({c}, {c})", "round({k})", "sum()",
    "clip(min={c})", "repeat(2)", "mean()", "max()", "min()", "any()", "all()", "prod()", "std()", "var(ddof={k})",
    "sum(keepdims=True)", "view()", "argmax()", "argmin(keepdims=True)", "cumsum()", "nonzero()[0]", "item(0)",
    "conjugate()", "take([0, -1])", "take(0)", "sum(dtype={dt})", "max(initial={c})", "sum(initial={c})",
    "argsort(axis=None, kind='stable')", "searchsorted({c})", "reshape({c})", "flatten('F')", "copy('F')",
)  # fmt: skip
"""Attributes and calls of methods, of arrays with any axes; some of which NumPy refuses."""

OF_AXES = (
    "sum({axis})", "sum(axis={axis}, keepdims=True)", "mean(axis={axis})", "max({axis})", "min(axis={axis})",
    "prod(axis={axis})", "std({axis})", "var(axis={axis}, keepdims=True)", "any({axis})", "all(axis={axis})",
    "argmax({axis})", "argmin(axis={axis})", "cumsum({axis})", "cumprod(axis={axis})", "take([0, 0, -1], axis={axis})",
    "repeat(2, axis={axis})", "swapaxes(0, -1)", "swapaxes({axis}, {axis})", "compress([True, False, True], {axis})",
    "argsort({axis}, kind='stable')", "sum(axis=({axis},))", "max(axis=({axis}, ), initial={c})", "squeeze({axis})",
    "mean({axis}, {dt})", "sum({axis}, {dt})", "any(axis=({axis},), keepdims=True)", "cumsum({axis}, dtype={dt})",
)  # fmt: skip
"""Calls of methods of arrays with axes."""

OF_MATRICES = (
    "diagonal({k})", "trace()", "trace({k}, dtype={dt})", "transpose(1, 0, *range(2, {ndim}))", "mT", "diagonal()",
    "sum(axis=(0, 1))", "max(axis=(-1, 0))", "mean(axis=(0, -1), keepdims=True)", "all(axis=(0, 1))", "swapaxes(0, 1)",
    "min((0, 1))", "prod(axis=(1, 0))", "std(axis=(0, 1), ddof=0)", "any((0, -1), keepdims=True)", "dot({same}.T)",
    "transpose(*range({ndim})[::-1])", "reshape({shape}[::-1])", "reshape({shape}[::-1], order='F')",
)  # fmt: skip
"""Calls of methods of arrays with at least two axes."""

KEYS = ("[::-1]", "[1:]", "[:-1]", "[::2]", "[0]", "[-1]", "[...]", "[None]", "[..., None]", "[..., ::-1]", "[..., 0]",
        "[:, None]", "[[0, -1]]", "[..., 1:]", "[::-2]", "[:0]", "[:1]")  # fmt: skip


PAD_MODES = (
    *(f"mode='{name}'" for name in ("constant", "edge", "linear_ramp", "maximum", "mean", "median", "minimum")),
    *(f"mode='{name}'" for name in ("reflect", "symmetric", "wrap")),
    "mode='reflect', reflect_type='odd'", "mode='symmetric', reflect_type='odd'", "mode='linear_ramp', end_values={c}",
    "mode='mean', stat_length=2", "mode='constant', constant_values=({c}, {c})", "mode='maximum', stat_length=(1, 2)",
)  # fmt: skip


class DrawnTexts(Placeholders):
    """Draws whole parts of statements."""

    def pick_chain(self) -> str:
        """An array behind two to five views, keys and methods."""
        text = self.choose()
        base = value = self.last
        taken = 0
        for _ in range(12):
            if taken >= self.chance.randint(2, 5) or not isinstance(value, np.ndarray | np.generic):
                break
            step, method = self.step_of(value, base)
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                try:
                    new = eval(text + step, dict(self.names))
                except Exception:
                    continue
            if not isinstance(new, np.ndarray | np.generic | int | float | complex):
                continue
            if method:
                self.drawn.append((method, class_of(value)))
            text, value, taken = text + step, new, taken + 1
        if not taken:
            raise LookupError
        return text

    def step_of(self, value: Any, base: Any) -> tuple[str, str]:
        """(the text of a step, the method that it calls)"""
        chance = self.chance
        if value.ndim and chance.random() < 0.25:
            return chance.choice(KEYS), ""
        kind = chance.random()
        choices = OF_ANY if not value.ndim or kind < 0.45 else OF_AXES if value.ndim < 2 or kind < 0.75 else OF_MATRICES
        step = chance.choice(choices)
        if "{same}" in step and value.shape != base.shape:
            step = "T"
        step = step.replace("{ndim}", str(value.ndim)).replace("{shape}", str(value.shape))
        while "{axis}" in step:
            step = step.replace("{axis}", str(chance.randrange(-value.ndim, value.ndim)), 1)
        return f".{self.replaced(step)}", step.partition("(")[0]

    def pick_einsum(self) -> str:
        """The arguments of np.einsum: subscripts whose letters name equal extents, and up to three operands."""
        chance = self.chance
        names = [self.choose()]
        last = self.last
        names += [chance.choice(self.arrays()) for _ in range(chance.choice((0, 1, 1, 1, 2)))]
        names = [name for name in names if np.ndim(self.names[name]) <= 4]
        if not names:
            raise LookupError
        self.last = last
        extents: dict[str, int] = {}
        inputs = []
        has_dots = chance.random() < 0.2
        for name in names:
            letters = ""
            shape = self.names[name].shape
            hidden = chance.randint(0, min(1, len(shape))) if has_dots else 0
            for extent in shape[hidden:]:
                equal = [one for one, size in extents.items() if size == extent]
                letter = chance.choice(equal) if equal and chance.random() < 0.7 else "ijklmnpq"[len(extents) % 8]
                if extents.setdefault(letter, extent) != extent:
                    raise LookupError
                letters += letter
            inputs.append(("..." if has_dots else "") + letters)
        kept = [letter for letter in extents if chance.random() < 0.5]
        chance.shuffle(kept)
        output = ("..." if has_dots else "") + "".join(kept)
        subscripts = ",".join(inputs) + ("" if chance.random() < 0.2 else f"->{output}")
        more = chance.choice(("", "", "", ", optimize=True", ", optimize='greedy'", f", dtype={self.pick_dt()}"))
        casting = ", casting='unsafe'" if "dtype" in more and chance.random() < 0.7 else ""
        return f"'{subscripts}', {', '.join(names)}{more}{casting}"

    def pick_several_axes(self) -> str:
        """A tuple of axes, of any order and sign; sometimes one that NumPy refuses."""
        if self.last is None:
            raise LookupError
        rank = self.last.ndim
        axes = self.chance.sample(range(rank), self.chance.randint(0, rank)) if rank else []
        signed = [axis - rank if self.chance.random() < 0.4 else axis for axis in axes]
        if self.chance.random() < 0.05:
            signed.append(self.chance.choice((0, rank)))
        return f"({', '.join(map(str, signed))}{',' if len(signed) == 1 else ''})"

    def pick_many_keywords(self) -> str:
        """Keywords of a ufunc together: an output of another type, a casting rule, a mask, a type."""
        shape = f"{self.name_of_last()}.shape"
        made = f"{self.chance.choice(('zeros', 'ones'))}({shape}, {self.pick_dt()})"
        layouts = (f"np.{made}", f"np.asfortranarray(np.{made})", f"np.{made}[::-1]", f"np.{made}.T.copy().T",
                   f"np.full({shape}, {self.pick_c()})", f"np.zeros((2, *{shape}), {self.pick_dt()})[1]")  # fmt: skip
        parts = [f"out={self.chance.choice(layouts)}"]
        masks = (self.pick_mask(), "True", "False", f"np.ones({shape}, bool)[::-1]", "[True]")
        if self.chance.random() < 0.7:
            parts.append(f"where={self.chance.choice(masks)}")
        if self.chance.random() < 0.7:
            parts.append(f"casting='{self.chance.choice(('unsafe', 'unsafe', 'same_kind', 'safe'))}'")
        if self.chance.random() < 0.3:
            parts.append(f"dtype={self.pick_dt()}")
        self.chance.shuffle(parts)
        return ", ".join(parts)

    def pick_structure(self) -> str:
        """Keywords of a reduction together."""
        parts = [self.chance.choice(("axis={several_axes}", "axis={several_axes}", "axis=None", "axis={axis}", ""))]
        parts.append(self.chance.choice(("keepdims=True", "keepdims=False", "")))
        parts.append(self.chance.choice(("initial={c}", "initial={scalar}", "")))
        parts.append(self.chance.choice(("where={mask}", "where=[True]", "")))
        parts.append(self.chance.choice(("dtype={dt}", "", "")))
        self.chance.shuffle(parts)
        return self.replaced(", ".join(part for part in parts if part))

    def pick_type_name(self) -> str:
        return f"'{self.chance.choice(DTYPES)}'"

    def pick_sort_kind(self) -> str:
        return self.chance.choice(("'stable'", "'mergesort'", "None", "'quicksort'", "'heapsort'"))

    def pick_pad_mode(self) -> str:
        return self.replaced(self.chance.choice(PAD_MODES))
