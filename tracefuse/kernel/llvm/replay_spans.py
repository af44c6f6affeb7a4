"""Whether the arrays that a replayed call writes share memory with others, in LLVM IR.

The bounds of all arrays are sorted, so that the time grows little faster than their number.

Must not know: plans.
"""

from __future__ import annotations

WORDS = 3
"""The words of the instruction: its number, the number of spans, their address."""

# are_apart: a span is a value, the offset of its first byte, its bytes, and whether the call writes it. The module
# defines `address_of`, the address of the first element of an array.
_TEXT = """
@gaps = private constant [8 x i64] [i64 701, i64 301, i64 132, i64 57, i64 23, i64 10, i64 4, i64 1]

declare i64 @llvm.umax.i64(i64, i64)

define internal void @sort_spans(ptr %spans, i64 %count) {
start:
  br label %gap.head
gap.head:
  %g = phi i64 [ 0, %start ], [ %g.next, %gap.back ]
  %more.gaps = icmp slt i64 %g, 8
  br i1 %more.gaps, label %gap.one, label %end
gap.one:
  %gap.place = getelementptr i64, ptr @gaps, i64 %g
  %gap = load i64, ptr %gap.place
  br label %item.head
item.head:
  %k = phi i64 [ %gap, %gap.one ], [ %k.next, %place ]
  %more.items = icmp slt i64 %k, %count
  br i1 %more.items, label %item, label %gap.back
item:
  %own = getelementptr [3 x i64], ptr %spans, i64 %k
  %moved = load [3 x i64], ptr %own
  %first = load i64, ptr %own
  br label %shift.head
shift.head:
  %j = phi i64 [ %k, %item ], [ %before, %shift ]
  %before = sub i64 %j, %gap
  %exists = icmp sge i64 %before, 0
  br i1 %exists, label %compare, label %place
compare:
  %other = getelementptr [3 x i64], ptr %spans, i64 %before
  %other.first = load i64, ptr %other
  %later = icmp ugt i64 %other.first, %first
  br i1 %later, label %shift, label %place
shift:
  %to = getelementptr [3 x i64], ptr %spans, i64 %j
  %value = load [3 x i64], ptr %other
  store [3 x i64] %value, ptr %to
  br label %shift.head
place:
  %target = getelementptr [3 x i64], ptr %spans, i64 %j
  store [3 x i64] %moved, ptr %target
  %k.next = add i64 %k, 1
  br label %item.head
gap.back:
  %g.next = add i64 %g, 1
  br label %gap.head
end:
  ret void
}

define internal i1 @are_apart(ptr %words, ptr %values) {
start:
  %count = call i64 @word(ptr %words, i64 1)
  %table = call ptr @pointer(ptr %words, i64 2)
  %spans = alloca [3 x i64], i64 %count, align 16
  br label %read.head
read.head:
  %k = phi i64 [ 0, %start ], [ %k.next, %read ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %read, label %sort
read:
  %entry = getelementptr [4 x i64], ptr %table, i64 %k
  %number = call i64 @word(ptr %entry, i64 0)
  %offset = call i64 @word(ptr %entry, i64 1)
  %bytes = call i64 @word(ptr %entry, i64 2)
  %is.written = call i64 @word(ptr %entry, i64 3)
  %object = call ptr @pointer(ptr %values, i64 %number)
  %data = call ptr @address_of(ptr %object)
  %address = ptrtoint ptr %data to i64
  %first = add i64 %address, %offset
  %last = add i64 %first, %bytes
  %span = getelementptr [3 x i64], ptr %spans, i64 %k
  %last.place = getelementptr i64, ptr %span, i64 1
  %written.place = getelementptr i64, ptr %span, i64 2
  store i64 %first, ptr %span
  store i64 %last, ptr %last.place
  store i64 %is.written, ptr %written.place
  %k.next = add i64 %k, 1
  br label %read.head
sort:
  call void @sort_spans(ptr %spans, i64 %count)
  br label %head
head:
  %n = phi i64 [ 0, %sort ], [ %n.next, %fine ]
  %end = phi i64 [ 0, %sort ], [ %end.next, %fine ]
  %end.written = phi i64 [ 0, %sort ], [ %end.written.next, %fine ]
  %left = icmp slt i64 %n, %count
  br i1 %left, label %one, label %yes
one:
  %own = getelementptr [3 x i64], ptr %spans, i64 %n
  %own.first = call i64 @word(ptr %own, i64 0)
  %own.last = call i64 @word(ptr %own, i64 1)
  %own.written = call i64 @word(ptr %own, i64 2)
  %writes = icmp ne i64 %own.written, 0
  %limit = select i1 %writes, i64 %end, i64 %end.written
  %overlaps = icmp ult i64 %own.first, %limit
  br i1 %overlaps, label %no, label %fine
fine:
  %n.next = add i64 %n, 1
  %end.next = call i64 @llvm.umax.i64(i64 %end, i64 %own.last)
  %counted = select i1 %writes, i64 %own.last, i64 0
  %end.written.next = call i64 @llvm.umax.i64(i64 %end.written, i64 %counted)
  br label %head
yes:
  ret i1 true
no:
  ret i1 false
}
"""


def spans_text() -> str:
    """Return the text of the functions."""
    return _TEXT
