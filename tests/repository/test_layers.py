"""Imports go one way: neither modules nor packages import each other in a cycle, at any level of the tree.

A unit is a module or a package among its siblings; a package needs whatever any module in it imports. `TYPE_CHECKING`
blocks and the lazy table of `tracefuse/__init__` do not count, since they load nothing; third-party libraries that are
heavy or optional are imported inside the functions that use them.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.repository import parsed_sources
from tests.repository.parsed_sources import ROOT, sources, tree_of

LIGHT = {"numpy", "ml_dtypes", "optree"}
"""Third-party packages that `import tracefuse` may load."""

MOST_LINES = 400
"""A longer module knows more than one thing."""

LAYERS = (
    *("errors", "caches", "generated_code", "config", "dtypes", "rounding", "pytrees", "source", "logs", "waiting"),
    "young_objects",
    *("ir", "ops", "kernel", "passes", "dynamic", "schedule", "partition", "runtime"),
    *("diagnostics", "compiler", "definition", "nvfuser", "nvfuser_direct", "frontend"),
)
"""The modules and packages of tracefuse, lowest first, as docs/architecture.md lists them."""


UNKNOWN = {
    "CUDA C++": ("tracefuse.kernel.cuda",),
    "LLVM": ("tracefuse.kernel.llvm", "llvmlite"),
    "NumPy's functions": ("tracefuse.frontend.numpy_api",),
    "arrays": ("tracefuse.runtime.devices", "cupy"),
    "calls": ("tracefuse.frontend.calls",),
    "compilation": ("tracefuse.compiler",),
    "devices": ("tracefuse.runtime.devices", "cupy"),
    "frontends": ("tracefuse.frontend", "tracefuse.definition"),
    "fusions": ("tracefuse.ir.fusion",),
    "kernel IR": ("tracefuse.kernel.kernel_ir", "tracefuse.kernel.kernel_expressions"),
    "kernels": ("tracefuse.kernel",),
    "ops": ("tracefuse.ops", "tracefuse.ir.op_kinds"),
    "options": ("tracefuse.config",),
    "overlays of values": ("tracefuse.frontend.tracer.state.overlays",),
    "plans": ("tracefuse.runtime.plan", "tracefuse.compiler.plan_cache"),
    "recording": ("tracefuse.frontend.tracer.record.recorder",),
    "segments": ("segments", "tracefuse.partition"),
    "single ops": tuple(
        f"tracefuse.ops.{module}"
        for module in (
            "library",
            "movement",
            "movement_positions",
            "movement_resizes",
            "ordering",
            "pointwise",
            "reduction",
        )
    ),
    "sizes": ("tracefuse.schedule.sizes",),
    "targets": ("tracefuse.runtime.targets",),
    "the fast path": ("tracefuse.frontend.calls.fast_path",),
    "traces": ("tracefuse.frontend.tracing",),
    "tracing": ("tracefuse.frontend",),
}
"""The terms after "Must not know:" in the docstring of a module, and the modules that it must not import for each."""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for package in ("segments", "tracefuse") for path in sources(package)}
PACKAGES = {name.rpartition(".")[0] for name in MODULES} - {""}
ENTRY_POINTS = {"tracefuse", "tracefuse.__main__"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Each module with its syntax tree."""
    return ((name, tree_of(path)) for name, path in MODULES.items())


def is_of_type_checking(condition: ast.expr) -> bool:
    names = (getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(condition))
    return any(name == "TYPE_CHECKING" for name in names)


