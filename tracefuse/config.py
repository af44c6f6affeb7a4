"""The table of options, and the options in force.

Set an option as an environment variable `TRACEFUSE_NAME`, as a keyword of `@fuse`, or for a block with
`with options(name=value):`. The block overrides the decorator, which overrides the environment, which overrides the
default. An unknown name or value raises OptionError with the closest matches. `Options` objects with equal values are
the same object, so comparing two of them in a cache key compares one pointer.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any
from weakref import WeakValueDictionary

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import Cache, register
from tracefuse.errors import OptionError, shown


@dataclass(frozen=True, slots=True)
class Option:
    """The definition of an option.

    choices: the values of a string option; empty allows any string. words: the words allowed in a comma-separated list.
    limits: the smallest and the largest value of an integer. changes_code: whether the value is part of cache keys.
    booleans: the choices that False and True select.
    """

    name: str
    default: bool | int | str
    doc: str
    choices: tuple[str, ...] = ()
    changes_code: bool = True
    words: tuple[str, ...] = ()
    limits: tuple[int, int] | None = None
    booleans: tuple[str, str] | None = None

    def check(self, value: Any, origin: str) -> bool | int | str:
        """Converts a value to the kind of the option. Raises OptionError for a value that it does not take."""
        kind = type(self.default)
        if isinstance(value, bool) and self.booleans is not None:
            return self.booleans[value]
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
        """Normalizes a comma-separated list: no spaces, each word once. Raises OptionError for an unknown word."""
        words = dict.fromkeys(word for part in value.split(",") if (word := part.strip()))
        for word in words:
            if word not in self.words:
                close = difflib.get_close_matches(word, self.words, 1)
                hint = f"give a comma-separated list of {', '.join(self.words)}" + (
                    f"; did you mean {close[0]!r}?" if close else ""
                )
                raise OptionError(f"option {self.name} cannot hold {word!r} ({origin})", hint=hint)
        return ",".join(words)

    def parse(self, text: str) -> bool | int | str:
        """The value of an environment variable. Raises OptionError for a text that the option does not take."""
        origin = f"TRACEFUSE_{self.name.upper()}"
        if isinstance(self.default, bool) or self.booleans is not None:
            word = text.strip().lower()
            if word in ("1", "true", "on", "yes", "0", "false", "off", "no", ""):
                return self.check(word in ("1", "true", "on", "yes"), origin)
            return self.check(text, origin)
        if isinstance(self.default, int):
            digits = text.strip().removeprefix("-").isdigit()
            return self.check(int(text) if digits else text, origin)
        return self.check(text, origin)


DUMPS = ("fusion", "passes", "concretized", "segments", "kernel", "source", "host_ir", "view")
"""The words of `dump`."""

PASSES = (
    "round_scalars",
    *("sort_in_networks", "fold_constants", "merge_common", "read_transposed", "narrow_updates"),
    *("skip_overwritten", "join_slices"),
    *("update_slices", "drop_dead", "coalesce_exchanges", "hide_exchanges", "join_in_runs", "separate_outputs"),
    *("drop_dead_tensors", "decompose", "round_halves", "reduce_in_one_pass"),
    *("split_complex", "join_branches", "tidy_kernel"),
)
"""The names of all passes, as `disable` takes them; tracefuse/passes/pipeline.py defines the passes."""

FEATURES = ("passes", "fusion", "concretize_resize_extents", "loop_buffer_reuse", "loop_drivers", "product_epilogues")
"""The words of `disable` besides single passes.

