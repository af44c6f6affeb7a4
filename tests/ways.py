"""Runs a definition in three ways on a backend and compares each result with the reference implementation.

whole: all passes, split as little as the templates allow, as `@fuse` does. segments: the definition's own segments,
through the argument manager. printed: one op a segment; the printed definition of each segment is executed as Python
and runs as a definition of its own. Its inputs follow from the index map alone, and values are dropped as the segment
says.

Backends: "cpu" (LLVM), "interpreter" (the CPU's kernels in NumPy), "interpreter-cuda" (the GPU's kernels in NumPy),
"cuda" (CuPy arrays). How a definition splits and prints does not depend on the backend, so a test that runs on every
backend takes each way where it is cheap: `WAYS_ON` lists them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracefuse import config, rules
from tracefuse.compiler.executable import Executable
from tracefuse.definition.fusion_definition import DefinitionSegment, FusionDefinition
from tracefuse.diagnostics.error_bounds import bounded_outputs
from tracefuse.dtypes import dtype_of
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import evaluate, evaluate_scalars, extent_values
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.interpreter.interpret import interpret
from tracefuse.kernel.kernel_ir import Kernel
from tracefuse.partition.segmentation import Segmentation, segment_fusion
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.runtime.devices import cuda_arrays
from tracefuse.runtime.targets.array_library import ArrayLibrary
from tracefuse.runtime.targets.call_text import CallText
from tracefuse.runtime.targets.cpu.cpu_device import CpuDevice
from tracefuse.runtime.targets.cpu.cpu_kernel_compiler import CpuKernelCompiler
from tracefuse.runtime.targets.cpu.cpu_target import cpu_target
from tracefuse.runtime.targets.cuda.cuda_target import cuda_target
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.gpu.gpu_templates import gpu_templates

BACKENDS = ("cpu", "interpreter", "interpreter-cuda", "cuda")
WAYS = ("whole", "segments", "printed")
WAYS_ON = {"cpu": ("whole", "segments"), "interpreter": ("whole",), "interpreter-cuda": WAYS, "cuda": WAYS}
"""The ways of a test that runs on every backend. Single ops need a compilation each on the CPU, and are long loops in
the interpreter."""


class Interpreted(CpuKernelCompiler):
    """Kernels run by the interpreter, on NumPy arrays."""

    def compile(self, kernel: Kernel, disk: DiskCache | None = None, work: int | None = None) -> Any:
        return kernel

    def progress(self, function: Any) -> str:
        return ""

    def renamed(self, function: Any, kernel: Kernel) -> Any:
        return kernel

    def entry(self, function: Any) -> Callable[..., None]:
        return lambda *arguments: interpret(function, arguments)


class AlignedMemory(CpuDevice):
    """NumPy arrays of which kernels are told whether they start at a multiple of 16 bytes, as CuPy's are."""

    uses_alignment = True

    def is_wide(self, array: Any) -> bool:
        return bool(array.ctypes.data % 16 == 0)


@functools.cache
def backend_of(name: str) -> Target:
    """The target of a name in BACKENDS."""
    if name == "cuda":
        return cuda_target(cuda_arrays.current_device())
    if name == "cpu":
        return cpu_target()
    interpreted = replace(cpu_target(), compiler=Interpreted())
    if name == "interpreter":
        return interpreted
    # An H200 as it is seen by the schedule: compute capability 9.0, 132 multiprocessors.
    memory = AlignedMemory()
    return replace(
        interpreted, name="cuda", templates=gpu_templates("sm_90", 132), device=memory, calls=CallText(memory),
        library=ArrayLibrary(),
    )  # fmt: skip


@functools.cache
def why_not(name: str) -> str | None:
    """Why a backend cannot run here, or None."""
    reason = cuda_arrays.unavailable() if name == "cuda" else None
    return None if reason is None else f"no GPU: {reason}"


def on_backend(name: str, argument: Any) -> Any:
    """An argument where the backend takes it, with the strides that it has."""
    if name != "cuda" or not isinstance(argument, np.ndarray):
        return argument
    import cupy

    return strided_copy(argument, cupy)


