"""The template of attention on a GPU: its tiles decide between the kernels.

Must not know: kernel IR.
"""

from __future__ import annotations

from tracefuse.passes.attention_match import Attention
from tracefuse.schedule.attention_facts import AttentionFacts
from tracefuse.schedule.gpu.gpu_attention import AttentionForward
from tracefuse.schedule.gpu.gpu_attention_groups import GroupAttention
from tracefuse.schedule.gpu.gpu_attention_tiles import AttentionTiles, accepts
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.template import Template


def _lower(problem: GpuProblem, tiles: AttentionTiles) -> Lowered:
    assert isinstance(problem.facts, AttentionFacts)
    match = problem.facts.match
    assert isinstance(match, Attention)
    forward = GroupAttention if tiles.by_groups else AttentionForward
    return forward(problem, match, tiles.fixed, tiles).lower()


ATTENTION: Template[GpuProblem] = Template("attention", accepts, _lower, takes=AttentionFacts)
