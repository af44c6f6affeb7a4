"""An array's memory, as NumPy shows it: strides, flags and base of a traced value, output arrays, refusals of bytes.

The layout of an intermediate follows from the program; that of an argument is read at the trace and guarded.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from tracefuse import source
from tracefuse.errors import ReadOnlyError, ScalarError, ShapeError, UnsupportedError
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.symbolic_size import wrap
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent, product

REFUSED = {
    "ctypes": "call the C function outside the fused function",
    "data": "read the memory outside the fused function",
    "tofile": "return the array and write it outside",
    "dump": "return the array and pickle it outside",
    "dumps": "return the array and pickle it outside",
    "getfield": "traced arrays have one field; use x.astype(dtype)",
    "setfield": "traced arrays have one field; use x[...] = value",
}
"""What to write instead of each attribute of ndarray that exposes bytes."""


def refuse_bytes(name: str, instead: str) -> NoReturn:
    """Raises UnsupportedError with the user's line."""
    raise UnsupportedError(
        f"x.{name}: a traced array has no bytes", hint=instead, where=source.user_line(), runs_function=True
    )


def bytes_of(x: Traced, order: str | None = "C") -> Any:
    """Returns `x.tobytes(order)` of the elements of a call, which the call asks for."""
    if order not in ("C", "F", None):
        refuse_bytes(f"tobytes({order!r})", "give the order 'C' or 'F'")
    return call_between_stages(_bytes, "x.tobytes", (x, order or "C"), {})


def _bytes(array: Any, order: str) -> bytes:
    return bytes(array.tobytes(order))


def strides_in_bytes(x: Traced) -> tuple[Any, ...]:
    """Returns the strides in bytes: sizes for an intermediate, guarded integers for an argument.

    Raises UnsupportedError for strides that no element depends on, where those of an argument are not known, or depend
    on the version of NumPy: of arrays without elements, and along axes of extent 1.
    """
    recorder, itemsize = x.recorder, x.value.dtype.itemsize
    x.settle()
    strides, is_new = views.strides_of(x), x.parent is None and (x.memory is None or x.memory.argument is None)
    if recorder.decide(product(x.extents), "==", 0, "the strides of an array"):
        raise _without_strides("an array without elements")
    if 1 in x.extents and not is_new:
        raise _without_strides("an argument, or a view, along an axis of extent 1")
    return tuple(wrap(known_stride(x, stride) * itemsize, recorder) for stride in strides)


def _without_strides(of: str) -> UnsupportedError:
    return UnsupportedError(
        f"x.strides of {of}: no element depends on them", where=source.user_line(),
        hint="ask where x.size is not 0 and x.shape has no 1, or squeeze the array: np.squeeze(x).strides",
    )  # fmt: skip


def known_stride(x: Traced, stride: Extent) -> Extent:
    """Returns a stride; one that depends on the layout of an argument as a guarded integer."""
    recorder = x.recorder
    if recorder.depends_on_layout(stride):
        value = recorder.known(stride)
        recorder.decide(stride, "==", value, "the strides of an array")
        return value
    return stride


def base_of(x: Traced) -> Any:
    """Returns the array that owns the memory of a view, None for an owner."""
    x.settle()
    owner = views.owner_of(x)
    if owner.memory is not None and owner.memory.argument is not None:
        raise UnsupportedError(
            "x.base of an argument: the caller's arrays are not known while tracing",
            hint="compare arrays with np.shares_memory outside the fused function", where=source.user_line(),
        )  # fmt: skip
    return None if owner is x else owner


def into_broadcast(target: Any, result: Any) -> Any:
    """Writes a result into an array that may have more axes, or more elements along axes of extent 1, as ufuncs do."""
    return into(target, broadcast_over(result, target))


def broadcast_over(result: Any, target: Any) -> Any:
    """Returns a result, broadcast to an array that has more axes, or more elements along axes of extent 1."""
    if not isinstance(target, Traced):
        return result
    extents, wanted = result.extents, target.extents
    tail = wanted[len(wanted) - len(extents) :]
    recorder = target.recorder
    is_smaller = len(extents) < len(wanted) or any(
        _repeats(recorder, extent, other) for extent, other in zip(extents, tail, strict=False)
    )
    return shaping.broadcast_to(result, target.recorder.sizes(wanted)) if is_smaller else result


