"""Random NumPy programs as text, with arguments, captured state, and what changes between calls.

A program grows statement by statement. Each statement is tried in NumPy on sample arguments first, and dropped where it
raises, so that names, shapes and types of what is there are known without a second model of NumPy.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import math
import random
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np

from tests.random_programs.numpy_stand_ins import (
    SUMS_OF_HALVES,
    InOrder,
    in_floats,
    in_type_of_ones,
    negative,
    reciprocal,
)
from tests.random_programs.program_calls import CALLS, CHANGES, LINES, NUMBERS_OF_ARRAYS, OF_NUMBERS
from tests.random_programs.program_compositions import BLOCKS, COMPOSED, WRITES_THROUGH_VIEWS
from tests.random_programs.program_coverage import Coverage
from tests.random_programs.program_drawn_texts import DrawnTexts
from tests.random_programs.program_placeholders import CLASSES, DTYPES, class_of, functions_of
from tests.random_programs.program_signatures import CHANGING_TEMPLATES, TEMPLATES
from tests.random_programs.program_statements import COMPOUND, EXPRESSIONS, IN_PLACE, STATEFUL

VALUES = [*EXPRESSIONS, *CALLS, *NUMBERS_OF_ARRAYS, *TEMPLATES, *COMPOSED]
WRITES = [*IN_PLACE, *CHANGES, *CHANGING_TEMPLATES, *WRITES_THROUGH_VIEWS]
SEQUENCES = [*COMPOUND, *LINES, *BLOCKS]

LAYOUTS = (
    "C", "C", "C", "F", "strided", "reversed", "transposed", "stride0", "offset", "read-only", "all reversed",
    "permuted", "columns",
)  # fmt: skip
EXTENTS = (2, 3, 4, 4, 5, 7)
LARGEST = 600
"""Elements that a value may have."""

_numbers = itertools.count()


@dataclass(frozen=True)
class Array:
    """An array to make: its axes are names of extents ("n", "m") or numbers."""

    dtype: str
    axes: tuple[str | int, ...]
    special: bool

    def make(self, seed: int, extents: dict[str, int], layout: str) -> Any:
        """The array, for a seed, extents and a layout."""
        shape = tuple(extents[axis] if isinstance(axis, str) else axis for axis in self.axes)
        values = np.asarray(filled(np.random.default_rng(seed), shape, np.dtype(self.dtype), self.special))
        return laid_out(values, layout)


@dataclass(frozen=True)
class Number:
    """A scalar argument: the text of its value, with `{}` where a number that changes between calls stands."""

    text: str

    def make(self, seed: int, extents: dict[str, int], layout: str) -> Any:
        del extents, layout
        return eval(self.text.format(seed % 5 - 1), {"np": np})


def filled(draw: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], special: bool) -> Any:
    """Values of a type: small ones, of which some are edge cases if `special`."""
    if dtype.kind == "b":
        return draw.random(shape) < 0.5
    if dtype.kind in "iu":
        low = 0 if dtype.kind == "u" else -9
        values = draw.integers(low, 10, shape).astype(dtype)
        edges = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1], dtype)
    else:
        values = (draw.integers(-12, 13, shape) / 4 + (0 if draw.random() < 0.5 else draw.normal(size=shape))).astype(
            dtype
        )
        if dtype.kind == "c":
            values = values + (1j * draw.integers(-8, 9, shape) / 4).astype(dtype)
        edges = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, np.finfo(dtype).smallest_subnormal], dtype)
    if special:
        values = np.asarray(np.where(draw.random(shape) < 0.2, draw.choice(edges, shape), values), dtype)
    return values


def laid_out(values: Any, layout: str) -> Any:
    """The same values in another layout; "stride0" repeats the first element along the first axis."""
    if layout == "read-only":
        values.flags.writeable = False
    if values.ndim == 0:
        return values
    match layout:
        case "F":
            return np.asfortranarray(values)
        case "strided":
            wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
            wide[..., ::2] = values
            return wide[..., ::2]
        case "reversed":
            return values[::-1].copy()[::-1]
        case "transposed":
            return values.transpose().copy().transpose()
        case "all reversed":
            back = (slice(None, None, -1),) * values.ndim
            return values[back].copy()[back]
        case "permuted":
            return np.moveaxis(np.moveaxis(values, 0, -1).copy(), -1, 0)
        case "columns":
            wide = np.zeros((*values.shape[:-1], values.shape[-1] + 3), values.dtype)
            wide[..., 1:-2] = values
            return wide[..., 1:-2]
        case "stride0" if values.shape[0] > 0:
            return np.broadcast_to(values[:1].copy(), values.shape)
        case "offset":
            wide = np.zeros((values.shape[0] + 1, *values.shape[1:]), values.dtype)
            wide[1:] = values
            return wide[1:]
    return values


class Box:
    """An object with attributes, the `self` of a program that is a method."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@dataclass
