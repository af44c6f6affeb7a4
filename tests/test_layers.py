"""Imports go one way: each module imports only what stands above it in the lists, at module level.

The lists are the layers of the design, lowest first. `TYPE_CHECKING` blocks and the lazy table of `tracefuse/__init__`
are for names alone; third-party libraries that are heavy or optional are imported inside the functions that use them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIGHT = {"numpy", "ml_dtypes", "optree"}
"""What `import tracefuse` may load."""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(package: str) -> dict[str, ast.Module]:
    paths = sorted((ROOT / package).rglob("*.py"))
    return {module_name(path): ast.parse(path.read_text()) for path in paths}


def imports(node: ast.AST, top: bool = True) -> Iterator[tuple[str, bool]]:
    """(imported module, whether at module level), leaving out TYPE_CHECKING blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, top) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and child.level == 0:
            yield child.module, top
            yield from ((f"{child.module}.{alias.name}", top) for alias in child.names)
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imports(child, top and not inside)


TREES = {**modules("segments"), **modules("tracefuse")}
PACKAGES = {name for name in TREES if any(other.startswith(f"{name}.") for other in TREES)}


def own_imports(name: str) -> set[str]:
    """The modules of this repository that a module imports at module level; packages by themselves do not count."""
    found = {target for target, top in imports(TREES[name]) if top and target in TREES}
    return {target for target in found if target not in PACKAGES or target in ("segments",)} - {name}


def test_segments_needs_the_standard_library_alone() -> None:
    for name in modules("segments"):
        for target, _ in imports(TREES[name]):
            top = target.partition(".")[0]
            assert top == "segments" or top in sys.stdlib_module_names, f"{name} imports {target}"


def test_imports_make_no_cycle_and_so_have_an_order() -> None:
    order: list[str] = []
    waiting = {name: own_imports(name) for name in TREES if name not in PACKAGES or name == "segments"}
    while waiting:
        ready = sorted(name for name, needs in waiting.items() if not needs & waiting.keys())
        assert ready, f"these import each other: {sorted(waiting)}"
        order += ready
        for name in ready:
            del waiting[name]
    assert (
        order.index("tracefuse.ir.fusion")
        < order.index("tracefuse.compiler.executable")
        < order.index("tracefuse.frontend.fuse")
    )


def package_of(name: str) -> str | None:
    """The package of tracefuse that a module is in, None for one that is in none."""
    parts = name.split(".")
    return parts[1] if parts[0] == "tracefuse" and len(parts) > 2 else None


def test_packages_depend_on_each_other_one_way() -> None:
    needs: dict[str, set[str]] = {}
    for name in TREES:
        package = package_of(name)
        if package is not None and name not in PACKAGES:
            found = {package_of(target) for target in own_imports(name)} - {None, package}
            needs.setdefault(package, set()).update(one for one in found if one is not None)
    while needs:
        ready = sorted(package for package, others in needs.items() if not others & needs.keys())
        assert ready, f"these need each other: {needs}"
        for package in ready:
            del needs[package]


def test_the_page_of_where_things_are_names_every_module_and_package() -> None:
    page = (ROOT / "docs" / "where_things_are.md").read_text()
    inside = ROOT / "tracefuse"
    names = [f"{path.name}" for path in inside.glob("*.py") if not path.name.startswith("__")]
    names += [f"{path.parent.name}/" for path in inside.glob("*/__init__.py")]
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        ("tracefuse.kernel", "tracefuse.schedule"),
        ("tracefuse.kernel", "tracefuse.ops"),
        ("tracefuse.kernel", "tracefuse.ir.fusion"),
        ("tracefuse.ops", "tracefuse.ir.reference"),
        ("tracefuse.ops", "tracefuse.schedule"),
        ("tracefuse.schedule", "tracefuse.device"),
        ("tracefuse.schedule", "tracefuse.compiler.executable"),
        ("tracefuse.device", "tracefuse.schedule"),
        ("tracefuse.device", "tracefuse.compiler.executable"),
        ("tracefuse.compiler.executable", "tracefuse.definition.fusion_definition"),
        ("tracefuse.compiler.executable", "tracefuse.frontend.tracing"),
        ("tracefuse.compiler.executable", "tracefuse.frontend.fuse"),
        ("segments", "tracefuse"),
    ],
)
def test_a_lower_layer_never_imports_a_higher_one(lower: str, higher: str) -> None:
    for name in TREES:
        if name == lower or name.startswith(f"{lower}."):
            upward = [t for t, _ in imports(TREES[name]) if t == higher or t.startswith(f"{higher}.")]
            assert not upward, f"{name} imports {upward}"


def test_modules_of_this_repository_are_imported_at_module_level() -> None:
    for name, tree in TREES.items():
        inner = sorted({t for t, top in imports(tree) if not top and t.partition(".")[0] in ("tracefuse", "segments")})
        assert not inner, f"{name} imports {inner} inside a function"


def test_heavy_libraries_are_imported_where_they_are_used() -> None:
    for name, tree in TREES.items():
        for target, top in imports(tree):
            package = target.partition(".")[0]
            third_party = package not in sys.stdlib_module_names and package not in ("tracefuse", "segments")
            assert not (top and third_party) or package in LIGHT, f"{name} imports {target} at module level"
