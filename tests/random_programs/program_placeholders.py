"""What stands for the placeholders in the statements of a random program: chosen among the names that it has so far."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np

from tests.random_programs.program_signatures import SIGNATURE, with_arguments

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "int64", "uint64",
    "float16", "float32", "float32", "float64", "float64", "float64", "complex64", "complex128",
)  # fmt: skip


SCALARS = (
    "np.bool_(True)", "np.int8(3)", "np.int8(-128)", "np.uint8(200)", "np.int16(-7)", "np.uint16(9)", "np.int32(-2)",
    "np.uint32(5)", "np.int64(-3)", "np.int64(2)", "np.uint64(7)", "np.float16(1.5)", "np.float16(-0.1)",
    "np.float32(0.1)", "np.float32(-2)", "np.float64(0.25)", "np.float64('inf')", "np.float32('nan')",
    "np.float64(-0.0)", "np.complex64(1 - 2j)", "np.complex128(0.5j)",
)  # fmt: skip
"""NumPy scalars of every type."""

LIST_ENTRIES = ("0", "1", "2", "-1", "3", "0.5", "-1.5", "True", "False", "1j", "2.25", "np.float32(0.5)", "np.int8(4)")

METHODS_OF_QUANTILES = (
    "inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull",
    "linear", "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest",
)  # fmt: skip

CLASSES = ("bool", "int", "uint", "float16", "float", "complex")


class Placeholders:
    """Chooses names, numbers, keys and axes that fit the values so far.

    preferred: the class of types of most arrays. names: the values of all names, from the first call. last: the array
    that was chosen last. used: the functions of the statement, with the class of the type that they met. drawn:
    those of chains of methods that stand for placeholders. keeps_class: whether nearly all arrays are of the preferred
    class.
    """

    def __init__(self, chance: random.Random, preferred: str) -> None:
        self.chance = chance
        self.preferred = preferred
        self.names: dict[str, Any] = {}
        self.used: list[tuple[str, str]] = []
        self.drawn: list[tuple[str, str]] = []
        self.call = ""
        self.last: Any = None
        self.keeps_class = False

    def fill(self, template: str) -> str | None:
        """The template with every placeholder replaced; None where nothing fits."""
        self.last, self.drawn = None, []
        output = ""
        if SIGNATURE in template:
            template, output = with_arguments(template, self.chance)
        try:
            text = self.call = self.replaced(template)
            text = f"{text[:-1]}{'' if text.endswith('()') else ', '}{self.replaced(output)})" if output else text
        except LookupError:
            return None
        if self.last is not None:
            self.used += [(name, class_of(self.last)) for name in functions_of(template)] + self.drawn
        return text

    def replaced(self, template: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda match: str(getattr(self, f"pick_{match[1]}")()), template)

    def pick_call(self) -> str:
        return self.call

    def arrays(self, least: int = 0, kinds: str = "biufc", writeable: bool = False) -> list[str]:
        return [
            name
            for name, value in self.names.items()
            if isinstance(value, np.ndarray | np.generic) and value.ndim >= least and value.dtype.kind in kinds
            and (not writeable or (isinstance(value, np.ndarray) and is_written(value) and name != "W"))
        ]  # fmt: skip

    def choose(self, least: int = 0, kinds: str = "biufc", writeable: bool = False) -> str:
        names = self.arrays(least, kinds, writeable)
        if not names:
            raise LookupError
        preferred = [name for name in names if class_of(self.names[name]) == self.preferred]
        names = preferred if preferred and self.chance.random() < (0.9 if self.keeps_class else 0.6) else names
        # Late names are likelier: programs are chains.
        name = names[-1] if self.chance.random() < 0.35 else self.chance.choice(names)
        self.last = self.names[name]
        return name

    def pick_x(self) -> str:
        return self.choose()

    def pick_x1(self) -> str:
        return self.choose(1)

    def pick_x2(self) -> str:
        return self.choose(2)

    def pick_b(self) -> str:
        return self.choose(0, "b")

    def pick_i(self) -> str:
        return self.choose(0, "iu")

    def pick_f(self) -> str:
        return self.choose(0, "fc")

    def pick_w(self) -> str:
        return self.choose(0, writeable=True)

    def pick_w2(self) -> str:
        return self.choose(2, writeable=True)

    def pick_w1(self) -> str:
        return self.choose(1, writeable=True)

    def pick_y(self) -> str:
        """An operand beside the last array: of its shape, one that broadcasts, or a number."""
        if self.last is None:
            return self.choose()
        last = self.last
        if self.chance.random() < 0.35:
            return self.pick_c()
        if self.chance.random() < 0.06:
            return self.pick_list()
        fitting = [name for name in self.arrays() if self.names[name].shape == last.shape]
        fitting += [name for name in self.arrays() if broadcasts(self.names[name].shape, last.shape)]
        if fitting and self.chance.random() < 0.9:
            return self.chance.choice(fitting)
        return self.chance.choice(self.arrays())

    def pick_v(self) -> str:
        """What is assigned: a number or an operand."""
        return self.pick_y() if self.chance.random() < 0.5 else self.pick_c()

    def pick_c(self) -> str:
        if "s" in self.names and self.chance.random() < 0.25:
            return "s"
        if self.chance.random() < 0.12:
            return self.pick_scalar()
        return self.chance.choice(
            ("2", "3", "-1", "0.5", "1", "0", "1.5", "-0.25", "True", "np.float32(1.5)", "np.int64(2)", "2j")
        )

    def pick_s(self) -> str:
        return "{s}"  # of a format string

    def pick_scalar(self) -> str:
        return self.chance.choice(SCALARS)

    def pick_list(self) -> str:
        """A list that mostly broadcasts with the last array."""
        entries = self.chance.choice((LIST_ENTRIES, LIST_ENTRIES[:5], LIST_ENTRIES[5:7], LIST_ENTRIES[7:9]))
        shape = getattr(self.last, "shape", ())[-2:] or (2,)
        extents = [extent if self.chance.random() < 0.8 else 1 for extent in shape[self.chance.randrange(len(shape)) :]]

        def nested(depth: int) -> str:
            if depth == len(extents):
                return self.chance.choice(entries)
            return f"[{', '.join(nested(depth + 1) for _ in range(min(extents[depth], 8)))}]"

        return nested(0)

    def pick_k(self) -> int:
        return self.chance.choice((0, 1, 1, 2, -1, 3))

    def pick_axis(self) -> int:
        if self.last is None or self.last.ndim == 0:
            raise LookupError
        return self.chance.randrange(-self.last.ndim, self.last.ndim)

    def pick_axes(self) -> str:
        kind = self.chance.random()
        if kind < 0.3 or self.last.ndim == 0:
            return ""
        if kind < 0.4 and self.last.ndim > 1:
            return "axis=(0, 1)"
        return f"axis={self.pick_axis()}" + (", keepdims=True" if self.chance.random() < 0.4 else "")

    def pick_reduction(self) -> str:
        """Keywords of a reduction, of which not every function takes every one."""
        if self.last is None:
            raise LookupError
        axes = self.chance.choice(("", "axis=None", "axis=()", "axis=0", "axis=-1", "axis=(0, 1)", "axis=(-1,)"))
        keeps = self.chance.choice(("", "", "keepdims=True", "keepdims=False"))
        more = self.chance.choice(("dtype={dt}", "initial={c}", "where={mask}", "out", "where", "both", "ddof=1", ""))
        before = ", ".join(one for one in (axes, keeps) if one)
        if more == "out":
            shape = f"np.any({self.name_of_last()}{', ' + before if before else ''}).shape"
            more = f"out=np.zeros({shape}, {self.pick_holding()})"
        elif more == "where":
            masks = ("True", "False", "[True]", "np.array([False])", "[True, False, True]")
            more = "where=" + self.chance.choice(masks)
        elif more == "both":
            more = "initial={c}, where={mask}"
        more = re.sub(r"\{(\w+)\}", lambda match: str(getattr(self, f"pick_{match[1]}")()), more)
        parts = [one for one in (axes, more, keeps) if one]
        return ", ".join(parts)

    def pick_scan(self) -> str:
        """Keywords of a scan."""
        axis = "" if self.last is None or self.last.ndim == 0 else f"axis={self.pick_axis()}"
        more = self.chance.choice(
            ("", f"dtype={self.pick_dt()}", f"out=np.zeros({self.name_of_last()}.shape, {self.pick_dt()})")
        )
        return ", ".join(one for one in (axis, more) if one)

    def pick_ufunc(self) -> str:
        """Keywords of a ufunc."""
        shape = f"{self.name_of_last()}.shape"
        zeros, ones = f"np.zeros({shape}, {self.pick_dt()})", f"np.ones({shape}, {self.pick_dt()})"
        options = (
            f"dtype={self.pick_dt()}", f"dtype={self.pick_dt()}, casting='unsafe'", f"out={zeros}", f"out=({ones},)",
            f"casting='{self.pick_casting_name()}'", f"where={self.pick_mask()}, out={ones}", "where=True", "order='F'",
            "subok=False", f"out={zeros}, casting='unsafe'", f"where={self.pick_mask()}, out=np.zeros((2, *{shape}))",
        )  # fmt: skip
        return self.chance.choice(options)

    def pick_casting_name(self) -> str:
        return self.chance.choice(("no", "equiv", "safe", "same_kind", "unsafe"))

    def pick_casting(self) -> str:
        return f"casting='{self.pick_casting_name()}'"

    def pick_binary(self) -> str:
        names = "subtract divide power fmax bitwise_and bitwise_or hypot arctan2 equal less gcd"
        return self.chance.choice(names.split())

    def pick_holding(self) -> str:
        """A type that holds the elements of the last array."""
        own = self.last.dtype
        return self.chance.choice([f"np.{name}" for name in DTYPES if np.can_cast(own, name)]).replace("bool", "bool_")

    def pick_method(self) -> str:
        return self.chance.choice(METHODS_OF_QUANTILES)

    def pick_places(self) -> str:
        """Positions along the first axis, of which some repeat."""
        extent = self.last.shape[0] if self.last.ndim else 0
        if extent == 0:
            raise LookupError
        indices = [self.chance.randrange(-extent, extent) for _ in range(self.chance.randint(1, 4))]
        return self.chance.choice((str(indices), f"np.array({indices})", str(indices[0]), f"({indices},)"))

    def pick_dt(self) -> str:
        return f"np.{self.chance.choice(DTYPES)}".replace("np.bool", "np.bool_")

    def pick_mask(self) -> str:
        if self.last is None:
            self.choose()
        masks = [name for name in self.arrays(0, "b") if self.names[name].shape == self.last.shape and self.last.ndim]
        if masks and self.chance.random() < 0.4:
            return self.chance.choice(masks)
        names = [name for name in self.arrays(0, "biuf") if self.names[name].shape == self.last.shape]
        if not names:
            raise LookupError
        relation, bound = self.chance.choice((">", "<", ">=", "!=", "==")), self.chance.choice(("0", "1", "0.5", "2"))
        return f"{self.chance.choice(names)} {relation} {bound}"

    def pick_key(self) -> str:
        parts = []
        for extent in self.last.shape[: self.chance.randint(0, self.last.ndim)]:
            kind = self.chance.random()
            if kind < 0.3 and extent:
                parts.append(str(self.chance.randrange(-extent, extent)))
            else:
                bounds = [str(self.chance.randint(-3, 4)) if self.chance.random() < 0.5 else "" for _ in range(2)]
                parts.append(":".join([*bounds, *([str(self.chance.choice((1, 2, -1, -2, 3)))] if kind > 0.6 else [])]))
        if self.chance.random() < 0.15:
            parts.insert(self.chance.randint(0, len(parts)), "None")
        if self.chance.random() < 0.15 or not parts:
            parts.append("...")
        return ", ".join(parts)

    def pick_fancy(self) -> str:
        extent = self.last.shape[0] if self.last.ndim else 0
        if extent == 0:
            raise LookupError
        indices = [self.chance.randrange(-extent, extent) for _ in range(self.chance.randint(1, 3))]
        first = self.chance.choice((str(indices), f"np.array({indices})", "np.arange({last}.shape[0])[::2]", "::2"))
        first = first.replace("{last}", self.name_of_last())
        if self.last.ndim > 1 and self.chance.random() < 0.5:
            return f"{first}, {self.chance.choice(('0', '-1', ':', '::-1', '0:1'))}"
        return first

    def name_of_last(self) -> str:
        if self.last is None:
            return self.choose()
        return next(name for name, value in self.names.items() if value is self.last)

    def pick_last(self) -> str:
        return self.name_of_last()

    def pick_same(self) -> str:
        """Another array of the same shape."""
        if self.last is None:
            return self.choose()
        return self.chance.choice([name for name in self.arrays() if self.names[name].shape == self.last.shape])

    def pick_reshape1(self) -> str:
        return self.chance.choice(("-1", "(-1,)", "(-1, 1)", "(1, -1)"))

    def pick_reshape(self) -> str:
        if self.last is None:
            raise LookupError
        shape = self.last.shape
        options = ["-1", "(-1, 1)", "(1, -1)"]
        if len(shape) == 2:
            options += [
                "({last}.shape[1], {last}.shape[0])",
                "({last}.shape[0] * {last}.shape[1],)",
                "(1, *{last}.shape)",
            ]
        if len(shape) == 3:
            options += ["({last}.shape[0], -1)", "(-1, {last}.shape[2])"]
        return self.chance.choice(options).replace("{last}", self.name_of_last())


def functions_of(template: str) -> list[str]:
    """The functions, methods and operators of a template."""
    called = [name for names in re.findall(r"np\.([\w.]+)\(|\.(\w+)\(", template) for name in names if name]
    return called + re.findall(r" ([-+*/%@&|^<>=!]+) ", template)


def is_written(value: np.ndarray) -> bool:
    """Whether programs may change an array: in memory that elements share, NumPy leaves the result undefined."""
    shares = any(stride == 0 and extent > 1 for stride, extent in zip(value.strides, value.shape, strict=True))
    return value.flags.writeable and not shares


def class_of(value: Any) -> str:
    """The class of a type, as coverage counts it."""
    dtype = value.dtype
    return (
        dtype.name
        if dtype.name == "float16"
        else {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}[dtype.kind]
    )


def broadcasts(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(one, other) == other
    except ValueError:
        return False
