"""Views: reading a movement from the memory that it shares, and writing through it.

Every view is a chain of steps from the name that owns the memory. A step is a movement. Writing through it applies
the inverse movement, or, for a slice, a scatter of the slice. The chain determines the strides, because NumPy's
reshape returns a view for some layouts and a copy for others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tracefuse import source
from tracefuse.dynamic.layouts import stride_name
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.traced import LayoutFrom, Memory, Traced, ViewStep
from tracefuse.ir.extents import Extent, as_symbol, product, symbol
from tracefuse.ir.fusion import Shape

Write: TypeAlias = Callable[[Traced, Traced, Mapping[str, Any]], Traced]
Strides: TypeAlias = Callable[[Shape, Shape, Mapping[str, Any]], Shape]
"""The strides of a view, from those of what it was taken from, the extents of that, and the movement's attributes."""


def take_view(name: str, parent: Traced, **attributes: Any) -> Traced:
    """Applies a movement to `parent`; the result is a view of it, as in NumPy."""
    recorder = parent.recorder
    result: Traced = recorder.movement(name, [parent], **attributes)
    write = _WRITES[name]
    step = ViewStep(
        (name, tuple(sorted(attributes.items()))),
        lambda base: recorder.movement(name, [base], **attributes),
        lambda base, values: write(base, values, attributes),
    )
    extents = parent.extents
    return attach(result, parent, step, lambda strides: _STRIDES[name](strides, extents, attributes))


def attach(result: Traced, parent: Traced, step: ViewStep, change: Callable[[Shape], Shape]) -> Traced:
    """Makes `result`, which was just read from `parent`, a view of it. change: its strides from those of `parent`."""
    result.become_view(parent, step)
    if isinstance(parent.layout, LayoutFrom):
        result.layout = LayoutFrom((parent,), lambda: change(strides_of(parent)))
    else:
        strides = change(strides_of(parent))
        result.layout = None if strides == contiguous(result.extents) else strides
    return result


def alias(name: Traced) -> Traced:
    """Returns a second name for the same memory."""
    second = name.recorder.traced_type(name.recorder, name.number, name.weak, name.read, name.sized)
    second.become_view(name, ViewStep(("alias",), lambda base: base, lambda base, values: values))
    second.layout = name.layout
    return second


def reshape(parent: Traced, shape: Shape) -> Traced:
    """Returns a view with another shape, or a copy if NumPy returns one."""
    recorder, own = parent.recorder, parent.extents
    result: Traced = recorder.movement("reshape", [parent], new_shape=shape)
    extents = result.extents

    def is_view() -> bool:
        return _follow_in_memory(parent, _groups_of(parent, extents))

    def strides() -> Shape:
        result.settle()
        if result.parent is None:
            return contiguous(extents)
        return _reshaped_strides(strides_of(parent), extents, _groups_of(parent, extents))

    step = ViewStep(
        ("reshape", shape),
        lambda base: recorder.movement("reshape", [base], new_shape=shape),
        lambda base, values: recorder.movement("reshape", [values], new_shape=own),
        None if parent.layout is None else is_view,
    )
    result.become_view(parent, step)
    result.layout = None if parent.layout is None else LayoutFrom((parent,), strides)
    return result


def is_same_view(one: Traced, other: Traced) -> bool:
    """Whether two names follow from one name by the same steps."""
    while one is not other:
        if one.step is None or other.step is None or one.step.key != other.step.key:
            return False
        assert one.parent is not None
        assert other.parent is not None
        one, other = one.parent, other.parent
    return True


def owner_of(name: Traced) -> Traced:
    """Returns the name that owns the memory."""
    while name.parent is not None:
        name = name.parent
    return name


def chain_of(name: Traced) -> list[Traced]:
    """Returns the name, its base, and so on to the owner of the memory."""
    chain = [name]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    return chain


def write_through(name: Traced, values: Traced, line: str) -> None:
    """Writes `values` to the memory of a name; every view of that memory sees them."""
    chain = chain_of(name)
    written = [values]
    for view in chain[:-1]:
        assert view.step is not None
        assert view.parent is not None
        written.append(view.step.write(view.parent, written[-1]))
    numbers = [value.number for value in written]  # a value may itself be a view of the memory
    memory: Memory = chain[-1].own_memory()
    memory.version += 1
    memory.written_at = line
    for view, number in zip(chain, numbers, strict=True):
        view.bind(number)


# -- steps ------------------------------------------------------------------------------------------------------------


def _write_permuted(base: Traced, values: Traced, attributes: Mapping[str, Any]) -> Traced:
    dims = attributes["dims"]
    inverse = tuple(sorted(range(len(dims)), key=dims.__getitem__))
    return base.recorder.movement("permute", [values], dims=inverse)  # type: ignore[no-any-return]


