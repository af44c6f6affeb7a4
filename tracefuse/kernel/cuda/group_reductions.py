"""Lines and names of one CUDA function, and the group reductions in it.

A group reduction is a butterfly of shuffles, neighbours first, so that every lane has the result. For a block the warps
then leave their states in shared memory and each combines all of them by itself: one barrier, or two in a loop that has
no other. The order is that of kernel/interpreter/interpret.py, so the bits are the same wherever those of the
combiner are.

Knows: CUDA C++, combiners. Must not know: the other statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tracefuse.dtypes import DType
from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_expressions import RESERVED, Printer, identifiers
from tracefuse.kernel.infix import Text

WARP = 32
# Combining two equal states in either order gives the same bits.
_COMMUTATIVE = frozenset({"add", "mul", "minimum", "maximum", "and", "or", "xor"})


class Writer:
    """A function's source as it grows; `names` are its C++ identifiers by the names of the kernel IR."""

    def __init__(self, kernel: ir.Kernel, entry: str, names: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.entry = entry
        self.printer = Printer(names, fast_math=kernel.fast_math)
        self.taken = {*RESERVED, entry, *names.values()}
        self.loops: list[ir.For] = []
        self.lines: list[str] = []
        self.depth = 1

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(f"{head} {{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def fresh(self, name: str) -> str:
        """A name that nothing else in the function has."""
        text = identifiers([name], self.taken)[name]
        self.taken.add(text)
        return text

    def scoped(self, name: str) -> str:
        """A name for the innermost braces alone: it may be taken again outside of them."""
        return identifiers([name], self.taken)[name]

    def name(self, thing: ir.Variable | ir.Buffer) -> str:
        return self.printer.names[thing.name]

    def group_reduce(self, statement: ir.GroupReduce) -> None:
        group, threads = statement.group, self.kernel.threads
        power = group & (group - 1) == 0
        if not (group <= WARP and power and threads % group == 0) and not (group == threads and group % WARP == 0):
            raise InternalError(f"kernel {self.kernel.name}: a group of {group} threads in a block of {threads}")
        if threads > WARP and threads % WARP:
            raise InternalError(f"kernel {self.kernel.name}: a reduction needs whole warps, the block has {threads}")
        if group == 1:
            return
        whose = "the block" if group == threads else f"each group of {group} threads"
        self.line(f"// combined over {whose}")
        self.butterfly(statement, min(group, WARP))
        if group > WARP:
            self.across_warps(statement, group // WARP)

    def across_warps(self, statement: ir.GroupReduce, warps: int) -> None:
        """Each warp leaves its state in shared memory; then every warp combines all of them by itself."""
        if self.loops and not self.parted_in_loop(statement):
            self.line("__syncthreads();")
        exchange = {v.name: self.fresh(f"{self.name(v)}_of_warp") for v in statement.variables}
        for variable in statement.variables:
            self.line(f"__shared__ {self.printer.type(variable.dtype)} {exchange[variable.name]}[{warps}];")
        with self.block(f"if (threadIdx.x % {WARP} == 0)"):
            for variable in statement.variables:
                self.line(f"{exchange[variable.name]}[threadIdx.x / {WARP}] = {self.name(variable)};")
        self.line("__syncthreads();")
        halving = warps & (warps - 1) == 0
        for variable in statement.variables:
            place = f"threadIdx.x % {warps}" if halving else "0"
            self.line(f"{self.name(variable)} = {exchange[variable.name]}[{place}];")
        if halving:
            self.butterfly(statement, warps)
            return
        warp = self.scoped("warp")
        with self.block(f"for (int {warp} = 1; {warp} < {warps}; ++{warp})"):
            others = [f"{exchange[v.name]}[{warp}]" for v in statement.variables]
            self.combine(statement, others, None)

    def parted_in_loop(self, statement: ir.GroupReduce) -> bool:
        """Whether another barrier of the innermost loop keeps one round's writes after the last round's reads."""
        barriers = (
            s
            for s in self.loops[-1].body
            if isinstance(s, ir.Barrier) or (isinstance(s, ir.GroupReduce) and s.group > WARP)
        )
        return any(s is not statement for s in barriers)

    def butterfly(self, statement: ir.GroupReduce, size: int) -> None:
        if size == 1:
            return
        offset = self.scoped("offset")
        self.line("#pragma unroll")
        with self.block(f"for (int {offset} = 1; {offset} < {size}; {offset} *= 2)"):
            others = [self.shuffled(self.name(v), v.dtype, offset) for v in statement.variables]
            self.combine(statement, others, offset)

    def shuffled(self, name: str, dtype: DType, offset: str) -> str:
        mask = f"{(1 << min(self.kernel.threads, WARP)) - 1:#x}u"
        kind = self.printer.type(dtype)
        if dtype.is_half:
            return f"{kind}{{(unsigned short)__shfl_xor_sync({mask}, (int){name}.bits, {offset})}}"
        if dtype.itemsize < 4:
            return f"({kind})__shfl_xor_sync({mask}, (int){name}, {offset})"
        return f"__shfl_xor_sync({mask}, {name}, {offset})"

    def combine(self, statement: ir.GroupReduce, others: list[str], offset: str | None) -> None:
        """variables = combiner(variables, others); with `offset`, the upper lane of a pair takes the other as left."""
        combiner, names = statement.combiner, self.printer.names
        outer = dict(names)
        types = [self.printer.type(v.dtype) for v in statement.variables]
        own = [self.name(v) for v in statement.variables]
        plain = offset is None or _commutes(combiner)
        if plain:
            names.update({left.name: name for left, name in zip(combiner.left, own, strict=True)})
            for right, kind, other in zip(combiner.right, types, others, strict=True):
                self.line(f"const {kind} {names[right.name]} = {other};")
        else:
            upper = self.scoped("upper")
            self.line(f"const bool {upper} = threadIdx.x & {offset};")
            for k, (left, right) in enumerate(zip(combiner.left, combiner.right, strict=True)):
                other = self.scoped(f"{own[k]}_other")
                self.line(f"const {types[k]} {other} = {others[k]};")
                self.line(f"const {types[k]} {names[left.name]} = {upper} ? {other} : {own[k]};")
                self.line(f"const {types[k]} {names[right.name]} = {upper} ? {own[k]} : {other};")
        results = [self.printer.value(r) for r in combiner.results]
        if len(own) > 1 and plain:  # all results before the first assignment
            held = [self.scoped(f"{name}_next") for name in own]
            for kind, name, result in zip(types, held, results, strict=True):
                self.line(f"const {kind} {name} = {result};")
            results = [Text(name) for name in held]
        for name, result in zip(own, results, strict=True):
            self.line(f"{name} = {result};")
        self.printer.names = outer


def _commutes(combiner: ir.Combiner) -> bool:
    """Whether each result is one commutative primitive of its own left and right."""
    for left, right, result in zip(combiner.left, combiner.right, combiner.results, strict=True):
        if not (isinstance(result, ir.Call) and result.name in _COMMUTATIVE and set(result.arguments) == {left, right}):
            return False
    return True
