"""Infix text of expressions with the fewest parentheses, shared by the kernel printer and the CUDA emitter.

A `Text` carries the precedence of its outermost operator (`level`, higher binds tighter). An operand of lower
precedence is parenthesized, and so is a right operand of equal precedence: float arithmetic is not associative.
"""

from __future__ import annotations

from segments.lazy_dataclasses import dataclass

ATOM = 100


@dataclass(frozen=True, slots=True)
class Text:
    """Source text and the precedence of its outermost operator."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """Return the text, parenthesized if its precedence is below `level`."""
        return self.text if self.level >= level else f"({self.text})"

    def __str__(self) -> str:
        return self.text


def infix(symbol: str, level: int, left: Text, right: Text) -> Text:
    """Return `left symbol right` for a left-associative operator of precedence `level`."""
    return Text(f"{left.at(level)} {symbol} {right.at(level + 1)}", level)


def prefix(symbol: str, level: int, operand: Text) -> Text:
    """Return `symbol operand`, with parentheses where two equal symbols would run together as in `--x`."""
    text = operand.at(level)
    return Text(f"{symbol}({text})" if text.startswith(symbol) else f"{symbol}{text}", level)


def function(name: str, *arguments: Text) -> Text:
    """Return `name(arguments)`."""
    return Text(f"{name}({', '.join(a.text for a in arguments)})")
