"""LLVM's strength reduction of loops is left out of the code of kernels, and of no other code of the process."""

from __future__ import annotations

import contextlib
import threading

import pytest

from tracefuse.kernel.llvm import strength_reduction
from tracefuse.kernel.llvm.machine_code import get_machine
from tracefuse.kernel.llvm.strength_reduction import without_strength_reduction

binding = pytest.importorskip("llvmlite.binding")

TEXT = """
define void @sums(ptr noalias %to, ptr noalias %from, i64 %count, i64 %step) {
start:
  br label %loop
loop:
  %k = phi i64 [ 0, %start ], [ %next, %loop ]
  %offset = mul i64 %k, %step
  %address = getelementptr double, ptr %from, i64 %offset
  %value = load double, ptr %address
  %target = getelementptr double, ptr %to, i64 %k
  store double %value, ptr %target
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""


def generated() -> str:
    """The assembly that llvmlite generates of TEXT without tracefuse."""
    target = binding.Target.from_default_triple().create_target_machine(opt=3)
    with contextlib.closing(target), contextlib.closing(binding.parse_assembly(TEXT)) as module:
        return str(target.emit_assembly(module))


def test_code_that_is_not_a_kernels_is_generated_with_the_pass() -> None:
    get_machine()
    before = generated()
    with without_strength_reduction():
        inside = generated()
    assert inside != before, "the pass changes this loop"
    assert get_machine().compile(TEXT)
    assert generated() == before


def test_the_pass_comes_back_when_the_last_thread_has_generated_its_code() -> None:
    get_machine()
    before = generated()
    entered, leaves = threading.Event(), threading.Event()

    def other() -> None:
        with without_strength_reduction():
            entered.set()
            leaves.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(60)
    with without_strength_reduction():
        inside = generated()
    assert generated() == inside != before
    leaves.set()
    thread.join()
    assert generated() == before


def test_another_version_of_llvm_keeps_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    key = get_machine().key
    monkeypatch.setattr(strength_reduction, "VERSIONS", ())
    before = generated()
    with without_strength_reduction():
        assert generated() == before
    assert get_machine().key != key
