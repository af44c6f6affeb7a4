"""Tests that docs/caches_and_security.md lists every cache of the process, and searches the source for others.

After a change, `python -m tests.repository.test_cache_table` writes the table.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import tracefuse
from tests.repository.parsed_sources import ROOT, sources, statements, tree_of
from tracefuse import caches, config, fuse, source
from tracefuse.caches import TABLE, BoundedTable, Cache
from tracefuse.frontend import trace_cache
from tracefuse.frontend.calls.trace_entry import Entry
from tracefuse.runtime.devices import arrays

PAGE = ROOT / "docs" / "caches_and_security.md"
MARKS = "<!-- caches -->\n", "<!-- end of caches -->\n"

CONTAINERS = {
    *("dict", "list", "set", "OrderedDict", "defaultdict", "deque", "Counter", "BoundedTable", "KernelCache"),
    *("WeakSet", "WeakKeyDictionary", "WeakValueDictionary"),
}

LONG_LIVED = {
    *("caches", "compiler", "config", "dtypes", "frontend", "generated_code", "ir", "kernel", "pytrees", "runtime"),
}
"""Where objects live longer than one compilation; the others are passes over a fusion."""

NOT_CACHES = {
    "frontend.tracer.python_code.installed_packages._TRACED_PACKAGES": "names of packages with fused functions",
    # Definitions, complete once their modules are imported.
    "caches.TABLE": "the table itself",
    "ir.extents.polynomial.OPERATIONS": "operations of extents",
    "ops.families.REGISTRY": "op definitions",
    "frontend.jax_api.jaxpr_recording.PRIMITIVES": "rules of primitives",
    "frontend.numpy_api.twins.creation.RECORDING": "what records in place of NumPy's creation functions",
    "frontend.tracer.captured.known_contents.KnownContents": "state of one trace",
    "frontend.tracer.record.entry_copies.EntryCopies": "state of one trace",
    # Registrations, which nothing can compute again.
    "pytrees._registered": "classes that are pytree nodes",
    "frontend.jax_api.jaxpr_recording.OF_KEYS": "primitives whose rules take random keys",
    "frontend.jax_api.jax_functions._registered": "classes of containers that are pytree nodes of JAX",
    "frontend.tracer.state.shadow_nodes._free": "shadow classes that JAX knows",
    "frontend.tracer.state.shadow_nodes._bare_names": "attributes of those classes",
    "frontend.tracer.state.shadow_nodes._resting": "metaclasses of those classes",
    "pytrees._field_names": "fields of those classes",
    # State of arrays that are alive.
    "runtime.replayed_methods._kept": "the method that replays calls",
    "runtime.devices.cuda_arrays._in_flight": "arrays that kernels still read",
    "runtime.donated_arrays.DONORS": "donated arrays whose buffers hold results",
    "runtime.donated_arrays._RESULTS": "results in donated buffers",
    "compiler.tuning.Tuner": "what one call measures",
    # State of the threads that trace and compile.
    "young_objects._in_use": "traces and compilations during which the collector's threshold is another",
    "kernel.interrupt_shield._forks": "what a fork waits for",
    "kernel.interrupt_shield._running": "work that an interrupt waits for",
    # State of a job of several ranks.
    "frontend.ranks.sharded_function.ShardedFusedFunction": "what a rank runs for each entry",
    "partition.over_ranks.local_fusion._Localizer": "the fusion in progress",
    "partition.over_ranks.propagation.Propagation": "the propagation in progress",
    "frontend.ranks.sharded_map.ShardMapped": "the fused function of each rank of this process",
    "runtime.graph_order._Order": "the launches of a graph, while their order is computed",
    "runtime.communicators.agreement.Agreement": "exchanges that some ranks have not reported yet",
    "runtime.communicators.control_channel.ControlClient": "values that arrived and are not read yet",
    "runtime.communicators.control_channel.ControlServer": "values that ranks published",
    "runtime.communicators.current_world._of_process": "the ranks of the job",
    "runtime.communicators.world.World": "connections to other ranks",
    # State of one trace or one compilation.
    "frontend.calls.drawn_states.DrawnStates": "the call in progress",
    "kernel.llvm.vector_bodies.VectorBody": "the loop in progress",
    "kernel.llvm.masked_vectors.MaskedVectors": "the iteration in progress",
    "kernel.llvm.strided_vectors.WindowVectors": "the iteration in progress",
    "kernel.llvm.hoisted_divisions.HoistedDivisions": "the function in progress",
    "kernel.llvm.machine_code.Machine._idle": "target machines of threads that compiled at the same time",
    "kernel.llvm.vector_loops.VectorLoop": "the loop in progress",
    "kernel.llvm.vector_sums.VectorSums": "the loop in progress",
    "frontend.calls.input_texts.InputWriter": "the text in progress",
    "frontend.calls.stage_code._StageWriter": "the text in progress",
    "frontend.tracer.captured.captures._CaptureSearch": "the walk in progress",
    "frontend.tracer.record.captured_inputs.CapturedInputs": "the trace in progress",
    "source._FORWARDING": "functions of tracefuse",
    "frontend.tracer.effects.caught_errors._outermost": "a function of tracefuse",
    "frontend.python_numbers.number_twins.CALLED": "types of Python",
    "frontend.python_numbers.number_twins.FUNCTIONS": "functions of Python",
    "frontend.tracer.state.container_overlays.CONTAINERS": "classes of containers",
    "frontend.tracer.state.container_overlays.OVERLAY_BASES": "classes of containers",
    "frontend.tracer.state.container_overlays.OVERLAY_CLASSES": "classes of containers",
    "frontend.tracer.state.container_overlays.OVERLAY_METHODS": "classes of containers",
    "frontend.tracer.state.container_records.ContainerOverlay": "the trace in progress",
    "frontend.tracer.state.container_overlays.ContainerOverlays": "the trace in progress",
    "frontend.tracer.state.container_records.RECORDS": "the traces in progress",
    "frontend.tracer.state.function_clones.FunctionClones": "the trace in progress",
    "frontend.tracer.state.outcome.Outcome": "the trace in progress",
    "frontend.tracer.state.outside_objects.OutsideObjects": "the trace in progress",
    "frontend.tracer.state.overlays.Overlays": "the trace in progress",
    "frontend.tracer.libraries.passed_functions._GlobalNames": "one function",
    "frontend.tracer.state.scope_views.ScopeViews": "the trace in progress",
    "frontend.tracer.state.shadow_objects.ShadowInstance": "the trace in progress",
    "frontend.tracer.state.shadow_objects.ShadowObjects": "the trace in progress",
    "frontend.tracer.captured.state_reads.StateReads": "the trace in progress",
    "frontend.tracer.python_code.text_flow.TextFlow": "the trace in progress",
    "frontend.tracer.python_code.code_names.CodeNames": "the trace in progress",
    "frontend.control_flow.carried_kinds.CarriedKinds": "the trace in progress",
    "frontend.control_flow.read_integers.ReadIntegers": "the trace in progress",
    "frontend.tracer.record.recorder.Recorder": "the trace in progress",
    "ir.builder.FusionBuilder": "the fusion in progress",
    "ir.printing.DefinitionPrinter": "the text in progress",
    "ir.subfusion._Extraction": "the sub-fusion in progress",
    "kernel.llvm.hidden_infinities.HiddenInfinities": "the function in progress",
    "kernel.llvm.hidden_invariants.HiddenInvariants": "the loop in progress",
    "kernel.llvm.statements.Emitter": "the kernel in progress",
    "kernel.llvm.text_builder.Builder": "the function in progress",
    "kernel.llvm.kept_elements._StepAccesses": "the step of a loop in progress",
    "kernel.llvm.loop_metadata.Metadata": "the module in progress",
    "runtime.call_code.CallWriter": "the text in progress",
    "runtime.driver_parameters.DriverParameters": "the driver in progress",
    "runtime.step_integers.StepIntegers": "the driver in progress",
    "runtime.host_text._Text": "the text in progress",
    "runtime.joined_launches._Waiting": "the text in progress",
    "runtime.segment_lowering.SegmentExtents": "the plan in progress",
    "runtime.streams.stream_program._Slices": "the program in progress",
}


@functools.cache
def modules() -> Mapping[str, Path]:
    """The modules of tracefuse by name, without the package's own."""
    named = {path.relative_to(ROOT / "tracefuse").with_suffix("").parts: path for path in sources("tracefuse")}
    return {".".join(parts): path for parts, path in named.items() if parts[-1] not in ("__init__", "__main__")}


