"""Reports of random programs that differ from NumPy: made as short as possible, with the values of their calls."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from tests.random_programs.program_comparison import Difference, Skipped, first_difference
from tests.random_programs.program_explanations import EXPLAINED
from tests.random_programs.program_placeholders import CLASSES
from tests.random_programs.random_programs import RandomProgram, values_of


def is_of_kernels(program: RandomProgram, why: Difference, settings: dict[str, Any]) -> bool:
    """Whether the recorded program is right: NumPy runs it without a difference."""
    if why.kind in ("refused", *EXPLAINED) or settings.get("target") == "reference":
        return False
    return first_difference(program, {**settings, "target": "reference"}) is None


def shortened(program: RandomProgram, wanted: Difference, settings: dict[str, Any]) -> RandomProgram:
    """The program with as few statements, results and calls as show a difference of the same kind."""

    def shows(candidate: RandomProgram) -> bool:
        try:
            seen = first_difference(candidate, settings)
        except Skipped:
            return False
        same = seen is not None and seen.key[:24] == wanted.key.removeprefix("kernels: ")[:24]
        return same and is_of_kernels(candidate, seen, settings) == wanted.kind.startswith("kernels: ")

    program = replace(program, calls=program.calls[: wanted.call])
    end = time.monotonic() + 30
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for attribute in ("statements", "results", "calls"):
            position = 0
            while position < len(getattr(program, attribute)) and time.monotonic() < end:
                entries = list(getattr(program, attribute))
                del entries[position]
                candidate = replace(program, **{attribute: entries})
                if (attribute != "calls" or entries) and shows(candidate):
                    program, changed = candidate, True
                else:
                    position += 1
    return program


def shown_value(value: Any) -> str:
    """The text of a value in one line."""
    text = f"{np.asarray(value)!r}" if isinstance(value, np.ndarray) else repr(value)
    return text.replace("\n", "")


def describe(program: RandomProgram, why: Difference, seed: int) -> str:
    """The program and its calls, as a reader runs them by hand."""
    lines = [f"-- {why.kind}, call {why.call}, seed {seed}: {why.text}", program.text]
    for call in program.calls[: why.call]:
        arguments, captured, box = values_of(program, call)
        layouts = ", ".join(call.layouts)
        shown = [one if len(one) < 400 else f"{one[:200]} ... {one[-60:]}" for one in map(shown_value, arguments)]
        lines.append(f"   call({', '.join(shown)})  # {layouts}; before it: {call.change}")
        lines += [f"      {name} = {shown_value(value)}" for name, value in captured.items()]
        lines += [f"      self: {vars(box)}".replace("\n", "")] if box is not None else []
    return "\n".join(lines)


def features_of(program: RandomProgram) -> set[str]:
    """What a program has beside its functions, for the counts."""
    sizes = [size for call in program.calls for size in call.extents.values()]
    specs = [*program.parameters.values(), *program.captured.values(), *program.attributes.values()]
    return {
        *(f"layout {layout}" for call in program.calls for layout in call.layouts),
        *(f"size {size}" for size in sizes if size < 2),
        *(f"state: {call.change}" for call in program.calls[1:] if program.captured or program.attributes),
        *(["sizes change between calls"] if any(c.extents != program.calls[0].extents for c in program.calls) else []),
        *(["special values"] if any(getattr(spec, "special", False) for spec in specs) else []),
    }  # fmt: skip


def print_uses(uses: Counter[tuple[str, str]], features: Counter[str]) -> None:
    """Prints how often each function met each class of types, and how many programs have each feature."""
    print(f"{'':22}" + "".join(f"{kind:>9}" for kind in CLASSES))
    for name in sorted({name for name, _ in uses}):
        print(f"{name:22}" + "".join(f"{uses[name, kind] or '-':>9}" for kind in CLASSES))
    for feature, times in sorted(features.items()):
        print(f"{feature:32}{times:9} programs")
