"""Which functions random programs met with which class of types, and the templates of those that they met least."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.random_programs.program_placeholders import CLASSES, functions_of

LEAST_USES = 20
"""How often a long run should meet each function with each class of types that NumPy takes."""

ATTEMPTS_OF_A_USE = 8
"""So many attempts weigh as one use, so that functions that NumPy refuses for a class do not come first forever."""


class Coverage:
    """Counts of uses and of attempts, by function and class of types."""

    def __init__(self, templates: Sequence[str]) -> None:
        self.uses: Counter[tuple[str, str]] = Counter()
        self.attempts: Counter[tuple[str, str]] = Counter()
        self.templates_of: dict[str, list[str]] = defaultdict(list)
        for template in templates:
            for name in functions_of(template):
                self.templates_of[name].append(template)

    @classmethod
    def read(cls, path: str, templates: Sequence[str]) -> Coverage:
        """The counts of a file, none where there is no file."""
        coverage = cls(templates)
        if Path(path).exists():
            for name, kind, uses, attempts in json.loads(Path(path).read_text()):
                coverage.uses[name, kind], coverage.attempts[name, kind] = uses, attempts
        return coverage

    def write(self, path: str) -> None:
        pairs = sorted({*self.uses, *self.attempts})
        Path(path).write_text(json.dumps([[*pair, self.uses[pair], self.attempts[pair]] for pair in pairs]))

    def templates(self, kind: str) -> Iterator[str]:
        """Templates of the functions that met a class of types least, each in turn."""

        def weight(name: str) -> float:
            return max(self.uses[name, kind], self.attempts[name, kind] / ATTEMPTS_OF_A_USE)

        while True:
            for name in sorted(self.templates_of, key=weight)[:10]:
                pair = name, kind
                several = self.templates_of[name]
                self.attempts[pair] += 1
                yield several[self.attempts[pair] % len(several)]

    def __str__(self) -> str:
        pairs = [(name, kind) for name in self.templates_of for kind in CLASSES]
        often, some = sum(self.uses[p] >= LEAST_USES for p in pairs), sum(self.uses[p] > 0 for p in pairs)
        left = [p for p in pairs if 0 < self.uses[p] < LEAST_USES]
        return (
            f"{len(pairs)} pairs: {often} met {LEAST_USES} times or more, {some - often} fewer, "
            f"{len(pairs) - some} never"
            f" (in {sum(self.attempts[p] for p in pairs if not self.uses[p])} attempts); rarest: "
            + ", ".join(f"{name} of {kind}" for name, kind in sorted(left, key=lambda p: self.uses[p])[:8])
        )
