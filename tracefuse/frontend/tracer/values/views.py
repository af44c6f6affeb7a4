"""Views: reading a movement from the memory that it shares, and writing through it.

Every view is a chain of steps from the name that owns the memory. A step is a movement. Writing through it applies
the inverse movement, or, for a slice, a scatter of the slice. The chain determines the strides, because NumPy's
reshape returns a view for some layouts and a copy for others.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tracefuse.frontend.tracer.values.axis_order import strides_as_operands
from tracefuse.frontend.tracer.values.movement_strides import STRIDES_OF_VIEWS
from tracefuse.frontend.tracer.values.separate_slices import before_separate_writes
from tracefuse.frontend.tracer.values.traced import LayoutFrom, Memory, Traced, ViewStep
from tracefuse.frontend.tracer.values.written_slices import written_owner
from tracefuse.ir.extents import Extent, product
from tracefuse.ir.fusion import Op, Shape
from tracefuse.ops import Pointwise, Reduction

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.record.assumptions import Assumptions

Write: TypeAlias = Callable[[Traced, Traced, Mapping[str, Any]], Traced]


def take_view(name: str, parent: Traced, **attributes: Any) -> Traced:
    """Applies a movement to `parent`; the result is a view of it, as in NumPy."""
    recorder = parent.recorder

    def read(base: Traced) -> Traced:
        array = before_separate_writes(base, attributes) if name == "slice" else base
        return recorder.movement(name, [array], **attributes)  # type: ignore[no-any-return]

    result = read(parent)
    write = _WRITES[name]
    step = ViewStep(
        (name, tuple(sorted(attributes.items()))),
        read,
        lambda base, values: write(base, values, attributes),
    )
    extents = parent.extents
    return attach(result, parent, step, lambda strides: STRIDES_OF_VIEWS[name](strides, extents, attributes))


def attach(result: Traced, parent: Traced, step: ViewStep, change: Callable[[Shape], Shape]) -> Traced:
    """Makes `result`, which was just read from `parent`, a view of it. change: its strides from those of `parent`."""
    if parent.is_immutable:
        return result  # NumPy's scalars have no memory to share
    result.become_view(parent, step)
    if isinstance(parent.layout, LayoutFrom):
        base, extents = parent.layout, parent.extents
        result.layout = LayoutFrom((base,), lambda: change(strides_in(base, extents)))
    else:
        strides = change(strides_of(parent))
        result.layout = None if strides == contiguous(result.extents) else strides
    return result


def alias(name: Traced) -> Traced:
    """Returns a second name for the same memory."""
    second = name.recorder.traced_type(name.recorder, name.number, name.weak, name.read, name.sized)
    if name.is_immutable:
        return second
    second.become_view(name, ViewStep(("alias",), lambda base: base, lambda base, values: values))
    second.layout = name.layout
    return second


def reshape(parent: Traced, shape: Shape, contiguous_only: bool = False) -> Traced:
    """Returns a view with another shape, or a copy if NumPy returns one.

    contiguous_only: whether NumPy copies every array that is not C-contiguous, as `ravel` does.
    """
    recorder, parent_shape = parent.recorder, parent.extents
    result: Traced = recorder.movement("reshape", [parent], new_shape=shape)
    if parent.is_immutable:
        return result
    extents = result.extents
    name = weakref.ref(result)  # a cycle would keep the traced value alive after the trace

    def is_view() -> bool:
        if contiguous_only:
            return is_contiguous(parent, "the layout of an array that ravel flattens")
        return _follow_in_memory(parent, _groups_of(parent, extents))

    def strides() -> Shape:
        alive = name()
        if alive is not None:
            alive.settle()
        if not (is_view() if alive is None else alive.parent is not None):
            return contiguous(extents)
        return _reshaped_strides(strides_of(parent), extents, _groups_of(parent, extents))

    step = ViewStep(
        ("reshape", shape),
        lambda base: recorder.movement("reshape", [base], new_shape=shape),
        lambda base, values: recorder.movement("reshape", [values], new_shape=parent_shape),
        None if parent.layout is None else is_view,
    )
    result.become_view(parent, step)
    if parent.layout is not None:
        result.layout = LayoutFrom((parent.layout,) if isinstance(parent.layout, LayoutFrom) else (), strides)
    return result


def flat_view(parent: Traced) -> Traced:
    """Returns the elements in row-major order, through which a write goes to `parent` whatever its layout."""
    recorder, parent_shape = parent.recorder, parent.extents
    shape = (product(parent_shape),)
    result: Traced = recorder.movement("reshape", [parent], new_shape=shape)
    step = ViewStep(
        ("flat",),
        lambda base: recorder.movement("reshape", [base], new_shape=shape),
        lambda base, values: recorder.movement("reshape", [values], new_shape=parent_shape),
    )
    result.become_view(parent, step)
    return result


def is_same_view(first: Traced, second: Traced) -> bool:
    """Whether two names follow from one name by the same steps."""
    while first is not second:
        if first.step is None or second.step is None or first.step.key != second.step.key:
            return False
        assert first.parent is not None
        assert second.parent is not None
        first, second = first.parent, second.parent
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
    at_once = written_owner(chain, values)
    if at_once is not None:  # the views between read their elements again
        chain, written = [name, chain[-1]], [values, at_once]
    else:
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


def _write_diagonal(base: Traced, values: Traced, attributes: Mapping[str, Any]) -> Traced:
    return base.recorder.movement("diagonal_scatter", [base, values], **attributes)  # type: ignore[no-any-return]


def _write_repeated(base: Traced, values: Traced, attributes: Mapping[str, Any]) -> Traced:
    raise AssertionError("NumPy's repeating views are read-only")


_WRITES: dict[str, Write] = {
    "permute": _write_permuted, "flip": _write_flipped, "squeeze": _write_squeezed, "broadcast": _write_with_new_axes,
    "slice": _write_sliced, "diagonal": _write_diagonal, "expand": _write_repeated, "windows": _write_repeated,
}  # fmt: skip


# -- strides ----------------------------------------------------------------------------------------------------------


def contiguous(extents: Shape) -> Shape:
    """Returns the strides of a C-contiguous array, in elements."""
    return tuple(product(extents[axis + 1 :]) for axis in range(len(extents)))


def of_index_arrays(result: Traced, base: Traced, axes: Sequence[int], first: int) -> Traced:
    """Sets the layout of elements at integer positions: the axes of the positions are outermost in NumPy's memory.

    axes: the axes of `base` that positions replace; those of the positions begin at `first` in the result.
    """
    count = len(result.extents) - len(base.extents) + len(axes)
    rest = [axis for axis in range(len(base.extents)) if axis not in axes]
    if base.layout is None and (first == 0 or not rest):
        return result
    extents = tuple(base.extents[axis] for axis in rest)
    index_shape = result.extents[first : first + count]

    def strides() -> Shape:
        inner = contiguous(extents)
        if base.layout is not None:
            base_strides = strides_of(base)
            columns = [(tuple(base_strides[axis] for axis in rest), extents)]
            inner = strides_as_operands(base.recorder, columns, extents, range(len(rest)), copies=True)
        outer = tuple(stride * product(extents) for stride in contiguous(index_shape))
        return (*inner[:first], *outer, *inner[first:])

    bases = (base.layout,) if isinstance(base.layout, LayoutFrom) else ()
    result.layout = strides() if base.layout is None else LayoutFrom(bases, strides)
    return result


def in_order(name: Any, order: str | None, operands: Sequence[Traced] = ()) -> Any:
    """Returns a new array with its elements in an order of memory.

    order: "C", "F" with the first axis innermost, or "A": F if all operands have it, else C. "K" changes nothing.
    """
    if not isinstance(name, Traced) or name.parent is not None or len(name.extents) < 2:
        return name
    first_innermost = tuple(reversed(contiguous(tuple(reversed(name.extents)))))
    if order == "C" or (order == "A" and any(x.layout is None and len(x.extents) > 1 for x in operands)):
        name.layout = None
    elif order == "F":
        name.layout = first_innermost
    elif order == "A":
        bases = tuple(x.layout for x in operands if isinstance(x.layout, LayoutFrom))
        parts = [(x.recorder, x.layout, x.extents) for x in operands]
        reason = "the order of an array with order='A'"

        def strides() -> Shape | None:
            is_fortran = all(
                are_contiguous(recorder, strides_in(layout, extents), extents, reason, last_first=False)
                for recorder, layout, extents in parts
            )
            return first_innermost if is_fortran else None

        name.layout = LayoutFrom(bases, strides)
    return name


def is_contiguous(name: Traced, reason: str, *, last_first: bool = True) -> bool:
    """Whether an array is C-contiguous, or with its first axis innermost F-contiguous; guarded."""
    return are_contiguous(name.recorder, strides_of(name), name.extents, reason, last_first=last_first)


def is_fortran(name: Traced) -> bool:
    """Whether an array is F-contiguous and not C-contiguous, as order='A' asks; guarded."""
    if len(name.extents) < 2 or name.layout is None:
        return False
    name.settle()
    reason = "the order of an array with order='A'"
    return is_contiguous(name, reason, last_first=False) and not is_contiguous(name, reason)


def are_contiguous(recorder: Assumptions, strides: Shape, extents: Shape, reason: str, *, last_first: bool) -> bool:
    """Whether strides are those of a C-contiguous array, or with the first axis innermost an F-contiguous one."""
    total = product(extents)
    if recorder.known(total) == 0 and recorder.decide(total, "==", 0, reason):
        return True
    pairs = list(zip(strides, extents, strict=True))
    expected: Extent = 1
    for stride, extent in reversed(pairs) if last_first else pairs:
        if recorder.decide(extent, "==", 1, reason):
            continue
        if not recorder.decide(stride, "==", expected, reason):
            return False
        expected = expected * extent
    return True


def strides_of(name: Traced) -> Shape:
    """Returns the strides in elements, those of arguments as symbols."""
    extents = name.extents  # a captured array gets its layout when it is used first
    return strides_in(name.layout, extents)


def strides_in(layout: Shape | LayoutFrom | None, extents: Shape) -> Shape:
    """Returns the strides of a layout."""
    strides = layout.evaluate() if isinstance(layout, LayoutFrom) else layout
    return contiguous(extents) if strides is None else strides


def of_new_array(result: Traced, operands: Iterable[Traced], dims: Sequence[int] = (), *, copies: bool = False) -> None:
    """Sets the layout of an array that an operation makes: NumPy keeps the order of the axes of its operands.

    dims: the axes of the operands that the result lacks. copies: whether elements are copied, not computed.
    """
    parts = [(operand.layout, operand.extents) for operand in operands]
    if all(layout is None for layout, _ in parts):
        return
    recorder, extents, rank = result.recorder, result.extents, max(len(shape) for _, shape in parts)
    remaining = [axis for axis in range(rank) if axis not in dims]

    def strides() -> Shape:
        known = [(strides_in(layout, shape), shape) for layout, shape in parts]
        return strides_as_operands(recorder, known, extents, remaining, copies)

    result.layout = LayoutFrom(tuple(layout for layout, _ in parts if isinstance(layout, LayoutFrom)), strides)


def set_layout(result: Traced, op: Op, operands: Sequence[Traced], attributes: Mapping[str, Any]) -> None:
    """Sets the layout that NumPy's result of an op has."""
    if isinstance(op, Reduction) and op.result != "index":
        of_new_array(result, operands, () if attributes["keepdim"] else attributes["dims"])
    elif isinstance(op, Pointwise) or op.name in (*_COPYING, *_SCANS):
        of_new_array(result, operands, copies=op.name in _COPYING)


