"""Tests the lists of passes and their runner."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.repository.parsed_sources import ROOT, mentioning, statements, tree_of
from tracefuse import DataType, FusionDefinition, InternalError, OptionError, ShapeDtype, config, fuse
from tracefuse.compiler.executable import compile_fusion
from tracefuse.config import resolve
from tracefuse.dtypes import bool_, float32
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.collective_kinds import GROUP
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.shardings import DeviceMesh, MeshAxis
from tracefuse.logs import LOGGER
from tracefuse.ops import pointwise
from tracefuse.ops.collectives import all_reduce
from tracefuse.passes.pipeline import FUSION_PASSES, KERNEL_PASSES, SEGMENT_PASSES, Pass, passes_at, run_passes
from tracefuse.runtime.communicators.rank_groups import RankGroup

ALL: tuple[Pass[Any], ...] = (*FUSION_PASSES, *SEGMENT_PASSES, *KERNEL_PASSES)
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


@pytest.fixture(autouse=True)
def _logger_as_it_was() -> Iterator[None]:
    yield
    LOGGER.handlers.clear()
    LOGGER.setLevel(logging.NOTSET)


def definition(build: Callable[[FusionDefinition, Any], Any], dtype: DataType = DataType.Float) -> Fusion:
    with FusionDefinition() as fd:
        outputs = build(fd, fd.define_tensor([-1, -1], dtype=dtype))
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            fd.add_output(output)
    return fd.fusion


def scaled_by_constants(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.mul(x, fd.ops.mul(fd.define_scalar(2.0), fd.define_scalar(3.0)))


def computed_in_vain(fd: FusionDefinition, x: Any) -> Any:
    fd.ops.exp(x)
    return fd.ops.neg(x)


def resized_beside_what_is_computed_in_vain(fd: FusionDefinition, x: Any) -> Any:
    fd.ops.exp(x)
    return fd.ops.pad(x, [0, fd.ops.size(x, 0)], 0.0)


def returned_twice(fd: FusionDefinition, x: Any) -> Any:
    y = fd.ops.neg(x)
    return y, y


def updated_in_a_slice(fd: FusionDefinition, x: Any) -> Any:
    ones = fd.ops.full([2, 6], 1.0, DataType.Float)
    fd.add_output(fd.ops.slice_scatter(x, ones, [1, 0], [3, 6], [1, 1]), alias_input=x)
    return ()


def written_twice(fd: FusionDefinition, x: Any) -> Any:
    for value in (1.0, 2.0):
        row = fd.ops.full([2, 6], value, DataType.Float)
        x = fd.ops.slice_scatter(x, row, [1, 0], [3, 6], [1, 1])
    return x


def written_through_a_row(fd: FusionDefinition, x: Any) -> Any:
    row = fd.ops.squeeze(fd.ops.slice(x, [1, 0], [2, 6], [1, 1], manual_normalization=True), [0])
    row = fd.ops.slice_scatter(row, fd.ops.full([1], 2.0, DataType.Float), [3], [4], [1])
    return fd.ops.slice_scatter(x, fd.ops.broadcast(row, [True, False]), [1, 0], [2, 6], [1, 1])


def written_row_by_row(fd: FusionDefinition, x: Any) -> Any:
    rows = fd.ops.full([12, 6], 0.0, DataType.Float)
    for k in range(12):
        rows = fd.ops.slice_scatter(rows, fd.ops.full([1, 6], float(k), DataType.Float), [k, 0], [k + 1, 6], [1, 1])
    return rows, fd.ops.neg(x)


def softmax(fd: FusionDefinition, x: Any) -> Any:
    e = fd.ops.exp(x - fd.ops.max(x, [1], keepdim=True))
    return e / fd.ops.sum(e, [1], keepdim=True)


def sums_over_ranks() -> Fusion:
    """Two sums over the ranks of a mesh with one rank."""
    builder, group = FusionBuilder(), RankGroup(MeshAxis(DeviceMesh([0]), "x"))
    x = builder.tensor_input(float32, [-1, -1])
    (y,) = builder.node(pointwise.neg, (x,), {}, float32, (float32,))
    token: tuple[int, ...] = ()
    for value in (x, y):
        attributes = {GROUP: group, "combine": "sum"}
        result, last = builder.node(all_reduce, (value, *token), attributes, float32, (float32, bool_))
        builder.output(result)
        token = (last,)
    return builder.build()


def sum_read_before_other_work() -> Fusion:
    """A sum over the ranks of a mesh with one rank, a reader of it, and work that does not depend on it."""
    builder, group = FusionBuilder(), RankGroup(MeshAxis(DeviceMesh([0]), "x"))
    x = builder.tensor_input(float32, [-1, -1])
    total, _ = builder.node(all_reduce, (x,), {GROUP: group, "combine": "sum"}, float32, (float32, bool_))
    for operand in (total, x):
        (result,) = builder.node(pointwise.neg, (operand,), {}, float32, (float32,))
        builder.output(result)
    return builder.build()


Example = tuple[Fusion, Any, dict[str, Any]]
HALVES = X.astype(np.float16)
WIDE = ShapeDtype((64, 3000), np.float32)
LONG = ShapeDtype((64, 300_000), np.float32)

EXAMPLES: dict[str, Example] = {
    "round_scalars": (definition(lambda fd, x: fd.ops.mul(x, 0.1), DataType.Half), HALVES, {"exact_half": True}),
    "fold_constants": (definition(scaled_by_constants), X, {}),
    "merge_common": (definition(lambda fd, x: fd.ops.sin(x) + fd.ops.sin(x)), X, {}),
    "read_transposed": (definition(lambda fd, x: fd.ops.matmul(x, fd.ops.permute(x, [1, 0]))), X, {}),
    "skip_overwritten": (definition(written_twice), X.copy(), {}),
    "narrow_updates": (definition(written_through_a_row), X.copy(), {}),
    "join_slices": (definition(written_row_by_row), X, {}),
    "update_slices": (definition(updated_in_a_slice), X.copy(), {}),
    "drop_dead": (definition(computed_in_vain), X, {}),
    "coalesce_exchanges": (sums_over_ranks(), X, {}),
    "hide_exchanges": (sum_read_before_other_work(), X, {}),
    "join_in_runs": (definition(lambda fd, x: fd.ops.cat([x] * 40, 0)), X, {}),
    "separate_outputs": (definition(returned_twice), X, {}),
    "drop_dead_tensors": (definition(resized_beside_what_is_computed_in_vain), X, {"disable": "drop_dead"}),
    "decompose": (definition(lambda fd, x: fd.ops.var(x, [1])), X, {}),
    "round_halves": (definition(lambda fd, x: fd.ops.exp(x) * x, DataType.Half), HALVES, {"exact_half": True}),
    "reduce_in_one_pass": (definition(softmax), LONG, {"target": "cuda"}),
    "split_complex": (definition(lambda fd, x: x * x, DataType.ComplexFloat), X.astype(np.complex64), {}),
    "join_branches": (definition(lambda fd, x: fd.ops.cat([x, x], 0)), WIDE, {"target": "cuda"}),
    "tidy_kernel": (definition(lambda fd, x: x + 1.0), X, {}),
}  # fmt: skip
"""For each pass a fusion that it changes, its argument and the options that it needs."""


def compiled(name: str, **given: Any) -> Any:
    """The executable of the pass's example, compiled. given: further options; `disable` adds to the example's."""
    fusion, argument, own = EXAMPLES[name]
    words = ",".join(o["disable"] for o in (own, given) if "disable" in o)
    chosen = {**own, **given, "disable": words}
    target = chosen.pop("target", "cpu")
    executable = compile_fusion(fusion, target=target, options=resolve(chosen))
    executable.plan_for([argument])
    return executable


def changes_in(log: pytest.LogCaptureFixture) -> list[str]:
    """The passes that logged a change."""
    found = (re.match(r"pass (\w+) took [\d.]+ ms and gave\n", record.message) for record in log.records)
    return [match[1] for match in found if match]


def test_the_option_table_lists_every_pass_in_the_order_of_the_three_lists() -> None:
    assert tuple(one.name for one in ALL) == config.PASSES
    assert EXAMPLES.keys() == set(config.PASSES)


def test_a_pass_that_the_option_table_does_not_list_is_refused() -> None:
    with pytest.raises(InternalError, match=r"config\.PASSES does not list the pass unknown"):
        Pass[Fusion]("unknown", lambda fusion: fusion, "before partitioning")


def test_every_pass_says_in_one_line_what_it_does() -> None:
    assert [one.name for one in ALL if not one.doc.endswith(".") or len(one.doc) > 100] == []


def test_a_stage_without_passes_is_an_error() -> None:
    with pytest.raises(InternalError, match="no pass over a fusion or a segment runs 'never'"):
        passes_at("never")


def test_only_the_pipeline_imports_passes() -> None:
    """But for two that are composed: `decompose` merges what it writes, and one-pass reductions drop dead nodes."""
    functions = {one.function.__name__ for one in ALL}
    importers = {}
    for path in mentioning("tracefuse", r"tracefuse\.passes\."):
        for node in statements(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tracefuse.passes."):
                imported = functions & {alias.name for alias in node.names}
                if imported and path.name != "pipeline.py":
                    importers[path.name] = imported
    assert importers == {"decompose.py": {"merge_common"}, "single_pass_reductions.py": {"drop_dead_tensors"}}


@pytest.mark.parametrize("name", config.PASSES)
def test_debug_4_logs_each_pass_that_changed_something_and_dump_writes_it(
    name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    compiled(name, debug=4, dump="passes", dump_dir=str(tmp_path))
    changed = changes_in(caplog)
    assert name in changed
    (folder,) = tmp_path.iterdir()
    files = sorted(path.name for path in folder.glob("pass*"))
    assert files == [f"pass{position:02d}_{one}.txt" for position, one in enumerate(changed)]
    for file, one in zip(files, changed, strict=True):
        assert re.match(rf"# {one}: [\d.]+ ms\n(fusion|kernel|.*\n)", (folder / file).read_text())


@pytest.mark.parametrize("name", [one.name for one in ALL if not one.required])
def test_disable_switches_off_one_pass_and_leaves_the_result(name: str, caplog: pytest.LogCaptureFixture) -> None:
    executable = compiled(name, debug=4, disable=name)
    assert name not in changes_in(caplog)
    _, argument, _ = EXAMPLES[name]
    if isinstance(argument, np.ndarray):
        for result, expected in zip(executable([argument]), compiled(name)([argument]), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("name", [one.name for one in ALL if one.required])
def test_a_pass_that_the_result_depends_on_is_not_switched_off(name: str, caplog: pytest.LogCaptureFixture) -> None:
    (one,) = (one for one in ALL if one.name == name)
    with pytest.raises(OptionError) as error:
        compiled(name, disable=name)
    message = f"option disable names the pass {name}, but {one.required}\n  hint: take {name} out of disable"
    assert str(error.value) == message
    compiled(name, disable="passes", debug=4)
    assert name in changes_in(caplog)
    compiled("tidy_kernel", disable=name)  # a fusion that the pass would not change


def test_disable_passes_switches_off_all_that_only_optimize(caplog: pytest.LogCaptureFixture) -> None:
    for name in config.PASSES:
        compiled(name, disable="passes", debug=4)
    assert set(changes_in(caplog)) == {one.name for one in ALL if one.required}


def test_an_unknown_pass_is_an_error_with_close_matches() -> None:
    with pytest.raises(OptionError) as error:
        fuse(lambda x: x, disable="merge_comon")
    assert "cannot hold 'merge_comon'" in str(error.value)
    assert "did you mean 'merge_common'?" in str(error.value)


def test_a_pass_whose_option_is_off_does_not_run(caplog: pytest.LogCaptureFixture) -> None:
    compiled("round_halves", exact_half=False, debug=4)
    assert "round_halves" not in changes_in(caplog)


def without_an_input(fusion: Fusion) -> Fusion:
    return replace(fusion, inputs=(), nodes=(), outputs=(), values={})


def in_double(fusion: Fusion) -> Fusion:
    wide = definition(lambda fd, x: fd.ops.neg(x), DataType.Double)
    return replace(fusion, values=wide.values)


@pytest.mark.parametrize(
    ("broken", "message"),
    [(without_an_input, "the inputs were (0,), now they are ()"), (in_double, "the types of the outputs were f32[")],
)
def test_a_pass_that_breaks_a_fusion_is_named(broken: Callable[[Fusion], Fusion], message: str) -> None:
    fusion = definition(lambda fd, x: fd.ops.neg(x))
    with pytest.raises(InternalError) as error:
        run_passes([Pass("drop_dead", broken, "before partitioning")], fusion, resolve())
    assert str(error.value).startswith(f"pass drop_dead: {message}")


def test_a_pass_that_leaves_a_kernel_reading_a_name_without_definition_is_named() -> None:
    executable = compiled("tidy_kernel")
    (segment,) = executable.plan_for([X])[0].segments
    kernel = segment.lowered.launches[0].kernel
    broken: Pass[Any] = Pass("tidy_kernel", lambda k: replace(k, parameters=k.parameters[1:]), "after lowering")
    with pytest.raises(InternalError, match=r"pass tidy_kernel: kernel s0_pointwise reads T0, which nothing defines"):
        run_passes([broken], kernel, resolve())


def test_passes_are_dumped_where_lowering_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        raise InternalError("no")

    monkeypatch.setattr("tracefuse.runtime.targets.cpu.cpu_kernel_compiler.compile_cpu", refuse)
    with pytest.raises(InternalError):
        compiled("merge_common", dump="passes", dump_dir=str(tmp_path))
    names = sorted(path.name for path in tmp_path.glob("*/pass*"))
    assert names == ["pass00_merge_common.txt", "pass01_tidy_kernel.txt"]


def test_the_page_on_kernels_lists_every_pass() -> None:
    page = (ROOT / "docs" / "how_a_fusion_becomes_kernels.md").read_text()
    assert [one.name for one in ALL if f"{one.name}: {one.doc}" not in page] == []
