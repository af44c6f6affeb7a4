"""The product of tiles in local memory as an LLVM function: a group of rows of sums stays in vector registers.

A term multiplies one element of each row of the left tile with the vectors of the right one, so a vector that is loaded
once meets every row. The function is the same for all pitches. Its name holds everything else that its code depends on.
The rows are addressed from the first of each three by one or two pitches, which are registers as well.
"""

from __future__ import annotations

import re

from segments.lazy_dataclasses import dataclass
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.scalar_ops import memory_type

_POINTERS = 3
"""So many rows are addressed from one pointer."""
_SYMBOL = re.compile(r"tf\.product\.(float|double)\.(\d+)x(\d+)x(\d+)\.(add|replace|scale)((?:\.[a-z]+)*)")
_SIGNATURE = ("ptr", "i64", "ptr", "i64", "i64", "ptr", "i64", "i64", "i64")
_NAMES = ("to", "to_pitch", "left", "row_pitch", "term_pitch", "right", "right_pitch", "rows", "terms")


def product_symbol(statement: ir.AddProducts, flags: str) -> str:
    """Return the symbol of the function for a statement. flags: the floating-point flags of its kernel."""
    kind = "replace" if statement.replaces else "add" if statement.scales is None else "scale"
    shape = f"{statement.group}x{statement.vectors}x{statement.lanes}"
    return ".".join(["tf.product", memory_type(statement.sums.buffer.dtype), shape, kind, *flags.split()])


def product_declaration(symbol: str) -> str:
    """Return the declaration of a product function in a kernel."""
    scales = ", ptr noalias" * (".scale" in symbol)
    return f"declare void @{symbol}({', '.join(_SIGNATURE).replace('ptr', 'ptr noalias')}{scales})"


def product_function(symbol: str) -> str | None:
    """Return LLVM IR for `AddProducts`, or None for the symbol of another function.

    Its parameters are the addresses of the first elements and the pitches of the sums, of the left and of the right
    tile, the numbers of rows and of terms, and the address of the scales, if there are some.
    """
    named = _SYMBOL.fullmatch(symbol)
    if named is None:
        return None
    flags = "".join(f"{flag} " for flag in named[6].split(".")[1:])
    return _Function(symbol, named[1], int(named[2]), int(named[3]), int(named[4]), named[5], flags).text()


