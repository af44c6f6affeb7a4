"""Trains the language model for 50 steps of AdamW, fused and under jax.jit, and draws both losses.

Run it by hand: python -m tests.models.draw_training. It writes docs/training_loss.svg.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

import tracefuse as tf
from tests.models.model_cases import CASES, OPTIMIZER, training_step

STEPS = 50
WIDTH, HEIGHT, MARGIN = 560, 300, 44
PATH = Path(__file__).parents[2] / "docs" / "training_loss.svg"


def losses(step: Callable[..., Any]) -> list[float]:
    case = CASES["language model"]()
    parameters, state = case.parameters, OPTIMIZER.init(case.parameters)
    values = []
    for _ in range(STEPS):
        parameters, state, loss = step(parameters, state, *case.inputs)
        values.append(float(loss))
    return values


def picture(fused: Sequence[float], jitted: Sequence[float]) -> str:
    top = max(*fused, *jitted)

    def point(step: int, loss: float) -> str:
        x = MARGIN + step * (WIDTH - 2 * MARGIN) / (STEPS - 1)
        return f"{x:.1f},{HEIGHT - MARGIN - loss * (HEIGHT - 2 * MARGIN) / top:.1f}"

    line = " ".join(point(k, loss) for k, loss in enumerate(jitted))
    dots = "".join(
        f'<circle cx="{point(k, loss).split(",")[0]}" cy="{point(k, loss).split(",")[1]}" r="2.4" fill="#d1495b"/>'
        for k, loss in enumerate(fused)
    )
    axis = f'<path d="M{MARGIN},{MARGIN} V{HEIGHT - MARGIN} H{WIDTH - MARGIN}" fill="none" stroke="#888"/>'
    texts = [
        (MARGIN, HEIGHT - 20, "step 0", "start"), (WIDTH - MARGIN, HEIGHT - 20, f"step {STEPS - 1}", "end"),
        (MARGIN - 6, MARGIN + 4, f"{top:.1f}", "end"), (MARGIN - 6, HEIGHT - MARGIN + 4, "0", "end"),
        (WIDTH - MARGIN, MARGIN, "loss under jax.jit (line) and tracefuse (dots)", "end"),
    ]  # fmt: skip
    labels = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, text, anchor in texts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="#444"><rect width="100%" height="100%" fill="#fff"/>{axis}'
        f'<polyline points="{line}" fill="none" stroke="#30638e" stroke-width="2"/>{dots}{labels}</svg>\n'
    )


def main() -> None:
    step = training_step(CASES["language model"]())
    fused, jitted = losses(tf.fuse(step)), losses(jax.jit(step))
    PATH.write_text(picture(fused, jitted))
    worst = max(abs(one - two) / two for one, two in zip(fused, jitted, strict=True))
    print(f"loss {fused[0]:.4f} to {fused[-1]:.4f}; under jax.jit {jitted[0]:.4f} to {jitted[-1]:.4f}")
    print(f"largest relative difference of a loss: {worst:.1e}")


if __name__ == "__main__":
    main()
