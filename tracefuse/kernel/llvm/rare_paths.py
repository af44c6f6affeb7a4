"""Rare paths of math functions: code for few arguments, which a vector loop enters by a branch instead of a mask.

LLVM vectorizes a loop by computing both sides of every condition. A function whose fast formula fails for few arguments
(large angles, subnormal numbers, special cases of powers) therefore computes the fast formula for all of them, and
calls a guard, which replaces the result where the condition holds. For each vector width the guard has a variant, which
LLVM calls in vector loops: one branch if no lane is rare, else the rare function for each such lane. The variants are
inlined after vectorization (`kernel/llvm/machine_code.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

KEPT = "tracefuse_kept"
"""The global that refers to all guards, so that LLVM neither removes nor changes them before it vectorizes loops."""


def guard_symbol(symbol: str) -> str:
    """Return the guard of the rare function `symbol`."""
    return f"{symbol}.guard"


def call_attributes(symbol: str, arguments: int, vector_bits: int) -> str:
    """Return the attributes of a guard's calls, which name its vector variants. arguments: of the rare function."""
    guard = guard_symbol(symbol)
    signature = "v" * (arguments + 2)
    listed = [f"_ZGV_LLVM_N{width}{signature}_{guard}({guard}.v{width})" for width in _widths(vector_bits)]
    return f'nounwind willreturn memory(none) "vector-function-abi-variant"="{",".join(listed)}"'


def _widths(vector_bits: int) -> Iterator[int]:
    """Yield the vector widths that have variants: up to the 16-bit elements of a register."""
    width = 2
    while width <= vector_bits // 16:
        yield width
        width *= 2


def guard_texts(symbol: str, result: str, arguments: Sequence[str], vector_bits: int) -> tuple[list[str], list[str]]:
    """Return the functions of a guard, and the symbols that `kept_text` takes.

    symbol, result, arguments: the rare function and its types. A guard takes the fast result, the condition and the
    arguments of the rare function.
    """
    guard = guard_symbol(symbol)
    texts = [_scalar_guard(symbol, result, arguments), _lanes(symbol, result, arguments)]
    widths = tuple(_widths(vector_bits))
    texts += [_vector_guard(symbol, result, arguments, width) for width in widths]
    return texts, [guard, *(f"{guard}.v{width}" for width in widths)]


def kept_text(symbols: Sequence[str]) -> str:
    """Return the global that keeps `symbols`."""
    return f"@{KEPT} = global [{len(symbols)} x ptr] [{', '.join(f'ptr @{symbol}' for symbol in symbols)}]"


def is_guarded(text: str) -> bool:
    """Return whether a module has guards."""
    return f"@{KEPT} = " in text


def _parameters(types: Sequence[str]) -> str:
    return ", ".join(f"{type_} %a{n}" for n, type_ in enumerate(types))


def _scalar_guard(symbol: str, result: str, arguments: Sequence[str]) -> str:
    listed = _parameters(arguments)
    head = f"define internal {result} @{guard_symbol(symbol)}({result} %fast, i1 %rare, {listed})"
    return f"""{head} noinline nounwind willreturn memory(none) {{
  br i1 %rare, label %slow, label %done
slow:
  %replaced = call {result} @{symbol}({listed})
  br label %done
done:
  %result = phi {result} [ %fast, %0 ], [ %replaced, %slow ]
  ret {result} %result
}}"""


def _vector_guard(symbol: str, result: str, arguments: Sequence[str], width: int) -> str:
    """A variant: one branch, and in the rare case a call of `_lanes` on copies in memory."""
    guard, wide = guard_symbol(symbol), f"<{width} x {result}>"
    vectors = [f"<{width} x {type_}>" for type_ in arguments]
    head = f"define internal {wide} @{guard}.v{width}({wide} %fast, <{width} x i1> %rare, {_parameters(vectors)})"
    places = [f"  %place{n} = alloca {vector}, align 64" for n, vector in enumerate(vectors)]
    copies = [f"  store {vector} %a{n}, ptr %place{n}, align 64" for n, vector in enumerate(vectors)]
    passed = "".join(f", ptr %place{n}" for n in range(len(vectors)))
    return "\n".join([
        f"{head} alwaysinline nounwind willreturn memory(none) {{",
        "start:",
        f"  %results = alloca {wide}, align 64",
        *places,
        f"  %lanes = bitcast <{width} x i1> %rare to i{width}",
        f"  %none = icmp eq i{width} %lanes, 0",
        "  br i1 %none, label %done, label %slow",
        "slow:",
        f"  store {wide} %fast, ptr %results, align 64",
        *copies,
        f"  %rest = zext i{width} %lanes to i64",
        f"  call void @{guard}.lanes(i64 %rest, ptr %results{passed})",
        f"  %replaced = load {wide}, ptr %results, align 64",
        "  br label %done",
        "done:",
        f"  %result = phi {wide} [ %fast, %start ], [ %replaced, %slow ]",
        f"  ret {wide} %result",
        "}",
    ])  # fmt: skip


def _lanes(symbol: str, result: str, arguments: Sequence[str]) -> str:
    """The function that replaces the results of the lanes whose bits are set; there is at least one."""
    places = "".join(f", ptr %place{n}" for n in range(len(arguments)))
    taken = []
    for n, type_ in enumerate(arguments):
        taken.append(f"  %at{n} = getelementptr {type_}, ptr %place{n}, i64 %lane")
        taken.append(f"  %a{n} = load {type_}, ptr %at{n}")
    head = f"define internal void @{guard_symbol(symbol)}.lanes(i64 %rare, ptr %results{places})"
    return "\n".join([
        f"{head} noinline cold nounwind {{",
        "start:",
        "  br label %loop",
        "loop:",
        "  %rest = phi i64 [ %rare, %start ], [ %next, %loop ]",
        "  %lane = call i64 @llvm.cttz.i64(i64 %rest, i1 true)",
        *taken,
        f"  %slow = call {result} @{symbol}({_parameters(arguments)})",
        f"  %at = getelementptr {result}, ptr %results, i64 %lane",
        f"  store {result} %slow, ptr %at",
        "  %below = sub i64 %rest, 1",
        "  %next = and i64 %rest, %below",
        "  %ends = icmp eq i64 %next, 0",
        "  br i1 %ends, label %done, label %loop",
        "done:",
        "  ret void",
        "}",
    ])  # fmt: skip
