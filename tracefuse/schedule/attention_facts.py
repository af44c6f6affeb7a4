"""The facts of an attention as a segment.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracefuse.passes.attention_match import Attention


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """The facts of an attention. match: its values by number."""

    match: Attention
