"""Copies into arguments in calls that are replayed, in LLVM IR.

A copy goes from one array into another, in runs of bytes that are contiguous in both, along two loops at most.

Must not know: plans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_LOOPS = 2
"""The loops around the runs of a copy that is replayed."""


def runs_of(
    shape: Sequence[int], source: Sequence[int], target: Sequence[int], itemsize: int
) -> tuple[int, ...] | None:  # fmt: skip
    """Return the bytes of a run, then extent, step in the source and step in the target of each loop around it.

    source, target: strides in bytes. None if there are more than MOST_LOOPS loops.
    """
    loops: list[tuple[int, int, int]] = []
    run = itemsize
    for extent, step, stride in zip(reversed(shape), reversed(source), reversed(target), strict=True):
        if extent == 1:
            continue
        if not loops and step == stride == run:
            run *= extent
        elif loops and (step, stride) == tuple(loops[-1][0] * inner for inner in loops[-1][1:]):
            loops[-1] = (loops[-1][0] * extent, *loops[-1][1:])
        else:
            loops.append((extent, step, stride))
    if len(loops) > MOST_LOOPS:
        return None
    filled = [(1, 0, 0)] * (MOST_LOOPS - len(loops)) + loops[::-1]
    return (run if math.prod(shape) else 0, *(word for loop in filled for word in loop))


def is_safe_within(runs: Sequence[int], distance: int) -> bool:
    """Return whether a copy within one array reads no run after it has written there.

    distance: bytes from the target to the source. A run itself may overlap, whichever way.
    """
    run, *loops = runs
    steps = [loop for loop in (loops[:3], loops[3:]) if loop[0] > 1]
    reach = run + abs(distance)
    for extent, source, target in reversed(steps):
        if source != target or abs(source) < reach:
            return False
        reach += (extent - 1) * abs(source)
    return True


# copy: the words of an instruction are the value and offset of the source, of the target, and `runs_of`. place: the
# address of the elements of a value, and an offset.
_TEXT = """
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)

define internal ptr @place(ptr %words, ptr %values, i64 %k) {
  %number = call i64 @word(ptr %words, i64 %k)
  %object = call ptr @pointer(ptr %values, i64 %number)
  %data = call ptr @address_of(ptr %object)
  %after = add i64 %k, 1
  %offset = call i64 @word(ptr %words, i64 %after)
  %place = getelementptr i8, ptr %data, i64 %offset
  ret ptr %place
}

define internal void @copy(ptr %words, ptr %values) {
start:
  %source = call ptr @place(ptr %words, ptr %values, i64 1)
  %target = call ptr @place(ptr %words, ptr %values, i64 3)
  %run = call i64 @word(ptr %words, i64 5)
  %rows = call i64 @word(ptr %words, i64 6)
  %row.source = call i64 @word(ptr %words, i64 7)
  %row.target = call i64 @word(ptr %words, i64 8)
  %runs = call i64 @word(ptr %words, i64 9)
  %run.source = call i64 @word(ptr %words, i64 10)
  %run.target = call i64 @word(ptr %words, i64 11)
  br label %rows.head
rows.head:
  %row = phi i64 [ 0, %start ], [ %row.next, %rows.back ]
  %s.row = phi ptr [ %source, %start ], [ %s.row.next, %rows.back ]
  %t.row = phi ptr [ %target, %start ], [ %t.row.next, %rows.back ]
  %more.rows = icmp slt i64 %row, %rows
  br i1 %more.rows, label %runs.head, label %end
runs.head:
  %k = phi i64 [ 0, %rows.head ], [ %k.next, %runs.back ]
  %s = phi ptr [ %s.row, %rows.head ], [ %s.next, %runs.back ]
  %t = phi ptr [ %t.row, %rows.head ], [ %t.next, %runs.back ]
  %more.runs = icmp slt i64 %k, %runs
  br i1 %more.runs, label %one, label %rows.back
one:
  switch i64 %run, label %any [
    i64 8, label %eight
    i64 4, label %four
  ]
eight:
  %wide = load i64, ptr %s, align 1
  store i64 %wide, ptr %t, align 1
  br label %runs.back
four:
  %narrow = load i32, ptr %s, align 1
  store i32 %narrow, ptr %t, align 1
  br label %runs.back
any:
  call void @llvm.memmove.p0.p0.i64(ptr %t, ptr %s, i64 %run, i1 false)
  br label %runs.back
runs.back:
  %k.next = add i64 %k, 1
  %s.next = getelementptr i8, ptr %s, i64 %run.source
  %t.next = getelementptr i8, ptr %t, i64 %run.target
  br label %runs.head
rows.back:
  %row.next = add i64 %row, 1
  %s.row.next = getelementptr i8, ptr %s.row, i64 %row.source
  %t.row.next = getelementptr i8, ptr %t.row, i64 %row.target
  br label %rows.head
end:
  ret void
}
"""


def copies_text() -> str:
    """Return the text of the functions, for the module of `kernel/llvm/replay_functions.py`."""
    return _TEXT
