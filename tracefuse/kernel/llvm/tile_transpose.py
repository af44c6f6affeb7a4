"""The transpose of a tile in local memory as an LLVM function, by square blocks held in vector registers.

A block of B vectors of B elements is transposed in log2(B) rounds. Each round interleaves vectors k and k + B / 2
element by element; the halves of the result are the new vectors 2 k and 2 k + 1.
"""

from __future__ import annotations

LARGEST_BLOCK = 16
"""The rows and columns of the largest block. The sides of a tile are multiples of it."""

_HEAD = """\
define void @{symbol}(ptr noalias %to, ptr noalias %from, i64 %rows, i64 %columns, \
i64 %to_pitch, i64 %from_pitch) #1 {{
start:
  br label %row
row:
  %r = phi i64 [ 0, %start ], [ %r.next, %row.end ]
  %more.rows = icmp slt i64 %r, %rows
  br i1 %more.rows, label %row.body, label %end
row.body:
  %from.row = mul nsw i64 %r, %from_pitch
  br label %column
column:
  %c = phi i64 [ 0, %row.body ], [ %c.next, %column.body ]
  %more.columns = icmp slt i64 %c, %columns
  br i1 %more.columns, label %column.body, label %row.end
column.body:
  %from.place = add nsw i64 %from.row, %c
  %to.row = mul nsw i64 %c, %to_pitch
  %to.place = add nsw i64 %to.row, %r"""

_TAIL = """\
  %c.next = add nsw i64 %c, {side}
  br label %column
row.end:
  %r.next = add nsw i64 %r, {side}
  br label %row
end:
  ret void
}}"""


def transpose_symbol(bits: int) -> str:
    """Return the symbol of the transpose function for elements of `bits` bits."""
    return f"{_SYMBOL}{bits}"


def bits_of(symbol: str) -> int | None:
    """Return the bits of the elements that a function of `transpose_symbol` moves; None for other functions."""
    return int(symbol.removeprefix(_SYMBOL)) if symbol.startswith(_SYMBOL) else None


def transpose_declaration(bits: int) -> str:
    """Return the declaration of the transpose function in a kernel."""
    return f"declare void @{transpose_symbol(bits)}(ptr noalias, ptr noalias, i64, i64, i64, i64)"


_SYMBOL = "tf.transpose.i"


def transpose_function(bits: int, vector_bits: int) -> str:
    """Return LLVM IR for to[c * to_pitch + r] = from[r * from_pitch + c] for r < rows and c < columns.

    The function also reads and writes up to LARGEST_BLOCK - 1 rows and columns beyond. vector_bits: the width of a
    vector register.
    """
    side = max(min(vector_bits // bits, LARGEST_BLOCK), 1)
    element = f"i{bits}"
    vector, align = (f"<{side} x {element}>" if side > 1 else element), bits // 8
    lines = [_HEAD.format(symbol=transpose_symbol(bits))]
    for k in range(side):
        lines += [
            *_place(f"from{k}", "from", element, k),
            f"  %v0.{k} = load {vector}, ptr %from{k}, align {align}",
        ]
    rounds = side.bit_length() - 1
    for turn in range(rounds):
        for k in range(side // 2):
            pair = f"{vector} %v{turn}.{k}, {vector} %v{turn}.{k + side // 2}"
            for half in range(2):
                chosen = [half * side // 2 + lane // 2 + lane % 2 * side for lane in range(side)]
                mask = ", ".join(f"i32 {lane}" for lane in chosen)
                lines.append(f"  %v{turn + 1}.{2 * k + half} = shufflevector {pair}, <{side} x i32> <{mask}>")
    for k in range(side):
        lines += [
            *_place(f"to{k}", "to", element, k),
            f"  store {vector} %v{rounds}.{k}, ptr %to{k}, align {align}",
        ]
    return "\n".join([*lines, _TAIL.format(side=side)])


def _place(name: str, side: str, element: str, row: int) -> list[str]:
    """Return the instructions that compute the address of row `row` of the block."""
    return [
        f"  %{name}.step = mul nsw i64 %{side}_pitch, {row}",
        f"  %{name}.place = add nsw i64 %{side}.place, %{name}.step",
        f"  %{name} = getelementptr inbounds {element}, ptr %{side}, i64 %{name}.place",
    ]
