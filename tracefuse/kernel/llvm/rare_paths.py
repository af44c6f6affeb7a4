"""Rare paths of math functions: code for few arguments, which a vector loop enters by a branch instead of a mask.

LLVM vectorizes a loop by computing both sides of every condition. A function whose fast formula fails for few arguments
(large angles, subnormal numbers, special cases of powers) therefore computes the fast formula for all of them, and
calls a guard, which replaces the result where the condition holds. For each vector width the guard has a variant, which
LLVM calls in vector loops: one branch if no lane is rare, else a vector loop over copies of all lanes in memory. The
variants are inlined after vectorization (`kernel/llvm/machine_code.py`); the loop is a function that all kernels are
linked with (`kernel/llvm/linked_functions.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

KEPT = "tracefuse_kept"
"""The global that refers to all guards, so that LLVM neither removes nor changes them before it vectorizes loops."""


def guard_symbol(symbol: str) -> str:
    """Return the guard of the rare function `symbol`."""
    return f"{symbol}.guard"


def lanes_symbol(symbol: str) -> str:
    """Return the function that runs the rare function `symbol` on the lanes that its guard found."""
    return f"{guard_symbol(symbol)}{_LANES}"


def function_of(lanes: str) -> str | None:
    """Return the rare function whose `lanes_symbol` is `lanes`; None if there is none."""
    end = guard_symbol("") + _LANES
    return lanes.removesuffix(end) if lanes.endswith(end) else None


_LANES = ".lanes"


def call_attributes(symbol: str, arguments: int, vector_bits: int) -> str:
    """Return the attributes of a guard's calls, which name its vector variants. arguments: of the rare function."""
    guard = guard_symbol(symbol)
    signature = "v" * (arguments + 2)
    listed = [f"_ZGV_LLVM_N{width}{signature}_{guard}({guard}.v{width})" for width in variant_widths(vector_bits)]
    return f'nounwind willreturn memory(none) "vector-function-abi-variant"="{",".join(listed)}"'


def variant_widths(vector_bits: int) -> Iterator[int]:
    """Yield the vector widths that have variants: up to the 16-bit elements of a register."""
    width = 2
    while width <= vector_bits // 16:
        yield width
        width *= 2


def guard_texts(symbol: str, result: str, arguments: Sequence[str], vector_bits: int) -> tuple[list[str], list[str]]:
    """Return the functions of a guard, which call `lanes_symbol`, and the symbols that `kept_text` takes.

    symbol, result, arguments: the rare function and its types. A guard takes the fast result, the condition and the
    arguments of the rare function.
    """
    guard = guard_symbol(symbol)
    texts = [_scalar_guard(symbol, result, arguments)]
    widths = tuple(variant_widths(vector_bits))
    texts += [vector_guard(symbol, result, arguments, width) for width in widths]
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
    guard = guard_symbol(symbol)
    head = f"define internal {result} @{guard}({result} %fast, i1 %rare, {_parameters(arguments)})"
    return _guard(f"{head} noinline", guard, result, arguments, ["  %none = xor i1 %rare, true"], 1)


def vector_guard(symbol: str, result: str, arguments: Sequence[str], width: int) -> str:
    """Return the variant of a guard for vectors of `width` elements, which kernels in vectors call themselves."""
    guard, wide = guard_symbol(symbol), f"<{width} x {result}>"
    vectors = [f"<{width} x {type_}>" for type_ in arguments]
    head = f"define internal {wide} @{guard}.v{width}({wide} %fast, <{width} x i1> %rare, {_parameters(vectors)})"
    test = [f"  %lanes = bitcast <{width} x i1> %rare to i{width}", f"  %none = icmp eq i{width} %lanes, 0"]
    return _guard(f"{head} alwaysinline", guard, wide, vectors, test, width)


def _guard(head: str, guard: str, result: str, arguments: Sequence[str], test: Sequence[str], width: int) -> str:
    """One branch by %none, which `test` computes, and in the rare case a call of `lanes_symbol` on copies in memory."""
    places = [f"  %place{n} = alloca {type_}, align 64" for n, type_ in enumerate(arguments)]
    copies = [f"  store {type_} %a{n}, ptr %place{n}, align 64" for n, type_ in enumerate(arguments)]
    passed = "".join(f", ptr %place{n}" for n in range(len(arguments)))
    lanes = "%rare" if width == 1 else "%lanes"
    return "\n".join([
        f"{head} nounwind willreturn memory(none) {{",
        "start:",
        f"  %results = alloca {result}, align 64",
        *places,
        *test,
        "  br i1 %none, label %done, label %slow",
        "slow:",
        f"  store {result} %fast, ptr %results, align 64",
        *copies,
        f"  %mask = zext i{width} {lanes} to i128",
        "  %bits = trunc i128 %mask to i64",
        f"  call void @{guard}{_LANES}(i64 {width}, i64 %bits, ptr %results{passed}) cold",
        f"  %replaced = load {result}, ptr %results, align 64",
        "  br label %done",
        "done:",
        f"  %result = phi {result} [ %fast, %start ], [ %replaced, %slow ]",
        f"  ret {result} %result",
        "}",
    ])  # fmt: skip


def lanes_declaration(symbol: str, arguments: Sequence[str]) -> str:
    """Return the declaration of `lanes_symbol` in a kernel. arguments: the types of the rare function."""
    return f"declare void @{lanes_symbol(symbol)}(i64, i64, ptr noalias{', ptr noalias readonly' * len(arguments)})"


def lanes_text(symbol: str, result: str, arguments: Sequence[str]) -> str:
    """Return `lanes_symbol`: it replaces the results of the lanes whose bits are set, in a vector loop over all."""
    places = "".join(f", ptr noalias readonly %place{n}" for n in range(len(arguments)))
    taken = []
    for n, type_ in enumerate(arguments):
        taken.append(f"  %at{n} = getelementptr {type_}, ptr %place{n}, i64 %lane")
        taken.append(f"  %a{n} = load {type_}, ptr %at{n}")
    head = f"define void @{lanes_symbol(symbol)}(i64 %width, i64 %rare, ptr noalias %results{places})"
    return "\n".join([
        f"{head} noinline nounwind {{",
        "start:",
        "  br label %loop",
        "loop:",
        "  %lane = phi i64 [ 0, %start ], [ %next, %loop ]",
        *taken,
        f"  %slow = call {result} @{symbol}({_parameters(arguments)})",
        f"  %at = getelementptr {result}, ptr %results, i64 %lane",
        f"  %fast = load {result}, ptr %at",
        "  %bits = lshr i64 %rare, %lane",
        "  %bit = trunc i64 %bits to i1",
        f"  %chosen = select i1 %bit, {result} %slow, {result} %fast",
        f"  store {result} %chosen, ptr %at",
        "  %next = add nuw nsw i64 %lane, 1",
        "  %ends = icmp eq i64 %next, %width",
        "  br i1 %ends, label %done, label %loop",
        "done:",
        "  ret void",
        "}",
    ])  # fmt: skip