def strided_copy(array: Any, cupy: Any) -> Any:
    """A CuPy array with the values and the strides of a NumPy array."""
    if array.flags.c_contiguous or not array.size:
        return cupy.asarray(array)
    reach = [(extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True)]
    first, last = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    memory = np.zeros(last - first + array.itemsize, np.uint8)
    np.ndarray(array.shape, array.dtype, memory, -first, array.strides)[...] = array
    return cupy.ndarray(array.shape, array.dtype, cupy.asarray(memory).data - first, array.strides)


def on_host(array: Any) -> Any:
    """A result as a NumPy array."""
    return array.get() if hasattr(array, "get") else array


# ---------------------------------------------------------------------------------------------------------------------
# the three ways


@functools.lru_cache(maxsize=4)
def split(fusion: Fusion, merge: Any, options: config.Options) -> Segmentation:
    """The segmentation of a fusion, which several ways run and several checks read."""
    return segment_fusion(fusion, merge=merge, options=options)


def run_whole(fusion: Fusion, arguments: Sequence[Any], backend: Target, contract: bool = True) -> list[Any]:
    """As `@fuse` runs it."""
    options = config.resolve({"contract": contract})
    return Executable(segment_fusion(run_passes(FUSION_PASSES, fusion, options)), backend, options=options)(arguments)


def run_segments(
    fusion: Fusion, arguments: Sequence[Any], backend: Target, contract: bool = True, merge: Any = None
) -> list[Any]:
    """As `fd.segment()` splits it, through the argument manager."""
    return Executable(split(fusion, merge, config.resolve()), backend, options=config.resolve({"contract": contract}))(
        arguments
    )


def recorded_again(definition: FusionDefinition) -> FusionDefinition:
    """The definition that the printed form of `definition` records."""
    names: dict[str, Any] = {}
    exec("from tracefuse import *", names)
    exec(repr(definition), names)
    with FusionDefinition() as again:
        names[f"nvfuser_fusion_id{definition.id()}"](again)
    return again


def run_printed(
    fusion: Fusion, arguments: Sequence[Any], backend: Target, contract: bool = True, merge: Any = None
) -> list[Any]:
    """One op a segment (or as `merge` says): what each segment prints is run alone, given what its index map names."""
    fd = FusionDefinition.from_fusion(fusion)
    segments = fd.segment(arguments, merge=rules.one_op_a_segment if merge is None else merge)
    live = live_before(fusion, arguments)
    for segment in segments:
        results = run_alone(segment, live, backend, contract)
        live.update(results)
        for dead in segment.releases:
            del live[dead]
    return [live[number] for number in fusion.outputs]


def live_before(fusion: Fusion, arguments: Sequence[Any]) -> dict[int, Any]:
    """Inputs, host scalars and extents by number."""
    values: dict[int, Any] = dict(zip(fusion.inputs, arguments, strict=True))
    extents = extent_values(fusion, arguments)
    on_the_host = [node for node in fusion.nodes if not fusion.values[node.outputs[0]].is_tensor]
    scalars = {number: values[number] for number in fusion.scalar_inputs}
    computed = evaluate_scalars(fusion, on_the_host, scalars, extents)
    values.update(zip((node.outputs[0] for node in on_the_host), computed, strict=True))
    return {**values, **{key: value for key, value in extents.items() if key < 0}}


def run_alone(segment: DefinitionSegment, live: Mapping[int, Any], backend: Target, contract: bool) -> dict[int, Any]:
    """The outputs of one segment's printed definition, by their numbers in the original."""
    again = recorded_again(segment.definition)
    own = segment.definition.fusion
    assert (again.fusion.inputs, again.fusion.outputs) == (own.inputs, own.outputs)
    given = [live[segment.index_map[number]] for number in own.inputs]
    results = Executable(segment_fusion(again.fusion), backend, options=config.resolve({"contract": contract}))(given)
    return {segment.index_map[number]: result for number, result in zip(own.outputs, results, strict=True)}


def crossing(segmentation: Segmentation) -> set[int]:
    """The values that a segmentation stores: what crosses a border."""
    parts = segmentation.segments
    return {part.segment.index_map[number] for part in parts for number in part.segment.outputs}


# ---------------------------------------------------------------------------------------------------------------------
# comparing


