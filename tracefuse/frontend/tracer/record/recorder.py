"""The recorder: the values of one trace, the facts that it used, and the arrays that it captured.

The recorder resolves operands, records ops through the builder with NumPy's promotion, and answers questions about
sizes. It answers from a proof where one exists, else from the sizes of the current call. Each unproved answer becomes
a guard: of an outcome (`decide`) or of a value (`pin`).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import DType, dtype_of, is_weak, promote_numpy
from tracefuse.errors import DeviceError, DtypeError, OperandError, ShapeError, TraceError
from tracefuse.frontend.tracer.captured.known_contents import KnownContents
from tracefuse.frontend.tracer.record.assigned_numbers import read_where_outside
from tracefuse.frontend.tracer.record.assumptions import ScalarGuard
from tracefuse.frontend.tracer.record.captured_inputs import CapturedInputs
from tracefuse.frontend.tracer.record.computed_numbers import checked_operand, compared_exactly
from tracefuse.frontend.tracer.record.counter_values import counter_value
from tracefuse.frontend.tracer.record.equal_calls import EqualCalls
from tracefuse.frontend.tracer.record.trace_builder import TraceBuilder
from tracefuse.frontend.tracer.record.types_in_iterations import types_in_iterations
from tracefuse.frontend.tracer.values import nested_lists, views
from tracefuse.frontend.tracer.values.host_numbers import (
    ComputedNumber,
    ConstantNumber,
    ExtentNumber,
    FactNumber,
    PythonNumber,
)
from tracefuse.frontend.tracer.values.mixed_signs import compare_mixed_signs, mixes_signs
from tracefuse.frontend.tracer.values.operands import (
    Resolved,
    check_range,
    compared,
    fitted,
    is_size,
    literal,
    located_error,
    type_of_integer,
)
from tracefuse.frontend.tracer.values.settled_extents import settled, settled_batch
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, wrap
from tracefuse.frontend.tracer.values.traced import Memory, Traced, holds_traced
from tracefuse.ir.extents import Expression, Extent
from tracefuse.ir.fusion import Fusion, Literal, Node, Op
from tracefuse.ops import REGISTRY, Library, Movement, Pointwise, Reduction
from tracefuse.runtime.devices import arrays

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.sub_recording import SubRecording
    from tracefuse.frontend.tracer.effects.questions import Answers
    from tracefuse.frontend.tracer.state.overlays import Overlays

current: ContextVar[Recorder | None] = ContextVar("tracefuse_recorder", default=None)
"""The trace in progress, for functions that are given no traced value (`xp.zeros`)."""


class Recorder(CapturedInputs):
    """One trace. `traced_type` is the class of the traced values that it creates.

    device: the GPU of the arguments, None for the host. is_placed: whether an array or a `device=` argument fixed
    it.
    """

    def __init__(self, traced_type: type[Traced], function: str = "the function") -> None:
        super().__init__()
        self.builder: TraceBuilder = TraceBuilder(self)
        self.traced_type, self.function = traced_type, function
        self.scalar_guards: list[ScalarGuard] = []
        self.contents, self.equal_calls = KnownContents(self), EqualCalls()
        self.overlays: Overlays | None = None
        # (format, structures of the values, their leaves) of each printed line.
        self.prints: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = []
        # Arguments that the function updates in place: the traced value that replaces each, by number of the input.
        self.updated: dict[int, Traced] = {}
        # The token of the last effect; result and token of the last exchange; the names of generators that it makes.
        self.last_effect: Traced | None = None
        self.last_exchange: tuple[Traced, Traced] | None = None
        self.makes_generators: set[str] = set()
        # The nodes of each call that reverse mode records again, and what it lets loops store: `frontend/derivatives/`.
        self.checkpoints: list[list[Node]] = []
        self.stored_starts: dict[int, dict[int, int]] = {}
        self.device: int | None = None
        self.is_placed, self.alive = False, True
        # The body of a loop or a branch that is being recorded, see `sub_recording.py`.
        self.body: SubRecording | None = None
        self.inside_bodies: set[int] = set()  # numbers of values of recorded bodies
        # What answers questions about computed values, if anything; the results whose sizes data decide, their inputs.
        self.answers: Answers | None = None
        self.objects: set[int] = set()  # numbers of objects that calls between stages returned
        self.names: list[weakref.ref[Traced]] = []  # every traced value of the trace
        self.held_numbers: dict[tuple[int, DType], bool] = {}  # whether integer types hold numbers of the call
        # The class of traced numbers of Python. Conditions under which they are what Python computes, with the lines;
        # how many a stage has checked; whether they are asked for at once, as the call cannot run twice.
        self.number_type: type[Traced] = traced_type
        self.conditions: dict[int, str | None] = {}
        self.checked_conditions, self.asks_conditions = 0, False
        self.compares_truth = False  # by identity, see `truth_identity.py`

    # -- inputs -----------------------------------------------------------------------------------------------------

    def tensor_argument(self, array_shape: Sequence[int], dtype: DType, name: str, where: str | None) -> Traced:
        """Adds an array argument."""
        number = self.tensor_input(array_shape, dtype, name, where)
        traced = self.traced_type(self, number)
        traced.memory = Memory(name, number)
        return traced

    def scalar_argument(self, value: Any, dtype: DType, weak: str | None, name: str, where: str | None) -> Any:
        """Adds a host scalar: a size for a Python int, else a traced scalar."""
        number = self.builder.scalar_input(dtype, name=name, where=where)
        self.hints[number] = value
        extent = self.builder.values[number].extent
        if weak == "int" and isinstance(extent, Expression):
            self._scalars[extent] = number
            return SymbolicSize(extent, self)
        return self._host_type(weak)(self, number, weak, FactNumber(number))

    def require_device(self, device: Any) -> None:
        """Checks the `device=` of a creation function against the arguments.

        Without arguments the first such call sets the device, and all others must agree.
        """
        if device is None:
            return
        number = arrays.device_number(device)
        if not self.is_placed:
            self.device, self.is_placed = number, True
        elif number != self.device:
            raise DeviceError(
                f"device={device!r} in a function whose arrays are on {arrays.device_name(self.device)!r}",
                hint="leave device= out, or write device=x.device", where=source.user_line(),
            )  # fmt: skip

    def python_number(self, value: Traced, kind: str) -> Traced:
        """Returns a value without axes as a number of Python of a kind."""
        read = value.read
        if read is not None and value.weak != kind:
            read = PythonNumber(read, kind)
        return self.number_type(self, value.number, kind, read, value.sized)

    def _host_type(self, weak: str | None) -> type[Traced]:
        """The class of host scalars: of numbers of Python, or of NumPy's scalars."""
        return self.traced_type if weak is None else self.number_type

    # -- facts ------------------------------------------------------------------------------------------------------

    def check_alive(self) -> None:
        if not self.alive:
            raise TraceError(
                f"a traced value of {self.function} is used after its trace ended",
                hint="return it from the fused function instead of storing it", where=source.user_line(),
            )  # fmt: skip

    def scalar(self, extent: Extent) -> Traced:
        """Returns an extent as a weak scalar; under NumPy's functions a size stays weak, an argument does not."""
        self.check_alive()
        sized, extent = is_size(extent), self.simplify(extent)
        if self.counters.occur_in(extent):
            return counter_value(self, extent)  # type: ignore[no-any-return]
        number = self._scalars.get(extent)
        if number is None:
            op = REGISTRY["extent"]
            (number,) = self.builder.node(
                op, (), {"value": extent}, dtypes.int64, (dtypes.int64,), where=source.user_line(), extents=(extent,)
            )
            self._scalars[extent] = number
        return self.number_type(self, number, "int", ExtentNumber(extent), sized)

    def value_of(self, traced: Traced, reason: str) -> Any:
        """Returns the Python value of a host scalar and guards it."""
        self.check_alive()
        assert traced.read is not None
        extent = traced.value.extent
        if extent is not None:
            return self.pin(extent, reason)
        value = traced.read(self.hints)
        self.scalar_guards.append(ScalarGuard(traced.read, value, reason, source.user_line()))
        return value

    # -- messages ---------------------------------------------------------------------------------------------------

    def describe(self, number: int, named: Any = None) -> str:
        """Describes a value for a message: its name, if it has one, and its line."""
        value = self.builder.values[number]
        name = value.name or (None if named is None else source.local_name(named))
        return ", ".join(part for part in (name, value.where) if part) or f"value {number}"

    # -- operands ---------------------------------------------------------------------------------------------------

    def resolve(self, value: Any) -> Resolved:
        """Resolves an operand to a value of the fusion or a literal, with its role in promotion."""
        if isinstance(value, Traced):
            if value.recorder is not self:
                value.recorder.check_alive()
                raise TraceError(
                    f"a traced value of {value.recorder.function} is used inside {self.function}",
                    hint="pass it as an argument", where=source.user_line(),
                )  # fmt: skip
            if value.number in self.inside_bodies:
                self.loops.check(value.number)
                message = "a value of the body of a loop or a branch is used outside of it"
                raise TraceError(message, hint="return it from the body", where=source.user_line())
            entry = value.value
            return Resolved(value.number, entry.dtype, value.weak, value.extents, value, value.read, value.sized)
        if isinstance(value, SymbolicSize):
            extent = self.simplify(value.extent)
            sized = is_size(value.extent)
            return literal(extent, sized=sized) if isinstance(extent, int) else self.resolve(self.scalar(extent))
        if is_weak(value):
            return literal(value)
        if isinstance(value, (np.generic, int, float, complex)):
            value = np.asarray(value)[()]
            item = value.item()
            return Resolved(Literal(item), dtype_of(value.dtype), None, (), None, ConstantNumber(item), False)
        return self._resolve_array(value)

    def _resolve_array(self, value: Any) -> Resolved:
        if isinstance(value, (list, tuple, range)):
            if any(isinstance(v, (Traced, SymbolicSize, list, tuple)) for v in value) and holds_traced(value):
                return self.resolve(self._stacked(value))
            value = np.asarray(value)
        if getattr(value, "has_elements", False):
            return self.resolve(value.elements())
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            hint = "write np.nan" if value is None else "give an array, a NumPy scalar or a Python number"
            text = f"{value.__class__.__name__} is no operand of an array operation"
            raise OperandError(text, hint=hint, where=source.user_line(), runs_function=isinstance(value, str | bytes))
        return self.resolve(self.capture(value))

    def _stacked(self, values: Sequence[Any]) -> Any:
        """Stacks the entries of a list that holds traced values, as np.asarray does."""
        nested_lists.check_depth(values)
        parts = []
        for value in values:
            resolved = self.resolve(value)
            traced = resolved.traced
            if traced is None or traced.on_host:
                traced = self.movement("full", [value if traced is None else traced], shape=())
            parts.append(self.movement("broadcast", [traced], is_broadcast_dim=(True, *[False] * len(traced.extents))))
        return self.movement("cat", parts, dim=0)

    # -- recording ops ---------------------------------------------------------------------------------------------

    def pointwise(
        self, op: Pointwise, operands: Sequence[Any], *, compute_in: DType | None = None, **attributes: Any
    ) -> Any:
        """Records a pointwise op with NumPy's promotion and broadcasting."""
        where = source.user_line()
        resolved = compared_exactly(op, [self.resolve(o) for o in operands])
        if mixes_signs(op, resolved):
            return compare_mixed_signs(op, operands, resolved, self.pointwise)
        promoted = resolved[1:] if op.promotion == "where" else resolved
        try:
            op, compute, result = types_in_iterations(op, promoted)
            if compute_in is not None and "bool" not in (op.result, op.promotion):
                compute, result = compute_in, compute_in
        except DtypeError as error:
            raise located_error(error, self.describe, resolved, where) from None
        result = attributes["dtype"] if op.result == "dtype" else result
        if op.result == "bool":
            resolved = [compared(r, compute, self._converted) for r in resolved]
        op, operands_that_fit = fitted(op, read_where_outside(op, resolved, compute, self), compute, self)
        weak_kind = None
        if op.result != "dtype" and all(r.weak is not None for r in resolved):
            weak_kind = "int" if result.is_integer else result.kind
        return self._apply(op, settled(self, operands_that_fit), attributes, compute, result, weak_kind, where)

    def _converted(self, traced: Traced, dtype: DType) -> Resolved:
        op = REGISTRY["cast"]
        assert isinstance(op, Pointwise)
        return self.resolve(self.pointwise(op, [traced], dtype=dtype))

    def _apply(
        self, op: Op, resolved: Sequence[Resolved], attributes: Mapping[str, Any], compute: DType, result: DType,
        weak: str | None, where: str | None,
    ) -> Any:  # fmt: skip
        self.check_alive()
        operands = [r.operand for r in resolved]
        self.builder.reading, self.builder.named = operands, [r.traced for r in resolved]
        try:
            (number,) = self.builder.node(op, operands, attributes, compute, (result,), where=where)
        except (ShapeError, DtypeError) as error:
            if error.where is None:
                raise type(error)(error.message, hint=error.hint, where=where) from None
            raise
        finally:
            self.builder.reading, self.builder.named = (), ()
        read, kind = None, self.traced_type
        if self.builder.values[number].is_tensor:
            # An array promotes by its dtype, even one created from Python numbers; a carried number is weak.
            is_carried = any(r.weak is not None and r.traced is not None and not r.traced.on_host for r in resolved)
            weak = weak if is_carried else None
        elif isinstance(op, Pointwise):
            reads = [r.read for r in resolved if r.read is not None]
            if len(reads) == len(resolved):
                read = ComputedNumber(op, reads, compute, result, weak, tuple(r.dtype for r in resolved))
            kind = self._host_type(weak)
        traced = kind(self, number, weak, read, weak is not None and all(r.sized for r in resolved))
        if len(self.builder.values[number].shape) > 1:
            views.set_layout(traced, op, [r.traced for r in resolved if r.traced is not None], attributes)
        return traced

    def reduction(
        self, op: Reduction, operand: Any, axes: Sequence[int], keepdims: bool, dtype: DType | None = None,
        **attributes: Any,
    ) -> Any:  # fmt: skip
        """Records a reduction op. dtype: the result type that the user chose."""
        where = source.user_line()
        resolved = self.resolve(operand)
        operand_dtype = resolved.dtype or promote_numpy((), (resolved.weak or "float",))
        try:
            result = op.result_type(operand_dtype, "numpy", dtype)
        except DtypeError as error:
            raise located_error(error, self.describe, [resolved], where) from None
        compute = op.compute_type(operand_dtype, result)
        attributes = {"dims": tuple(axes), "keepdim": keepdims, **attributes}
        return self._apply(op, [resolved], attributes, compute, result, None, where)

    def movement(self, name: str, operands: Sequence[Any], *, dtype: DType | None = None, **attributes: Any) -> Any:
        """Records a movement op by name."""
        op = REGISTRY[name]
        assert isinstance(op, Movement)
        resolved = [self.resolve(o) for o in operands]
        data = resolved[: op.data or len(resolved)]
        if dtype is None:
            strong = [r.dtype for r in data if r.weak is None and r.dtype is not None]
            strong = strong or [kind for r in data if (kind := type_of_integer(r, self)) is not None]
            dtype = promote_numpy(strong, [r.weak for r in data if r.weak is not None])
        for operand in data:
            check_range(operand, dtype, self)
        if name == "full" and dtype.is_integer:
            resolved = [checked_operand(operand, dtype, self) for operand in resolved]
        extents = {k: self.plain(v) for k, v in attributes.items()}
        return self._apply(op, resolved, extents, dtype, dtype, None, source.user_line())

    def library(self, op: Op, operands: Sequence[Any], *, dtype: DType | None = None, **attributes: Any) -> Any:
        """Records a library op with data operands promoted to their common type. dtype: the user's result type."""
        where = source.user_line()
        resolved = [self.resolve(o) for o in operands]
        assert isinstance(op, Library)
        data = [r for k, r in enumerate(resolved) if k not in op.indices]
        try:
            compute, result = op.types(dtype or promote_numpy([r.dtype for r in data if r.dtype is not None]), "numpy")
        except DtypeError as error:
            raise located_error(error, self.describe, resolved, where) from None
        if dtype is not None and op.result == "sum":
            compute = result = dtype
        settled = resolved if op.attributes else settled_batch(self, resolved)
        return self._apply(op, settled, attributes, compute, result, None, where)

    def again(self, node: Node, operands: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
        """Records the op of a node on other operands; returns its results. attributes: those that differ."""
        numbers = self.builder.node(
            node.op, [self.resolve(operand).operand for operand in operands], {**node.attributes, **attributes},
            node.compute, [self.builder.values[number].dtype for number in node.outputs], where=source.user_line(),
        )  # fmt: skip
        return [self.traced_type(self, number) for number in numbers]

    def plain(self, attribute: Any) -> Any:
        """Returns an attribute with every size replaced by its extent."""
        if isinstance(attribute, SymbolicSize):
            return self.simplify(attribute.extent)
        if isinstance(attribute, Expression):
            return self.simplify(attribute)
        if isinstance(attribute, (tuple, list)):
            return tuple(self.plain(a) for a in attribute)
        return attribute

    def sizes(self, extents: Sequence[Extent]) -> tuple[Any, ...]:
        """Converts extents to sizes for the user."""
        return tuple(wrap(self.simplify(e), self) for e in extents)

    def forget(self) -> None:
        """Drops the traced values that a finished trace holds."""
        super().forget()
        self.updated.clear()
        self.prints.clear()
        self.checkpoints.clear()
        self.loops.rows.clear()
        self.loops.lists.clear()
        self.loops.returned.clear()
        self.caught.clear()
        self.last_effect = self.last_exchange = self.answers = None
        self.builder.named = ()

    def build(self) -> Fusion:
        """Returns the recorded fusion; nothing can be recorded afterwards."""
        for number in self.inside_bodies:
            del self.builder.values[number]
        fusion = self.builder.build()
        self.alive = False
        return fusion
