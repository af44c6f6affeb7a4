"""`fd.ops`: every row under its name, with the signatures and the promotion of nvFuser's frontend.

The namespace follows from the rows (`definition/op_calls.py`). Only what nvFuser spells otherwise than the row (padding
from the last axis backwards, -1 in a shape, clamped slices) has a method of its own here.

Knows: rows, kinds, nvFuser's spelling. Must not know: how a definition is printed, segmented or run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.definition import attention, random_numbers
from tracefuse.definition.handles import Scalar, Tensor, Vector
from tracefuse.definition.op_calls import RowOperations, type_or_none
from tracefuse.definition.signatures import records
from tracefuse.dtypes import DataType, check_fits, dtype_of, int64, uint64
from tracefuse.errors import OutOfRangeError, ShapeError, UnsupportedError
from tracefuse.ir.axes import normalize_axes, normalize_axis
from tracefuse.ir.extents import Extent, divide_exactly, floordiv, is_nonnegative, product
from tracefuse.ir.fusion import Fusion, Literal
from tracefuse.ir.printing import clamped
from tracefuse.ir.reference import evaluate
from tracefuse.ir.subfusion import extents_in
from tracefuse.ops import REGISTRY, Pointwise, Reduction


class Operations(RowOperations):
    """The operations of one definition: the rows, and what nvFuser spells otherwise."""

    @records
    def cast(self, arg: Any, dtype: Any, compute: Any = None) -> Any:
        """`arg` converted to `dtype`."""
        return self._pointwise(REGISTRY["cast"], arg, dtype=dtype, compute=compute)  # type: ignore[arg-type]

    @records
    def div(self, a: Any, b: Any, *, dtype: Any = None, compute: Any = None) -> Any:
        """a / b; integers truncate towards zero, as in nvFuser (truediv is the true quotient)."""
        values = [self._fd._kind(o) for o in (a, b)]
        if dtype is not None or compute is not None or not {"float", "complex"}.isdisjoint(values):
            return self._pointwise(REGISTRY["div"], a, b, dtype=dtype, compute=compute)  # type: ignore[arg-type]
        return self.trunc_divide(a, b)

    @records
    def clamp(self, a: Any, min: Any = None, max: Any = None, *, dtype: Any = None, compute: Any = None) -> Any:
        """a, no smaller than min and no larger than max; None is no limit."""
        types = {"dtype": dtype, "compute": compute}
        if min is None:
            return self.set(a, **types) if max is None else self.minimum(a, max, **types)
        if max is None:
            return self.maximum(a, min, **types)
        return self._pointwise(REGISTRY["clamp"], a, min, max, **types)  # type: ignore[arg-type]

    @records
    def var(
        self, arg: Tensor, dims: Any, correction: Any = 1, keepdim: bool = False, *, dtype: Any = None,
        compute: Any = None,
    ) -> Any:  # fmt: skip
        """Variance over `dims`: squared deviations over n - correction; of complex numbers, of both parts together."""
        if self._fd._kind(arg) == "complex":
            parts = (self.var(part, dims, correction, keepdim) for part in (self.real(arg), self.imag(arg)))
            return self.add(*parts, dtype=dtype, compute=compute)
        row = REGISTRY["var"]
        assert isinstance(row, Reduction)
        return self._reduction(row, arg, dims, keepdim, dtype, compute=compute, correction=correction)

    @records
    def var_mean(self, arg: Tensor, dims: Any, correction: Any = 1, keepdim: bool = False) -> tuple[Any, Any]:
        """(var, mean) over `dims`."""
        variance = self.var(arg, dims, correction, keepdim)
        return variance, self.mean(arg, dims, keepdim)

    @records
    def full(self, shape: Any, fill_value: Any, dtype: Any = None, compute: Any = None) -> Any:
        """A tensor of `shape` with every element `fill_value`."""
        given = self._fd._operand(fill_value)
        chosen = type_or_none(dtype) or self._fd._dtype_of(given)
        inner = type_or_none(compute) or chosen
        return self._fd._apply(REGISTRY["full"], [given], {"shape": self._sizes(shape, "full")}, inner, (chosen,))[0]

    @records
    def iota(
        self, length: Any, start: Any = None, step: Any = None, dtype: Any = DataType.Int, compute: Any = None
    ) -> Any:
        """start, start + step, ...: `length` elements."""
        given = [self._fd._operand(0 if start is None else start), self._fd._operand(1 if step is None else step)]
        chosen = dtype_of(dtype)
        (extent,) = self._sizes([length], "iota")
        inner = type_or_none(compute) or chosen
        return self._fd._apply(REGISTRY["iota"], given, {"length": extent}, inner, (chosen,))[0]

    @records
    def random_bits(
        self, seed: Any, offset: Any, shape: Any, half: int = 0, dtype: Any = DataType.UInt64, compute: Any = None
    ) -> Any:
        """64 random bits an element; seed and offset: integers, as scalars or tensors.

        half: 0 or 1, which are different bits of one draw.
        """
        given = [self._fd._operand(seed), self._fd._operand(offset)]
        attributes = {"shape": self._sizes(shape, "random_bits"), "half": half}
        inner = type_or_none(compute) or uint64
        return self._fd._apply(REGISTRY["random_bits"], given, attributes, inner, (dtype_of(dtype),))[0]

    @records
    def fresh_seed(self, dtype: Any = DataType.Int) -> Scalar:
        """A host scalar: an integer from the operating system's generator, another one in each call."""
        chosen = dtype_of(dtype)
        return self._fd._apply(REGISTRY["fresh_seed"], [], {}, chosen, (chosen,))[0]  # type: ignore[return-value]

    uniform = records(random_numbers.uniform)
    normal = records(random_numbers.normal)
    rand_like = records(random_numbers.rand_like)
    randn_like = records(random_numbers.randn_like)
    sdpfa_fwd = records(attention.sdpfa_fwd)
    sdpfa_bwd = records(attention.sdpfa_bwd)

    @records
    def extent(self, value: Any, dtype: Any = None) -> Scalar:
        """A symbolic integer (see `fd.extent`) as a scalar."""
        chosen = type_or_none(dtype) or int64
        made = self._fd._apply(REGISTRY["extent"], [], {"value": value}, chosen, (chosen,), extents=[value])
        return made[0]  # type: ignore[return-value]

    @records
    def size(self, arg: Tensor, dim: int) -> Scalar:
        """The extent of one axis."""
        shape = arg._value.shape
        return self.extent(shape[normalize_axis(dim, len(shape), "size: axis")])

    @records
    def shape(self, arg: Tensor) -> Vector:
        """All extents, as a vector."""
        return self._fd._vector(arg._value.shape, shape_of=arg._number)

    @records
    def at(self, vector: Vector, index: int) -> Scalar:
        """One element of a vector."""
        count = len(vector.elements)
        if not -count <= index < count:
            raise OutOfRangeError(
                f"at: index {index} is out of range for {count} elements", hint=f"use {-count} to {count - 1}"
            )
        return self.extent(vector.elements[index])

    @records
    def reshape(
        self, arg: Tensor, new_shape: Any, dtype: Any = None, compute: Any = None, *, groups: Any = ()
    ) -> Any:  # fmt: skip
        """The same elements with another shape; one entry may be -1, also a scalar that turns out to be.

        groups: pairs of axes (of the operand, of the result) with equal products, where that is known.
        """
        own = arg._value.shape
        target = list(new_shape)
        unknown = [k for k, e in enumerate(target) if e == -1]
        if len(unknown) > 1:
            raise ShapeError(f"reshape: {target} has more than one -1", hint="spell out the others")
        if unknown:
            others = product(e for e in target if e != -1)
            target[unknown[0]] = self._left_over(product(own), others)
        inferable = () if groups else tuple(k for k, e in enumerate(target) if not is_nonnegative(e))
        kept = [1 if k in inferable else e for k, e in enumerate(target)]
        sizes = self._sizes(kept, "reshape")
        shape = tuple(target[k] if k in inferable else e for k, e in enumerate(sizes))
        attributes = {"new_shape": shape, "groups": groups, "inferable": inferable}
        return self._moved(REGISTRY["reshape"], [self._fd._operand(arg)], attributes, dtype, compute)

    def _left_over(self, total: Extent, others: Extent) -> Extent:
        """What -1 stands for: total / others, which must divide."""
        if others == 0:
            raise ShapeError("reshape: -1 beside an extent of 0 stands for no size", hint="spell out every extent")
        exact = divide_exactly(total, others)
        if exact is not None:
            return exact
        hint = f"the number of elements must be a multiple of {others}"
        message = f"reshape: {{left}} elements are left over by rows of {others}"
        self._fd._builder.require(total % others, "==", 0, message, hint)
        return floordiv(total, others)

    @records
    def expand(self, arg: Tensor, shape: Any, dtype: Any = None, compute: Any = None) -> Any:
        """Axes of extent 1 repeated up to `shape`; -1 keeps an axis."""
        own = arg._value.shape
        lead = len(shape) - len(own)
        kept = [own[k - lead] if e == -1 and k >= lead >= 0 else e for k, e in enumerate(shape)]
        extents = self._sizes(kept, "expand")
        return self._moved(REGISTRY["expand"], [self._fd._operand(arg)], {"shape": extents}, dtype, compute)

    @records
    def broadcast_in_dim(self, arg: Tensor, shape: Any, broadcast_dims: Sequence[int]) -> Any:
        """Axis k of `arg` becomes axis broadcast_dims[k] of the result, which has `shape`."""
        dims = [normalize_axis(d, len(shape), "broadcast_in_dim: axis") for d in broadcast_dims]
        if len(dims) != arg.ndim or sorted(set(dims)) != dims:
            raise ShapeError(
                f"broadcast_in_dim: {list(broadcast_dims)} does not place {arg.ndim} axes in ascending order",
                hint="name one axis of the result for each axis of the operand",
            )
        flags = [k not in dims for k in range(len(shape))]
        spread = self.broadcast(arg, is_broadcast_dim=flags) if any(flags) else arg
        return self.expand(spread, shape)

    @records
    def cat(
        self, tensors: Sequence[Tensor], dim: int = 0, manual_padding: bool = False, *, dtype: Any = None,
        compute: Any = None,
    ) -> Any:  # fmt: skip
        """Tensors one after another along `dim`."""
        return self._movement(REGISTRY["cat"], *tensors, dim=dim, dtype=dtype, compute=compute)  # type: ignore[arg-type]

    @records
    def linear(
        self, arg: Tensor, weight: Tensor, bias: Tensor | None = None, *, dtype: Any = None, compute: Any = None
    ) -> Any:
        """arg @ weight.T, plus bias where there is one."""
        operands = [arg, weight] if bias is None else [arg, weight, bias]
        return self._movement(REGISTRY["linear"], *operands, dtype=dtype, compute=compute)  # type: ignore[arg-type]

    @records
    def pad(self, arg: Tensor, pad_widths: Any, value: Any = None, dtype: Any = None, compute: Any = None) -> Any:
        """`value` around the tensor; pad_widths: (before, after) pairs from the last axis backwards."""
        widths = list(pad_widths)
        if len(widths) % 2 or len(widths) > 2 * arg.ndim:
            raise ShapeError(
                f"pad: {len(widths)} widths for {arg.ndim} axes", hint="give two for each axis, last axis first"
            )
        pairs = [(widths[k], widths[k + 1]) for k in range(0, len(widths), 2)]
        pairs += [(0, 0)] * (arg.ndim - len(pairs))
        first_axis_first = tuple(w for pair in reversed(pairs) for w in pair)
        filler = self._constant(0 if value is None else value, "pad: value")
        check_fits(filler, type_or_none(dtype) or arg._value.dtype, "pad: value")
        attributes = {"pad_widths": first_axis_first, "value": filler}
        return self._moved(REGISTRY["pad"], [self._fd._operand(arg)], attributes, dtype, compute)

    def _constant(self, value: Any, what: str) -> bool | int | float | complex:
        """A Python number, or the one that a scalar made of constants is."""
        number = self._number(value)
        if number is None:
            raise UnsupportedError(f"{what} must be a constant", hint="give a number or fd.define_scalar(number)")
        return number

    def _number(self, value: Any) -> bool | int | float | complex | None:
        """As `_constant`; None for what is known in a call only."""
        operand = self._fd._operand(value)
        if isinstance(operand, Literal):
            return operand.value
        builder = self._fd._builder
        node = next((n for n in builder.nodes if operand in n.outputs), None)
        if node is None or builder.values[operand].is_tensor or list(extents_in(node.attributes)):
            return None
        varies = isinstance(node.op, Pointwise) and node.op.varies
        if varies or not all(isinstance(o, Literal) for o in node.operands):
            return None
        (result,) = evaluate(Fusion({operand: builder.values[operand]}, (), (node,), (operand,)), [])
        return result.item()  # type: ignore[no-any-return]

    @records
    def slice(
        self, arg: Tensor, start_indices: Any, end_indices: Any, strides: Any = None,
        manual_normalization: bool = False, dtype: Any = None, compute: Any = None,
    ) -> Any:  # fmt: skip
        """Elements start, start + stride, ... before end, on every axis; bounds beyond the axis are cut to it."""
        starts, ends = start_indices, end_indices
        steps = (1,) * arg.ndim if strides is None else strides
        if not manual_normalization and len(starts) == len(ends) == arg.ndim:
            pairs = clamped(arg._value.shape, starts, ends)
            starts, ends = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
        attributes = {"start_indices": starts, "end_indices": ends, "strides": steps}
        return self._moved(REGISTRY["slice"], [self._fd._operand(arg)], attributes, dtype, compute)

    @records
    def squeeze(
        self, arg: Tensor, dims: Any, squeeze_expanded: bool = False, *, dtype: Any = None, compute: Any = None
    ) -> Any:
        """Drops axes of extent 1."""
        return self._movement(REGISTRY["squeeze"], arg, dims=dims, dtype=dtype, compute=compute)  # type: ignore[arg-type]

    @records
    def gather(self, arg: Tensor, index: Tensor, dim: int) -> Any:
        """Elements at the positions that `index` holds along `dim`; the result has the shape of `index`."""
        own, wanted = arg._value.shape, index._value.shape
        axis = normalize_axis(dim, len(own), "gather: axis")
        if len(own) == len(wanted):
            ends = [e if k == axis else w for k, (e, w) in enumerate(zip(own, wanted, strict=True))]
            if tuple(ends) != own:
                cut = {"start_indices": (0,) * len(own), "end_indices": tuple(ends), "strides": (1,) * len(own)}
                arg = self._moved(REGISTRY["slice"], [self._fd._operand(arg)], cut)
        return self.take_along_axis(arg, index, axis)

    @records
    def stack(self, tensors: Sequence[Tensor], dim: int = 0) -> Any:
        """Tensors of one shape along a new axis `dim`."""
        rank = tensors[0].ndim + 1
        axis = normalize_axis(dim, rank, "stack: axis")
        return self.cat([self.broadcast(t, [k == axis for k in range(rank)]) for t in tensors], axis)

    @records
    def select(self, arg: Tensor, index: Any, dim: int) -> Any:
        """The slice at one position along `dim`, which the result lacks."""
        position = index if isinstance(index, Tensor) else self.full([], index, DataType.Int)
        return self.take(arg, position, dim)

    @records
    def embedding_fwd(
        self, input: Tensor, weight: Tensor, padding_idx: Any = None, max_norm: Any = None, norm_type: Any = None,
        scale_grad_by_freq: Any = None, sparse: Any = None,
    ) -> Any:  # fmt: skip
        """Rows of `weight` at the positions that `input` holds; what is about gradients changes nothing here."""
        if max_norm is not None:
            raise UnsupportedError("embedding_fwd: max_norm changes the weight in place", hint="scale the weight first")
        return self.take(weight, input, 0)

    @records
    def topk(self, arg: Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = False) -> tuple[Any, Any]:
        """(values, positions) of the k largest or smallest along `dim`, always in order."""
        axis = normalize_axis(dim, arg.ndim, "topk: axis")
        order = self.argsort(arg, axis, largest)
        ends = [k if a == axis else e for a, e in enumerate(order._value.shape)]
        places = self.slice(order, [0] * arg.ndim, ends, manual_normalization=True)
        return self.take_along_axis(arg, places, axis), places

    @records
    def welford(self, arg: Tensor, dims: Any, keepdim: bool = False) -> tuple[Any, Any, Any]:
        """(mean, sum of squared deviations, number of elements) over `dims`."""
        axes = normalize_axes(dims, arg.ndim, "welford: axis")
        average = self.mean(arg, axes, keepdim)
        count = self.extent(product(arg._value.shape[a] for a in axes))
        return average, self.sum_of_squares(arg, axes, keepdim), count

    @records
    def stride_order(self, arg: Tensor, stride_order: Sequence[int]) -> Any:
        """The same tensor, stored in another order of axes: only the row-major order is there."""
        if list(stride_order) != list(reversed(range(arg.ndim))):
            raise UnsupportedError(
                f"stride_order {list(stride_order)}: results are C-contiguous", hint="permute the result instead"
            )
        return self.set(arg)
