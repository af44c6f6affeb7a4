"""The compiler: the visible list of passes, and executables that hold what was compiled.

A fusion is rewritten by PASSES, split, and compiled for the sizes that it meets: an Executable keeps its plans and runs
the first whose layouts and guards fit the call. Nothing here depends on where the fusion came from.

Knows: passes, plans, backends. Must not know: tracing, user functions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias

import segments
from tracefuse.evaluate import check_requirements, evaluate_scalars
from tracefuse.explain import Explanation
from tracefuse.extents import python_text
from tracefuse.guards import compile_guards
from tracefuse.ir import Fusion
from tracefuse.layouts import LayoutKey, Strided, stride_name, strided
from tracefuse.plan import Plan, build_plan
from tracefuse.rewrite import drop_dead, fold_constants, merge_common, separate_outputs
from tracefuse.segmentation import Segmentation, for_sizes, segment_fusion
from tracefuse.targets import Backend, cpu_backend, cuda_backend

Pass: TypeAlias = Callable[[Fusion], Fusion]

PASSES: tuple[Pass, ...] = (fold_constants, merge_common, drop_dead, separate_outputs)
"""What is done to every fusion before it is split, in order. Each keeps the numbers of the values that it keeps."""

MOST_PLANS = 64
"""Plans kept by one executable; the one used longest ago goes first."""


def run_passes(fusion: Fusion) -> Fusion:
    """`fusion` after all passes; every pass ends in the verification that building a Fusion does."""
    for one in PASSES:
        fusion = one(fusion)
    return fusion


def compile_fusion(
    fusion: Fusion, *, target: str = "cpu", merge: segments.Predicate | None = None, contract: bool = True,
    device: int = 0,
) -> Executable:  # fmt: skip
    """`fusion`, rewritten, split and ready to be called; kernels are compiled for the first sizes that come.

    target: "cpu" (NumPy arrays) or "cuda" (CuPy arrays of GPU `device`). merge: see `segment_fusion`.
    """
    backend = cpu_backend() if target == "cpu" else cuda_backend(device)
    return Executable(segment_fusion(run_passes(fusion), merge=merge), backend, contract=contract)


class Executable:
    """A segmented fusion that can be called with arrays. compiles: how many plans were built."""

    def __init__(self, segmentation: Segmentation, backend: Backend | None = None, *, contract: bool = True) -> None:
        self.segmentation, self.contract = segmentation, contract
        self.backend = cpu_backend() if backend is None else backend
        fusion = segmentation.original
        self.fusion = fusion
        self.compiles = 0
        self._plans: list[tuple[Plan, Callable[[Mapping[Any, int]], bool]]] = []
        self._lock = threading.Lock()
        self._read = _extent_reader(fusion)
        self._tensors = tuple(fusion.inputs.index(number) for number in fusion.tensor_inputs)
        self._host = tuple(n for n in fusion.nodes if not fusion.values[n.outputs[0]].is_tensor)
        self._checks = compile_requirements(fusion)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """The outputs, for arguments in the order of the fusion's inputs.

        Raises ShapeError where sizes break what the fusion requires of them.
        """
        bound, values, layouts = self._bound(arguments)
        return list(self._plan(values, layouts, arguments).runner(bound))

    def steps(self, arguments: Sequence[Any]) -> Generator[dict[int, Any], None, list[Any]]:
        """Runs, yielding what is live before the first segment and after each one; returns the outputs."""
        bound, values, layouts = self._bound(arguments)
        plan = self._plan(values, layouts, arguments)
        named = dict(zip(plan.program.inputs, bound, strict=True))
        inputs = {k: v for k, v in named.items() if k >= 0}
        manager = segments.ArgumentManager(inputs, {k: v for k, v in named.items() if k < 0})
        return list((yield from plan.runner.steps(manager)))

    def _bound(self, arguments: Sequence[Any]) -> tuple[list[Any], dict[Any, int], LayoutKey]:
        """What the program is called with (inputs, host scalars, extents), extent values, and layouts."""
        values = self._read(arguments)
        if not self._checks(values):
            check_requirements(self.fusion, values)
        is_plain = self.backend.is_plain
        layouts: list[Strided | None] = []
        for place in self._tensors:
            array = arguments[place]
            layouts.append(None if is_plain(array) else self._strided(array))
        bound = [*arguments]
        if self._host:
            bound += self._scalars(arguments, values)
        bound += [value for key, value in values.items() if key < 0]
        return bound, values, tuple(layouts)

    def _strided(self, array: Any) -> Strided:
        return strided(array.shape, array.strides, array.dtype.itemsize, self.backend.is_aligned(array))

    def _scalars(self, arguments: Sequence[Any], values: Mapping[Any, int]) -> list[Any]:
        """The computed host scalars, in order."""
        numbers = zip(self.fusion.inputs, arguments, strict=True)
        known = {k: v for k, v in numbers if not self.fusion.values[k].is_tensor}
        return evaluate_scalars(self.fusion, self._host, known, values)

    def _plan(self, values: dict[Any, int], layouts: LayoutKey, arguments: Sequence[Any]) -> Plan:
        if any(layouts):
            self._add_strides(values, layouts, arguments)
        for plan, holds in self._plans:
            if plan.layouts == layouts and holds(values) and self._are_wide(arguments, plan.aligned):
                return plan
        with self._lock:
            inputs, is_wide = self.fusion.inputs, self.backend.is_wide
            aligned = frozenset(n for n in self.fusion.tensor_inputs if is_wide(arguments[inputs.index(n)]))
            named = {k: v for k, v in values.items() if isinstance(k, str)}
            segmentation, guards = for_sizes(self.segmentation, values)
            plan = build_plan(
                segmentation, self.backend, layouts, values, named, guards=guards, aligned=aligned,
                contract=self.contract,
            )  # fmt: skip
            self.compiles += 1
            # A new list, so that a reader in another thread never sees one half changed.
            self._plans = [(plan, compile_guards(plan.guards)), *self._plans][:MOST_PLANS]
        return plan

    def _are_wide(self, arguments: Sequence[Any], numbers: frozenset[int]) -> bool:
        return all(self.backend.is_wide(arguments[self.fusion.inputs.index(n)]) for n in numbers)

    def _add_strides(self, values: dict[Any, int], layouts: LayoutKey, arguments: Sequence[Any]) -> None:
        """Adds the strides of strided arguments to `values`, under their symbols' names."""
        for place, number, layout in zip(self._tensors, self.fusion.tensor_inputs, layouts, strict=True):
            if layout is not None:
                array = arguments[place]
                for axis, stride in enumerate(array.strides):
                    values[stride_name(number, axis)] = stride // array.dtype.itemsize

    # --- what can be asked --------------------------------------------------------------------------------------------

    def plan_for(self, arguments: Sequence[Any]) -> tuple[Plan, Mapping[int, int]]:
        """The plan that a call with these arguments would run (compiled if need be), and the extent values."""
        _, values, layouts = self._bound(arguments)
        return self._plan(values, layouts, arguments), values

    def definition(self, arguments: Sequence[Any]) -> Fusion:
        """The fusion, as it is split."""
        return self.fusion

    def explain(self, arguments: Sequence[Any]) -> Explanation:
        """The segments, why each boundary is there, what is released when, and the bytes moved."""
        return Explanation(*self.plan_for(arguments))


