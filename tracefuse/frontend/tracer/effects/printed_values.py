"""`debug_print` and `print` in a traced function: print values of a call while it runs.

During recording, each printed value becomes an additional output that the caller does not see. A call of such a
function runs segment by segment, and prints each line as soon as its values are available, in source order.
"""

from __future__ import annotations

import itertools
import string
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse import pytrees, source
from tracefuse.errors import TraceError
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.later_texts import split_at_marks
from tracefuse.frontend.tracer.values.result_leaves import ConstantLeaf, NumberLeaf, OutputLeaf, PrintedLeaf, SizeLeaf
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import evaluate
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.devices.array_descriptions import on_host

Facts = Mapping[int, Any]
_NO_KEYWORDS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ValueLeaf:
    """A value of a stage of a trace with questions, by number."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class PrintCall:
    """How a function such as `print` shows its values. keywords: its own. kinds: of the leaves, see `_KINDS`."""

    function: Callable[..., Any]
    keywords: Mapping[str, Any]
    kinds: tuple[str, ...]

    def emit(self, structures: Sequence[Any], leaves: Sequence[Any]) -> None:
        """Shows values of a call."""
        shown = (_KINDS[kind](leaf) for kind, leaf in zip(self.kinds, leaves, strict=True))
        self.function(*_rebuilt(structures, shown), **self.keywords)


def _as_array(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else on_host(value)


_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "constant": lambda value: value,
    "number": lambda value: value if isinstance(value, (bool, int, float, complex)) else _as_array(value).item(),
    "scalar": lambda value: _as_array(value)[()],
    "array": _as_array,
}
"""Objects as they are, numbers of Python, NumPy's scalars, arrays."""