def _repeats(recorder: Recorder, extent: Extent, wanted: Extent) -> bool:
    """Whether an axis of a result has one element, and that of the array that takes it more."""
    if extent == wanted or recorder.known(extent) != 1 or recorder.known(wanted) == 1:
        return False
    return recorder.decide(extent, "==", 1, "whether a result repeats along an axis of out=")


def with_order(x: Any, order: str) -> Any:
    """Returns an array itself if its elements have the order "C" or "F" in memory, or any for others, else a copy."""
    flags = ArrayFlags(x)
    is_fit = order not in ("C", "F") or (flags.c_contiguous if order == "C" else flags.f_contiguous)
    return x if is_fit else views.in_order(traced_ops.copy(x), order)


def required(x: Any, wanted: set[str]) -> Any:
    """Returns an array itself if it meets the requirements of np.require, else a copy."""
    order = "F" if wanted & {"F", "FORTRAN", "F_CONTIGUOUS"} else "K"
    order = "C" if wanted & {"C", "CONTIGUOUS", "C_CONTIGUOUS"} else order
    result = with_order(x, order)
    is_foreign = bool(wanted & {"O", "OWNDATA"}) and base_of(result) is not None
    is_locked = bool(wanted & {"W", "WRITEABLE"}) and result.read_only is not None
    return views.in_order(traced_ops.copy(result), order) if is_foreign or is_locked else result


def reshape(x: Traced, shape: Any, order: str | None, copy: bool | None, *, is_called: bool) -> Any:
    """Returns the same elements in another shape; a new array if `copy` is True. is_called: as NumPy's function.

    Raises ShapeError, a ValueError, if `copy` is False and the elements have no view of that shape.
    """
    shape = x.recorder.sizes(x.extents) if shape is None else shape
    array = views.in_order(traced_ops.copy(x), order or "C", [x]) if copy else x
    if copy and not x.is_immutable:
        array.own_memory()  # also of an array without axes
    result = shaping.reshape(array, shape, order, is_called=is_called)
    if copy is False and not _is_view_of(result, x):
        raise ShapeError(
            f"reshape of {list(x.extents)} to {list(result.extents)} with copy=False needs a copy: the elements do not "
            "follow one another in memory",
            hint="leave copy out", where=source.user_line(),
        )  # fmt: skip
    return result


def _is_view_of(result: Traced, x: Traced) -> bool:
    """Whether an array shares the memory of another one, or has no elements; guarded where layouts decide it."""
    recorder, total = x.recorder, product(x.extents)
    if recorder.known(total) == 0 and recorder.decide(total, "==", 0, "whether a reshaped array has elements"):
        return True
    for view in reversed(views.chain_of(result)):
        view.settle()
    return x.is_immutable or views.owner_of(result) is views.owner_of(x)


def ravel(x: Traced, order: str | None = "C") -> Any:
    """Returns the elements in one axis; order "K" is that of memory, "A" is "F" for arrays that are only that."""
    if order not in ("K", "A") or len(x.extents) < 2:
        order = "C" if order in ("K", "A", None) else order
    elif order == "A":
        order = "F" if views.is_fortran(x) else "C"
    if order != "K":
        if order not in ("C", "F"):
            raise ScalarError(f"order must be one of 'C', 'F', 'A', or 'K' (got {order!r})", hint="use one of them")
        x = shaping.transpose(x) if order == "F" else x
        if len(x.extents) == 1 and x.layout is None:
            return views.alias(x)
        return views.reshape(x, (product(x.extents),), contiguous_only=True)
    turned = shaping.transpose(x, _axes_in_memory(x))
    return views.reshape(turned, (product(x.extents),), contiguous_only=True)


def _axes_in_memory(x: Traced) -> list[int]:
    """The axes in the order of memory, outermost first; one of stride 0, or of extent 1, stays between its neighbors.

    (NumPy's iterator moves an axis inwards past those of larger strides, and past axes of stride 0 on the way.)
    """
    x.settle()
    recorder, reason = x.recorder, "the order of the axes in memory"
    strides = [s if recorder.decide(0, "<=", s, reason) else -s for s in views.strides_of(x)]
    is_ordered = [e != 1 and not recorder.decide(s, "==", 0, reason) for e, s in zip(x.extents, strides, strict=True)]
    axes: list[int] = []  # innermost first
    for axis in reversed(range(len(strides))):
        place = len(axes)
        for position, inner in reversed(list(enumerate(axes))):
            if is_ordered[axis] and is_ordered[inner]:
                if recorder.decide(strides[inner], "<=", strides[axis], reason):
                    break
                place = position
        axes.insert(place, axis)
    return axes[::-1]


