"""Contraction of products and sums in LLVM text: `a * b + c` becomes one fused multiply-add.

LLVM contracts during code generation, after its passes, so what it contracts depends on the passes and on the level of
optimization. The emitter writes the fused operations itself instead, so that the bits of a kernel's results follow
from its text alone: its code computes the same function at each level.

A product that one sum of its basic block reads, and nothing else, is fused with it; of two such products the first.
A product with other readers is rounded for all of them, so that `p - p` is zero. On processors without fused
multiply-add, LLVM rounds twice (`llvm.fmuladd`).

A sum that LLVM may reorder keeps its flags, and so do the products that it reads. Under `fast_math` LLVM contracts.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

FLAG = "contract "
"""The flag of operations that may be contracted."""

REORDERED = "reassoc "
"""The flag of sums whose order LLVM chooses."""

_APPROXIMATES = "afn "
"""A flag of operations under `fast_math`."""

_OPERAND = r"(%[\w.]+|splat \([^()]*\)|<[^<>]*>|[^\s,%<]+)"
_TYPE = r"(float|double|<\d+ x (?:float|double)>)"
_OPERATION = re.compile(rf"  (%[\w.]+) = (fmul|fadd|fsub) ([a-z ]*?){FLAG}{_TYPE} {_OPERAND}, {_OPERAND}")
_NAME = re.compile(r"%[\w.]+")
_SUFFIXES = {"float": "f32", "double": "f64"}


class _Product(NamedTuple):
    """A product and the number of its line."""

    line: int
    left: str
    right: str


class _Sum(NamedTuple):
    """A sum or a difference."""

    name: str
    operation: str
    type: str
    left: str
    right: str

    def fused(self, product: _Product, *, is_left: bool) -> tuple[str, str]:
        """Return the lines of the sum with a product in place of an operand, and the function that they call."""
        factor, addend, lines = product.left, self.right if is_left else self.left, ""
        if self.operation == "fsub":
            negated = addend if is_left else factor
            lines = f"  {self.name}.negative = fneg {self.type} {negated}\n"
            factor, addend = (factor, f"{self.name}.negative") if is_left else (f"{self.name}.negative", addend)
        symbol = f"llvm.fmuladd.{_suffix(self.type)}"
        listed = ", ".join(f"{self.type} {operand}" for operand in (factor, product.right, addend))
        return f"{lines}  {self.name} = call {self.type} @{symbol}({listed})", symbol


def _suffix(type_: str) -> str:
    """Return the suffix of an overloaded intrinsic: f64, v8f32."""
    if type_[0] != "<":
        return _SUFFIXES[type_]
    lanes, element = type_[1:-1].split(" x ")
    return f"v{lanes}{_SUFFIXES[element]}"


def with_fused_operations(text: str, declarations: dict[str, str], *, reorders: bool = True) -> str:
    """Return the text of a function with fused operations in place of products and sums that may be contracted.

    declarations: takes those of the operations, by symbol. reorders: keep the flag of sums that LLVM may reorder.
    """
    text = text if reorders else text.replace(REORDERED, "")
    if FLAG not in text:
        return text
    lines, uses = text.split("\n"), Counter(_NAME.findall(text))
    products: dict[str, _Product] = {}
    for number, line in enumerate(lines):
        if line.endswith(":"):
            products.clear()
        match = _OPERATION.match(line) if FLAG in line else None
        if match is None or match[3]:
            continue
        name, operation, _, type_, left, right = match.groups()
        if operation == "fmul":
            if uses[name] == 2:  # its own line and one other
                products[name] = _Product(number, left, right)
            continue
        read = left if left in products else right
        if read in products:
            product = products.pop(read)
            total = _Sum(name, operation, type_, left, right)
            lines[number], symbol = total.fused(product, is_left=read == left)
            lines[product.line] = ""
            declarations[symbol] = f"declare {type_} @{symbol}({type_}, {type_}, {type_})"
    return "\n".join(_without_flag(lines))


def _without_flag(lines: list[str]) -> list[str]:
    """Return the lines that are left, without the flag except in sums that LLVM may reorder and what they read."""
    kept = {name for line in lines if REORDERED in line for name in _NAME.findall(line)}
    return [
        line if FLAG not in line or _keeps_flag(line, kept) else line.replace(FLAG, "", 1) for line in lines if line
    ]


def _keeps_flag(line: str, kept: set[str]) -> bool:
    return _APPROXIMATES in line or line.split(" = ", 1)[0].strip() in kept