_SCANS = ("cumsum", "cumprod", "cummax", "cummin")
_COPYING = ("cast", "set", "ordered_set", "cat", "sort")
"""Ops whose results NumPy first makes as copies, with the axes in memory in the order of the operands'."""


Groups: TypeAlias = list[tuple[list[int], list[int]]]


def _groups_of(name: Traced, shape: Shape) -> Groups:
    """Returns the finest groups of old and new axes with equal element counts; guarded for this call."""
    recorder, extents = name.recorder, name.extents
    known, new = [recorder.known(e) for e in extents], [recorder.known(e) for e in shape]
    if 0 in known or math.prod(known) != math.prod(new):
        return [(list(range(len(extents))), list(range(len(shape))))]
    groups: Groups = []
    first = second = 0
    while first < len(known) or second < len(new):
        start, other, old_count, new_count = first, second, 1, 1
        while (first == start and second == other) or old_count != new_count:
            if second == len(new) or (old_count <= new_count and first < len(known)):
                old_count, first = old_count * known[first], first + 1
            else:
                new_count, second = new_count * new[second], second + 1
        groups.append((list(range(start, first)), list(range(other, second))))
    for old, later in groups[:-1]:
        before, after = product(extents[k] for k in old), product(shape[k] for k in later)
        recorder.decide(before, "==", after, "the axes of a reshape")
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
