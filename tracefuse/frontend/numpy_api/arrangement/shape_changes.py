"""`x.shape = shape` and `x.resize(shape)` of a traced array: its name gets another shape, and views of it stay.

Only arrays that the function made can change so; the shape of an argument belongs to the caller.
"""

from __future__ import annotations

from typing import Any

from tracefuse import source
from tracefuse.errors import ScalarError, UnsupportedError
from tracefuse.frontend.numpy_api.formulas import element_bits
from tracefuse.frontend.tracer.array_ops import shaping
from tracefuse.frontend.tracer.array_ops.in_place import check_writable
from tracefuse.frontend.tracer.array_ops.traced_ops import as_tensor
from tracefuse.frontend.tracer.values.traced import LayoutFrom, Memory, Traced
from tracefuse.ir.extents import product


def set_shape(x: Traced, shape: Any) -> None:
    """Gives a name another shape, without a copy. Raises UnsupportedError where NumPy needs one, and for arguments."""
    _check_made_here(x, "x.shape = shape", "write y = x.reshape(shape)")
    reshaped = shaping.reshape(x, shape)
    reshaped.settle()
    if reshaped.parent is None:
        raise UnsupportedError(
            "x.shape = shape of an array whose layout does not permit it without a copy",
            hint="write x = x.reshape(shape)", where=source.user_line(),
        )  # fmt: skip
    _become(x, reshaped)


def set_dtype(x: Traced, dtype: Any) -> None:
    """Reads the memory of a name as elements of another type. Raises UnsupportedError for arguments."""
    _check_made_here(x, "x.dtype = dtype", "write y = x.view(dtype)")
    _become(x, element_bits.view(x, dtype))


def _become(x: Traced, view: Traced) -> None:
    """Gives a name the elements of one of its views."""
    if view.parent is not x:
        return  # an alias of the name's memory
    _evaluate(view)
    base = _take_place_of(x)
    x._number, x.parent, x.step, x.layout = view.number, base, view.step, view.layout
    x.memory = base.own_memory()
    x._version = x.memory.version


def resize(x: Traced, shape: tuple[Any, ...]) -> None:
    """Gives a name another shape and number of elements: the first ones in row-major order, then zeros."""
    hint = "write y = x.copy(); y.resize(shape)"
    _check_made_here(x, "x.resize(shape)", hint)
    recorder = x.recorder
    entries = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    extents = shaping.new_shape(tuple(entries), recorder)
    present, wanted = product(x.extents), product(extents)
    check_writable(x)
    if x.parent is not None or _views_of(x):
        raise ScalarError("cannot resize an array that references or is referenced by another array", hint=hint,
                          where=source.user_line())  # fmt: skip
    flat = recorder.movement("reshape", [as_tensor(x)], new_shape=(present,))
    if recorder.decide(present, "<=", wanted, "whether x.resize adds elements"):
        flat = recorder.movement("pad", [flat], pad_widths=(0, wanted - present), value=0)
    else:
        flat = flat[: recorder.sizes((wanted,))[0]]
    resized = recorder.movement("reshape", [flat], new_shape=extents)
    x._number, x.memory, x.layout, x._version = resized.number, Memory(), None, 0


def _check_made_here(x: Traced, call: str, hint: str) -> None:
    """Raises UnsupportedError for NumPy's scalars, arguments and captured arrays."""
    memory, is_captured = x.memory, x.recorder.capture_of(x) is not None
    is_argument = x.parent is None and memory is not None and memory.argument is not None
    if x.is_immutable or is_argument or is_captured:
        kind = "a NumPy scalar" if x.is_immutable else "an argument or a captured array"
        raise UnsupportedError(f"{call} of {kind}", hint=hint, where=source.user_line())


def _views_of(x: Traced) -> list[Traced]:
    """The names that are views of x directly."""
    if x.memory is None:
        return []
    return [name for name in (reference() for reference in x.recorder.names) if name is not None and name.parent is x]


def _evaluate(name: Traced) -> None:
    """Settles what was left open about a view, which reads the shape of its base."""
    name.settle()
    if isinstance(name.layout, LayoutFrom):
        name.layout = name.layout.evaluate()


def _take_place_of(x: Traced) -> Traced:
    """Returns a new name for the array as it is, of which the views of x are views."""
    views = _views_of(x)
    for view in views:
        _evaluate(view)
    base = x.recorder.traced_type(x.recorder, x.number, x.weak, x.read, x.sized)
    base.parent, base.step, base.memory, base.layout = x.parent, x.step, x.memory, x.layout
    base.read_only, base._version = x.read_only, x._version
    for view in views:
        if view.parent is x:
            view.parent = base
    return base
