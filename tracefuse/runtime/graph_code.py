"""Writes the launch of a CUDA graph as Python text.

A graph keeps what it was launched with by a key: all variables that the arguments of its nodes depend on. A call with a
key that the graph has kept launches it again and computes no arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from segments import Instruction, Launch

_STRIDE = re.compile(r"\bt\d+\.strides\[\d+\]")
_SCALAR = re.compile(r"\bt\d+\b")
_INTEGER = re.compile(r"\b(?:[pe]\d+|b\d+_\d+)\b")
_SLOT = re.compile(r"\bq\d+_\d+\b")


def launches_of_graph(group: Sequence[Instruction]) -> list[Launch]:
    """Returns the launches of a group that one graph can consist of; none if the host checks a flag after one."""
    launches = [instruction for instruction in group if isinstance(instruction, Launch)]
    is_flagged = any(launch.label.has_error_flag for launch in launches)  # type: ignore[attr-defined]
    return [] if is_flagged or any(launch.label.code is None for launch in launches) else launches  # type: ignore[attr-defined]


def exact(value: Any) -> Any:
    """Returns what distinguishes a number from all that have other bits; 0.0 and -0.0 are equal but no such key."""
    return value if type(value) is int or (value and type(value) is float) else repr(value)


def graph_lines(
    graph: str, launches: Sequence[Sequence[str]], texts: Mapping[str, str], exact_name: str, arena: Sequence[str],
    slots: Sequence[str],
) -> list[str]:  # fmt: skip
    """Returns the lines that launch a graph.

    graph: the variable of the graph. launches: the arguments of each node. texts: the expressions that placeholders in
    them stand for. exact_name: the variable of `exact`. arena: what the addresses of slots depend on. slots: the lines
    that compute these addresses.
    """
    arguments = [texts.get(argument, argument) for launch in launches for argument in launch]
    key = ", ".join(["stream", *_key(arguments, exact_name, arena)])
    nodes = "".join(f"({''.join(f'{argument}, ' for argument in launch)}), " for launch in launches)
    return [
        f"    if not {graph}.replay(k := ({key},)):", *(f"    {line}" for line in slots),
        f"        {graph}.launch(k, ({nodes}))",
    ]  # fmt: skip


def _key(arguments: Iterable[str], exact_name: str, arena: Sequence[str]) -> Iterable[str]:
    """Returns the expressions of a key."""
    key: dict[str, None] = {}
    for argument in arguments:
        key |= dict.fromkeys(_STRIDE.findall(argument))
        rest = _STRIDE.sub("", argument)
        key |= dict.fromkeys(_INTEGER.findall(rest))
        key |= dict.fromkeys(f"{exact_name}({scalar})" for scalar in _SCALAR.findall(rest))
        if _SLOT.search(rest):
            key |= dict.fromkeys(arena)
    return key
