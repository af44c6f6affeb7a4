"""The facts of an attention as a segment.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from segments.lazy_dataclasses import dataclass
from tracefuse.passes.attention_match import Attention
from tracefuse.passes.gradient_match import AttentionGradient


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """The facts of an attention or of its gradients. match: its values by number."""

    match: Attention | AttentionGradient