def _write_flipped(base: Traced, values: Traced, attributes: Mapping[str, Any]) -> Traced:
    return base.recorder.movement("flip", [values], **attributes)  # type: ignore[no-any-return]


def _write_squeezed(base: Traced, values: Traced, attributes: Mapping[str, Any]) -> Traced:
    flags = tuple(axis in attributes["dims"] for axis in range(len(base.extents)))
    return base.recorder.movement("broadcast", [values], is_broadcast_dim=flags)  # type: ignore[no-any-return]


def _write_with_new_axes(base: Traced, values: Traced, attributes: Mapping[str, Any]) -> Traced:
    added = tuple(axis for axis, flag in enumerate(attributes["is_broadcast_dim"]) if flag)
    return base.recorder.movement("squeeze", [values], dims=added)  # type: ignore[no-any-return]


def _write_sliced(base: Traced, values: Traced, attributes: Mapping[str, Any]) -> Traced:
    return base.recorder.movement("slice_scatter", [base, values], **attributes)  # type: ignore[no-any-return]


def _write_repeated(base: Traced, values: Traced, attributes: Mapping[str, Any]) -> Traced:
    raise AssertionError("NumPy's repeating views are read-only")


_WRITES: dict[str, Write] = {
    "permute": _write_permuted, "flip": _write_flipped, "squeeze": _write_squeezed, "broadcast": _write_with_new_axes,
    "slice": _write_sliced, "expand": _write_repeated, "windows": _write_repeated,
}  # fmt: skip


# -- strides ----------------------------------------------------------------------------------------------------------


def contiguous(extents: Shape) -> Shape:
    """Returns the strides of a C-contiguous array, in elements."""
    return tuple(product(extents[axis + 1 :]) for axis in range(len(extents)))


def add_layout(argument: Traced, strides: Sequence[int]) -> None:
    """Adds symbols for the strides of an array argument, in elements; what is decided from them is guarded."""
    named = [
        symbol(stride_name(argument.number, axis), minimum=-(2**63)) if extent != 1 else 0
        for axis, extent in enumerate(argument.extents)
    ]
    argument.layout = tuple(named)
    for one, stride in zip(named, strides, strict=True):
        name = None if isinstance(one, int) else as_symbol(one)
        if name is not None:
            argument.recorder.stride_hints[name] = stride


def strides_of(name: Traced) -> Shape:
    """Returns the strides in elements, those of arguments as symbols."""
    waiting = [name]
    while waiting:
        layout = waiting[-1].layout
        bases = layout.bases if isinstance(layout, LayoutFrom) else ()
        before = [base for base in bases if isinstance(base.layout, LayoutFrom)]
        if before:
            waiting += before
        else:
            top = waiting.pop()
            top.layout = layout.compute() if isinstance(layout, LayoutFrom) else layout
    return name.layout if isinstance(name.layout, tuple) else contiguous(name.extents)


def of_new_array(result: Traced, operands: Iterable[Traced], *, is_elementwise: bool = True) -> None:
    """Sets the layout of an array that an operation makes: C-contiguous if no operand has its axes in another order.

    NumPy's elementwise operations keep the order of the axes of their operands.
    """
    bases: dict[int, Traced] = {}
    is_alike = is_elementwise
    for operand in operands:
        if isinstance(operand.layout, LayoutFrom) and operand.parent is None:
            bases.update((id(base), base) for base in operand.layout.bases)
            is_alike = is_alike and operand.layout.is_alike
        elif operand.layout is not None:
            bases[id(operand)] = operand
        elif len(operand.extents) > 1:
            is_alike = False  # C-contiguous beside an array that may be in another order
    if bases:
        kept, extents = tuple(bases.values()), result.extents
        result.layout = LayoutFrom(kept, lambda: _strides_as(kept, extents, is_alike), is_alike)


def _strides_as(bases: Sequence[Traced], extents: Shape, is_alike: bool) -> Shape | None:
    """The strides of a new array; None if it is C-contiguous.

    is_alike: whether the array is made of the bases alone, axis by axis. Raises UnsupportedError unless the axes of
    each base are in row-major order in memory, or all in one other order.
    """
    orders = [_order_in_memory(base, extents) for base in bases]
    others = {order for order in orders if order is not None}
    if not others:
        return None
    if not is_alike or None in orders or len(others) > 1 or _MIXED in others:
        raise UnsupportedError(
            "a reshaped result is changed in place: whether NumPy made a view or a copy depends on the memory "
            "layout of the operands, whose axes are not in row-major order",
            hint="make the result contiguous first, as in y = y.copy()", where=source.user_line(),
        )  # fmt: skip
    strides: list[Extent] = [0] * len(extents)
    step: Extent = 1
    for axis in reversed(others.pop()):
        strides[axis] = step
        step = step * extents[axis]
    return tuple(strides)


_MIXED = (-1,)
"""The order of axes that no other array has."""


