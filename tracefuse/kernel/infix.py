"""Infix text of expressions with no more parentheses than needed; the readable text and the CUDA source share it.

A piece of text carries how tightly its outermost operator binds (`level`, higher is tighter); an operand that binds
less tightly is put in parentheses, a right operand of equal level too, since float arithmetic is not associative.

Knows: text. Must not know: what the operators mean.
"""

from __future__ import annotations

from dataclasses import dataclass

ATOM = 100


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of source and the level of its outermost operator."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text, in parentheses if it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"

    def __str__(self) -> str:
        return self.text


def infix(symbol: str, level: int, left: Text, right: Text) -> Text:
    """`left symbol right`, a left-associative operator of `level`."""
    return Text(f"{left.at(level)} {symbol} {right.at(level + 1)}", level)


def prefix(symbol: str, level: int, operand: Text) -> Text:
    """`symbol operand`; `- -x` keeps its operators apart."""
    text = operand.at(level)
    return Text(f"{symbol}({text})" if text.startswith(symbol) else f"{symbol}{text}", level)


def function(name: str, *arguments: Text) -> Text:
    """`name(arguments)`."""
    return Text(f"{name}({', '.join(a.text for a in arguments)})")
