"""What the loops of a kernel contain."""

from __future__ import annotations

from tracefuse.kernel import kernel_ir as ir


def has_vector_loop(body: tuple[ir.Statement, ...]) -> bool:
    """Return whether `body` contains vector loops directly inside its loop.

    Such loops are short, and LLVM would spill one pointer for each row that they read and advance all of them in every
    iteration of the outer loop. The emitter passes the outer loop's variable through an empty asm statement to hide its
    induction.
    """
    return any(
        (isinstance(s, ir.For) and s.kind == "vector")
        or (isinstance(s, ir.If) and (has_vector_loop(s.body) or has_vector_loop(s.orelse)))
        for s in body
    )


def has_one_iteration(s: ir.For) -> bool:
    """Return whether a loop runs its body once, at zero."""
    return s.start == ir.Constant(0, s.variable.dtype) and s.stop == ir.Constant(1, s.variable.dtype)


def has_loop(body: tuple[ir.Statement, ...]) -> bool:
    """Return whether statements have a loop, or the call of a function that has one."""
    return any(isinstance(s, ir.For | ir.Transpose | ir.AddProducts) for s in ir.walk_statements(body))


def carries_states(s: ir.For) -> bool:
    """Return whether iterations choose between states of several variables, as a search does.

    LLVM does not vectorize such a loop, and its other passes make it no faster.
    """
    local = {declared.variable.name for declared in s.body if isinstance(declared, ir.Declare)}
    return sum(isinstance(one, ir.Assign) and one.variable.name not in local for one in s.body) > 1