class RandomProgram:
    """Parameters, captured values and statements; `text` is the function, `run` calls it."""

    parameters: dict[str, Array | Number]
    captured: dict[str, Array | Number]
    attributes: dict[str, Array | Number]
    statements: list[str]
    results: list[str]
    calls: list[Call] = field(default_factory=list)
    uses: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def text(self) -> str:
        names = [*(["self"] if self.attributes else []), *self.parameters]
        lines = [line for statement in self.statements for line in statement.splitlines()]
        declared = [name for name in self.captured if any(re.search(rf"\b{name} (\S?=) ", one) for one in lines)]
        body = [*([f"global {', '.join(declared)}"] if declared else []), *lines, f"return [{', '.join(self.results)}]"]
        return "\n".join([f"def program({', '.join(names)}):", *(f"    {line}" for line in body), ""])


@dataclass(frozen=True)
class Call:
    """One call: seeds of its values, extents, a layout for each parameter, and what changes before it."""

    seed: int
    extents: dict[str, int]
    layouts: tuple[str, ...]
    change: str


HELPERS = {
    "in_order": InOrder,
    **{
        f"typed_{name}": in_type_of_ones(getattr(np, name))
        for name in ("quantile", "percentile", "nanquantile", "nanpercentile")
    },
    **{f"wide_{name}": in_floats(getattr(np, name)) for name in SUMS_OF_HALVES},
    **{
        f"wide_{ufunc.__name__}_{method}": in_floats(getattr(ufunc, method))
        for ufunc in (np.add, np.multiply)
        for method in ("reduce", "accumulate", "reduceat")
    },
    "np": np,
    "math": math,
    "reciprocal": reciprocal,
    "negative": negative,
    "twice": lambda x: x * 2,
    "scaled": lambda x, by=3: x * by + 1,
    "Box": Box,
}
"""Names that every program may use."""


COMMON = 8
"""A function of more templates than these comes often enough in those of others."""


@functools.lru_cache(maxsize=64)
def shuffled_templates(cycle: int) -> tuple[str, ...]:
    """One template of each function, another one in each cycle, in an order that differs by cycle.

    So a function with one template comes as often as one with several.
    """
    of_functions: dict[str, list[str]] = defaultdict(list)
    for template in sorted({*VALUES, *WRITES, *SEQUENCES, *OF_NUMBERS}):
        for name in functions_of(template) or [template]:
            of_functions[name].append(template)
    templates = [several[cycle % len(several)] for several in of_functions.values() if len(several) <= COMMON]
    random.Random(cycle).shuffle(templates)
    return tuple(templates)


def planned_templates(seed: int) -> Iterator[str]:
    """The templates of a seed: the seeds of one class of types take all templates in turn, so none is rare."""
    first = seed // len(CLASSES) * MOST_STATEMENTS
    for position in itertools.count(first):
        cycle, place = divmod(position, len(shuffled_templates(0)))
        yield shuffled_templates(cycle)[place]


