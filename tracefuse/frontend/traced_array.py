"""The tracer: the object that a fused function receives in place of an array.

It has ndarray's operators, methods (`numpy_api/protocols/methods.py`) and attributes, and implements the protocols of
NumPy, CuPy and the array API; each of them records ops. An operation that needs the elements themselves (`bool()`,
`float()`, `np.asarray`) raises with the user's line.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn

import numpy as np

from tracefuse import source
from tracefuse.errors import TraceError, UnsupportedError
from tracefuse.frontend.control_flow.iterated_entries import iterator_over
from tracefuse.frontend.element_requests import ElementRequests
from tracefuse.frontend.numpy_api.arrangement import shape_changes
from tracefuse.frontend.numpy_api.arrangement.flat_elements import FlatElements
from tracefuse.frontend.numpy_api.hints import foreign_methods, replacements
from tracefuse.frontend.numpy_api.protocols import cupy_hook, dispatch, elementwise, ufuncs
from tracefuse.frontend.numpy_api.registration import array_memory
from tracefuse.frontend.python_numbers import mixed_arithmetic, number_questions
from tracefuse.frontend.python_numbers.types_of_values import type_in_numpy
from tracefuse.frontend.tracer.array_ops import arithmetic, array_protocols, assignment, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.array_protocols import overrides_ufuncs
from tracefuse.frontend.tracer.array_ops.in_place import check_writable, into
from tracefuse.frontend.tracer.array_ops.masked_elements import MaskedElements
from tracefuse.frontend.tracer.array_ops.state_calls import NOT_OF_STATE, call_on_state, depends_on_state
from tracefuse.frontend.tracer.effects import numpy_errors
from tracefuse.frontend.tracer.values import later_texts
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, wrap
from tracefuse.frontend.tracer.values.traced import ComputedObject, Traced
from tracefuse.ir.extents import product
from tracefuse.runtime.devices import arrays

NAMES_OF_ARRAYS = frozenset(dir(np.ndarray))

_ONE_AXIS = "write np.atleast_1d(x)"

_OPERANDS = (Traced, SymbolicSize, bool, int, float, complex, np.generic, np.ndarray, list, tuple, range)


def _is_operand(value: Any) -> bool:
    if isinstance(value, (MaskedElements, ComputedObject)):
        return False
    if isinstance(value, _OPERANDS):
        return True
    has_own_operators = getattr(type(value), "__array_ufunc__", value) is None
    return hasattr(value, "shape") and hasattr(value, "dtype") and not has_own_operators


def _scalar_of(known: Any) -> Any:
    """The known elements of a value: a NumPy scalar for an array without axes."""
    return np.asarray(known)[()]


def _call_named(array: Any, method: str, /, *arguments: Any, **keywords: Any) -> Any:
    return getattr(array, method)(*arguments, **keywords)


def _binary(name: str, *, swap: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if name in ("eq", "ne") and not _is_operand(other) and array_protocols.equals_no_number(self, other):
            return array_protocols.without_equals(name, self, other)
        if not _is_operand(other) and (other := array_protocols.operand_of(name, self, other)) is NotImplemented:
            return NotImplemented
        if mixed_arithmetic.applies(self, other):
            return mixed_arithmetic.operator_result(name, *((other, self) if swap else (self, other)))
        if name == "mul" and isinstance(other, (list, tuple)) and (self.is_immutable or self.weak is not None):
            return arithmetic.repeat_list(other, self)
        return arithmetic.binary(name, other, self) if swap else arithmetic.binary(name, self, other)

    return method


_PARTS_TAKE_REALS = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 5)
"""Whether `z.imag = 2j` raises, as an assignment of a complex number of Python to real elements does."""


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    plain = _binary(name)

    def method(self: Any, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        if self.is_immutable or (self.on_host and self.weak is not None):
            return plain(self, other)  # NumPy scalars and Python numbers are immutable
        check_writable(self)
        arithmetic.check_types_in_place(name, self, other)
        result = arithmetic.binary(name, self, other)
        if name == "matmul" and len(result.extents) > len(self.extents):
            return np.matmul(self, other, out=self)  # further axes may have one element
        return into(self, result)

    return method


@numpy_errors.methods_raise_as_numpy
class Tracer(ElementRequests):
    """A traced array or scalar."""

    __slots__ = ()
    namespace: ClassVar[Any] = np
    """The result of `__array_namespace__`; tracefuse.xp sets it to itself."""
    check_version: ClassVar[Any] = staticmethod(lambda api_version: None)
    """Raises for a version of the array API that the namespace does not have; tracefuse.xp sets it."""
    __array_priority__ = 1000

    # -- attributes -------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.recorder.sizes(self.value.shape)

    @shape.setter
    def shape(self, value: Any) -> None:
        shape_changes.set_shape(self, value)

    @property
    def ndim(self) -> int:
        return len(self.value.shape)

    @property
    def size(self) -> Any:
        return wrap(product(self.extents), self.recorder)

    @property
    def itemsize(self) -> int:
        return self.value.dtype.itemsize

    @property
    def nbytes(self) -> Any:
        return wrap(product(self.extents) * self.value.dtype.itemsize, self.recorder)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # For isinstance; C code asks for the type itself.
        code = sys._getframe(1).f_code
        if replacements.is_operator_of_jax(code):
            return type(self)
        is_internal = source.is_internal(code.co_filename)
        if not self.is_immutable:
            return np.ndarray if is_internal else self.array_class
        return type(self) if is_internal else type_in_numpy(self)

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
        self.real[...] = value if _PARTS_TAKE_REALS else assignment.cast_value(value)

    @property
    def imag(self) -> Any:
        return arithmetic.imag(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        arithmetic.settable_imag(self)[...] = value if _PARTS_TAKE_REALS else assignment.cast_value(value)

    @property
    def flat(self) -> FlatElements:
        return FlatElements(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        FlatElements(self)[...] = value

    @property
    def at(self) -> NoReturn:
        refusal = traced_ops.missing("x.at[...]", "copy the array and assign: y = x.copy(); y[index] = value")
        refusal.given_to = "jax"
        raise refusal

    @property
    def device(self) -> str:
        return arrays.device_name(self.recorder.device)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"a traced array has no attribute {name!r}")
        if self.is_immutable and hasattr(self.value.dtype.numpy.type, name) and depends_on_state(self):
            return getattr(self.recorder.contents.ask(self.number, f".{name}", _scalar_of), name)
        if name == "get" and self.recorder.device is not None:
            raise traced_ops.missing("x.get()", "return the array and call get() on the result")
        if name == "tobytes" and not depends_on_state(self):
            return functools.partial(array_memory.bytes_of, self)
        if name in array_memory.REFUSED and not depends_on_state(self):
            array_memory.refuse_bytes(name, array_memory.REFUSED[name])
        if self.is_immutable and name not in NAMES_OF_ARRAYS and hasattr(self.value.dtype.numpy.type, name):
            return getattr(self._scalar(), name)
        if hasattr(np.ndarray, name):
            if callable(getattr(np.ndarray, name)) and depends_on_state(self):
                return functools.partial(self._call_method, name)
            raise UnsupportedError(
                f"x.{name} cannot be fused", hint="compute it outside the fused function", where=source.user_line()
            )
        raise foreign_methods.no_attribute(name)

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

    def __hash__(self) -> int:
        """The hash of a NumPy scalar, of the current call; arrays have none."""
        if not self.is_immutable:
            raise TypeError("unhashable type: 'numpy.ndarray'")
        return hash(self._scalar())

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __neg__(self) -> Any:
        return mixed_arithmetic.unary("neg", self)

    def __pos__(self) -> Any:
        return traced_ops.copy(self) if self.weak is not None else ufuncs.call_loop(np.positive, (self,))

    def __round__(self, digits: int | None = None) -> Any:
        if self.value.dtype.is_complex or not (self.is_immutable or self.weak is not None):
            kind = self.value.dtype if self.value.dtype.is_complex else "ndarray"
            raise TypeError(f"type numpy.{kind} doesn't define __round__ method")
        if digits is None:
            instead = "write np.round(x), which stays an array"
            return self._number_or_raise("round()", lambda known: round(np.asarray(known).item()), instead)
        return elementwise.round_(self, digits)

    def __abs__(self) -> Any:
        return mixed_arithmetic.unary("abs", self)

    def __invert__(self) -> Any:
        return traced_ops.apply("bitwise_not", self)

    def _call_method(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        result = call_on_state(_call_named, (self, name, *arguments), keywords, name=f"ndarray.{name}")
        if result is NOT_OF_STATE:
            raise traced_ops.missing(f"x.{name}", "compute it outside the fused function")
        return result

    def __getitem__(self, key: Any) -> Any:
        return assignment.getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        assignment.setitem(self, key, value)

    # -- operations that need elements --------------------------------------------------------------------------------

    def __dlpack__(self, **keywords: Any) -> Any:
        raise self._needs_elements("DLPack export", "return the array and convert it outside")

    def __dlpack_device__(self) -> Any:
        raise self._needs_elements("DLPack export", "return the array and convert it outside")

    @property
    def __jax_array__(self) -> Any:
        # JAX's own operators look up this attribute before they defer to the other operand. Lookups of C++ ignore other
        # errors, which Python 3.13 prints; the frame that calls C++ does not name the attribute.
        code = sys._getframe(1).f_code
        if replacements.is_operator_of_jax(code) or "__jax_array__" not in (*code.co_names, *code.co_consts):
            raise AttributeError("__jax_array__")
        error = self._needs_elements(*replacements.of_jax())
        # Not a TypeError, which JAX would replace.
        refusal = UnsupportedError(error.message, hint=error.hint, where=error.where)
        refusal.given_to = "jax"
        raise refusal

    def __torch_function__(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        raise number_questions.needs_elements(self, "a torch function", foreign_methods.instead_of_torch(function))

    def __len__(self) -> int:
        if not self.value.shape:
            raise TraceError("len() of a traced array without axes", hint=_ONE_AXIS, where=source.user_line())
        return self.recorder.pin(self.extents[0], "len()")

    def __iter__(self) -> Iterator[Any]:
        if not self.value.shape:
            raise TraceError("iteration over a traced array without axes", hint=_ONE_AXIS, where=source.user_line())
        return iterator_over(self)

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    # -- protocols ----------------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if any(isinstance(value, (MaskedElements, ComputedObject)) for value in inputs) or overrides_ufuncs(inputs):
            return NotImplemented
        try:
            return ufuncs.call_ufunc(ufunc, method, inputs, dict(keywords))
        except UnsupportedError:
            writes = method == "at" or keywords.get("out") is not None
            result = NOT_OF_STATE if writes else call_on_state(getattr(ufunc, method), inputs, keywords)
            if result is NOT_OF_STATE:
                raise
            return result

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        if any(issubclass(kind, (MaskedElements, ComputedObject)) for kind in types):
            return NotImplemented
        return dispatch.call(function, arguments, keywords)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        self.check_version(api_version)
        return self.namespace

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *arguments: Any, **keywords: Any) -> Any:
        return cupy_hook.call_cupy_kernel(kernel, arguments, keywords)

    def _scalar(self) -> Any:
        """The NumPy scalar of the current call, which this asks for."""
        known = self.recorder.contents.ask(self.number, "the value", _scalar_of)
        return self.value.dtype.numpy.type(number_questions.real(self.item())) if known is None else known

    def number_now(self) -> Any:
        """Returns the NumPy scalar of the current call, for keys of dicts; an array is unhashable."""
        hash(self)
        return self._scalar()

    def __format__(self, specification: str) -> str:
        if not source.is_called_by_user():
            return format(self._description(), specification)
        if not specification:
            return self._text()
        later = self._later_text(specification)
        if later is not None:
            return later
        if self.number in self.recorder.builder.independent:
            return format(self.recorder.contents.ask(self.number, "format()", _scalar_of), specification)
        if self.value.shape:
            raise TypeError("unsupported format string passed to numpy.ndarray.__format__")
        return format(self._scalar(), specification)

    def __str__(self) -> str:
        """The elements in code of the user, as NumPy prints them; in messages the description."""
        return self._text() if source.is_called_by_user() else self._description()

    def _later_text(self, specification: str | None) -> str | None:
        """The marker of a text that each call makes; None where the text is known or needed."""
        return None if self.number in self.recorder.builder.independent else later_texts.mark(self, specification)

    def _text(self, specification: str | None = None) -> str:
        """The text of the elements, which the call answers; the description once the trace has ended."""
        if not self.recorder.alive:
            return self._description()
        return self._later_text(specification) or number_questions.text_or_raise(self, specification)

    def __copy__(self) -> Any:
        return self if self.is_immutable else traced_ops.copy(self, "K")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise self._needs_elements("pickling", "return the array from the fused function")

    def __repr__(self) -> str:
        """The elements in code of the user, as NumPy represents them; in messages the description."""
        shown = later_texts.REPR if self.is_immutable or self.value.shape else later_texts.REPR_OF_ARRAY
        return self._text(shown) if source.is_called_by_user() else self._description()

    def _description(self) -> str:
        if not self.recorder.alive:
            return f"tracer v{self.number} (its trace has ended)"
        value = self.value
        kind = f"{value.dtype.short}[{', '.join(map(str, self.extents))}]" if value.is_tensor else value.dtype.short
        return f"tracer v{self.number}: {kind}" + (f" ({value.where})" if value.where else "")