def assert_equal_bits(actual: Any, expected: Any, what: str, *, signed_zeros: bool = True) -> None:
    """Equal type, shape and bits; every NaN equals every other. signed_zeros: -0 is not 0."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), what
    if not dtype_of(expected.dtype).is_floating:
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    # Every float64 holds every half and float32: nothing is lost, and NumPy knows its NaN.
    own, wanted = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(own, wanted, err_msg=what)
    if signed_zeros:
        assert ((np.signbit(own) == np.signbit(wanted)) | np.isnan(wanted)).all(), f"{what}: signs of zeros differ"


def assert_within(actual: Any, expected: Any, bound: Any, what: str) -> None:
    """|actual - expected| <= bound, element by element; where the bound is infinite nothing is asserted."""
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    wide = np.asarray(actual).astype(expected.dtype)
    with np.errstate(all="ignore"):
        close = (np.abs(wide - expected) <= bound) if expected.dtype != np.bool_ else wide == expected
    wrong = ~(close | (wide == expected) | (np.isnan(wide) & np.isnan(expected)) | np.isinf(bound))
    if wrong.any():
        at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        place = tuple(map(int, at))
        raise AssertionError(
            f"{what}{list(place)}: {wide[at]!r} is not {expected[at]!r} within {bound[at]!r} "
            f"({int(wrong.sum())} of {wrong.size} elements)"
        )


def check(
    definition: FusionDefinition | Fusion, arguments: Sequence[Any], backend: str | None = None, *, bits: bool = False,
    contract: bool = True, merge: Any = None, without: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Runs a definition on a backend and compares it with `evaluate`.

    backend: None for the CPU in all ways; else the ways of `WAYS_ON`. bits: the results are those of the native
    reading, bit for bit; else they are those of the wide one under the error bound that follows from it. merge: a
    predicate for the ways that segment. without: ways left out, with the reason.
    """
    fusion = definition if isinstance(definition, Fusion) else definition.fusion
    bounded = None if bits else bounded_outputs(fusion, arguments)
    for way, actual in results(fusion, arguments, backend, contract=contract, merge=merge, without=without):
        predicate = None if way == "whole" else merge
        compare(fusion, arguments, actual, bounded, f"{backend or 'cpu'}, {way}", predicate)


def results(
    fusion: Fusion, arguments: Sequence[Any], backend: str | None, *, contract: bool = True, merge: Any = None,
    without: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, list[Any]]]:  # fmt: skip
    """(way, its outputs as NumPy arrays) for each way of the backend that is not left out. backend: as in `check`."""
    unknown = set(without or ()) - set(WAYS)
    assert not unknown, f"no such ways: {unknown}"
    ways = WAYS if backend is None else WAYS_ON[backend]
    given = [on_backend(backend or "cpu", argument) for argument in arguments]
    target = backend_of(backend or "cpu")
    runs: dict[str, Callable[[], list[Any]]] = {
        "whole": lambda: run_whole(fusion, given, target, contract),
        "segments": lambda: run_segments(fusion, given, target, contract, merge),
        "printed": lambda: run_printed(fusion, given, target, contract, merge),
    }
    for way, run in runs.items():
        if way in ways and way not in (without or ()):
            yield way, [on_host(result) for result in run()]


def compare(
    fusion: Fusion, arguments: Sequence[Any], actual: Sequence[Any], bounded: Any, what: str, merge: Any = None
) -> None:
    """Compares results with `bounded` (values and bounds), or bit for bit where that is None."""
    assert len(actual) == len(fusion.outputs)
    if bounded is None:
        # NumPy gives either zero for the larger or smaller of two, as its vector unit has it.
        signed_zeros = not any(node.op.name in ("maximum", "minimum", "max", "min") for node in fusion.nodes)
        rounded = crossing(split(fusion, merge, config.resolve()))
        expected = evaluate(fusion, arguments, rounded=rounded)
        for number, own, wanted in zip(fusion.outputs, actual, expected, strict=True):
            assert_equal_bits(own, wanted, f"{what}: output {number}", signed_zeros=signed_zeros)
        return
    for number, own, (value, bound) in zip(fusion.outputs, actual, bounded, strict=True):
        assert own.dtype == fusion.values[number].dtype.numpy, f"{what}: output {number} is {own.dtype}"
        assert_within(own, value, bound, f"{what}: output {number}")