def program_of(seed: int, with_state: bool, coverage: Coverage | None = None) -> RandomProgram:
    """The program of a seed; of seeds and the calls before it, where coverage chooses the functions."""
    if coverage is None:
        return Writer(seed, with_state).write(steps=1 + (seed // len(CLASSES)) % MOST_STATEMENTS)
    program = Writer(seed, with_state, coverage).write(steps=3 + seed % 4)
    coverage.uses.update(program.uses)
    return program


class Writer(DrawnTexts):
    """Writes one program: chooses statements and tries them."""

    def __init__(self, seed: int, with_state: bool = True, coverage: Coverage | None = None) -> None:
        super().__init__(random.Random(seed), CLASSES[seed % len(CLASSES)])
        self.with_state = with_state
        self.planned = coverage.templates(self.preferred) if coverage else planned_templates(seed)
        self.extents = {"n": self.extent(), "m": self.extent()}

    def extent(self) -> int:
        return self.chance.choice((0, 1, 1)) if self.chance.random() < 0.12 else self.chance.choice(EXTENTS)

    def write(self, steps: int) -> RandomProgram:
        """A program of about so many statements."""
        chance = self.chance
        parameters: dict[str, Array | Number] = {"a0": self.array(self.preferred)}
        if chance.random() < 0.5:
            parameters["a1"] = self.array(self.preferred if chance.random() < 0.3 else None)
        if chance.random() < 0.25:
            parameters["a2"] = self.array()
        if chance.random() < 0.5:
            parameters["s"] = Number(chance.choice(NUMBERS))
        captured: dict[str, Array | Number] = {}
        if self.with_state and chance.random() < 0.25:
            captured = {"W": self.array()}
        attributes: dict[str, Array | Number] = {}
        if self.with_state and chance.random() < 0.2:
            attributes = {"state": self.array(), "count": Number("{}"), "rate": Number("{} / 4")}
        program = RandomProgram(parameters, captured, attributes, [], [])
        program.calls = self.calls_of(program)
        self.start(program)
        for step in range(steps):
            self.add_statement(program, step == steps - 1)
        self.finish(program)
        return program

    def array(self, kind: str | None = None) -> Array:
        """An array to make, of a class of types or of any type."""
        dtypes = [one for one in DTYPES if kind is None or class_of(np.zeros(1, one)) == kind]
        axes = tuple(
            self.chance.choice(("n", "n", "n", "m", "m", 3, 1)) if self.chance.random() < 0.98 else 0
            for _ in range(self.chance.choice((0, 1, 1, 1, 2, 2, 2, 3)))
        )
        return Array(self.chance.choice(dtypes), axes, self.chance.random() < 0.25)

    def calls_of(self, program: RandomProgram) -> list[Call]:
        calls = []
        count = len(program.parameters) + len(program.captured) + len(program.attributes)
        for k in range(self.chance.randint(2, 4)):
            extents = self.extents if k == 0 or self.chance.random() < 0.5 else {"n": self.extent(), "m": self.extent()}
            layouts = tuple(self.chance.choice(LAYOUTS) if self.chance.random() < 0.5 else "C" for _ in range(count))
            change = self.chance.choice(("nothing", "rebind", "in place", "new object")) if k else "nothing"
            calls.append(Call(self.chance.randrange(1 << 30), extents, layouts, change))
        return calls

    def start(self, program: RandomProgram) -> None:
        """Names with the values of the first call."""
        arguments, captured, box = values_of(program, program.calls[0])
        self.names = {**HELPERS, **captured, **dict(zip(program.parameters, arguments, strict=True))}
        if box is not None:
            self.names["self"] = box

    def add_statement(self, program: RandomProgram, is_last: bool) -> None:
        """Adds one statement that NumPy takes, in at most 20 attempts: of planned templates in turn, then of any."""
        most_wrong = 0.06 if is_last else 0.003
        is_planned = self.chance.random() < 0.9
        planned: str | None = None
        for attempt in range(20):
            self.used = []
            if attempt % 4 == 0:
                planned = next(self.planned) if is_planned and attempt < 16 else None
            self.keeps_class = planned is not None
            statement = self.statement(program) if planned is None else self.filled_in(planned, program)
            if statement is None:
                continue
            error = tried(statement, self.names)
            if error is None:
                program.statements.append(statement)
                program.uses.update(self.used)
                return
            if error is not DISCARD and self.chance.random() < most_wrong:
                program.statements.append(statement)
                return

    def statement(self, program: RandomProgram) -> str | None:
        chance = self.chance
        kind = chance.random()
        pool = VALUES
        if kind < 0.22:
            pool = WRITES
        elif kind < 0.34:
            pool = SEQUENCES
        elif kind < 0.5 and program.attributes:
            pool = STATEFUL
        elif kind < 0.5 and "s" in self.names:
            pool = OF_NUMBERS
        return self.filled_in(chance.choice(pool), program)

    def filled_in(self, template: str, program: RandomProgram) -> str | None:
        """A template as a statement; an expression is assigned to a new name."""
        text = self.fill(template)
        if text is not None and CRASHES.search(text):
            return None
        if text is None or template not in _EXPRESSIONS:
            return text
        return f"t{len(program.statements)} = {text}"

    def finish(self, program: RandomProgram) -> None:
        """The program returns its computed names."""
        computed = [name for name in self.names if re.fullmatch(r"t\d+|u|v", name)]
        names = computed[-6:] or [next(iter(program.parameters))]
        program.results = [*names, *(f"isinstance({name}, np.ndarray)" for name in names)]


CRASHES = re.compile(r"np\.(greater|greater_equal|less|less_equal|equal|not_equal)\(.*where=")
"""What ends the process inside of NumPy 2: a comparison of small integers with a number out of their range."""

_EXPRESSIONS = frozenset([*VALUES, *OF_NUMBERS])
MOST_STATEMENTS = 10

NUMBERS = (
    "{}",
    "{} / 4",
    "np.float64({})",
    "np.float32({} / 4)",
    "np.int64({})",
    "np.array({})",
    "bool({} > 1)",
    "{} + 1j",
    "np.float16({} / 2)",
    "np.int8({})",
    "np.uint8(abs({0}))",
    "np.uint64(abs({0}))",
    "np.complex64({} - 2j)",
    "np.bool_({} > 0)",
    "np.array({} / 2, np.float32)",
    "np.array({}, np.int16)",
)


RESULTS = (np.ndarray, np.generic, np.dtype, int, float, complex, tuple, list, dict, FunctionType)
"""Types of the values that statements give."""


class Discard:
    """The statement is of no use, without an error of NumPy."""


DISCARD = Discard()


def tried(statement: str, names: dict[str, Any]) -> Any:
    """Runs a statement: None where it works, else the exception, or DISCARD where its values are no use."""
    before = dict(names)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore", invalid="warn"):
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message=".*encountered in cast.*")
            exec(compile(statement, "<tried>", "exec"), names)
    except RuntimeWarning:
        return DISCARD
    except Exception as error:
        return error
    new = names.keys() - before.keys() - {"__builtins__"}
    for name in new:
        value = names[name]
        is_array = isinstance(value, RESULTS)
        if not is_array or (
            isinstance(value, np.ndarray | np.generic) and (value.size > LARGEST or value.dtype.kind not in "biufc")
        ):
            for one in new:
                del names[one]
            return DISCARD
    return None


def values_of(program: RandomProgram, call: Call) -> tuple[tuple[Any, ...], dict[str, Any], Box | None]:
    """(arguments, captured values, object) for a call."""
    layouts = iter(call.layouts)
    made = [
        {name: spec.make(call.seed + k, call.extents, next(layouts)) for k, (name, spec) in enumerate(specs.items())}
        for specs in (program.parameters, program.captured, program.attributes)
    ]
    return tuple(made[0].values()), made[1], Box(**made[2]) if made[2] else None


def compiled(text: str, scope: dict[str, Any]) -> Any:
    """The function `program` that a text defines, with its lines known to tracebacks."""
    filename = f"<random program {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), scope)
    return scope["program"]