def _extent_reader(fusion: Fusion) -> Callable[[Sequence[Any]], dict[Any, int]]:
    """A function that reads every extent and integer scalar from the arguments, by id; calls pay for every line."""
    lines, entries = [], []
    for position, number in enumerate(fusion.inputs):
        value = fusion.values[number]
        if value.is_tensor and value.shape:
            axes = [key for key, owner, _ in fusion.axis_ids() if owner == number]
            lines.append(f"    {''.join(f'e{-key}, ' for key in axes)} = a[{position}].shape")
            entries += [f"{key}: e{-key}" for key in axes]
        elif not value.is_tensor and value.extent is not None:
            entries.append(f"{number}: int(a[{position}])")
    names: dict[str, Any] = {}
    exec("\n".join(["def read(a):", *lines, f"    return {{{', '.join(entries)}}}"]), names)
    return names["read"]  # type: ignore[no-any-return]


def compile_requirements(fusion: Fusion) -> Callable[[Mapping[Any, int]], bool]:
    """A function of the extent values that says whether every requirement holds."""
    tests = dict.fromkeys(
        f"{python_text(r.left, lambda s: f'v[{s.id}]')} {r.relation} {python_text(r.right, lambda s: f'v[{s.id}]')}"
        for r in fusion.requirements
    )
    return eval(f"lambda v: {' and '.join(tests) or 'True'}", {"min": min, "max": max})  # type: ignore[no-any-return]