class ArrayFlags:
    """`x.flags`: the order of the axes in memory, whether the array owns its memory, and whether it can be written."""

    _SHORT: ClassVar[dict[str, str]] = {
        "C": "c_contiguous", "C_CONTIGUOUS": "c_contiguous", "CONTIGUOUS": "c_contiguous", "F": "f_contiguous",
        "F_CONTIGUOUS": "f_contiguous", "FORTRAN": "f_contiguous", "O": "owndata", "OWNDATA": "owndata",
        "W": "writeable", "WRITEABLE": "writeable", "A": "aligned", "ALIGNED": "aligned", "FORC": "forc", "FNC": "fnc",
    }  # fmt: skip

    _array: Traced

    def __init__(self, x: Traced) -> None:
        object.__setattr__(self, "_array", x)

    def __getitem__(self, key: str) -> Any:
        if key not in self._SHORT:
            raise KeyError("Unknown flag")
        return getattr(self, self._SHORT[key])

    @property
    def c_contiguous(self) -> bool:
        return self._is_contiguous(last_first=True)

    contiguous = c_contiguous

    @property
    def f_contiguous(self) -> bool:
        return self._is_contiguous(last_first=False)

    @property
    def forc(self) -> bool:
        return self.f_contiguous or self.c_contiguous

    @property
    def fnc(self) -> bool:
        return self.f_contiguous and not self.c_contiguous

    @property
    def owndata(self) -> bool:
        return base_of(self._array) is None

    @property
    def writeable(self) -> bool:
        x: Traced = self._array
        x.settle()
        if x.read_only is None:
            base_of(x)  # raises for an argument, which the caller may have made read-only
        return x.read_only is None

    @property
    def aligned(self) -> bool:
        base_of(self._array)
        return True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._array.is_immutable:
            raise ScalarError("Cannot set flags on array scalars.", hint="make an array: np.array(x)")
        if name == "writeable":
            _set_writeable(self._array, bool(value))
            return
        raise ScalarError(
            f"x.flags.{name} = {value!r}: NumPy sets no flag but writeable", hint="set x.flags.writeable",
            where=source.user_line(),
        )  # fmt: skip

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self._SHORT:
            raise KeyError("Unknown flag")
        setattr(self, self._SHORT[key], value)

    def _is_contiguous(self, *, last_first: bool) -> bool:
        x: Traced = self._array
        x.settle()
        return views.is_contiguous(x, "the flags of an array", last_first=last_first)


def _set_writeable(x: Traced, value: bool) -> None:
    """Makes an array of the function read-only for this name and later views of it, or writeable again.

    Raises ReadOnlyError for arrays of the caller, whose flags belong to it, and for those that NumPy returns read-only.
    """
    x.settle()
    owner = views.owner_of(x)
    is_of_caller = owner.memory is not None and owner.memory.argument is not None
    if is_of_caller or (value and x.read_only not in (None, _LOCKED)):
        of = "an argument or a captured array" if is_of_caller else x.read_only
        raise ReadOnlyError(
            f"x.flags.writeable = {value} of {of}", hint="set it outside the fused function, or copy: y = x.copy()",
            where=source.user_line(),
        )  # fmt: skip
    if value and x.parent is not None and x.parent.read_only is not None:
        raise ReadOnlyError(
            "cannot set WRITEABLE flag to True of this array: its base is read-only", hint="copy it: y = x.copy()",
            where=source.user_line(),
        )  # fmt: skip
    x.own_memory()
    x.read_only = None if value else _LOCKED


_LOCKED = "an array that the function made read-only"


def set_flags(x: Traced, write: Any, align: Any, uic: Any) -> None:
    """`x.setflags(write, align, uic)`: traced arrays are aligned, none is written back, and scalars have no flags."""
    if uic or (align is not None and not align):
        raise ScalarError("x.setflags sets write alone", hint="write x.setflags(write=False)", where=source.user_line())
    if write is not None and not x.is_immutable:
        _set_writeable(x, bool(write))