passes: every pass that only optimizes. fusion: several ops in one segment. concretize_resize_extents: static extents of
resized axes. loop_buffer_reuse: one slot per stream, in place of one per slice, for a value that lives within a loop.
loop_drivers: compiled code for loops of kernels on the CPU, in place of steps on the host. product_epilogues: a bias, a
residual and an activation after a product on a GPU by the library's call, in place of a kernel.
"""


class ResizeExtents(StrEnum):
    """What a resized axis contributes to the key of a plan.

    ON: its exact extent. OFF: whether it broadcasts. AUTO: as ON until the resize meets other extents, then as OFF.
    STEPS: as OFF in the steps of a loop, where a resize by a run-time scalar has no other key if it changes nothing; no
    choice of users.
    """

    AUTO = "auto"
    ON = "on"
    OFF = "off"
    STEPS = "steps"

    def __repr__(self) -> str:
        return repr(self.value)


TABLE: dict[str, Option] = {
    option.name: option
    for option in (
        Option("target", "auto", "where kernels run; auto follows the arguments", ("auto", "cpu", "cuda", "reference")),
        Option("contract", True, "contract a multiplication and an addition into one fused multiply-add"),
        Option("fast_math", False, "ignore signed zeros; use reciprocals and approximate functions"),
        Option("exact_half", False, "round after every operation on float16 and bfloat16"),
        Option("dynamic", True, "keep extents symbolic; off compiles for each shape"),
        Option(
            "concretize_resize_extents", ResizeExtents.AUTO, "key resizes by their exact extents",
            (ResizeExtents.AUTO, ResizeExtents.ON, ResizeExtents.OFF),
        ),
        Option(
            "loops", "auto", "for loops over range; auto records the body of a long one once", ("auto", "unroll")
        ),
        Option("eager", False, "call the original function, so that a debugger and print work", changes_code=False),
        Option(
            "graph", "auto", "launch the kernels of a call as one CUDA graph; auto does once a call is repeated often",
            ("off", "on", "auto"), booleans=("off", "on"),
        ),
        Option(
            "donation", "warn", "what to do about a donated array that cannot be reused", ("warn", "raise", "ignore"),
            changes_code=False,
        ),
        Option("check", False, "compare segments with the reference implementation; raise for bad indices on CUDA too"),
        Option(
            "tune", "off", "measure the tilings of each kernel at its first call; any_order: also other orders of sums",
            ("off", "on", "any_order"), booleans=("off", "on"),
        ),
        Option(
            "background_compilation", 2048,
            "most elements of CPU kernels that run quickly compiled code while the optimized code is compiled",
            limits=(0, 1 << 40), changes_code=False,
        ),
        Option("threads", 0, "most threads that run a CPU kernel; 0 is one per core", limits=(0, 4096)),
        Option(
            "debug", 0, "log level: 1 segments, times, new plans; 2 IR, verdicts; 3 kernel source; 4 passes",
            limits=(0, 4), changes_code=False,
        ),
        Option("dump", "", "what each compilation writes into its own folder", words=DUMPS, changes_code=False),
        Option("dump_dir", "", "folder for dump; empty is tracefuse_dump", changes_code=False),
        Option(
            "disable", "", "features and passes to turn off while bisecting a wrong result", words=(*FEATURES, *PASSES)
        ),
        Option(
            "number_of_streams", 4, "streams that run the slices of a stream-parallel loop", limits=(1, 1024),
            changes_code=False,
        ),
        Option(
            "streams", 1, "streams that run independent segments; 1 uses the caller's", limits=(1, 1024),
            changes_code=False,
        ),
        Option(
            "communicator", "auto", "how ranks exchange data; auto follows the launcher",
            ("auto", "mpi", "nccl", "loopback"), changes_code=False,
        ),
        Option(
            "pipelined_exchanges", "off", "how matrix products overlap with the exchange of their rows",
            ("off", "broadcast", "ring"),
        ),
        Option(
            "communication_sync", False, "on a GPU, wait for each exchange in the call, so that its errors rise there",
            changes_code=False,
        ),
        Option(
            "exchange_timeout", 600, "seconds after which an exchange between ranks raises", limits=(1, 1 << 20),
            changes_code=False,
        ),
        Option("cache_dir", "", "folder of compiled kernels; empty is the user's cache folder", changes_code=False),
        Option("cache_limit", 1 << 30, "most bytes of compiled kernels on disk; 0 keeps none", changes_code=False),
    )
}  # fmt: skip


class Options:
    """The values of all options as attributes, immutable. `resolve` returns one object for equal values."""

    __slots__ = ("__dict__", "__weakref__")

    def __init__(self, values: Mapping[str, bool | int | str]) -> None:
        self.__dict__.update(values)

    target: str
    contract: bool
    fast_math: bool
    exact_half: bool
    dynamic: bool
    loops: str
    concretize_resize_extents: ResizeExtents
    eager: bool
    graph: str
    donation: str
    check: bool
    tune: str
    background_compilation: int
    threads: int
    debug: int
    dump: str
    dump_dir: str
    disable: str
    number_of_streams: int
    streams: int
    communicator: str
    pipelined_exchanges: str
    communication_sync: bool
    exchange_timeout: int
    cache_dir: str
    cache_limit: int

    def disables(self, feature: str) -> bool:
        """Whether `disable` names this feature of FEATURES or this pass."""
        return feature in self.disable.split(",")

    def replaced(self, **values: Any) -> Options:
        """These options with some values replaced."""
        return _interned_options({**{name: getattr(self, name) for name in TABLE}, **values})

    @property
    def code_key(self) -> tuple[object, ...]:
        """The values of the options that affect generated code, for cache keys."""
        return tuple(getattr(self, name) for name, option in TABLE.items() if option.changes_code)

    @property
    def resizes(self) -> ResizeExtents:
        """The key of resized axes; OFF if `disable` names the feature."""
        return ResizeExtents.OFF if self.disables("concretize_resize_extents") else self.concretize_resize_extents

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Options is immutable; use 'with tracefuse.options(...)'")

    def __repr__(self) -> str:
        return f"Options({', '.join(f'{name}={getattr(self, name)!r}' for name in TABLE)})"


_interned: WeakValueDictionary[tuple[object, ...], Options] = WeakValueDictionary()
register(Cache(
    "config._interned", "`Options` objects, so that equal ones are the same object", "values of all options",
    "option values in use", "traces and executables", "garbage collection",
))  # fmt: skip
_overrides: ContextVar[dict[str, Any] | None] = ContextVar("tracefuse_options", default=None)
_environment: dict[str, Any] | None = None


def checked(values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Checks option values by name. Raises OptionError, with the closest matches for an unknown name."""
    return {name: find_option(name, origin).check(value, origin) for name, value in values.items()}


