"""The one table of options.

Each option is an environment variable `TRACEFUSE_NAME`, a keyword of `@fuse`, and `with options(name=value):`; the
nearest wins: the `with` block, then the decorator, then the environment, then the default. An unknown name or value
raises OptionError with the close matches. `Options` objects with equal values are the same object, so that a cache key
compares one pointer.

Knows: names, kinds and defaults of options. Must not know: what they do.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from weakref import WeakValueDictionary

from tracefuse.caches import Cache, register
from tracefuse.errors import OptionError, shown


@dataclass(frozen=True, slots=True)
class Option:
    """One row.

    choices: the values that a string option takes, or none for any string; words: what a comma list may hold. limits:
    the smallest and the largest value of an integer. changes_code: in cache keys.
    """

    name: str
    default: bool | int | str
    doc: str
    choices: tuple[str, ...] = ()
    changes_code: bool = True
    words: tuple[str, ...] = ()
    limits: tuple[int, int] | None = None

    def check(self, value: Any, origin: str) -> bool | int | str:
        """The value in the option's kind; OptionError for one that it does not take."""
        kind = type(self.default)
        if issubclass(kind, StrEnum) and isinstance(value, str) and value in self.choices:
            return kind(value)
        if type(value) is kind and isinstance(value, str) and self.words:
            return self._check_words(value, origin)
        if type(value) is kind and (not self.choices or value in self.choices) and self._is_inside(value):
            return value
        expected = {bool: "True or False", int: "an integer"}.get(kind, "a string")
        if self.limits is not None:
            expected += f" from {self.limits[0]} to {self.limits[1]}"
        if self.choices:
            expected = f"one of {', '.join(map(repr, self.choices))}"
            close = difflib.get_close_matches(value, self.choices, 1) if isinstance(value, str) else []
            expected += f"; did you mean {close[0]!r}?" if close else ""
        raise OptionError(f"option {self.name} cannot be {shown(value)} ({origin})", hint=f"give {expected}")

    def _is_inside(self, value: Any) -> bool:
        return self.limits is None or self.limits[0] <= value <= self.limits[1]

    def _check_words(self, value: str, origin: str) -> str:
        """A comma list without spaces and repeated words."""
        found = dict.fromkeys(word for part in value.split(",") if (word := part.strip()))
        for word in found:
            if word not in self.words:
                close = difflib.get_close_matches(word, self.words, 1)
                hint = f"a comma list of {', '.join(self.words)}" + (f"; did you mean {close[0]!r}?" if close else "")
                raise OptionError(f"option {self.name} cannot hold {word!r} ({origin})", hint=hint)
        return ",".join(found)

    def parse(self, text: str) -> bool | int | str:
        """The value that an environment variable spells."""
        origin = f"TRACEFUSE_{self.name.upper()}"
        if isinstance(self.default, bool):
            word = text.strip().lower()
            if word in ("1", "true", "on", "yes", "0", "false", "off", "no", ""):
                return word in ("1", "true", "on", "yes")
            return self.check(text, origin)
        if isinstance(self.default, int):
            digits = text.strip().removeprefix("-").isdigit()
            return self.check(int(text) if digits else text, origin)
        return self.check(text, origin)


DUMPS = ("fusion", "passes", "concretized", "segments", "kernel", "source", "host_ir")
"""What `dump` can name."""

PASSES = (
    "round_scalars",
    *("fold_constants", "merge_common", "read_transposed", "drop_dead", "join_in_runs", "separate_outputs"),
    *("drop_dead_tensors", "decompose", "round_halves", "reduce_in_one_pass"),
    *("split_complex", "tidy_kernel"),
)
"""The names of all passes, which `disable` can name; tracefuse/passes/pipeline.py defines them."""

FEATURES = ("passes", "fusion", "concretize_resize_extents", "loop_buffer_reuse")
"""What `disable` can name besides single passes: all passes that only optimize (passes), that several ops share a
segment (fusion), that resized axes are static, and that a value which lives only within a loop has a slot for as many
slices as there are streams."""


class ResizeExtents(StrEnum):
    """How the axes of a resize are keyed.

    ON: by their exact extents. OFF: by whether they broadcast. AUTO: as ON until a resize meets other extents, then as
    OFF.
    """

    AUTO = "auto"
    ON = "on"
    OFF = "off"

    def __repr__(self) -> str:
        return repr(self.value)


