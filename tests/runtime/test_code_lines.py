"""Lines of generated functions: expressions that several lines need are assigned once, where every use can see them."""

from __future__ import annotations

from tracefuse.runtime.code_lines import share_expressions

A, B = "\0000\000", "\0001\000"


def shared(*lines: str) -> list[str]:
    return share_expressions(lines, {"a + 1": A, "b + 1": B})


def test_an_expression_with_one_use_stays_in_its_line_and_one_with_several_becomes_a_variable() -> None:
    assert shared(f"    f({A})", f"    g({B}, {B})", f"    h({B})") == [
        "    f(a + 1)", "    x1 = b + 1", "    g(x1, x1)", "    h(x1)",
    ]  # fmt: skip


def test_an_expression_of_one_block_is_assigned_in_it() -> None:
    lines = shared("    if p:", f"        f({A})", f"        g({A})", f"    h({B})", "    if q:", f"        h({B})")
    assert lines == [
        "    if p:", "        x0 = a + 1", "        f(x0)", "        g(x0)",
        "    x1 = b + 1", "    h(x1)", "    if q:", "        h(x1)",
    ]  # fmt: skip


def test_an_expression_of_two_blocks_is_assigned_before_the_first() -> None:
    lines = shared("    try:", "        if p:", f"            f({A})", "        if q:", f"            g({A})")
    assert lines == [
        "    try:", "        x0 = a + 1", "        if p:", "            f(x0)", "        if q:", "            g(x0)",
    ]  # fmt: skip
