"""`fd.ops`: every op under its name, with the signatures and the promotion rules of nvFuser's frontend.

`op_calls.py` derives most of the namespace from the op definitions. Only ops whose nvFuser signature differs from their
definition (padding from the last axis backwards, -1 in a shape, clamped slices) have a method here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.definition import attention, neural_layers, random_numbers
from tracefuse.definition.handles import Scalar, Tensor, Vector
from tracefuse.definition.op_calls import RegisteredOperations, type_or_none
from tracefuse.definition.signatures import records
from tracefuse.dtypes import DataType, check_fits, dtype_of, int64, uint64
from tracefuse.errors import OutOfRangeError, ShapeError, UnsupportedError
from tracefuse.ir.axes import normalize_axes, normalize_axis
from tracefuse.ir.extents import Extent, divide_exactly, floordiv, is_nonnegative, product
from tracefuse.ir.printing import clamped
from tracefuse.ops import REGISTRY, Reduction


class Operations(RegisteredOperations):
    """The operations of one definition: those of the registry, and those with a signature of nvFuser's own."""

    @records
    def cast(self, arg: Any, dtype: Any, compute: Any = None) -> Any:
        """Converts `arg` to `dtype`."""
        return self._pointwise(REGISTRY["cast"], arg, dtype=dtype, compute=compute)  # type: ignore[arg-type]

    @records
    def div(self, a: Any, b: Any, *, dtype: Any = None, compute: Any = None) -> Any:
        """a / b; integers truncate towards zero, as in nvFuser (truediv is the true quotient)."""
        kinds = [self.recording.dtype_kind(o) for o in (a, b)]
        if dtype is not None or compute is not None or not {"float", "complex"}.isdisjoint(kinds):
            return self._pointwise(REGISTRY["div"], a, b, dtype=dtype, compute=compute)  # type: ignore[arg-type]
        return self.trunc_divide(a, b)

    @records
    def clamp(self, a: Any, min: Any = None, max: Any = None, *, dtype: Any = None, compute: Any = None) -> Any:
        """Limits a to [min, max]; None means no limit on that side."""
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
        """Variance over `dims`: the sum of |deviation|**2 divided by n - correction."""
        if self.recording.dtype_kind(arg) == "complex":
            parts = (self.var(part, dims, correction, keepdim) for part in (self.real(arg), self.imag(arg)))
            return self.add(*parts, dtype=dtype, compute=compute)
        op = REGISTRY["var"]
        assert isinstance(op, Reduction)
        return self._reduction(op, arg, dims, keepdim, dtype, compute=compute, correction=correction)

    @records
    def var_mean(self, arg: Tensor, dims: Any, correction: Any = 1, keepdim: bool = False) -> tuple[Any, Any]:
        """(var, mean) over `dims`."""
        variance = self.var(arg, dims, correction, keepdim)
        return variance, self.mean(arg, dims, keepdim)

    @records
    def full(self, shape: Any, fill_value: Any, dtype: Any = None, compute: Any = None) -> Any:
        """A tensor of `shape` with every element `fill_value`."""
        fill = self.recording.operand_of(fill_value)
        chosen = type_or_none(dtype) or self.recording.operand_dtype(fill)
        inner = type_or_none(compute) or chosen
        attributes = {"shape": self._check_sizes(shape, "full")}
        return self.recording.record_node(REGISTRY["full"], [fill], attributes, inner, (chosen,))[0]

    @records
    def iota(
        self, length: Any, start: Any = None, step: Any = None, dtype: Any = DataType.Int, compute: Any = None
    ) -> Any:
        """A vector of `length` elements: start, start + step, ..."""
        bounds = (0 if start is None else start, 1 if step is None else step)
        operands = [self.recording.operand_of(o) for o in bounds]
        chosen = dtype_of(dtype)
        (extent,) = self._check_sizes([length], "iota")
        inner = type_or_none(compute) or chosen
        return self.recording.record_node(REGISTRY["iota"], operands, {"length": extent}, inner, (chosen,))[0]

    @records
    def random_bits(
        self, seed: Any, offset: Any, shape: Any, half: int = 0, dtype: Any = DataType.UInt64, compute: Any = None
    ) -> Any:
        """A tensor of `shape` with 64 random bits for each element.

        seed, offset: integers, as scalars or tensors; the same pair gives the same bits. half: 0 or 1, selects one of
        two independent sets of bits of a sample.
        """
        operands = [self.recording.operand_of(seed), self.recording.operand_of(offset)]
        attributes = {"shape": self._check_sizes(shape, "random_bits"), "half": half}
        inner = type_or_none(compute) or uint64
        return self.recording.record_node(REGISTRY["random_bits"], operands, attributes, inner, (dtype_of(dtype),))[0]

    @records
    def fresh_seed(self, dtype: Any = DataType.Int) -> Scalar:
        """A host scalar: a new random integer from the operating system's generator at each call."""
        chosen = dtype_of(dtype)
        return self.recording.record_node(REGISTRY["fresh_seed"], [], {}, chosen, (chosen,))[0]  # type: ignore[return-value]

    uniform = records(random_numbers.uniform)
    normal = records(random_numbers.normal)
    rand_like = records(random_numbers.rand_like)
    randn_like = records(random_numbers.randn_like)
    sdpfa_fwd = records(attention.sdpfa_fwd)
    sdpfa_bwd = records(attention.sdpfa_bwd)
    batch_norm = records(neural_layers.batch_norm)
    scaled_mm = records(neural_layers.scaled_mm)
    embedding_fwd = records(neural_layers.embedding_fwd)

    @records
    def extent(self, value: Any, dtype: Any = None) -> Scalar:
        """Converts a symbolic integer (see `fd.extent`) to a scalar."""
        chosen = type_or_none(dtype) or int64
        scalars = self.recording.record_node(
            REGISTRY["extent"], [], {"value": value}, chosen, (chosen,), extents=[value]
        )
        return scalars[0]  # type: ignore[return-value]

    @records
    def size(self, arg: Tensor, dim: int) -> Scalar:
        """The extent of one axis."""
        shape = arg.ir_value.shape
        return self.extent(shape[normalize_axis(dim, len(shape), "size: axis")])

    @records
    def shape(self, arg: Tensor) -> Vector:
        """All extents, as a vector."""
        return self.recording.new_vector(arg.ir_value.shape, shape_of=arg.index)

    @records
    def tensor_sizes(self, arg: Tensor) -> list[Scalar]:
        """All extents, as a list of scalars."""
        return [self.size(arg, axis) for axis in range(arg.ndim)]

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
        """The same elements with another shape. One entry may be -1, or a scalar that is -1 at the call.

        groups: pairs (axes of the operand, axes of the result) whose extents have equal products, where known.
        """
        source = arg.ir_value.shape
        target = list(new_shape)
        unknown = [k for k, e in enumerate(target) if e == -1]
        if len(unknown) > 1:
            raise ShapeError(f"reshape: {target} has more than one -1", hint="give the other extents")
        if unknown:
            known_total = product(e for e in target if e != -1)
            target[unknown[0]] = self._infer_extent(product(source), known_total)
        inferable = () if groups else tuple(k for k, e in enumerate(target) if not is_nonnegative(e))
        known_sizes = [1 if k in inferable else e for k, e in enumerate(target)]
        sizes = self._check_sizes(known_sizes, "reshape")
        shape = tuple(target[k] if k in inferable else e for k, e in enumerate(sizes))
        attributes = {"new_shape": shape, "groups": groups, "inferable": inferable}
        return self._record_moved(REGISTRY["reshape"], [self.recording.operand_of(arg)], attributes, dtype, compute)

    def _infer_extent(self, total: Extent, known_total: Extent) -> Extent:
        """Returns the extent of the entry -1, total / known_total, and requires the division to be exact."""
        if known_total == 0:
            raise ShapeError("reshape: -1 beside an extent of 0 stands for no size", hint="give every extent")
        exact = divide_exactly(total, known_total)
        if exact is not None:
            return exact
        hint = f"the number of elements must be a multiple of {known_total}"
        message = "reshape: -1 beside the other entries leaves {left} elements over"
        self.recording.builder.require(total % known_total, "==", 0, message, hint)
        return floordiv(total, known_total)

    @records
    def expand(self, arg: Tensor, shape: Any, dtype: Any = None, compute: Any = None) -> Any:
        """Repeats axes of extent 1 to `shape`; -1 keeps an axis as it is."""
        source = arg.ir_value.shape
        lead = len(shape) - len(source)
        sizes = [source[k - lead] if e == -1 and k >= lead >= 0 else e for k, e in enumerate(shape)]
        extents = self._check_sizes(sizes, "expand")
        return self._record_moved(
            REGISTRY["expand"], [self.recording.operand_of(arg)], {"shape": extents}, dtype, compute
        )

    @records
    def broadcast_in_dim(self, arg: Tensor, shape: Any, broadcast_dims: Sequence[int]) -> Any:
        """Broadcasts to `shape`: axis k of `arg` becomes axis broadcast_dims[k] of the result."""
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
        """Concatenates tensors along `dim`."""
        return self._movement(REGISTRY["cat"], *tensors, dim=dim, dtype=dtype, compute=compute)  # type: ignore[arg-type]

    @records
    def linear(
        self, arg: Tensor, weight: Tensor, bias: Tensor | None = None, *, dtype: Any = None, compute: Any = None
    ) -> Any:
        """arg @ weight.T, plus bias if given: one for each row of weight, or a tensor without axes for all."""
        if bias is not None and bias.ndim == 0:
            bias = self.expand(self.broadcast(bias, [True]), weight.ir_value.shape[:1])
        operands = [arg, weight] if bias is None else [arg, weight, bias]
        return self._movement(REGISTRY["linear"], *operands, dtype=dtype, compute=compute)  # type: ignore[arg-type]

    @records
    def pad(self, arg: Tensor, pad_widths: Any, value: Any = None, dtype: Any = None, compute: Any = None) -> Any:
        """Pads with `value` (default 0). pad_widths: before, after, for each axis from the last one backwards."""
        widths = list(pad_widths)
        if len(widths) % 2 or len(widths) > 2 * arg.ndim:
            raise ShapeError(
                f"pad: {len(widths)} widths for {arg.ndim} axes", hint="give two for each axis, last axis first"
            )
        pairs = [(widths[k], widths[k + 1]) for k in range(0, len(widths), 2)]
        pairs += [(0, 0)] * (arg.ndim - len(pairs))
        first_axis_first = tuple(w for pair in reversed(pairs) for w in pair)
        filler = self._constant(0 if value is None else value, "pad: value")
        check_fits(filler, type_or_none(dtype) or arg.ir_value.dtype, "pad: value")
        attributes = {"pad_widths": first_axis_first, "value": filler}
        return self._record_moved(REGISTRY["pad"], [self.recording.operand_of(arg)], attributes, dtype, compute)

    def _constant(self, value: Any, name: str) -> bool | int | float | complex:
        """Returns a Python number, or that of a scalar computed from constants. Raises UnsupportedError otherwise."""
        number = self.recording.constant_of(value)
        if number is None:
            raise UnsupportedError(f"{name} must be a constant", hint="give a number or fd.define_scalar(number)")
        return number

    @records
    def slice(
        self, arg: Tensor, start_indices: Any, end_indices: Any, strides: Any = None,
        manual_normalization: bool = False, dtype: Any = None, compute: Any = None,
    ) -> Any:  # fmt: skip
        """Elements start, start + stride, ... up to end, exclusive, on every axis; bounds are clamped to the axis."""
        starts, ends = start_indices, end_indices
        steps = (1,) * arg.ndim if strides is None else strides
        if not manual_normalization and len(starts) == len(ends) == arg.ndim:
            pairs = clamped(arg.ir_value.shape, starts, ends)
            starts, ends = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
        attributes = {"start_indices": starts, "end_indices": ends, "strides": steps}
        return self._record_moved(REGISTRY["slice"], [self.recording.operand_of(arg)], attributes, dtype, compute)

    @records
    def squeeze(
        self, arg: Tensor, dims: Any, squeeze_expanded: bool = False, *, dtype: Any = None, compute: Any = None
    ) -> Any:
        """Drops axes of extent 1."""
        return self._movement(REGISTRY["squeeze"], arg, dims=dims, dtype=dtype, compute=compute)  # type: ignore[arg-type]

    @records
    def gather(self, arg: Tensor, index: Tensor, dim: int) -> Any:
        """Picks the elements at the positions `index` along `dim`; the result has the shape of `index`."""
        shape, wanted = arg.ir_value.shape, index.ir_value.shape
        rank = len(shape)
        axis = normalize_axis(dim, rank, "gather: axis")
        if rank == len(wanted):
            ends = [e if k == axis else w for k, (e, w) in enumerate(zip(shape, wanted, strict=True))]
            if tuple(ends) != shape:
                cut = {"start_indices": (0,) * rank, "end_indices": tuple(ends), "strides": (1,) * rank}
                arg = self._record_moved(REGISTRY["slice"], [self.recording.operand_of(arg)], cut)
        return self.take_along_axis(arg, index, axis)

    @records
    def stack(self, tensors: Sequence[Tensor], dim: int = 0) -> Any:
        """Stacks tensors of one shape along a new axis `dim`."""
        rank = tensors[0].ndim + 1
        axis = normalize_axis(dim, rank, "stack: axis")
        return self.cat([self.broadcast(t, [k == axis for k in range(rank)]) for t in tensors], axis)

    @records
    def select(self, arg: Tensor, index: Any, dim: int) -> Any:
        """Picks one position along `dim` and drops that axis."""
        position = index if isinstance(index, Tensor) else self.full([], index, DataType.Int)
        return self.take(arg, position, dim)

    @records
    def index_select(self, arg: Tensor, index: Tensor, dim: int = 0) -> Any:
        """Picks the positions `index` along `dim`; an index without axes is one position, and keeps the axis."""
        return self.take(arg, index if index.ndim else self.broadcast(index, [True]), dim)

    @records
    def topk(self, arg: Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = False) -> tuple[Any, Any]:
        """(values, positions) of the k largest or smallest elements along `dim`, always sorted."""
        if arg.ndim == 0:  # one element, as in a vector of one
            values, places = self.topk(self.broadcast(arg, [True]), k, dim, largest, sorted)
            return self.squeeze(values, [0]), self.squeeze(places, [0])
        axis = normalize_axis(dim, arg.ndim, "topk: axis")
        order = self.argsort(arg, axis, largest)
        ends = [k if a == axis else e for a, e in enumerate(order.ir_value.shape)]
        places = self.slice(order, [0] * arg.ndim, ends, manual_normalization=True)
        return self.take_along_axis(arg, places, axis), places

    @records
    def welford(self, arg: Tensor, dims: Any, keepdim: bool = False) -> tuple[Any, Any, Any]:
        """(mean, sum of squared deviations, number of elements) over `dims`."""
        axes = normalize_axes(dims, arg.ndim, "welford: axis")
        average = self.mean(arg, axes, keepdim)
        count = self.extent(product(arg.ir_value.shape[a] for a in axes))
        return average, self.sum_of_squares(arg, axes, keepdim), count

    @records
    def stride_order(self, arg: Tensor, stride_order: Sequence[int]) -> Any:
        """A copy, which is written in this order if it is an output: the rank of each axis by stride, 0 innermost."""
        result = self.set(arg)
        order = self.recording.memory_order(result.index, stride_order)
        if order is not None:
            self.recording.stride_orders[result.index] = order
        return result

    @records
    def scatter(
        self, arg: Tensor, index: Tensor, src: Any, dim: int = 0, *, dtype: Any = None, compute: Any = None
    ) -> Any:
        """`arg` with the elements of `src`, a tensor or a number, written to the positions `index` along `dim`."""
        if not isinstance(src, Tensor):
            src = self.full(index.ir_value.shape, src, arg.dtype)
        return self._movement(REGISTRY["scatter"], arg, index, src, dim, dtype=dtype, compute=compute)  # type: ignore[arg-type]

    @records
    def sigmoid(self, a: Any, *, dtype: Any = None, compute: Any = None) -> Any:
        """1 / (1 + exp(-a))."""
        if self.recording.dtype_kind(a) == "complex":
            return self.reciprocal(self.add(self.exp(self.neg(a)), 1.0), dtype=dtype, compute=compute)
        return self._pointwise(REGISTRY["sigmoid"], a, dtype=dtype, compute=compute)  # type: ignore[arg-type]
