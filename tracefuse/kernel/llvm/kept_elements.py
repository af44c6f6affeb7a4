"""Elements that one step of a compiled loop stores and the next steps load, kept in local memory of the driver.

In `y[i] = a * x[i] + b * y[i - 1]`, a load that waits for the store of the step before takes longer than the
arithmetic. LLVM forwards such an element only if it knows every distance between the accesses of a step, which it
rarely does for arrays of several axes. Here positions are polynomials of the counter and of sizes: if a load is a few
steps behind the only store to its array, it becomes a load of local memory, which LLVM keeps in a register.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass, replace
from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.nested_loops import has_one_iteration
from tracefuse.kernel.llvm.plain_loops import inlined
from tracefuse.kernel.loop_driver import (
    ChooseStatements,
    CopyMemory,
    CountedSteps,
    DefineNumber,
    DriverStatement,
    LocalMemory,
    OffsetPointer,
    RunKernel,
    StoreNumber,
)

MOST_STEPS = 4
"""The most steps that an element is kept for."""

Polynomial: TypeAlias = dict[tuple[str, ...], int]
"""The coefficients of an integer, by the sorted names of the variables that each multiplies."""

_ZERO = ir.Constant(0, dtypes.int64)


@dataclass(frozen=True, slots=True)
class KeptElements:
    """A loop whose steps read kept elements, and what runs before it.

    kernels: further ones of the driver, which its steps run.
    """

    before: tuple[DriverStatement, ...]
    loop: CountedSteps
    kernels: tuple[ir.Kernel, ...]


@dataclass(frozen=True, slots=True)
class PointedMemory:
    """What a pointer of a driver points into. name: of the memory; "" if steps exchange the pointer.

    is_local: of the driver itself. is_exclusive: no other memory of the driver overlaps it.
    """

    name: str
    is_local: bool = False
    is_exclusive: bool = False


@dataclass(frozen=True, slots=True)
class _Element:
    """An element of the array at `base`. position: in elements."""

    base: str
    dtype: DType
    position: Polynomial


@dataclass(frozen=True, slots=True)
class _ElementAccess:
    """A load or store of a kernel. run: the position of the statement in the step."""

    run: int
    access: ir.Load | ir.Store
    place: _Element | None
    is_certain: bool


def with_kept_elements(
    loop: CountedSteps, kernels: Sequence[ir.Kernel], memory: Mapping[str, PointedMemory], name: str
) -> KeptElements | None:  # fmt: skip
    """Return a loop that keeps the elements of an array; None if no step surely loads what an earlier one has stored.

    kernels: of the driver; all that the loop runs are part of it. memory: what each pointer that is defined before the
    loop points into. name: distinguishes the local memory.
    """
    step = _StepAccesses(tuple(_plain(loop.body)), loop, kernels, memory)
    for stored in step.only_stores():
        distances = {(one.run, id(one.access)): step.distance(one, stored) for one in step.loads}
        behind = {load: distance for load, distance in distances.items() if distance}
        if behind:
            return _keep(step, stored, behind, name)
    return None


def _plain(body: Sequence[DriverStatement]) -> Iterator[DriverStatement]:
    """Yield statements, in place of a choice without conditions those that it runs."""
    for statement in body:
        match statement:
            case ChooseStatements((((), statements),)):
                yield from _plain(statements)
            case CountedSteps(counter, start, _, _, statements) if statement.is_block:
                yield DefineNumber(counter, start)
                yield from _plain(statements)
            case _:
                yield statement


class _StepAccesses:
    """The accesses of one step of a loop to arrays of the driver."""

    def __init__(
        self, body: Sequence[DriverStatement], loop: CountedSteps, kernels: Sequence[ir.Kernel],
        memory: Mapping[str, PointedMemory],
    ) -> None:  # fmt: skip
        self.body, self.loop, self.kernels = body, loop, kernels
        self.loads: list[_ElementAccess] = []
        self._stores: list[_ElementAccess] = []
        self._memory = dict(memory)
        self._written: list[PointedMemory] = []
        # The pointers that this step defines: their bases, and how far behind them they are.
        self.defined: dict[str, tuple[str, ir.Expression, DType | None]] = {}
        self._is_understood = self._read(body)

    def only_stores(self) -> Iterator[_ElementAccess]:
        """Yield the stores to arrays that no other statement of the step writes."""
        written = self._written
        shared = {memory.name for memory in written if not memory.is_exclusive}
        if not self._is_understood or "" in shared or len(shared) > 1:
            return
        for store in self._stores:
            is_alone = store.place is not None and written.count(self._memory[store.place.base]) == 1
            if is_alone and store.is_certain:
                yield store

    def distance(self, load: _ElementAccess, store: _ElementAccess) -> int:
        """Return how many steps after the store the load reads the element; 0 if it is not known, or too many."""
        if load.place is None or store.place is None or not load.is_certain:
            return 0
        if (load.place.base, load.place.dtype) != (store.place.base, store.place.dtype):
            return 0
        growth = slope_of(store.place.position, self.loop.counter.name)
        behind = _sum(store.place.position, load.place.position, -1)
        if growth is None or not growth or any(behind.get(key) for key in behind if key):
            return 0
        steps, rest = divmod(behind.get((), 0), -growth if self.loop.reverse else growth)
        return steps if not rest and 0 < steps <= MOST_STEPS else 0

    def _read(self, body: Sequence[DriverStatement]) -> bool:
        """Note the accesses of statements; return whether they have only such that are understood."""
        values: dict[str, ir.Expression] = {}
        for position, statement in enumerate(body):
            match statement:
                case DefineNumber(variable, value):
                    values[variable.name] = inlined(value, values)
                case OffsetPointer(pointer, base, offset, element):
                    self.defined[pointer] = base, inlined(offset, values), element
                    self._memory[pointer] = self._memory[base]
                case CopyMemory(target, _, ir.Constant()) | StoreNumber(target) if self._memory[target].is_local:
                    pass
                case RunKernel(number):
                    self._read_kernel(position, self.kernels[number], statement, values)
                case _:
                    return False
        return True

    def _read_kernel(
        self, run: int, kernel: ir.Kernel, statement: RunKernel, values: Mapping[str, ir.Expression]
    ) -> None:
        numbers, arrays = dict[str, ir.Expression](), dict[str, str]()
        for parameter, argument in zip(kernel.parameters, statement.arguments, strict=True):
            if isinstance(argument, str):
                arrays[parameter.name] = argument
            else:
                numbers[parameter.name] = inlined(argument, values)
        for one, is_certain in _statements(kernel.body, numbers):
            for load in _loads(one):
                place = self._place(arrays.get(load.buffer.name), load.buffer.dtype, inlined(load.index, numbers))
                self.loads.append(_ElementAccess(run, load, place, is_certain))
            if isinstance(one, ir.Store) and one.buffer.name in arrays:
                target = arrays[one.buffer.name]
                if not self._memory[target].is_local:
                    self._written.append(self._memory[target])
                    place = self._place(target, one.buffer.dtype, inlined(one.index, numbers))
                    self._stores.append(_ElementAccess(run, one, place, is_certain))

    def _place(self, pointer: str | None, dtype: DType, index: ir.Expression) -> _Element | None:
        """Return where an element is, or None if that is not a polynomial."""
        total = polynomial(index)
        if pointer is None or total is None:
            return None
        while pointer in self.defined:
            base, offset, element = self.defined[pointer]
            distance = polynomial(offset)
            if element is not dtype or distance is None:
                return None
            pointer, total = base, _sum(total, distance)
        return _Element(pointer, dtype, total)


def _keep(
    step: _StepAccesses, stored: _ElementAccess, behind: Mapping[tuple[int, int], int], name: str
) -> KeptElements:
    """Return the loop with some loads from local memory.

    behind: how many steps they are after the store, by the statement that runs their kernel, and their id.
    """
    loop, place, most = step.loop, stored.place, max(behind.values())
    assert place is not None
    size, element = place.dtype.itemsize, place.dtype
    names = [f"{name}_{distance}" for distance in range(most + 1)]
    kernels: list[ir.Kernel] = []
    body: list[DriverStatement] = []
    for position, statement in enumerate(step.body):
        if isinstance(statement, RunKernel):
            loads = {load: distance for (run, load), distance in behind.items() if run == position}
            stores = {id(stored.access)} if stored.run == position else set[int]()
            if loads or stores:
                kernel, distances = _with_local(step.kernels[statement.kernel], loads, stores, element)
                number = len(step.kernels) + len(kernels)
                kernels.append(kernel)
                extra = tuple(names[distance] for distance in distances)
                statement = replace(statement, kernel=number, arguments=(*extra, *statement.arguments))
        body.append(statement)
    moved = [CopyMemory(new, old, ir.Constant(size, dtypes.int64)) for old, new in pairwise(names)]
    return KeptElements(
        (*(LocalMemory(one, size) for one in names), _first(loop, place, names)),
        replace(loop, body=(*body, *reversed(moved))),
        tuple(kernels),
    )


def _first(loop: CountedSteps, place: _Element, names: Sequence[str]) -> DriverStatement:
    """Return what loads the elements before those that a loop stores, unless it has no step."""
    last = ir.call("sub", loop.stop, ir.Constant(1, dtypes.int64))
    first = last if loop.reverse else loop.start
    growth = slope_of(place.position, loop.counter.name)
    assert growth is not None
    statements: list[DriverStatement] = []
    for distance, name in enumerate(names[1:], 1):
        back = ir.Constant(-distance * (-growth if loop.reverse else growth), dtypes.int64)
        offset = ir.call("add", inlined(_expression(place.position), {loop.counter.name: first}), back)
        pointer = f"{name}_first"
        statements.append(OffsetPointer(pointer, place.base, offset, place.dtype))
        statements.append(CopyMemory(name, pointer, ir.Constant(place.dtype.itemsize, dtypes.int64)))
    none = (ir.call("le", loop.stop, loop.start),)
    return ChooseStatements(((none, ()), ((), tuple(statements))))


# ---------------------------------------------------------------------------------------------------------------------
# kernels


def _statements(
    body: Sequence[ir.Statement], numbers: MutableMapping[str, ir.Expression], is_certain: bool = True
) -> Iterator[tuple[ir.Statement, bool]]:
    """Yield the statements of a kernel, and whether each run executes them. Adds its integers to `numbers`."""
    for statement in body:
        yield statement, is_certain
        match statement:
            case ir.Let(variable, value) if variable.dtype.is_integer:
                numbers[variable.name] = inlined(value, numbers)
            case ir.For() if has_one_iteration(statement):
                numbers[statement.variable.name] = statement.start
                yield from _statements(statement.body, numbers, is_certain)
            case ir.For():
                yield from _statements(statement.body, numbers, False)
            case ir.If():
                yield from _statements(statement.body, numbers, False)
                yield from _statements(statement.orelse, numbers, False)


def _loads(statement: ir.Statement) -> Iterator[ir.Load]:
    """Yield the loads whose values a statement uses, without those in the indices of others."""
    match statement:
        case ir.Let(_, value) | ir.Declare(_, value) | ir.Assign(_, value) | ir.Accumulate(_, _, value):
            yield from _loads_in(value)
        case ir.Store(_, _, value):
            yield from _loads_in(value)


def _loads_in(e: ir.Expression) -> Iterator[ir.Load]:
    match e:
        case ir.Load():
            yield e
        case ir.Call(_, arguments):
            for argument in arguments:
                yield from _loads_in(argument)
        case ir.Cast(argument):
            yield from _loads_in(argument)


def _with_local(
    kernel: ir.Kernel, loads: Mapping[int, int], stores: set[int], element: DType
) -> tuple[ir.Kernel, list[int]]:
    """Return a kernel that loads kept elements, and stores the new one there, too; and which ones it takes first.

    loads: the distance, by the id of a load. stores: the ids of stores.
    """
    distances = sorted({*loads.values(), *((0,) if stores else ())})
    taken = {b.name for b in kernel.parameters}
    buffers = {d: ir.Buffer(_unused(f"kept{d}", taken), element, written=d == 0, exclusive=True) for d in distances}

    def value(e: ir.Expression) -> ir.Expression:
        match e:
            case ir.Load() if id(e) in loads:
                return ir.Load(buffers[loads[id(e)]], _ZERO)
            case ir.Call(name, arguments, dtype):
                return ir.Call(name, tuple(map(value, arguments)), dtype)
            case ir.Cast(argument, dtype):
                return ir.Cast(value(argument), dtype)
        return e

    def rewritten(body: Sequence[ir.Statement]) -> Iterator[ir.Statement]:
        for one in body:
            match one:
                case ir.Let() | ir.Declare() | ir.Assign() | ir.Accumulate():
                    yield replace(one, value=value(one.value))
                case ir.Store():
                    new = replace(one, value=value(one.value))
                    yield new
                    if id(one) in stores:
                        yield ir.Store(buffers[0], _ZERO, new.value)
                case ir.For():
                    yield replace(one, body=tuple(rewritten(one.body)))
                case ir.If():
                    yield replace(one, body=tuple(rewritten(one.body)), orelse=tuple(rewritten(one.orelse)))
                case _:
                    yield one

    parameters = (*(buffers[d] for d in distances), *kernel.parameters)
    return replace(kernel, parameters=parameters, body=tuple(rewritten(kernel.body))), distances


def _unused(name: str, taken: set[str]) -> str:
    return _unused(f"{name}_", taken) if name in taken else name


# ---------------------------------------------------------------------------------------------------------------------
# positions


def polynomial(e: ir.Expression) -> Polynomial | None:
    """Return an integer as a polynomial of variables, or None if it is not one."""
    match e:
        case ir.Constant(int() as value):
            return {(): value} if value else {}
        case ir.Variable(name):
            return {(name,): 1}
        case ir.Call("add" | "sub" | "mul" as name, (left, right)):
            first, second = polynomial(left), polynomial(right)
            if first is None or second is None:
                return None
            return _product(first, second) if name == "mul" else _sum(first, second, 1 if name == "add" else -1)
    return None


def slope_of(position: Polynomial, counter: str) -> int | None:
    """Return by how much a position grows with a counter; None if that is no constant."""
    if any(counter in key and key != (counter,) for key in position):
        return None
    return position.get((counter,), 0)


def _sum(first: Polynomial, second: Polynomial, sign: int = 1) -> Polynomial:
    total = dict(first)
    for key, count in second.items():
        total[key] = total.get(key, 0) + sign * count
    return {key: count for key, count in total.items() if count}


def _product(first: Polynomial, second: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for left, count in first.items():
        for right, times in second.items():
            key = tuple(sorted((*left, *right)))
            total[key] = total.get(key, 0) + count * times
    return {key: count for key, count in total.items() if count}


def _expression(position: Polynomial) -> ir.Expression:
    total: ir.Expression = _ZERO
    for key, count in position.items():
        term: ir.Expression = ir.Constant(count, dtypes.int64)
        for name in key:
            term = ir.call("mul", term, ir.Variable(name, dtypes.int64))
        total = ir.call("add", total, term)
    return total
