"""The numbered metadata of an LLVM module: what its loops tell LLVM's passes, and marks of memory accesses.

Must not know: kernel IR.
"""

from __future__ import annotations

from tracefuse.kernel.llvm import streaming_stores

IN_VECTORS = "tracefuse.vectors"
"""The name of the metadata list of a module whose innermost loops are written in vectors."""


def is_in_vectors(text: str) -> bool:
    """Return whether a module has no loops for LLVM's passes."""
    return f"!{IN_VECTORS} = " in text


class Metadata:
    """The metadata of a module, in lines. Loops are marked by the name of a node; so are accesses."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.mark: str | None = None
        self._count = 0
        self._non_temporal: str | None = None
        # Whether LLVM's passes over loops have something to do.
        self.has_loops_for_passes = False
        self._shared: dict[str, str] = {}

    def add(self, text: str) -> str:
        """Add a node and return its name, which replaces {self} in `text`."""
        name = f"!{self._count}"
        self._count += 1
        self.lines.append(f"{name} = {text.format(self=name)}")
        return name

    def rare_branch(self) -> str:
        """Return the mark of a branch that is rarely taken, which LLVM keeps where it would choose between values."""
        weights = self.add('!{{!"branch_weights", i32 1, i32 1000}}')
        return f", !prof {weights}"

    def access_group(self) -> str:
        """Return a group for the accesses of one loop."""
        return self.add("distinct !{{}}")

    def unrolled_loop(self) -> str:
        """Return the mark of a loop that is unrolled as a whole."""
        self.has_loops_for_passes = True
        return self._loop(self._property("unroll.full"))

    def serial_loop(self, *, for_passes: bool) -> str:
        """Return the mark of a loop that LLVM does not vectorize. for_passes: its other passes make it faster.

        It would vectorize some on its own, such as the few iterations that a vector loop leaves: that makes the code of
        a kernel up to a third longer, and no faster.
        """
        self.has_loops_for_passes |= for_passes
        return self._loop(self._property("vectorize.width", 1), self._property("interleave.count", 1))

    def vector_loop(self, group: str, interleaved: int, *, masked: bool = False) -> str:
        """Return the mark of a loop of independent iterations with accesses in `group`.

        masked: whether the last vector is masked, in place of scalar iterations after it.
        """
        self.has_loops_for_passes = True
        # Not `vectorize.enable`: it lets LLVM reorder unmarked sums, and warns on stderr if vectorization fails.
        return self._loop(
            self._property("interleave.count", interleaved),
            self._property("unroll.disable"),
            *((self._property("vectorize.predicate.enable", 1),) if masked else ()),
            self.add(f'!{{{{!"llvm.loop.parallel_accesses", {group}}}}}'),
        )

    def mark_streaming(self, group: str) -> str:
        """Return an access group that marks a non-temporal store in a loop with access group `group`."""
        if self.mark is None:
            self.mark = self.add("distinct !{{}}")
            self.lines.append(f"!{streaming_stores.MARK} = !{{{self.mark}}}")
        return self.add(f"!{{{{{group}, {self.mark}}}}}")

    def non_temporal(self) -> str:
        """Return the mark of a non-temporal store, to append to it."""
        if self._non_temporal is None:
            self._non_temporal = self.add("!{{i32 1}}")
        return f", !nontemporal {self._non_temporal}"

    def _loop(self, *properties: str) -> str:
        return self.add(f"distinct !{{{{{', '.join(('{self}', *properties))}}}}}")

    def _property(self, name: str, value: int | None = None) -> str:
        """Return the one node of a property of loops."""
        text = f'!{{{{!"llvm.loop.{name}"' + ("" if value is None else f", i32 {value}") + "}}"
        if text not in self._shared:
            self._shared[text] = self.add(text)
        return self._shared[text]
