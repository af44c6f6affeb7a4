"""Functions traced, lowered for a GPU and run by the interpreter, for the tests of the GPU templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracefuse.diagnostics.error_bounds import bounded_outputs
from tracefuse.dynamic.layouts import stride_name, strided, symbolic_strides
from tracefuse.frontend.tracer.captured.routes import CallRoots
from tracefuse.frontend.tracing import trace
from tracefuse.ir.extents import Expression, Extent, evaluate, substitute, symbols
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import evaluate_scalars, extent_values
from tracefuse.ir.subfusion import step_graph
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.interpreter.interpret import interpret
from tracefuse.passes.decompose import decompose
from tracefuse.runtime.argument_leaves import classify
from tracefuse.schedule.choose import choose
from tracefuse.schedule.gpu.gpu_templates import gpu_templates
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered
from tracefuse.schedule.merge_rule import FusionRule
from tracefuse.schedule.nest import contiguous_strides
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import TemplateSet

H200 = gpu_templates("sm_90", 132)


@dataclass(frozen=True)
class Case:
    """A function lowered for a GPU, as one region, for the sizes and layouts of some arrays."""

    fusion: Fusion
    arguments: tuple[Any, ...]
    lowered: Lowered
    values: dict[int, int]
    named: dict[str, int]

    @property
    def kernels(self) -> list[ir.Kernel]:
        return [launch.kernel for launch in self.lowered.launches]

    def integer(self, extent: Extent) -> int:
        whole = substitute(extent, self.lowered.derived)
        known = {s: self.named[s.name] for s in symbols(whole) if s.id is None}
        return evaluate(substitute(whole, known), self.values)

    def guards_hold(self, **changed: int) -> bool:
        """Whether the guards hold with some extents, by name, changed."""
        values = dict(self.values)
        values.update({-int(name[1:]) - 1: extent for name, extent in changed.items()})
        return all(guard.holds({**values, **self.named}) for guard in self.lowered.guards)

    def run(self) -> list[Any]:
        """The outputs as the interpreter computes them."""
        arrays: dict[int, Any] = dict(zip(self.fusion.inputs, self.arguments, strict=True))
        for number in self.fusion.outputs:
            value = self.fusion.values[number]
            arrays[number] = np.empty([self.integer(self.fusion.canonical(e)) for e in value.shape], value.dtype.numpy)
        host = [n for n in self.fusion.nodes if not self.fusion.values[n.outputs[0]].is_tensor]
        known = {n: arrays[n] for n in self.fusion.scalar_inputs}
        computed = evaluate_scalars(self.fusion, host, known, self.values)
        arrays.update(zip((n.outputs[0] for n in host), computed, strict=True))
        scratch = [np.empty(self.integer(s.size), s.dtype.numpy) for s in self.lowered.scratch]
        for launch in self.lowered.launches:
            interpret(launch.kernel, self._passed(launch, arrays, scratch))
        return [arrays[number] for number in self.fusion.outputs]

    def _passed(self, launch: LaunchSpec, arrays: dict[int, Any], scratch: Sequence[Any]) -> list[Any]:
        integers = [self.integer(Expression((((s,), 1),))) for s in launch.integers]
        scalars = [part for s in launch.scalars for part in _parts(np.asarray(arrays[s]).item())]
        return [*(arrays[t] for t in launch.tensors), *(scratch[k] for k in launch.scratch), *integers, *scalars]

    def check(self) -> Case:
        """Compares the outputs with the reference implementation, under the error bound that follows from the ops."""
        for position, (own, (value, bound)) in enumerate(
            zip(self.run(), bounded_outputs(self.fusion, self.arguments), strict=True)
        ):
            wide = own if own.dtype == np.bool_ else own.astype(value.dtype)
            with np.errstate(all="ignore"):
                fits = (wide == value) | (np.isnan(value) & np.isnan(wide)) | np.isinf(bound)
                fits |= np.abs(np.subtract(wide, value, dtype=np.result_type(value, np.float64))) <= bound
            assert fits.all(), (
                f"output {position}: {wide[~fits][:4]} are not {value[~fits][:4]} within {bound[~fits][:4]}"
            )
        return self


def _parts(scalar: Any) -> tuple[Any, ...]:
    return (scalar.real, scalar.imag) if isinstance(scalar, complex) else (scalar,)


def case(function: Callable[..., Any], *arguments: Any, wide: bool = True, target: TemplateSet = H200) -> Case:
    """`function` lowered for these arguments. wide: whether memory starts at a multiple of 16 bytes is looked at."""
    leaves = [classify(argument, f"argument {k}") for k, argument in enumerate(arguments)]
    traced = trace(function, leaves, lambda given: (tuple(given), {}), CallRoots(None, arguments), records_loops=False)
    arguments = tuple(arguments[k] for k in traced.sources)
    fusion = decompose(traced.fusion)
    steps = step_graph(fusion)
    values = dict(extent_values(fusion, arguments))
    strides, named = {}, {}
    aligned = set()
    for number in fusion.tensor_inputs:
        array, shape = arguments[fusion.inputs.index(number)], fusion.shape_of(number)
        if wide and array.ctypes.data % 16 == 0:
            aligned.add(number)
        strides[number] = contiguous_strides(shape)
        if not array.flags.c_contiguous:
            layout = strided(array.shape, array.strides, array.itemsize, True)
            strides[number] = symbolic_strides(layout, shape, number)
            named.update({stride_name(number, k): s // array.itemsize for k, s in enumerate(array.strides)})
    choice = choose(
        fusion, FusionRule(fusion, steps.graph, steps.nodes), strides, Sizes(values, named), target, name="k",
        aligned=frozenset(aligned),
    )  # fmt: skip
    return Case(fusion, arguments, choice.lower(), values, named)


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Normal numbers, in memory that starts at a multiple of 16 bytes."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def softmax(axis: int) -> Callable[[Any], Any]:
    def of(x: Any) -> Any:
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    return of


def layernorm(x: Any, w: Any, b: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * w + b


def bias_gelu(x: Any, b: Any) -> Any:
    y = x + b
    return 0.5 * y * (1 + np.tanh(0.7978845608 * (y + 0.044715 * y * y * y)))


def rotate_half(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    turned = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x + x * cos + turned * sin


def global_accesses(kernel: ir.Kernel) -> tuple[int, int]:
    """(wide, narrow): copies to or from global buffers, and loads and stores of single elements there."""
    wide = narrow = 0

    def loads(expression: ir.Expression) -> int:
        match expression:
            case ir.Load(buffer, index, _):
                return (buffer.space == "global") + loads(index)
            case ir.Call(_, arguments, _):
                return sum(map(loads, arguments))
            case ir.Cast(argument, _):
                return loads(argument)
        return 0

    for statement in ir.walk_statements(kernel.body):
        match statement:
            case ir.Copy():
                wide += 1
            case ir.Store(buffer, _, value, _):
                narrow += (buffer.space == "global") + loads(value)
            case ir.Let(_, value) | ir.Declare(_, value) | ir.Assign(_, value) | ir.Accumulate(_, _, value):
                narrow += loads(value)
    return wide, narrow