@dataclass(frozen=True, slots=True)
class _Function:
    """The text of one function. element: the type; `group` rows of `vectors` vectors of `lanes` elements are a tile."""

    symbol: str
    element: str
    group: int
    vectors: int
    lanes: int
    kind: str
    flags: str

    @property
    def vector(self) -> str:
        return f"<{self.lanes} x {self.element}>"

    @property
    def sums(self) -> list[tuple[int, int]]:
        return [(row, k) for row in range(self.group) for k in range(self.vectors)]

    def text(self) -> str:
        parameters = [
            f"{'ptr noalias' if type_ == 'ptr' else type_} %{name}"
            for type_, name in zip(_SIGNATURE, _NAMES, strict=True)
        ]
        parameters += ["ptr noalias %scales"] * (self.kind == "scale")
        return "\n".join([
            f"define void @{self.symbol}({', '.join(parameters)}) #1 {{",
            *self._start(), *self._terms(), *self._results(),
        ])  # fmt: skip

    def _start(self) -> list[str]:
        """Begins the loop over groups, with pointers to rows of the left tile and the loop over terms."""
        size = {"float": 4, "double": 8}[self.element]
        lines = ["start:"]
        for name in ("row_pitch", "term_pitch", "right_pitch", "to_pitch"):
            lines.append(f"  %{name}.bytes = mul nsw i64 %{name}, {size}")
        lines += [
            "  %row_pitch.twice = mul nsw i64 %row_pitch.bytes, 2",
            "  br label %group",
            "group:",
            "  %g = phi i64 [ 0, %start ], [ %g.next, %group.end ]",
            "  %left.0.first = phi ptr [ %left, %start ], [ %left.next, %group.end ]",
            "  %to.0 = phi ptr [ %to, %start ], [ %to.next, %group.end ]",
            "  %more.rows = icmp slt i64 %g, %rows",
            "  br i1 %more.rows, label %group.body, label %end",
            "group.body:",
            "  %pointer.step = add nsw i64 %row_pitch.twice, %row_pitch.bytes",
        ]
        for row in range(_POINTERS, self.group, _POINTERS):
            before = f"%left.{row - _POINTERS}.first"
            lines.append(f"  %left.{row}.first = getelementptr inbounds i8, ptr {before}, i64 %pointer.step")
        return [*lines, "  br label %term"]

    def _terms(self) -> list[str]:
        """Adds the products of the tile to zero."""
        pointers = range(0, self.group, _POINTERS)

        def phi(name: str, type_: str, first: str) -> str:
            return f"  %{name} = phi {type_} [ {first}, %group.body ], [ %{name}.next, %term.body ]"

        lines = ["term:", phi("t", "i64", "0"), phi("other", "ptr", "%right")]
        lines += [phi(f"left.{row}", "ptr", f"%left.{row}.first") for row in pointers]
        lines += [phi(f"sum.{row}.{k}", self.vector, "zeroinitializer") for row, k in self.sums]
        lines += [
            "  %more.terms = icmp slt i64 %t, %terms",
            "  br i1 %more.terms, label %term.body, label %group.sums",
            "term.body:",
        ]
        size = {"float": 4, "double": 8}[self.element]
        for k in range(self.vectors):
            lines += self._load(f"other.{k}", "%other", str(k * self.lanes), size)
        for row in range(self.group):
            lines += self._factor(row, size)
            for k in range(self.vectors):
                lines += [
                    f"  %product.{row}.{k} = fmul {self.flags}{self.vector} %factors.{row}, %other.{k}",
                    f"  %sum.{row}.{k}.next = fadd {self.flags}{self.vector} %sum.{row}.{k}, %product.{row}.{k}",
                ]
        step = "i64 %term_pitch.bytes"
        return [
            *lines,
            *(f"  %left.{row}.next = getelementptr inbounds i8, ptr %left.{row}, {step}" for row in pointers),
            "  %other.next = getelementptr inbounds i8, ptr %other, i64 %right_pitch.bytes",
            "  %t.next = add nsw i64 %t, 1",
            "  br label %term",
        ]

    def _load(self, name: str, pointer: str, place: str, size: int) -> list[str]:
        return [
            f"  %{name}.at = getelementptr inbounds {self.element}, ptr {pointer}, i64 {place}",
            f"  %{name} = load {self.vector}, ptr %{name}.at, align {size}",
        ]

    def _factor(self, row: int, size: int) -> list[str]:
        """Repeats an element of a row of the left tile."""
        step = ("0", "%row_pitch.bytes", "%row_pitch.twice")[row % _POINTERS]
        return [
            f"  %factor.{row}.at = getelementptr inbounds i8, ptr %left.{row - row % _POINTERS}, i64 {step}",
            f"  %factor.{row} = load {self.element}, ptr %factor.{row}.at, align {size}",
            *self._repeated(f"factors.{row}", f"%factor.{row}"),
        ]

    def _repeated(self, name: str, value: str) -> list[str]:
        return [
            f"  %{name}.first = insertelement {self.vector} poison, {self.element} {value}, i64 0",
            f"  %{name} = shufflevector {self.vector} %{name}.first, {self.vector} poison, "
            f"<{self.lanes} x i32> zeroinitializer",
        ]

    def _results(self) -> list[str]:
        """Stores the sums of a group."""
        size = {"float": 4, "double": 8}[self.element]
        lines = ["group.sums:"]
        for row in range(self.group):
            if row:
                lines.append(f"  %to.{row} = getelementptr inbounds i8, ptr %to.{row - 1}, i64 %to_pitch.bytes")
            if self.kind == "scale":
                lines += [
                    f"  %scale.{row}.place = add nsw i64 %g, {row}",
                    f"  %scale.{row}.at = getelementptr inbounds {self.element}, ptr %scales, i64 %scale.{row}.place",
                    f"  %scale.{row} = load {self.element}, ptr %scale.{row}.at, align {size}",
                    *self._repeated(f"scales.{row}", f"%scale.{row}"),
                ]
            for k in range(self.vectors):
                lines += self._result(row, k, size)
        return [
            *lines,
            "  br label %group.end",
            "group.end:",
            f"  %g.next = add nsw i64 %g, {self.group}",
            f"  %left.step = mul nsw i64 %row_pitch.bytes, {self.group}",
            "  %left.next = getelementptr inbounds i8, ptr %left.0.first, i64 %left.step",
            f"  %to.next = getelementptr inbounds i8, ptr %to.{self.group - 1}, i64 %to_pitch.bytes",
            "  br label %group",
            "end:",
            "  ret void",
            "}",
        ]

    def _result(self, row: int, k: int, size: int) -> list[str]:
        at = f"%to.{row}.{k}"
        lines = [f"  {at} = getelementptr inbounds {self.element}, ptr %to.{row}, i64 {k * self.lanes}"]
        total = f"%sum.{row}.{k}"
        if self.kind != "replace":
            before, total = f"%before.{row}.{k}", f"%total.{row}.{k}"
            lines.append(f"  {before} = load {self.vector}, ptr {at}, align {size}")
            if self.kind == "scale":
                lines.append(f"  {before}.scaled = fmul {self.flags}{self.vector} {before}, %scales.{row}")
                before = f"{before}.scaled"
            lines.append(f"  {total} = fadd {self.flags}{self.vector} {before}, %sum.{row}.{k}")
        return [*lines, f"  store {self.vector} {total}, ptr {at}, align {size}"]
