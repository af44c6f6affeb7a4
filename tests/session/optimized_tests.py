"""Which tests compile CPU kernels with LLVM's optimizations, which are most of the time of a first call.

Kernels of the other tests are compiled without. Those prove traces, schedules and values, which LLVM does not change
beyond rounding. Tests of machine code are optimized, and so are a sample of all others and every test of a soak.

`python -m tests.session.optimized_tests SCRIPT ARGUMENTS` runs a script as a test of its name and its arguments.
"""

from __future__ import annotations

import runpy
import sys
import zlib
from pathlib import Path

from tests.session.samples import TIMES
from tracefuse.kernel.llvm.machine_code import OPTIMIZED, UNOPTIMIZED, get_machine

OF_MACHINE_CODE = (
    *("tests/kernel/", "tests/schedule/test_cpu_", "tests/compiler/test_interrupts.py"),
    "tests/ops/test_op_results.py::test_pointwise_ops_are_numpys_in_every_layout[cpu",  # vectors of special values
    # A sum in the lanes of vectors errs less than one after another.
    "tests/frontend/arrays/test_scalars_and_lists.py::test_a_sum_of_equal_numbers",
)
"""How the names of tests of the code that LLVM makes begin."""

ONE_OF = 20
"""Of the other tests one in so many is optimized."""


def is_optimized(name: str) -> bool:
    """Whether the test of this pytest name is: the same at every run, also where tests beside it come or go."""
    return TIMES > 1 or name.startswith(OF_MACHINE_CODE) or zlib.crc32(name.encode()) % ONE_OF == 0


def prepare(name: str) -> str:
    """Sets the optimization of this process for a test; returns it in words."""
    machine = get_machine()
    machine.optimization = OPTIMIZED if is_optimized(name) else UNOPTIMIZED
    return "with LLVM's optimizations" if is_optimized(name) else "without LLVM's optimizations"


def run_script(arguments: list[str]) -> None:
    """Runs a script with arguments in this process."""
    prepare(" ".join(Path(argument).name for argument in arguments))
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).parent)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    run_script(sys.argv[1:])