def _order_in_memory(base: Traced, extents: Shape) -> tuple[int, ...] | None:
    """The axes of an array from the largest stride to the smallest; None for row-major order. Guarded.

    extents: of the array that is made of it. `_MIXED` if that does not have the same axes, each of them in memory.
    """
    recorder, reason = base.recorder, "the layout of an array that an operation makes"
    order: list[int] = []  # axes of one element first
    sizes: dict[int, Extent] = {}
    is_repeated = False
    for axis, (stride, extent) in enumerate(zip(strides_of(base), base.extents, strict=True)):
        if recorder.decide(extent, "==", 1, reason):
            order.append(axis)
            sizes[axis] = 2**63
        elif recorder.decide(stride, "==", 0, reason):
            is_repeated = True
        else:
            sizes[axis] = stride if recorder.decide(0, "<=", stride, reason) else -stride
    axes = [axis for axis in sizes if axis not in order]
    if all(recorder.decide(sizes[inner], "<=", sizes[outer], reason) for outer, inner in itertools.pairwise(axes)):
        return None
    if is_repeated or base.extents != extents:
        return _MIXED
    for axis in axes:
        place = len(order)
        while place and not recorder.decide(sizes[axis], "<=", sizes[order[place - 1]], reason):
            place -= 1
        order.insert(place, axis)
    return tuple(order)


def _sliced_strides(strides: Shape, extents: Shape, attributes: Mapping[str, Any]) -> Shape:
    return tuple(stride * step for stride, step in zip(strides, attributes["strides"], strict=True))


def _flipped_strides(strides: Shape, extents: Shape, attributes: Mapping[str, Any]) -> Shape:
    return tuple(-stride if axis in attributes["dims"] else stride for axis, stride in enumerate(strides))


def _squeezed_strides(strides: Shape, extents: Shape, attributes: Mapping[str, Any]) -> Shape:
    return tuple(stride for axis, stride in enumerate(strides) if axis not in attributes["dims"])


def _strides_with_new_axes(strides: Shape, extents: Shape, attributes: Mapping[str, Any]) -> Shape:
    rest = iter(strides)
    return tuple(0 if flag else next(rest) for flag in attributes["is_broadcast_dim"])


def _repeated_strides(strides: Shape, extents: Shape, attributes: Mapping[str, Any]) -> Shape:
    lead = len(attributes["shape"]) - len(strides)
    return (*[0] * lead, *(0 if extent == 1 else stride for stride, extent in zip(strides, extents, strict=True)))


_STRIDES: dict[str, Strides] = {
    "permute": lambda strides, extents, attributes: tuple(strides[d] for d in attributes["dims"]),
    "flip": _flipped_strides,
    "squeeze": _squeezed_strides,
    "broadcast": _strides_with_new_axes,
    "slice": _sliced_strides,
    "expand": _repeated_strides,
    "windows": lambda strides, extents, attributes: (*strides, strides[attributes["dim"]]),
}


Groups: TypeAlias = list[tuple[list[int], list[int]]]


def _groups_of(name: Traced, shape: Shape) -> Groups:
    """Returns the finest groups of old and new axes with equal element counts; guarded for this call."""
    recorder, own = name.recorder, name.extents
    known, new = [recorder.known(e) for e in own], [recorder.known(e) for e in shape]
    if 0 in known or math.prod(known) != math.prod(new):
        return [(list(range(len(own))), list(range(len(shape))))]
    groups: Groups = []
    first = second = 0
    while first < len(known) or second < len(new):
        start, other, mine, theirs = first, second, 1, 1
        while (first == start and second == other) or mine != theirs:
            if second == len(new) or (mine <= theirs and first < len(known)):
                mine, first = mine * known[first], first + 1
            else:
                theirs, second = theirs * new[second], second + 1
        groups.append((list(range(start, first)), list(range(other, second))))
    for old, later in groups[:-1]:
        recorder.decide(product(own[k] for k in old), "==", product(shape[k] for k in later), "the axes of a reshape")
    return groups


def _follow_in_memory(name: Traced, groups: Groups) -> bool:
    """Whether the axes of each group are contiguous in memory, as NumPy's reshape requires for a view."""
    recorder, strides = name.recorder, strides_of(name)
    for old, _ in groups:
        axes = [axis for axis in old if not recorder.decide(name.extents[axis], "==", 1, "the axes of a reshape")]
        for axis, inner in itertools.pairwise(axes):
            expected = name.extents[inner] * strides[inner]
            if not recorder.decide(strides[axis], "==", expected, "the layout of a reshaped view"):
                return False
    return True


def _reshaped_strides(strides: Shape, extents: Shape, groups: Groups) -> Shape:
    result: list[Extent] = [0] * len(extents)
    for old, new in groups:
        step: Extent = strides[old[-1]] if old else 1
        for axis in reversed(new):
            result[axis] = step
            step = step * extents[axis]
    return tuple(result)
