"""Memory layouts of arguments, as symbolic strides that kernels are specialized for.

A C-contiguous, aligned array, by far the most common, is `None` in a layout key and costs two attribute reads. Any
other array has one entry per axis: broadcast (stride 0), contiguous with another axis, or a free stride, which becomes
a kernel argument. A transposed array has contiguous axes in another order; kernels join loops over them as they do
over those of an array in C order.

Must not know: kernels.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import memoized
from tracefuse.errors import UnsupportedError
from tracefuse.ir.extents import Extent, symbol, symbols
from tracefuse.ir.fusion import Shape

CONTIGUOUS, BROADCAST, UNIT, FREE = "c", "0", "1", "s"
AFTER = string.ascii_uppercase
"""The letters of axes that are contiguous with one of the first 26 axes that is not the next inner one."""


@dataclass(frozen=True, slots=True)
class Strided:
    """The layout of an array that is not C-contiguous and aligned.

    axes: a letter per axis: "c": contiguous with the next inner axis; "A" to "Z": contiguous with axis 0 to 25, so that
    an array in Fortran order has "1AB"; "0": broadcast or of extent 1; "1": unit stride; "s": any stride.
    aligned: the elements are aligned to their size.
    """

    axes: str
    aligned: bool


LayoutKey: TypeAlias = "tuple[Strided | None, ...]"


def strided(shape: Sequence[int], strides: Sequence[int], itemsize: int, aligned: bool) -> Strided:
    """Returns the layout of an array from its shape and its strides in bytes.

    Raises UnsupportedError if a stride is not a multiple of the element size (a field of a structured array).
    """
    broken = [s for n, s in zip(shape, strides, strict=True) if n > 1 and s % itemsize]
    if broken:
        raise UnsupportedError(
            f"a stride of {broken[-1]} bytes is no multiple of the {itemsize} bytes of an element",
            hint="pass np.ascontiguousarray(x)",
        )
    # The bytes that an axis spans, innermost axes first. Strides of axes of one element say nothing.
    spans = {a: strides[a] * shape[a] for a in reversed(range(len(shape))) if shape[a] != 1 and strides[a] != 0}
    letters: list[str] = []
    inner: int | None = None
    for axis in reversed(range(len(shape))):
        stride = strides[axis]
        if axis not in spans:
            letters.append(BROADCAST)
            continue
        others = (AFTER[a] for a, span in spans.items() if a < len(AFTER) and span == stride)
        if inner is not None and stride == spans[inner]:
            letters.append(CONTIGUOUS)
        elif stride == itemsize:
            letters.append(UNIT)
        else:
            letters.append(next(others, FREE))
        inner = axis
    return Strided("".join(reversed(letters)), aligned)


def axis_within(axes: str, axis: int) -> int | None:
    """Returns the axis that `axis` is contiguous with: its stride is the stride of that axis times its extent.

    axes: the letters of a layout. None if `axis` has another stride. A chain of such axes ends, since strides decrease.
    """
    letter = axes[axis]
    if letter == CONTIGUOUS:
        return next((inner for inner in range(axis + 1, len(axes)) if axes[inner] != BROADCAST), None)
    return AFTER.index(letter) if letter in AFTER else None


def is_nested(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Returns whether no two elements overlap: each stride is at least the span of all axes with smaller strides."""
    reach = itemsize
    for stride, extent in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride < reach:
            return False
        reach += (extent - 1) * stride
    return True


def broadcast_axis(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Returns the first axis with stride 0 and more than one element, or None."""
    if 0 in shape:
        return None
    axes = enumerate(zip(shape, strides, strict=True))
    return next((axis for axis, (extent, stride) in axes if extent > 1 and stride == 0), None)


@memoized("first and last byte of an array", key="shape, strides, item size", most=1024)
def known_bounds(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Returns the offsets of an array's first byte and of the byte after its last, relative to element 0.

    Memoized, since every call needs them.
    """
    if 0 in shape:
        return 0, 0
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + itemsize


@memoized("the layout of an array", key="shape, strides, item size, alignment", most=1024)
def known_layout(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, aligned: bool) -> Strided:
    """Memoized `strided`."""
    return strided(shape, strides, itemsize, aligned)


@memoized(
    "the layout of an array, whether its axes nest and whether one is broadcast",
    key="shape, strides, item size, alignment",
    most=1024,
)
def known_memory(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, aligned: bool
) -> tuple[Strided, bool, bool]:
    """Returns the layout, `is_nested`, and whether there is a `broadcast_axis`; memoized."""
    layout = strided(shape, strides, itemsize, aligned)
    return layout, is_nested(shape, strides, itemsize), broadcast_axis(shape, strides) is not None


STRIDE_NAME = re.compile(r"t(\d+)s(\d+)")
"""Matches the names that `stride_name` returns."""


def stride_name(number: int, axis: int) -> str:
    """Returns the name of the symbol for the stride of an axis of a value."""
    return f"t{number}s{axis}"


def stride_names(extents: Iterable[Extent]) -> tuple[str, ...]:
    """Returns the names of the symbols for strides in extents, each once."""
    named = (size.name for extent in extents for size in symbols(extent) if size.id is None)
    return tuple(dict.fromkeys(name for name in named if STRIDE_NAME.fullmatch(name)))


def numbers_of_stride(name: str) -> tuple[int, int]:
    """Returns the number of the value and the axis whose stride has this name."""
    match = STRIDE_NAME.fullmatch(name)
    assert match is not None
    number, axis = map(int, match.groups())
    return number, axis


def symbolic_strides(layout: Strided, shape: Shape, number: int) -> Shape:
    """Returns the strides in elements, with a symbol for each free stride."""
    strides: dict[int, Extent] = {}

    def resolve(axis: int) -> Extent:
        if axis not in strides:
            letter, within = layout.axes[axis], axis_within(layout.axes, axis)
            if within is not None:
                strides[axis] = resolve(within) * shape[within]
            elif letter in (BROADCAST, UNIT):
                strides[axis] = int(letter == UNIT)
            else:
                strides[axis] = symbol(stride_name(number, axis), minimum=-(2**62))
        return strides[axis]

    return tuple(map(resolve, range(len(shape))))
