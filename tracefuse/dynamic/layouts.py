"""Memory layouts of arguments, as symbolic strides that a kernel can be made for.

A C-contiguous, aligned array, by far the most common, is `None` in a layout key and costs two attribute reads. Any
other has one entry per axis: 0 (broadcast), the contiguous stride given the axes inside, or a stride of its own that
becomes a kernel argument.

Knows: shapes, strides, symbols. Must not know: kernels, who owns an array.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tracefuse.caches import memoized
from tracefuse.errors import UnsupportedError
from tracefuse.ir.extents import Extent, symbol
from tracefuse.ir.fusion import Shape

CONTIGUOUS, BROADCAST, UNIT, FREE = "c", "0", "1", "s"


@dataclass(frozen=True, slots=True)
class Strided:
    """The layout of an array that is not plainly contiguous: a letter per axis, and whether elements are aligned.

    "c": contiguous with the axis inside; "0": broadcast or of extent 1; "1": neighbours; "s": any stride.
    """

    axes: str
    aligned: bool


LayoutKey: TypeAlias = "tuple[Strided | None, ...]"


def strided(shape: Sequence[int], strides: Sequence[int], itemsize: int, aligned: bool) -> Strided:
    """The layout of an array by its shape and its strides in bytes.

    Raises UnsupportedError where a stride is no multiple of the element size (a field of a structured array).
    """
    letters: list[str] = []
    inner: int | None = None  # bytes that the axes inside span, where they are contiguous
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride % itemsize and extent > 1:
            raise UnsupportedError(
                f"a stride of {stride} bytes is no multiple of the {itemsize} bytes of an element",
                hint="pass np.ascontiguousarray(x)",
            )
        if extent == 1 or stride == 0:
            letters.append(BROADCAST)
            continue
        if inner is not None and stride == inner:
            letters.append(CONTIGUOUS)
        elif stride == itemsize:
            letters.append(UNIT)
        else:
            letters.append(FREE)
        inner = stride * extent
    return Strided("".join(reversed(letters)), aligned)


def is_nested(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether no two elements share bytes, judged by each axis stepping over all that the finer ones span."""
    reach = itemsize
    for stride, extent in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride < reach:
            return False
        reach += (extent - 1) * stride
    return True


def broadcast_axis(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The first axis along which all elements are one in memory."""
    if 0 in shape:
        return None
    axes = enumerate(zip(shape, strides, strict=True))
    return next((axis for axis, (extent, stride) in axes if extent > 1 and stride == 0), None)


@memoized("first and last byte of an array", key="shape, strides, item size", most=1024)
def known_bounds(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """The first byte of an array and the one after the last, from element 0 on; remembered: a call pays for it."""
    if 0 in shape:
        return 0, 0
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + itemsize


@memoized("the layout of an array", key="shape, strides, item size, alignment", most=1024)
def known_layout(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, aligned: bool) -> Strided:
    """`strided`, remembered likewise."""
    return strided(shape, strides, itemsize, aligned)


@memoized(
    "the layout of an array, whether its axes nest and whether one is broadcast",
    key="shape, strides, item size, alignment",
    most=1024,
)
def known_memory(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, aligned: bool
) -> tuple[Strided, bool, bool]:
    """Layout, `is_nested` and whether there is a `broadcast_axis`, remembered likewise."""
    layout = strided(shape, strides, itemsize, aligned)
    return layout, is_nested(shape, strides, itemsize), broadcast_axis(shape, strides) is not None


STRIDE_NAME = re.compile(r"t(\d+)s(\d+)")
"""What `stride_name` makes."""


def stride_name(number: int, axis: int) -> str:
    """The name of the symbol for the stride of an axis of a value."""
    return f"t{number}s{axis}"


def symbolic_strides(layout: Strided, shape: Shape, number: int) -> Shape:
    """The strides in elements, with a symbol for each free one."""
    result: list[Extent] = []
    inner: Extent = 0
    for axis in range(len(shape) - 1, -1, -1):
        letter = layout.axes[axis]
        if letter == BROADCAST:
            result.append(0)
            continue
        if letter == CONTIGUOUS:
            stride = inner
        elif letter == UNIT:
            stride = 1
        else:
            stride = symbol(stride_name(number, axis), minimum=-(2**62))
        result.append(stride)
        inner = stride * shape[axis]
    return tuple(reversed(result))