def find_option(name: str, origin: str) -> Option:
    """The option with this name. Raises OptionError if there is none."""
    if name not in TABLE:
        close = difflib.get_close_matches(name, TABLE, 3)
        hint = f"did you mean {', '.join(close)}?" if close else f"the options are {', '.join(TABLE)}"
        raise OptionError(f"unknown option {name!r} ({origin})", hint=hint)
    return TABLE[name]


# Variables with the prefix that are not options.
_OTHER_VARIABLES = ("TRACEFUSE_HOME", "TRACEFUSE_JOB_SECRET")


def read_environment() -> None:
    """Reads the TRACEFUSE_ variables. The first use of an option calls this; later changes need another call."""
    global _environment
    values = {}
    for variable, text in os.environ.items():
        if variable.startswith("TRACEFUSE_") and variable not in _OTHER_VARIABLES:
            name = variable.removeprefix("TRACEFUSE_").lower()
            values[name] = find_option(name, variable).parse(text)
    _environment = values


def resolve(decorator: Mapping[str, Any] | None = None) -> Options:
    """The options in force for a function. decorator: the keywords of its `@fuse`."""
    if _environment is None:
        read_environment()
    values = {name: option.default for name, option in TABLE.items()}
    values.update(_environment or {})
    values.update(decorator or {})
    values.update(_overrides.get() or {})
    return _interned_options(values)


def _interned_options(values: Mapping[str, Any]) -> Options:
    key = tuple(values.values())
    interned = _interned.get(key)
    if interned is None:
        interned = _interned.setdefault(key, Options(values))
    return interned


BLOCKS = _overrides
"""The variable that `overrides` reads."""

overrides: Callable[[], dict[str, Any] | None] = _overrides.get
"""The values that the enclosing `with options(...)` blocks set, or None outside of such a block."""


MOST_BLOCKS = 64
"""Settings of blocks for which a function keeps the options in force."""


class OptionsOfBlocks:
    """The options in force for one function inside of `with options(...)` blocks, by what the blocks set."""

    def __init__(self, decorator: Mapping[str, Any]) -> None:
        self._decorator = decorator
        self._known: dict[tuple[tuple[str, Any], ...], Options] = {}

    def of(self, values: Mapping[str, Any]) -> Options:
        """Returns the options in force. values: of `overrides()`."""
        key = tuple(values.items())
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST_BLOCKS:
                self._known.clear()
            known = self._known[key] = resolve(self._decorator)
        return known


register(Cache(
    "config.OptionsOfBlocks._known", "the options in force for a function", "what the `with options()` blocks set",
    f"{MOST_BLOCKS} settings", "a fused function", "with the function",
))  # fmt: skip


@contextmanager
def options(*unnamed: Any, **values: Any) -> Iterator[None]:
    """Sets options for the calls inside the `with` block. Raises OptionError for an unknown name or value."""
    if unnamed:
        raise OptionError(f"options() takes names, got {shown(unnamed[0])}", hint="write options(name=value)")
    new = {**(_overrides.get() or {}), **checked(values, "options()")}
    token = _overrides.set(new)
    try:
        yield
    finally:
        _overrides.reset(token)
