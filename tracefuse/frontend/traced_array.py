"""The tracer: the object that a fused function receives in place of an array.

It has ndarray's operators, methods (`frontend/numpy_api/methods.py`) and attributes, and implements the protocols of
NumPy, CuPy and the array API; each of them records ops. An operation that needs the elements themselves (`bool()`,
`float()`, `np.asarray`) raises with the user's line.

Must not know: how a fused function is compiled or called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn

import numpy as np

from tracefuse import source
from tracefuse.errors import DtypeError, TraceError, UnsupportedError
from tracefuse.frontend.numpy_api import cupy_hook, dispatch, elementwise, replacements, ufuncs
from tracefuse.frontend.numpy_api.methods import ArrayMethods
from tracefuse.frontend.tracer import arithmetic, assignment, shaping, traced_ops
from tracefuse.frontend.tracer.in_place import into
from tracefuse.frontend.tracer.masked_elements import MaskedElements
from tracefuse.frontend.tracer.symbolic_size import SymbolicSize, wrap
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.ir.extents import product
from tracefuse.runtime.devices import arrays

_OPERANDS = (Traced, SymbolicSize, bool, int, float, complex, np.generic, np.ndarray, list, tuple)


def _is_operand(value: Any) -> bool:
    if isinstance(value, MaskedElements):
        return False
    return isinstance(value, _OPERANDS) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def _binary(name: str, *, swap: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        if name == "mul" and isinstance(other, (list, tuple)) and (self.is_immutable or self.weak is not None):
            return _repeated(self, other)
        return arithmetic.binary(name, other, self) if swap else arithmetic.binary(name, self, other)

    return method


def _repeated(self: Any, values: Any) -> Any:
    """A list repeated by a scalar, which is what `*` of Python's and NumPy's scalars with a list does."""
    if not self.value.dtype.is_integer:
        raise DtypeError(
            f"a list cannot be repeated by a {self.value.dtype}", hint="write x * np.asarray(values)",
            where=source.user_line(),
        )  # fmt: skip
    return values * self.__index__()


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    plain = _binary(name)

    def method(self: Any, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        if self.is_immutable or (self.on_host and self.weak is not None):
            return plain(self, other)  # NumPy scalars and Python numbers are immutable
        return into(self, arithmetic.binary(name, self, other))

    return method


@source.methods_hide_own_frames
class Tracer(ArrayMethods):
    """A traced array or scalar."""

    __slots__ = ()
    namespace: ClassVar[Any] = np
    """The result of `__array_namespace__`; tracefuse.xp sets it to itself."""
    __array_priority__ = 1000

    # -- attributes -------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.recorder.sizes(self.value.shape)

    @shape.setter
    def shape(self, value: Any) -> NoReturn:
        raise traced_ops.missing("x.shape = shape", "write x = x.reshape(shape)")

    @property
    def ndim(self) -> int:
        return len(self.value.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.value.dtype.numpy

    @property
    def size(self) -> Any:
        return wrap(product(self.extents), self.recorder)

    @property
    def itemsize(self) -> int:
        return self.value.dtype.itemsize

    @property
    def nbytes(self) -> Any:
        return wrap(product(self.extents) * self.value.dtype.itemsize, self.recorder)

    @property
    def T(self) -> Any:
        return self if self.is_immutable else shaping.transpose(self)

    @property
    def mT(self) -> Any:
        return shaping.swapaxes(self, -1, -2)

    @property
    def real(self) -> Any:
        if self.value.dtype.kind != "complex":
            return self
        return arithmetic.real(self)

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> Any:
        return arithmetic.imag(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        self.imag[...] = value

    @property
    def flat(self) -> NoReturn:
        raise traced_ops.missing("x.flat", "use x.reshape(-1)")

    @property
    def at(self) -> NoReturn:
        raise traced_ops.missing("x.at[...]", "write np.where(condition, value, x)")

    @property
    def device(self) -> str:
        return arrays.device_name(self.recorder.device)

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(np.ndarray, name) and not name.startswith("__"):
            raise UnsupportedError(
                f"x.{name} cannot be fused", hint="compute it outside the fused function", where=source.user_line()
            )
        raise AttributeError(f"a traced array has no attribute {name!r}")

    # -- operators ----------------------------------------------------------------------------------------------------

    __add__, __radd__, __iadd__ = _binary("add"), _binary("add", swap=True), _in_place("add")
    __sub__, __rsub__, __isub__ = _binary("sub"), _binary("sub", swap=True), _in_place("sub")
    __mul__, __rmul__, __imul__ = _binary("mul"), _binary("mul", swap=True), _in_place("mul")
    __truediv__, __rtruediv__, __itruediv__ = _binary("div"), _binary("div", swap=True), _in_place("div")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _binary("floor_divide", swap=True)
    __ifloordiv__ = _in_place("floor_divide")
    __mod__, __rmod__, __imod__ = _binary("remainder"), _binary("remainder", swap=True), _in_place("remainder")
    __pow__, __rpow__, __ipow__ = _binary("pow"), _binary("pow", swap=True), _in_place("pow")
    __matmul__, __rmatmul__, __imatmul__ = _binary("matmul"), _binary("matmul", swap=True), _in_place("matmul")
    __and__, __rand__, __iand__ = _binary("bitwise_and"), _binary("bitwise_and", swap=True), _in_place("bitwise_and")
    __or__, __ror__, __ior__ = _binary("bitwise_or"), _binary("bitwise_or", swap=True), _in_place("bitwise_or")
    __xor__, __rxor__, __ixor__ = _binary("bitwise_xor"), _binary("bitwise_xor", swap=True), _in_place("bitwise_xor")
    __lshift__, __rlshift__ = _binary("left_shift"), _binary("left_shift", swap=True)
    __rshift__, __rrshift__ = _binary("right_shift"), _binary("right_shift", swap=True)
    __ilshift__, __irshift__ = _in_place("left_shift"), _in_place("right_shift")
    __eq__, __ne__ = _binary("eq"), _binary("ne")
    __lt__, __le__, __gt__, __ge__ = _binary("lt"), _binary("le"), _binary("gt"), _binary("ge")
    __hash__ = None  # type: ignore[assignment]

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __neg__(self) -> Any:
        return traced_ops.apply("neg", self)

    def __pos__(self) -> Any:
        return traced_ops.copy(self) if self.weak is not None else ufuncs.call_loop(np.positive, (self,))

    def __round__(self, digits: int | None = None) -> Any:
        if not (self.is_immutable or self.weak is not None):
            raise TypeError("type numpy.ndarray doesn't define __round__ method")
        if self.value.dtype.is_complex:
            raise TypeError(f"type numpy.{self.value.dtype} doesn't define __round__ method")
        if digits is None:
            return round(self._scalar_or_raise("round()", "write np.round(x), which stays an array"))
        return elementwise.round_(self, digits)

    def __abs__(self) -> Any:
        return traced_ops.apply("abs", self)

    def __invert__(self) -> Any:
        return traced_ops.apply("bitwise_not", self)

    def __getitem__(self, key: Any) -> Any:
        return assignment.getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        assignment.setitem(self, key, value)

    # -- operations that need elements --------------------------------------------------------------------------------

    def _needs_elements(self, operation: str, instead: str) -> TraceError:
        names = self.recorder.depends_on(self.number)
        depends = f", which depends on {', '.join(names)}" if names else ""
        return TraceError(f"{operation} of a traced array{depends}", hint=instead, where=source.user_line())

    def _scalar_or_raise(self, operation: str, instead: str) -> Any:
        self.recorder.check_alive()
        if self.read is not None:
            return self.recorder.value_of(self, operation)
        known = self.recorder.contents.of(self.number, operation)
        if known is not None:
            return known.item()
        raise self._needs_elements(*replacements.of_number(operation, instead))

    def __bool__(self) -> bool:
        return bool(self._scalar_or_raise("bool()", "choose elements with np.where(condition, a, b)"))

    def __int__(self) -> int:
        return int(self._scalar_or_raise("int()", "keep it an array; np.where chooses elements"))

    def __float__(self) -> float:
        return float(self._scalar_or_raise("float()", "keep it an array; np.where chooses elements"))

    def __complex__(self) -> complex:
        return complex(self._scalar_or_raise("complex()", "keep it an array; np.where chooses elements"))

    def __index__(self) -> int:
        if not self.value.dtype.is_integer:
            raise TraceError(f"a traced {self.value.dtype} is no index", where=source.user_line())
        return int(self._scalar_or_raise("the value", "index with np.take_along_axis or np.take"))

    def item(self, *arguments: Any) -> Any:
        return self._scalar_or_raise("item()", "keep it an array; np.where chooses elements")

    def tolist(self) -> Any:
        known = self.recorder.contents.of(self.number, "tolist()")
        if known is not None:
            return known.tolist()
        raise self._needs_elements("tolist()", "return the array and convert it outside")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        known = self.recorder.contents.of(self.number, "the elements of an array")
        if known is not None:
            return np.array(known, dtype)
        raise self._needs_elements(*replacements.of_elements())

    def __dlpack__(self, **keywords: Any) -> Any:
        raise self._needs_elements("DLPack export", "return the array and convert it outside")

    def __dlpack_device__(self) -> Any:
        raise self._needs_elements("DLPack export", "return the array and convert it outside")

    @property
    def __jax_array__(self) -> Any:
        # JAX's own operators look up this attribute before they defer to the other operand.
        caller = sys._getframe(1).f_code
        if caller.co_name == "deferring_binary_op" or caller.co_filename.endswith("array_methods.py"):
            raise AttributeError("__jax_array__")
        error = self._needs_elements("a jax.numpy function", "use the function of np or of tracefuse.xp")
        # Not a TypeError, which JAX would replace.
        raise UnsupportedError(error.message, hint=error.hint, where=error.where)

    def __torch_function__(self, *arguments: Any, **keywords: Any) -> Any:
        raise self._needs_elements("a torch function", "use the function of np or of tracefuse.xp")

    def __len__(self) -> int:
        if not self.value.shape:
            raise TraceError("len() of a traced array without axes", where=source.user_line())
        return self.recorder.pin(self.extents[0], "len()")

    def __iter__(self) -> Iterator[Any]:
        if not self.value.shape:
            raise TraceError("iteration over a traced array without axes", where=source.user_line())
        if len(self.value.shape) == 1:
            known = self.recorder.contents.of(self.number, "iteration over an axis")
            if known is not None:
                return iter(known)
        return (self[k] for k in range(self.recorder.pin(self.extents[0], "iteration over an axis")))

    def __contains__(self, value: Any) -> bool:
        known = self.recorder.contents.of(self.number, "'in'")
        if known is not None:
            return value in known
        raise self._needs_elements("'in'", "write np.any(x == value)")

    # -- protocols ----------------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if any(isinstance(value, MaskedElements) for value in inputs):
            return NotImplemented
        return ufuncs.call_ufunc(ufunc, method, inputs, keywords)

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        return dispatch.call(function, arguments, keywords)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return self.namespace

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *arguments: Any, **keywords: Any) -> Any:
        return cupy_hook.call_cupy_kernel(kernel, arguments, keywords)

    def __format__(self, specification: str) -> str:
        return str(self) if not specification else format(float(self), specification)

    def __reduce__(self) -> NoReturn:
        raise self._needs_elements("pickling", "return the array from the fused function")

    def __repr__(self) -> str:
        if not self.recorder.alive:
            return f"tracer v{self.number} (its trace has ended)"
        value = self.value
        kind = f"{value.dtype.short}[{', '.join(map(str, self.extents))}]" if value.is_tensor else value.dtype.short
        return f"tracer v{self.number}: {kind}" + (f" ({value.where})" if value.where else "")