def statements(node: ast.AST, top: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """(statement, whether at module level) at any depth, leaving out TYPE_CHECKING blocks."""
    for _, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else ():
            if isinstance(child, ast.If) and is_of_type_checking(child.test):
                continue
            if isinstance(child, ast.stmt):
                yield child, top
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from statements(child, top and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def imported_names(tree: ast.Module) -> set[tuple[str | None, str]]:
    """(module, name) for each `from module import name`."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {(node.module, alias.name) for node in nodes for alias in node.names}


@functools.cache
def imports(name: str) -> tuple[tuple[str, bool], ...]:
    """(imported module, whether at module level) for each import of a module."""
    found: list[tuple[str, bool]] = []
    for statement, top in statements(tree_of(MODULES[name])):
        if isinstance(statement, ast.Import):
            found += ((alias.name, top) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and statement.level == 0:
            within = [f"{statement.module}.{alias.name}" for alias in statement.names]
            found += ((inner if inner in MODULES else statement.module, top) for inner in within)
    return tuple(found)


def own_imports(name: str) -> set[str]:
    """The modules of this repository that a module imports at module level."""
    return {target for target, top in imports(name) if top and target in MODULES} - {name}


def units(package: str) -> dict[str, set[str]]:
    """Each module and package directly inside `package`, with the siblings that it needs."""
    depth = package.count(".") + 1
    needs: dict[str, set[str]] = {}
    for name in MODULES.keys() - ENTRY_POINTS:
        if name.startswith(f"{package}."):
            unit = name.split(".")[depth]
            siblings = {t.split(".")[depth] for t in own_imports(name) if t.startswith(f"{package}.")}
            needs.setdefault(unit, set()).update(siblings - {unit})
    return needs


def in_order(needs: Mapping[str, set[str]]) -> list[str]:
    """The units, each after all that it needs; fails with the cycle where there is one."""
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        pytest.fail(f"these import each other: {' -> '.join(error.args[1])}")


def test_segments_needs_the_standard_library_alone() -> None:
    for name in (name for name in MODULES if name.partition(".")[0] == "segments"):
        for target, _ in imports(name):
            top = target.partition(".")[0]
            assert top == "segments" or top in sys.stdlib_module_names, f"{name} imports {target}"


def test_no_modules_import_each_other() -> None:
    order = in_order({name: own_imports(name) for name in MODULES.keys() - ENTRY_POINTS})
    assert order.index("tracefuse.ir.fusion") < order.index("tracefuse.frontend.fuse")


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_neither_modules_nor_packages_of_a_package_import_each_other(package: str) -> None:
    assert set(in_order(units(package))) == set(units(package))


def test_each_layer_imports_lower_ones_only() -> None:
    needs = units("tracefuse")
    assert set(needs) == set(LAYERS)
    for position, layer in enumerate(LAYERS):
        assert needs[layer] <= {*LAYERS[:position]}, f"{layer} imports {needs[layer] - {*LAYERS[:position]}}"


def test_the_architecture_page_names_every_layer() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert [layer for layer in LAYERS if f"`{layer}`" not in page and f"`{layer}/`" not in page] == []


def test_a_module_name_is_used_once() -> None:
    names = Counter(name.rpartition(".")[2] for name in MODULES if name not in PACKAGES)
    assert [name for name, count in names.items() if count > 1] == []


def test_a_module_does_not_import_what_its_docstring_excludes() -> None:
    checked = 0
    for name, tree in trees():
        _, mark, line = (ast.get_docstring(tree) or "").partition("Must not know: ")
        for term in " ".join(line.split()).rstrip(".").split(", ") if mark else ():
            excluded = UNKNOWN[term]
            imported = {i for i, _ in imports(name)} - {"segments.lazy_dataclasses"}  # which knows nothing of segments
            wrong = [i for i in imported if any(i == e or i.startswith(f"{e}.") for e in excluded)]
            assert wrong == [], f"{name} must not know {term}, but imports {wrong}"
            checked += 1
    assert checked > 100


def test_only_classes_that_users_handle_or_order_generate_their_methods_at_import() -> None:
    slow = {("dataclasses", "dataclass"), ("dataclasses", "replace")}
    eager = {name for name, tree in trees() if imported_names(tree) & slow}
    assert eager == {
        "segments.lazy_dataclasses",  # for type checkers
        "tracefuse.dynamic.index_classes",
        "tracefuse.frontend.ranks.rank_stages",
        "tracefuse.ir.shardings",
        "tracefuse.runtime.devices.shape_dtype",
    }


def test_a_module_has_at_most_400_lines() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in MODULES.values()}
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_modules_of_this_repository_are_imported_at_module_level() -> None:
    for name in MODULES:
        inner = sorted({t for t, top in imports(name) if not top and t.partition(".")[0] in ("tracefuse", "segments")})
        assert not inner, f"{name} imports {inner} inside a function"


def test_heavy_libraries_are_imported_where_they_are_used() -> None:
    for name in MODULES:
        for target, top in imports(name):
            package = target.partition(".")[0]
            third_party = package not in sys.stdlib_module_names and package not in ("tracefuse", "segments")
            assert not (top and third_party) or package in LIGHT, f"{name} imports {target} at module level"


def test_refusals_of_the_schedule_have_codes() -> None:
    calls = {
        name for name, tree in trees() if name.startswith("tracefuse.schedule.")
        for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "no"
    }  # fmt: skip
    assert calls == {"tracefuse.schedule.refusal_codes"}


def test_a_class_name_is_used_once() -> None:
    definitions = (node for _, tree in trees() for node in parsed_sources.statements(tree))
    names = Counter(node.name for node in definitions if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