TABLE: dict[str, Option] = {
    option.name: option
    for option in (
        Option("target", "auto", "what runs it; auto follows the arrays", ("auto", "cpu", "cuda", "reference")),
        Option("contract", True, "a multiplication and an addition may become one fused operation"),
        Option("fast_math", False, "ignore signed zeros, use reciprocals and approximate functions"),
        Option("exact_half", False, "round after every operation on float16 and bfloat16"),
        Option("dynamic", True, "extents stay symbolic; off compiles for each shape"),
        Option(
            "concretize_resize_extents", ResizeExtents.AUTO, "key resizes by their exact extents", tuple(ResizeExtents)
        ),
        Option("eager", False, "call the original function, so that a debugger and print work", changes_code=False),
        Option("graph", False, "launch the kernels of a call as one CUDA graph"),
        Option(
            "donation", "warn", "what happens where donated memory cannot be used", ("warn", "raise", "ignore"),
            changes_code=False,
        ),
        Option("check", False, "compare every segment with the NumPy meaning; indices out of range raise on CUDA too"),
        Option("threads", 0, "threads that run a CPU kernel at most; 0 is one for each core", limits=(0, 4096)),
        Option(
            "debug", 0, "log 1 segments, times, rebuilt plans; 2 IR, verdicts; 3 kernel source; 4 passes",
            limits=(0, 4), changes_code=False,
        ),
        Option("dump", "", "what each compilation writes into a folder of its own", words=DUMPS, changes_code=False),
        Option("dump_dir", "", "folder of what dump writes; empty is tracefuse_dump", changes_code=False),
        Option(
            "disable", "", "features and passes to turn off while bisecting a wrong result", words=(*FEATURES, *PASSES)
        ),
        Option(
            "number_of_streams", 4, "streams that the slices of a value go to", limits=(1, 1024), changes_code=False
        ),
        Option(
            "streams", 1, "streams that independent segments go to; 1 is the caller's alone", limits=(1, 1024),
            changes_code=False,
        ),
        Option("cache_dir", "", "folder of compiled kernels; empty is the user's cache folder", changes_code=False),
        Option("cache_limit", 1 << 30, "bytes of compiled kernels on disk at most; 0 is none", changes_code=False),
    )
}  # fmt: skip


class Options:
    """The values of all options as attributes. Made by `resolve`; equal values are one object."""

    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, values: Mapping[str, bool | int | str]) -> None:
        self.__dict__.update(values)

    target: str
    contract: bool
    fast_math: bool
    exact_half: bool
    dynamic: bool
    concretize_resize_extents: ResizeExtents
    eager: bool
    graph: bool
    donation: str
    check: bool
    threads: int
    debug: int
    dump: str
    dump_dir: str
    disable: str
    number_of_streams: int
    streams: int
    cache_dir: str
    cache_limit: int

    def disables(self, feature: str) -> bool:
        """Whether `disable` names a feature of FEATURES or a pass."""
        return feature in self.disable.split(",")

    def replaced(self, **values: Any) -> Options:
        """The same with other values."""
        return _interned_options({**{name: getattr(self, name) for name in TABLE}, **values})

    @property
    def code_key(self) -> tuple[object, ...]:
        """The values that change what is compiled, for cache keys."""
        return tuple(getattr(self, name) for name, option in TABLE.items() if option.changes_code)

    @property
    def resizes(self) -> ResizeExtents:
        """How resized axes are keyed: OFF also where `disable` names the feature."""
        return ResizeExtents.OFF if self.disables("concretize_resize_extents") else self.concretize_resize_extents

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("options do not change; use 'with tracefuse.options(...)'")

    def __repr__(self) -> str:
        return f"Options({', '.join(f'{name}={getattr(self, name)!r}' for name in TABLE)})"


_interned: WeakValueDictionary[tuple[object, ...], Options] = WeakValueDictionary()
register(Cache(
    "config._interned", "`Options` objects, so that equal ones are the same object", "values of all options",
    "option values in use", "traces and executables", "garbage collection",
))  # fmt: skip
_overrides: ContextVar[dict[str, Any] | None] = ContextVar("tracefuse_options", default=None)
_environment: dict[str, Any] | None = None


def checked(given: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Option values by name, checked; OptionError names what is close to an unknown one."""
    return {name: row_of(name, origin).check(value, origin) for name, value in given.items()}


def row_of(name: str, origin: str) -> Option:
    """The row of an option; OptionError where there is none."""
    if name not in TABLE:
        close = difflib.get_close_matches(name, TABLE, 3)
        hint = f"did you mean {', '.join(close)}?" if close else f"the options are {', '.join(TABLE)}"
        raise OptionError(f"unknown option {name!r} ({origin})", hint=hint)
    return TABLE[name]


# Variables with the prefix that are no options.
_OTHER_VARIABLES = ("TRACEFUSE_HOME",)


def read_environment() -> None:
    """Reads the TRACEFUSE_ variables; done at the first use of an option and again when called."""
    global _environment
    found = {}
    for variable, text in os.environ.items():
        if variable.startswith("TRACEFUSE_") and variable not in _OTHER_VARIABLES:
            name = variable.removeprefix("TRACEFUSE_").lower()
            found[name] = row_of(name, variable).parse(text)
    _environment = found


def resolve(decorator: Mapping[str, Any] | None = None) -> Options:
    """The options in force for a function with the given keywords of `@fuse`."""
    if _environment is None:
        read_environment()
    values = {name: option.default for name, option in TABLE.items()}
    values.update(_environment or {})
    values.update(decorator or {})
    values.update(_overrides.get() or {})
    return _interned_options(values)


def _interned_options(values: Mapping[str, Any]) -> Options:
    key = tuple(values.values())
    found = _interned.get(key)
    if found is None:
        found = _interned.setdefault(key, Options(values))
    return found


overrides: Callable[[], dict[str, Any] | None] = _overrides.get
"""What the enclosing `with options(...)` blocks set, or None: one look for a call that has none."""


@contextmanager
def options(*unnamed: Any, **given: Any) -> Iterator[None]:
    """Sets options for the calls inside the `with` block."""
    if unnamed:
        raise OptionError(f"options() takes names, got {shown(unnamed[0])}", hint="write options(name=value)")
    new = {**(_overrides.get() or {}), **checked(given, "options()")}
    token = _overrides.set(new)
    try:
        yield
    finally:
        _overrides.reset(token)
