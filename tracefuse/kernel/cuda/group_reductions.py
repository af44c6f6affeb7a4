"""The writer of one CUDA function, with its group reductions.

A group reduction is a butterfly of warp shuffles, nearest lanes first, which leaves the result in every lane. One that
also needs the combination of the earlier threads combines with the lanes 1, 2, 4, ... before instead. For a whole
block, each warp then writes its state to shared memory and every warp combines all of them. That takes one barrier, or
two in a loop without another barrier. The order is that of kernel/interpreter/group_order.py, so results are
bit-identical wherever the combiner's are.
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
# Primitives that give the same bits for either order of their arguments.
_COMMUTATIVE = frozenset({"add", "mul", "minimum", "maximum", "and", "or", "xor"})


class Writer:
    """Collects the source of one function; `names` maps kernel IR names to C++ identifiers."""

    def __init__(self, kernel: ir.Kernel, entry: str, names: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.entry = entry
        self.printer = Printer(names, fast_math=kernel.fast_math)
        self.used = {*RESERVED, entry, *names.values()}
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
        """Return a name that is unique in the function."""
        text = identifiers([name], self.used)[name]
        self.used.add(text)
        return text

    def scoped(self, name: str) -> str:
        """Return a name for the innermost scope only; other scopes may reuse it."""
        return identifiers([name], self.used)[name]

    def name(self, named: ir.Variable | ir.Buffer) -> str:
        return self.printer.names[named.name]

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
        if statement.before:
            self.scan_warp(statement, min(group, WARP))
        else:
            self.butterfly(statement, min(group, WARP))
        if group > WARP:
            exchange = self.exchange_warps(statement, group // WARP)
            if statement.before:
                self.scan_warps(statement, group // WARP, exchange)
            else:
                self.combine_warps(statement, group // WARP, exchange)

    def exchange_warps(self, statement: ir.GroupReduce, warps: int) -> dict[str, str]:
        """Write each warp's state to shared memory; return the array of each variable."""
        if self.loops and not self.has_other_barrier(statement):
            self.line("__syncthreads();")
        exchange = {v.name: self.fresh(f"{self.name(v)}_of_warp") for v in statement.variables}
        for variable in statement.variables:
            self.line(f"__shared__ {self.printer.type(variable.dtype)} {exchange[variable.name]}[{warps}];")
        with self.block(f"if (threadIdx.x % {WARP} == 0)"):
            for variable in statement.variables:
                self.line(f"{exchange[variable.name]}[threadIdx.x / {WARP}] = {self.name(variable)};")
        self.line("__syncthreads();")
        return exchange

    def combine_warps(self, statement: ir.GroupReduce, warps: int, exchange: Mapping[str, str]) -> None:
        """Combine the states of all warps in every warp."""
        halving = warps & (warps - 1) == 0
        for variable in statement.variables:
            place = f"threadIdx.x % {warps}" if halving else "0"
            self.line(f"{self.name(variable)} = {exchange[variable.name]}[{place}];")
        if halving:
            self.butterfly(statement, warps)
            return
        warp = self.scoped("warp")
        with self.block(f"for (int {warp} = 1; {warp} < {warps}; ++{warp})"):
            exchanged = [f"{exchange[v.name]}[{warp}]" for v in statement.variables]
            self.combine(statement, exchanged, None)

    def scan_warp(self, statement: ir.GroupReduce, size: int) -> None:
        """Combine the lanes up to each lane, pass the result to the next lane, and give all lanes the last one."""
        states, types = [self.name(v) for v in statement.variables], [v.dtype for v in statement.variables]
        lane, offset = self.scoped("lane"), self.scoped("offset")
        with self.block(""):
            self.line(f"const int {lane} = threadIdx.x % {size};")
            self.line("#pragma unroll")
            with self.block(f"for (int {offset} = 1; {offset} < {size}; {offset} *= 2)"):
                earlier = [self.scoped(f"{state}_earlier") for state in states]
                for name, state, dtype in zip(earlier, states, types, strict=True):
                    self.line(f"const {self.printer.type(dtype)} {name} = {self.shift(state, dtype, offset, size)};")
                with self.block(f"if ({lane} >= {offset})"):
                    self.assign(statement.combiner, earlier, states, states)
            for before, state, dtype in zip(statement.before, states, types, strict=True):
                earlier_name = self.scoped(f"{state}_earlier")
                self.line(f"const {self.printer.type(dtype)} {earlier_name} = {self.shift(state, dtype, '1', size)};")
                self.line(f"if ({lane} > 0) {self.name(before)} = {earlier_name};")
            for state, dtype in zip(states, types, strict=True):
                self.line(f"{state} = {self.shift(state, dtype, str(size - 1), size, 'shfl')};")

    def scan_warps(self, statement: ir.GroupReduce, warps: int, exchange: Mapping[str, str]) -> None:
        """Combine the states of the warps in order; each warp adds those of earlier warps to `before`."""
        states, warp = [self.name(v) for v in statement.variables], self.scoped("warp")
        before = [self.name(v) for v in statement.before]
        for variable, state in zip(statement.variables, states, strict=True):
            self.line(f"{state} = {exchange[variable.name]}[0];")
        self.line("#pragma unroll")
        with self.block(f"for (int {warp} = 1; {warp} < {warps}; ++{warp})"):
            with self.block(f"if ({warp} == threadIdx.x / {WARP})"):
                self.assign(statement.combiner, states, before, before)
            self.assign(
                statement.combiner, states, [f"{exchange[v.name]}[{warp}]" for v in statement.variables], states
            )

    def assign(self, combiner: ir.Combiner, left: list[str], right: list[str], targets: list[str]) -> None:
        """Emit targets = combiner(left, right)."""
        names = self.printer.names
        outer = dict(names)
        names.update({v.name: text for v, text in zip(combiner.left, left, strict=True)})
        names.update({v.name: text for v, text in zip(combiner.right, right, strict=True)})
        results = [str(self.printer.value(result)) for result in combiner.results]
        if len(results) > 1:  # compute all results before the first assignment
            following = [self.scoped(f"{target}_next") for target in targets]
            for variable, name, result in zip(combiner.left, following, results, strict=True):
                self.line(f"const {self.printer.type(variable.dtype)} {name} = {result};")
            results = following
        for target, result in zip(targets, results, strict=True):
            self.line(f"{target} = {result};")
        self.printer.names = outer

    def has_other_barrier(self, statement: ir.GroupReduce) -> bool:
        """Return whether another barrier in the innermost loop orders these writes after the last iteration's reads."""
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
            shuffled = [self.shuffle(self.name(v), v.dtype, offset) for v in statement.variables]
            self.combine(statement, shuffled, offset)

    def shuffle(self, name: str, dtype: DType, offset: str) -> str:
        return self._shuffle("shfl_xor", name, dtype, offset)

    def shift(self, name: str, dtype: DType, lane: str, size: int, function: str = "shfl_up") -> str:
        """Return the state of the thread `lane` lanes before, or of that lane, in a group of `size` threads."""
        return self._shuffle(function, name, dtype, f"{lane}, {size}")

    def _shuffle(self, function: str, name: str, dtype: DType, lanes: str) -> str:
        mask = f"{(1 << min(self.kernel.threads, WARP)) - 1:#x}u"
        kind = self.printer.type(dtype)
        if dtype.is_half:
            return f"{kind}{{(unsigned short)__{function}_sync({mask}, (int){name}.bits, {lanes})}}"
        if dtype.itemsize < 4:
            return f"({kind})__{function}_sync({mask}, (int){name}, {lanes})"
        return f"__{function}_sync({mask}, {name}, {lanes})"

    def combine(self, statement: ir.GroupReduce, operands: list[str], offset: str | None) -> None:
        """Emit variables = combiner(variables, others).

        With `offset`, the upper lane of a pair passes the other lane's state as the left operand.
        """
        combiner, names = statement.combiner, self.printer.names
        outer = dict(names)
        types = [self.printer.type(v.dtype) for v in statement.variables]
        states = [self.name(v) for v in statement.variables]
        ordered = offset is None or _commutes(combiner)
        if ordered:
            names.update({left.name: name for left, name in zip(combiner.left, states, strict=True)})
            for right, kind, other in zip(combiner.right, types, operands, strict=True):
                self.line(f"const {kind} {names[right.name]} = {other};")
        else:
            upper = self.scoped("upper")
            self.line(f"const bool {upper} = threadIdx.x & {offset};")
            for k, (left, right) in enumerate(zip(combiner.left, combiner.right, strict=True)):
                other = self.scoped(f"{states[k]}_other")
                self.line(f"const {types[k]} {other} = {operands[k]};")
                self.line(f"const {types[k]} {names[left.name]} = {upper} ? {other} : {states[k]};")
                self.line(f"const {types[k]} {names[right.name]} = {upper} ? {states[k]} : {other};")
        results = [self.printer.value(r) for r in combiner.results]
        if len(states) > 1 and ordered:  # compute all results before the first assignment
            next_names = [self.scoped(f"{name}_next") for name in states]
            for kind, name, result in zip(types, next_names, results, strict=True):
                self.line(f"const {kind} {name} = {result};")
            results = [Text(name) for name in next_names]
        for name, result in zip(states, results, strict=True):
            self.line(f"{name} = {result};")
        self.printer.names = outer


def _commutes(combiner: ir.Combiner) -> bool:
    """Return whether each result is a single commutative primitive of its left and right operand."""
    for left, right, result in zip(combiner.left, combiner.right, combiner.results, strict=True):
        if not (isinstance(result, ir.Call) and result.name in _COMMUTATIVE and set(result.arguments) == {left, right}):
            return False
    return True
