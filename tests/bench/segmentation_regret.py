"""What the chosen segmentation costs: random programs against other segmentations of the same ops.

    python -m tests.bench.segmentation_regret [--seed 0] [--n 20] [--ops 8] [--megabytes 2,8]

Draws programs of pointwise ops, reductions, transposes, shifts and broadcasts over large matrices. Times the chosen
segmentation in turns with the one of every op by itself and with others that end segments at reductions or movements.
The regret is the chosen one's time over that of the best. Prints the programs whose regret exceeds 1.5 in full.
"""

from __future__ import annotations

import argparse
import linecache
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from segments import Verdict, no, yes
from tracefuse import config, fuse, wait_for_compilation
from tracefuse.compiler.executable import Executable
from tracefuse.ir.fusion import Fusion
from tracefuse.partition.predicates import one_op_a_segment
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes

UNARY = ("{} * 2", "np.exp(-abs({}))", "np.sqrt(abs({}) + 1)", "np.tanh({})")
BINARY = ("{} + {}", "{} * {}", "np.maximum({}, {})", "{} / (abs({}) + 1)")


def program(random: np.random.Generator, count: int) -> str:
    """Draws the text of a function of two matrices of shapes (n, m) and (m, n), and a row of m."""
    lines, kinds = ["def f(x, y, row):"], {"x": "nm", "y": "mn", "row": "m"}

    def of(kind: str) -> str:
        return str(random.choice([v for v, k in kinds.items() if k == kind]))

    for k in range(count):
        full = str(random.choice([v for v, kind in kinds.items() if kind in ("nm", "mn")]))
        kind = kinds[full]
        draw = int(random.integers(9))
        if draw < 2:
            text, result = str(random.choice(UNARY)).format(full), kind
        elif draw < 4:
            text, result = str(random.choice(BINARY)).format(full, of(kind)), kind
        elif draw == 4:
            text, result = f"{full}.T", kind[::-1]
        elif draw == 5:
            axis = int(random.integers(2))
            name = str(random.choice(["sum", "max", "mean"]))
            text, result = f"{full} - {full}.{name}({axis}, keepdims=True)", kind
        elif draw == 6:
            text, result = f"{full} + np.roll({full}, {int(random.integers(1, 4))}, {int(random.integers(2))})", kind
        elif draw == 7 and kind == "nm":
            text, result = f"{full} * {of('m')}", kind
        else:
            axis = kind.index("n")
            text, result = f"{full}.sum({axis})", "m"
        lines.append(f"    v{k} = {text}")
        kinds[f"v{k}"] = result
    used = "\n".join(lines)
    results = [f"v{k}" for k in range(count) if f"v{k}" not in used.replace(f"v{k} =", "")]
    return "\n".join([*lines, f"    return {', '.join(results or [f'v{count - 1}'])},"])


def ends_at(*kinds: str) -> Callable[[Any, Any], Verdict]:
    """Returns a predicate that ends segments at ops of some kinds."""

    def merge(first: Any, second: Any) -> Verdict:
        return yes() if set(kinds).isdisjoint(first.kinds) else no("an op of this kind ends its segment")

    return merge


PREDICATES: dict[str, Callable[[Any, Any], Verdict] | None] = {
    "chosen": None, "separate": one_op_a_segment, "reductions": ends_at("reduction"), "movements": ends_at("movement"),
    "both": ends_at("reduction", "movement"),
}  # fmt: skip


def compiled(text: str, name: str) -> Callable[..., Any]:
    """Returns the function of a text, whose lines tracebacks show."""
    scope: dict[str, Any] = {"np": np}
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), scope)
    function: Callable[..., Any] = scope["f"]
    return function


def times_of(fusion: Fusion, arguments: Sequence[Any]) -> dict[str, tuple[float, int]]:
    """Returns the fastest call and the number of segments under each predicate; results go into output buffers."""
    calls = {label: Executable(segment_fusion(fusion, merge=predicate)) for label, predicate in PREDICATES.items()}
    buffers: list[Any] = []
    for call in calls.values():
        results = call(arguments)
        buffers = buffers or [np.zeros_like(result) for result in results]
        call(arguments, buffers)
    wait_for_compilation()
    best = dict.fromkeys(calls, float("inf"))
    started, rounds = time.perf_counter(), 0
    while rounds < 5 or (time.perf_counter() - started < 0.5 and rounds < 50):
        for label, call in calls.items():
            start = time.perf_counter()
            call(arguments, buffers)
            best[label] = min(best[label], time.perf_counter() - start)
        rounds += 1
    return {label: (best[label], len(call.plan_for(arguments)[0].segments)) for label, call in calls.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--megabytes", default="2,8")
    parser.add_argument("--ops", type=int, default=8)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    sizes = [float(text) for text in options.megabytes.split(",")]
    regrets = []
    for draw in range(options.n):
        text = program(random, int(random.integers(2, options.ops + 1)))
        elements = sizes[draw % len(sizes)] * 1e6 / 4
        rows = int(np.exp(random.uniform(np.log(64), np.log(elements / 64))))
        columns = int(elements / rows)
        shapes = ((rows, columns), (columns, rows), (columns,))
        arguments = [random.standard_normal(shape, dtype=np.float32) for shape in shapes]
        recorded = fuse(compiled(text, f"<program {options.seed} {draw}>")).definition(*arguments).fusion
        fusion = run_passes(FUSION_PASSES, recorded, config.resolve())
        times = times_of(fusion, arguments)
        regret = times["chosen"][0] / min(seconds for seconds, _ in times.values())
        regrets.append(regret)
        line = ", ".join(f"{label} {1e6 * seconds:.0f} us ({count})" for label, (seconds, count) in times.items())
        print(f"{regret:.2f}  {rows}x{columns}: {line}", flush=True)
        if regret > 1.5:
            print(text)
    ordered = sorted(regrets)
    high = ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)]
    print(f"{len(ordered)} programs, median {statistics.median(ordered):.2f}, 95th {high:.2f}, worst {ordered[-1]:.2f}")


if __name__ == "__main__":
    main()