def row(cache: Cache) -> str:
    cells = (f"`{cache.name}`", cache.keeps, cache.key, cache.bound, cache.owner, cache.cleared_by)
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """The table of the page, of all modules."""
    for name in modules():
        importlib.import_module(f"tracefuse.{name}")
    rows = [row(TABLE[name]) for name in sorted(TABLE)]
    return "\n".join(["| Cache | Keeps | Key | Bound | Owner | Cleared by |", "|---|---|---|---|---|---|", *rows, ""])


def is_new_container(value: ast.expr | None) -> bool:
    """Whether an expression makes an empty container, to be filled later."""
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    if not isinstance(value, ast.Call):
        return False
    name = ast.unparse(value.func).rpartition(".")[2]
    if name == "field":
        factories = [ast.unparse(k.value) for k in value.keywords if k.arg == "default_factory"]
        return any(factory in CONTAINERS for factory in factories)
    is_sized = name == "BoundedTable"
    return name in CONTAINERS and (is_sized or not value.args)


def assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    for node in body:
        if isinstance(node, ast.Assign):
            yield from ((ast.unparse(target), node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target), node.value


def remembering_attributes(cls: ast.ClassDef) -> Iterator[str]:
    """The attributes that start empty, are looked up by key and stored into; weak dictionaries whatever is done."""
    text = ""
    for target, value in assignments(list(statements(cls))):
        name = target.removeprefix("self.")
        if not name.isidentifier() or not is_new_container(value):
            continue
        text = text or ast.unparse(cls)
        stores = re.search(rf"self\.{name}(\[[^\n]*\] = |\.setdefault\()", text)
        looks = re.search(rf"(in self\.{name}\b|self\.{name}\.(get|setdefault)\()", text)
        if (stores and looks) or "Weak" in ast.unparse(value or cls):
            yield name


def is_long_lived(module: str, cls: str) -> bool:
    return module.partition(".")[0] in LONG_LIVED and f"{module}.{cls}" not in NOT_CACHES


def caches_in_source() -> set[str]:
    """What looks like a cache: names of module-level containers and of attributes, and decorated functions."""
    found = set()
    for module, path in modules().items():
        tree = tree_of(path)
        found |= {f"{module}.{name}" for name, value in assignments(tree.body) if is_new_container(value)}
        for node in statements(tree):
            if isinstance(node, ast.FunctionDef) and any("memoized(" in ast.unparse(d) for d in node.decorator_list):
                found.add(f"{module}.{node.name}")
            elif isinstance(node, ast.ClassDef) and is_long_lived(module, node.name):
                found |= {f"{module}.{node.name}.{name}" for name in remembering_attributes(node)}
    return found - NOT_CACHES.keys()


def test_every_cache_of_the_source_is_in_the_table() -> None:
    table()
    found = caches_in_source()
    assert len(found) > 40
    assert found - TABLE.keys() == set(), "register these next to their definitions, see tracefuse/caches.py"


def test_every_row_of_the_table_names_something_of_the_source() -> None:
    table()
    for name in TABLE:
        module = next(m for m in modules() if name.startswith(f"{m}."))
        text = inspect.getsource(importlib.import_module(f"tracefuse.{module}"))
        for part in name.removeprefix(f"{module}.").split("."):
            assert re.search(rf"\b{part}\b", text.replace(f'"{name}"', "")), name


def test_functions_remember_through_the_table_alone() -> None:
    remembering = re.compile(r"lru_cache|functools\.cache\b")
    mentions = {name: path for name, path in modules().items() if remembering.search(path.read_text())}
    # Comments do not count.
    users = [name for name, path in mentions.items() if remembering.search(ast.unparse(tree_of(path)))]
    assert users == ["caches"]


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text()
    assert text.partition(MARKS[0])[2].partition(MARKS[1])[0] == table(), (
        "run python -m tests.repository.test_cache_table"
    )


def test_clearing_empties_what_the_table_says_and_nothing_else() -> None:
    table()
    for cache in TABLE.values():
        assert cache.cleared_by, cache.name
        if cache.clear is not None:
            assert caches.CLEAR_CACHES in cache.cleared_by, cache.name
    f = fuse(lambda x: x + 1)
    f(np.ones(3))
    source._internal["somewhere.py"] = False
    assert arrays._kinds
    tracefuse.clear_caches()
    assert f.cache_info() == (0, 0, 0)
    assert not arrays._kinds
    assert not source._internal
    np.testing.assert_array_equal(f(np.ones(3)), [2, 2, 2])


def test_a_bounded_table_drops_what_was_added_or_moved_first() -> None:
    held: BoundedTable[str, int] = BoundedTable(2)
    held["a"], held["b"] = 1, 2
    held.move_to_end("a")
    held["c"] = 3
    assert list(held.items()) == [("a", 1), ("c", 3)]


def test_a_full_trace_cache_drops_the_key_used_longest_ago_and_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_cache, "MOST_KEYS", 2)
    f = fuse(lambda x: x + 1)
    one, two, three = (np.ones((2,) * rank) for rank in (1, 2, 3))
    for array in (one, two, three):
        f(array), f(array)
    assert f.cache_info() == (3, 3, 3)
    entries = [entry for entries in f._cache._entries.values() for entry in entries]
    ranks = [len(entry.trace.fusion.values[0].shape) for entry in entries]
    assert ranks == [2, 3]
    paths = [direct.entry for directs in f._cache.fast_paths.values() for direct in directs]
    assert all(isinstance(entry, Entry) and entry in entries for entry in paths)
    np.testing.assert_array_equal(f(one), [2, 2])
    assert f.cache_info() == (4, 4, 3)


def test_options_that_nothing_uses_are_forgotten() -> None:
    used = config.resolve({"threads": 3})
    assert config.resolve({"threads": 3}) is used
    before = len(config._interned)
    for limit in range(1, 50):
        config.resolve({"cache_limit": limit})
    assert len(config._interned) <= before + 1


def write_table() -> None:
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    PAGE.write_text(before + MARKS[0] + table() + MARKS[1] + rest.partition(MARKS[1])[2])


if __name__ == "__main__":
    write_table()
