"""Tests template selection: the first template in the tuple that accepts is selected, and each refusal has a code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from segments import Verdict, no, yes
from tests.schedule.cuda_lowering import numbers, softmax
from tests.ways import backend_of
from tracefuse import ShapeDtype, fuse, options
from tracefuse.compiler.executable import Executable
from tracefuse.errors import InternalError
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime.targets.cpu.cpu_target import cpu_target
from tracefuse.runtime.targets.cuda.cuda_target import cuda_text_target
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.cpu.cpu_frame import CpuProblem
from tracefuse.schedule.cpu.cpu_pointwise import POINTWISE
from tracefuse.schedule.refusal_codes import ScheduleRefusal
from tracefuse.schedule.template import Template


def gradients(dy: Any, x: Any) -> Any:
    normal = x - x.mean(-1, keepdims=True)
    return dy - normal * (dy * normal).sum(-1, keepdims=True), (dy * normal).sum(0)


# The template, and how the first refusal of each template before it begins.
CPU: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str, dict[str, str]]] = {
    "pointwise": (
        lambda x: x * 2,
        (numbers(8, 8),),
        "pointwise",
        {"transpose": "every input lies in memory in the order"},
    ),
    "too small for tiles": (
        lambda x, y: x.T + y,
        (numbers(8, 8), numbers(8, 8)),
        "pointwise",
        {"transpose": "a loop is too short for tiles"},
    ),
    "a column": (
        lambda x: x.sum(0),
        (numbers(64, 32),),
        "column",
        {
            "transpose": "the segment reduces",
            "pointwise": "the segment reduces",
            "few_columns": "the innermost loop fills vectors, or there is little work",
        },
    ),
    "rows and columns": (
        gradients,
        (numbers(20, 30), numbers(20, 30, seed=1)),
        "row_column of row and column",
        dict.fromkeys(("transpose", "row", "column"), "the segment reduces over its rows and over its columns"),
    ),
}
GPU: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str, dict[str, str]]] = {
    "pointwise": (
        lambda x: x * 2,
        (numbers(8, 8),),
        "pointwise",
        {"transpose": "every input lies in memory in the order"},
    ),
    "a row": (softmax(1), (numbers(64, 64),), "row", {"column": "the innermost loop is reduced"}),
    "a long row": (
        softmax(1),
        (np.empty((4096, 32768), np.float32),),
        "long row",
        {
            "row": "a row does not fit in the registers of a block",
            "cluster": "the L2 cache holds a row beside others",
            "split": "there are rows enough to fill the GPU",
        },
    ),
    "a long row that is read once": (
        lambda x: x.sum(1),
        (np.empty((4096, 65536), np.float32),),
        "long row",
        {"cluster": "a row is read once"},
    ),
    "row_column": (
        gradients,
        (numbers(20, 32), numbers(20, 32, seed=1)),
        "row_column",
        {"row": "the segment reduces over its rows and over its columns"},
    ),
    "row_column of long rows": (
        gradients,
        (np.empty((3, 40_000), np.float32), np.empty((3, 40_000), np.float32)),
        "row_column of split and column",
        {"row_column": "a row and the states of its columns do not fit in the registers"},
    ),
}


def check_refusals(
    function: Callable[..., Any], arguments: tuple[Any, ...], template: str, reasons: dict[str, str], target: str
) -> None:
    with options(target=target):
        explanation = fuse(function).explain(*arguments)
    (refused,) = explanation.refused
    assert explanation.templates == (template,)
    assert template not in refused
    assert all(not verdict and isinstance(verdict.code, ScheduleRefusal) for verdict in refused.values())
    for name, reason in reasons.items():
        assert str(refused[name]).startswith(reason), (name, refused[name])


@pytest.mark.parametrize("name", CPU)
def test_each_template_that_the_cpu_asks_first_says_why_not(name: str) -> None:
    check_refusals(*CPU[name], "cpu")


@pytest.mark.parametrize("name", GPU)
def test_each_template_that_a_gpu_asks_first_says_why_not(name: str) -> None:
    check_refusals(*GPU[name], "cuda")


def test_refusals_are_of_the_templates_before_in_their_order() -> None:
    with options(target="cuda"):
        (refused,) = fuse(softmax(1)).explain(numbers(64, 64)).refused
    names = [str(template) for template in cuda_text_target().templates.templates]
    assert list(refused) == names[: names.index("row")]


@pytest.mark.parametrize("target", [cpu_target(), cuda_text_target()], ids=["cpu", "cuda"])
def test_templates_of_a_target_have_names_of_their_own(target: Target) -> None:
    names = [template.name for template in target.templates.templates]
    assert len(names) == len(set(names))
    in_place = [t.name for t in target.templates.templates if t.writes_in_place]
    assert in_place == (
        ["short_loops", "joined_rows", "pointwise", "row_update"] if target.name == "cpu" else ["pointwise"]
    )


def with_templates(*templates: Template[Any]) -> Target:
    target = backend_of("interpreter")
    return replace(target, name="third", templates=replace(target.templates, templates=templates))


def test_a_template_in_front_of_the_tuple_takes_what_it_accepts_and_nothing_else_changes() -> None:
    asked: list[str] = []

    def accepts(problem: CpuProblem) -> Verdict:
        asked.append(problem.name)
        return yes("all of it") if len(problem.region.nest.loops) == 1 else no("more than one loop")

    def lower(problem: CpuProblem, decision: str) -> Any:
        assert decision == "all of it"
        return POINTWISE.lower(problem, POINTWISE.decide(problem, None)[0])

    first = Template("first", accepts, lower)
    target = with_templates(first, *cpu_target().templates.templates)
    for function, x, template in ((np.exp, numbers(6), "first"), (softmax(0), numbers(6, 5), "column")):
        executable = Executable(segment_fusion(fuse(function).definition(x).fusion), target)
        np.testing.assert_allclose(executable([x])[0], function(x), rtol=1e-6)
        plan, _ = executable.plan_for([x])
        assert [segment.template for segment in plan.segments] == [template]
    assert asked == ["s0", "s0"]


def test_a_template_that_does_not_write_in_place_gets_no_memory_that_it_reads() -> None:
    def lower(problem: CpuProblem, decision: None) -> Any:
        assert not problem.memory.shared
        return POINTWISE.lower(problem, POINTWISE.decide(problem, None)[0])

    careful = Template("careful", lambda problem: yes(), lower)
    x = numbers(40)
    fusion = fuse(lambda x: x * 2 + 1).definition(x).fusion
    executable = Executable(segment_fusion(fusion), with_templates(careful))
    out = x.copy()
    executable([out], outputs=[out])
    np.testing.assert_array_equal(out, x * 2 + 1)


def test_a_target_without_a_template_for_a_segment_says_what_each_answered() -> None:
    x = numbers(4, 4)
    executable = Executable(segment_fusion(fuse(lambda x: x.sum(0)).definition(x).fusion), with_templates(POINTWISE))
    with pytest.raises(InternalError, match=r"no template takes s0: pointwise \(the segment reduces\)"):
        executable([x])


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_no_kernel_stores_a_result_across_the_order_of_its_loops(target: str) -> None:
    """A transposed result beside one in order, or of a row reduction, is a segment that reads through tiles."""

    def normalized(x: Any) -> Any:
        return ((x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)).T

    def both_orders(x: Any) -> Any:
        y = x * 2
        return y.T, y + 1

    def columns(x: Any) -> Any:
        return (x.T - x.T.mean(0)).T  # all in the order of the input

    shape = ShapeDtype((512, 2048), np.float32)
    found = {f.__name__: fuse(f, target=target).explain(shape).templates for f in (normalized, both_orders, columns)}
    assert found["normalized"] == ("row", "transpose")
    assert sorted(found["both_orders"]) == ["pointwise", "transpose"]
    assert found["columns"] == ("row",)
