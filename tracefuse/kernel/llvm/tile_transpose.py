"""The transpose of a tile to local memory as an LLVM function, by square blocks held in vector registers.

A block of B vectors of B elements is transposed in log2(B) rounds. Each round interleaves vectors k and k + B / 2
element by element; the halves of the result are the new vectors 2 k and 2 k + 1.

Blocks of a local tile may extend beyond its elements. In other memory, the last blocks begin earlier, and a tile that
is narrower than a block is moved element by element. Its lines are requested first: tiles are no streams that the
processor would read ahead.
"""

from __future__ import annotations

import re

LARGEST_BLOCK = 16
"""The rows and columns of the largest block. The sides of a tile are multiples of it."""

_HEAD = """\
define void @{symbol}(ptr noalias %to, ptr noalias %from, i64 %rows, i64 %columns, \
i64 %to_pitch, i64 %from_pitch) #1 {{
start:
{narrow}
row:
  %r = phi i64 [ 0, %{before} ], [ %r.next, %row.end ]
  %more.rows = icmp slt i64 %r, %rows
  br i1 %more.rows, label %row.body, label %end
row.body:
{row_place}
  %from.row = mul nsw i64 %row.place, %from_pitch
  br label %column
column:
  %c = phi i64 [ 0, %row.body ], [ %c.next, %column.body ]
  %more.columns = icmp slt i64 %c, %columns
  br i1 %more.columns, label %column.body, label %row.end
column.body:
{column_place}
  %from.place = add nsw i64 %from.row, %column.place
  %to.row = mul nsw i64 %column.place, %to_pitch
  %to.place = add nsw i64 %to.row, %row.place"""

_TAIL = """\
  %c.next = add nsw i64 %c, {side}
  br label %column
row.end:
  %r.next = add nsw i64 %r, {side}
  br label %row
end:
  ret void
}}"""

_NARROW = """\
  %narrow.rows = icmp slt i64 %rows, {side}
  %narrow.columns = icmp slt i64 %columns, {side}
  %narrow = or i1 %narrow.rows, %narrow.columns
  br i1 %narrow, label %one.row, label %fetch.row
fetch.row:
  %f = phi i64 [ 0, %start ], [ %f.next, %fetch.row.end ]
  %more.f = icmp slt i64 %f, %rows
  br i1 %more.f, label %fetch.row.body, label %fetched
fetch.row.body:
  %f.row = mul nsw i64 %f, %from_pitch
  br label %fetch
fetch:
  %l = phi i64 [ 0, %fetch.row.body ], [ %l.next, %fetch ]
  %f.from = add nsw i64 %f.row, %l
  %f.at = getelementptr inbounds {element}, ptr %from, i64 %f.from
  call void @llvm.prefetch.p0(ptr %f.at, i32 0, i32 3, i32 1)
  %l.next = add nsw i64 %l, {line}
  %more.l = icmp slt i64 %l.next, %columns
  br i1 %more.l, label %fetch, label %fetch.row.end
fetch.row.end:
  %f.next = add nsw i64 %f, 1
  br label %fetch.row
fetched:
  br label %row
one.row:
  %i = phi i64 [ 0, %start ], [ %i.next, %one.row.end ]
  %more.i = icmp slt i64 %i, %rows
  br i1 %more.i, label %one.row.body, label %end
one.row.body:
  %i.row = mul nsw i64 %i, %from_pitch
  br label %one
one:
  %j = phi i64 [ 0, %one.row.body ], [ %j.next, %one.body ]
  %more.j = icmp slt i64 %j, %columns
  br i1 %more.j, label %one.body, label %one.row.end
one.body:
  %i.from = add nsw i64 %i.row, %j
  %i.from.at = getelementptr inbounds {element}, ptr %from, i64 %i.from
  %i.value = load {element}, ptr %i.from.at, align 1
  %j.column = mul nsw i64 %j, %to_pitch
  %j.to = add nsw i64 %j.column, %i
  %j.to.at = getelementptr inbounds {element}, ptr %to, i64 %j.to
  store {element} %i.value, ptr %j.to.at, align {align}
  %j.next = add nsw i64 %j, 1
  br label %one
one.row.end:
  %i.next = add nsw i64 %i, 1
  br label %one.row"""

_PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"

LINE_BITS = 512

_EARLIER = """\
  %{name}.last = sub nsw i64 %{name}s, {side}
  %{name}.early = icmp slt i64 %{name}.last, %{index}
  %{name}.place = select i1 %{name}.early, i64 %{name}.last, i64 %{index}"""


def transpose_symbol(bits: int, *, within: bool) -> str:
    """Return the symbol of the transpose function for elements of `bits` bits.

    within: it reads nothing beyond the tile, whose elements need no alignment.
    """
    return f"tf.transpose{'.within' * within}.i{bits}"


_SYMBOL = re.compile(r"tf\.transpose(\.within)?\.i(\d+)")


def transpose_declaration(symbol: str) -> str:
    """Return the declaration of a transpose function in a kernel."""
    return f"declare void @{symbol}(ptr noalias, ptr noalias, i64, i64, i64, i64)"


def transpose_function(symbol: str, vector_bits: int) -> str | None:
    """Return LLVM IR for to[c * to_pitch + r] = from[r * from_pitch + c] for r < rows and c < columns.

    The function writes, and reads if it is not `within` the tile, up to LARGEST_BLOCK - 1 rows and columns beyond.
    vector_bits: the width of a vector register. Returns None for the symbol of another function.
    """
    named = _SYMBOL.fullmatch(symbol)
    if named is None:
        return None
    within, bits = named[1] is not None, int(named[2])
    side = max(min(vector_bits // bits, LARGEST_BLOCK), 1)
    element = f"i{bits}"
    vector, align = (f"<{side} x {element}>" if side > 1 else element), bits // 8
    fields = {"symbol": symbol, "side": side, "element": element, "align": align, "line": LINE_BITS // bits}
    if within:
        places = {f"{name}_place": _EARLIER.format(name=name, index=name[0], side=side) for name in ("row", "column")}
        lines = [_HEAD.format(before="fetched", narrow=_NARROW.format(**fields), **fields, **places)]
    else:
        places = {f"{name}_place": f"  %{name}.place = add nsw i64 %{name[0]}, 0" for name in ("row", "column")}
        lines = [_HEAD.format(before="start", narrow="  br label %row", **fields, **places)]
    for k in range(side):
        lines += [
            *_place(f"from{k}", "from", element, k),
            f"  %v0.{k} = load {vector}, ptr %from{k}, align {1 if within else align}",
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
    return "\n".join([*lines, _TAIL.format(side=side), *([_PREFETCH] if within else [])])


def _place(name: str, side: str, element: str, row: int) -> list[str]:
    """Return the instructions that compute the address of row `row` of the block."""
    return [
        f"  %{name}.step = mul nsw i64 %{side}_pitch, {row}",
        f"  %{name}.place = add nsw i64 %{side}.place, %{name}.step",
        f"  %{name} = getelementptr inbounds {element}, ptr %{side}, i64 %{name}.place",
    ]