@dataclass(frozen=True, slots=True)
class Print:
    """One printed line. structures: the tree of each value; parts: the sources of all leaves, in order."""

    format: str | PrintCall
    structures: tuple[Any, ...]
    parts: tuple[PrintedLeaf | ValueLeaf, ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The values of a stage that it prints."""
        return tuple(part.number for part in self.parts if isinstance(part, ValueLeaf))


def debug_print(format: str, *values: Any) -> None:
    """Prints `format.format(*values)` to standard output when the call runs, as soon as the values are computed.

    values: arrays of any library, numbers, tuples and other trees of them, and any printable object. Arrays print as
    NumPy arrays, 0-d arrays as numbers. Outside a fused function, and with `options(eager=True)`, it prints at once.
    A function that prints runs segment by segment and waits for each segment, so it is slower. Raises TraceError if
    `format` does not accept the values.
    """
    _check(format, len(values))
    recorder = current.get()
    if recorder is None:
        _emit(format, values)
    else:
        recorder.check_alive()
        leaves, structures = _leaves(values)
        recorder.prints.append((format, structures, tuple(_kept(recorder, leaf) for leaf in leaves)))


def print_call(*values: Any, **keywords: Any) -> Any:
    """Records a call of `print`, which prints at every call of the traced function.

    NotImplemented where `print` itself has to run: outside of a trace, for wrong arguments, and into a file that the
    function made, which it may read.
    """
    return record_effect(print, values, keywords) if keywords.keys() <= _OF_PRINT else NotImplemented


_OF_PRINT = {"sep", "end", "file", "flush"}
"""The keywords of `print`."""


def record_effect(
    function: Callable[..., Any], values: Sequence[Any], keywords: Mapping[str, Any] = _NO_KEYWORDS
) -> Any:
    """Records a call of a function that shows values, which runs at every call of the traced function.

    NotImplemented outside of a trace.
    """
    recorder = current.get()
    if recorder is None:
        return NotImplemented
    if function is print and keywords.get("file") is None and sys.stdout is not recorder.standard_output:
        keywords = {**keywords, "file": sys.stdout}
    if not _outlives_call(keywords.get("file"), recorder):
        return NotImplemented
    recorder.check_alive()
    plain = values if recorder.overlays is None else tuple(map(recorder.overlays.plain, values))
    plain = tuple(str(part) if isinstance(part, BaseException) else part for part in plain)  # not its frames
    plain = tuple((isinstance(part, str) and split_at_marks(part, recorder.texts)) or part for part in plain)
    leaves, structures = _leaves(plain)
    call = PrintCall(function, keywords, tuple(map(_kind_of, leaves)))
    recorder.prints.append((call, structures, tuple(_kept(recorder, leaf) for leaf in leaves)))
    return None


def _outlives_call(file: Any, recorder: Recorder) -> bool:
    """Whether a file that is printed to is of the state, an argument or a standard stream."""
    overlays = recorder.overlays
    if file is None or file is recorder.standard_output or file is sys.stderr or overlays is None:
        return True
    return overlays.original_overlay(file) is not None or overlays.original(file) is not None


def _kind_of(leaf: Any) -> str:
    if isinstance(leaf, SymbolicSize) or (isinstance(leaf, Traced) and leaf.weak is not None):
        return "number"
    if not isinstance(leaf, Traced):
        return "constant"
    return "scalar" if leaf.is_immutable else "array"


def _leaves(values: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
    """Returns the leaves of all values, and the structure of each."""
    flattened = [pytrees.flatten(value) for value in values]
    leaves = [leaf for leaves, _ in flattened for leaf in leaves]
    structures = tuple(structure for _, structure in flattened)
    return [leaf.elements() if getattr(leaf, "is_selection", False) else leaf for leaf in leaves], structures


def _check(format: str, count: int) -> None:
    """Raises TraceError if a format does not parse, or refers to other values than the given ones."""
    hint = "write one {} for each value, as in debug_print('x is {}', x)"
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(format) if name is not None]
    except ValueError as error:
        raise TraceError(f"debug_print: {format!r}: {error}", hint=hint, where=source.user_line()) from None
    heads = [field.partition(".")[0].partition("[")[0] for field in fields]
    wrong = next((head for head in heads if head and not head.isdigit()), None)
    if wrong is not None:
        raise TraceError(f"debug_print: {format!r} names {wrong!r}", hint=hint, where=source.user_line())
    needed = max((int(head) + 1 for head in heads if head), default=0) if any(heads) else len(heads)
    if needed > count:
        raise TraceError(
            f"debug_print: {format!r} takes {needed} values, got {count}", hint=hint, where=source.user_line()
        )


def _kept(recorder: Recorder, value: Any) -> Any:
    """Returns the current value under a new name, which a later in-place update of `value` does not change."""
    if isinstance(value, Traced):
        recorder.resolve(value)
        return recorder.traced_type(recorder, value.number, value.weak, value.read, value.sized)
    is_array = arrays.kind_of(value) not in (None, "refused") and bool(value.shape)
    return recorder.capture(value) if is_array else value


def printed(recorder: Recorder) -> tuple[Print, ...]:
    """Returns the lines of a finished trace. Their values follow all other outputs."""
    return tuple(
        Print(format, structures, tuple(_part(recorder, leaf) for leaf in leaves))
        for format, structures, leaves in recorder.prints
    )  # fmt: skip


def _part(recorder: Recorder, value: Any) -> PrintedLeaf:
    if isinstance(value, SymbolicSize):
        extent = recorder.simplify(value.extent)
        return ConstantLeaf(extent) if isinstance(extent, int) else SizeLeaf(extent)
    if not isinstance(value, Traced):
        return ConstantLeaf(value)
    if value.on_host and value.read is not None:
        return NumberLeaf(value.read)
    if value.on_host:
        value = traced_ops.as_tensor(value)
    builder = recorder.builder
    if value.number in builder.inputs or value.number in builder.aliases:
        value = recorder.movement("permute", [value], dims=tuple(range(len(value.extents))))
    if value.number not in builder.outputs:
        builder.output(value.number)
    return OutputLeaf(builder.outputs.index(value.number))


class StagePrints:
    """The lines of the stages of one trace, as the stages end."""

    def __init__(self) -> None:
        self._count = 0

    def of_stage(self, recorder: Recorder) -> tuple[Print, ...]:
        """Returns the lines that were recorded since the stage before."""
        new, self._count = recorder.prints[self._count :], len(recorder.prints)
        return tuple(
            Print(format, structures, tuple(_part_of_stage(recorder, leaf) for leaf in leaves))
            for format, structures, leaves in new
        )


def _part_of_stage(recorder: Recorder, value: Any) -> PrintedLeaf | ValueLeaf:
    if isinstance(value, SymbolicSize):
        value = recorder.resolve(value).traced or int(value)
    if not isinstance(value, Traced):
        return ConstantLeaf(value)
    if value.on_host and value.read is not None:
        return NumberLeaf(value.read)
    return ValueLeaf(traced_ops.as_tensor(value).number)


def print_stage(prints: Sequence[Print], values: Mapping[int, Any], facts: Facts) -> None:
    """Prints lines of a stage that has run. values: of the call, by number."""
    for line in prints:
        _emit_line(line, [_value(part, values.__getitem__, facts) for part in line.parts])


def run_and_print(
    prints: Sequence[Print], steps: Generator[Mapping[int, Any], None, list[Any]], outputs: Sequence[int], facts: Facts
) -> list[Any]:
    """Advances a run through its states, prints each line when its values are live, and returns the run's result.

    outputs: the numbers of the outputs, by position. facts: extents and scalars of the call, by id.
    """
    waiting = list(prints)

    def print_ready(live: Mapping[int, Any]) -> None:
        while waiting and all(outputs[p.position] in live for p in waiting[0].parts if isinstance(p, OutputLeaf)):
            line = waiting.pop(0)
            _emit_line(line, [_value(part, lambda k: live[outputs[k]], facts) for part in line.parts])

    while True:
        try:
            print_ready(next(steps))
        except StopIteration as done:
            return list(done.value)


def print_all(prints: Sequence[Print], computed: Mapping[int, Any], outputs: Sequence[int], facts: Facts) -> None:
    """Prints every line of a finished run. computed: the values, by number."""
    for line in prints:
        _emit_line(line, [_value(part, lambda k: computed[outputs[k]], facts) for part in line.parts])


def _value(part: PrintedLeaf | ValueLeaf, output: Callable[[int], Any], facts: Facts) -> Any:
    match part:
        case OutputLeaf(position) | ValueLeaf(position):
            return output(position)
        case NumberLeaf(read):
            return read(facts)
        case SizeLeaf(extent):
            return evaluate(extent, facts)
        case ConstantLeaf(value):
            return value


def _emit(format: str, values: Sequence[Any]) -> None:
    leaves, structures = _leaves(values)
    _emit_line(Print(format, structures, ()), leaves)


def _emit_line(line: Print, leaves: Sequence[Any]) -> None:
    if isinstance(line.format, PrintCall):
        line.format.emit(line.structures, leaves)
    else:
        print(line.format.format(*_rebuilt(line.structures, map(_shown, leaves))), flush=True)


def _rebuilt(structures: Sequence[Any], leaves: Iterable[Any]) -> list[Any]:
    rest = iter(leaves)
    return [pytrees.unflatten(s, list(itertools.islice(rest, s.num_leaves))) for s in structures]


def _shown(value: Any) -> Any:
    """Converts an array of any library to a NumPy array, and a 0-d array to a number."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return value
    array = value if isinstance(value, np.ndarray) else on_host(value)
    return array.item() if array.shape == () else array
