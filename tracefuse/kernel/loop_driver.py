"""Loop drivers: loops whose steps launch kernels, as data that a target compiles to one function.

A driver has parameters like a kernel: pointers, integers and scalars. Its statements move pointers, copy memory and run
kernels. Pointers are known by name: a parameter, local memory, or the result of a statement. Integers are expressions
of the kernel language.

    driver heat(current: f64*, other: f64*, start: i64, stop: i64)
      for step in range(start, stop):
        run pointwise0(current, other, i0, i1)
        exchange current, other
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.kernel.kernel_ir import Buffer, Constant, Expression, Kernel, Variable, without_comments
from tracefuse.kernel.kernel_text import expression, kernel_text, parameter_text


@dataclass(frozen=True, slots=True)
class RunKernel:
    """Runs a kernel on pointers, by name, and numbers, in the order of its parameters.

    kernel: its position among the driver's kernels. error_flag: a pointer to an int64 that the kernel sets for an index
    out of range; the driver then ends at once.
    """

    kernel: int
    arguments: tuple[str | Expression, ...]
    error_flag: str | None = None


@dataclass(frozen=True, slots=True)
class LocalMemory:
    """Zero-filled memory of the driver itself, of a few bytes, which a compiler may keep in registers."""

    pointer: str
    size: int


@dataclass(frozen=True, slots=True)
class CopyMemory:
    """Copies `size` bytes between two places that do not overlap, or are the same."""

    target: str
    source: str
    size: Expression


@dataclass(frozen=True, slots=True)
class StoreNumber:
    """Stores a number at a pointer."""

    pointer: str
    value: Expression


@dataclass(frozen=True, slots=True)
class LoadNumber:
    """Defines an integer of the current step, the one that is stored at a pointer."""

    variable: Variable
    pointer: str


@dataclass(frozen=True, slots=True)
class OffsetPointer:
    """Defines a pointer `offset` elements after another; `offset` bytes if they have no type."""

    pointer: str
    base: str
    offset: Expression
    element: DType | None = None


@dataclass(frozen=True, slots=True)
class NamePointer:
    """Defines a pointer that `ExchangePointers` can change."""

    pointer: str
    value: str


@dataclass(frozen=True, slots=True)
class ExchangePointers:
    """Exchanges two pointers that `NamePointer` defined."""

    first: str
    second: str


@dataclass(frozen=True, slots=True)
class CountedSteps:
    """Runs `body` for each integer from `start` up to `stop`, which it does not include; backwards if `reverse`.

    flag: a pointer to a bool, if there is one: no step runs unless it is true. count: of the steps that have run, which
    what follows the loop may read.
    """

    counter: Variable
    start: Expression
    stop: Expression
    reverse: bool
    body: tuple[DriverStatement, ...]
    flag: str | None = None
    count: Variable | None = None

    @property
    def is_block(self) -> bool:
        """Whether it has one step, always."""
        return self.flag is None and self._has_one_step

    @property
    def is_conditional_block(self) -> bool:
        """Whether it has one step, or none if its bool is false."""
        return self.flag is not None and self._has_one_step

    @property
    def _has_one_step(self) -> bool:
        match self.start, self.stop:
            case Constant(int() as start), Constant(int() as stop):
                return self.count is None and stop == start + 1
        return False


@dataclass(frozen=True, slots=True)
class ConditionalSteps:
    """Runs `condition`, and `body` as long as the bool at `flag` is true then. count: of the steps so far."""

    condition: tuple[DriverStatement, ...]
    flag: str
    count: Variable
    body: tuple[DriverStatement, ...]


@dataclass(frozen=True, slots=True)
class DefineNumber:
    """Defines an integer of the current step."""

    variable: Variable
    value: Expression


@dataclass(frozen=True, slots=True)
class CopyElements:
    """Copies the elements of an array to another. shape: of both. strides: in bytes. itemsize: 1, 2, 4, 8 or 16."""

    target: str
    source: str
    itemsize: int
    shape: tuple[Expression, ...]
    target_strides: tuple[Expression, ...]
    source_strides: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class LoadedNumber:
    """The number that is stored at a pointer."""

    pointer: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class CallFunction:
    """Calls a function of C. function: its address. arguments: pointers by name, and numbers.

    result: a pointer at which the float64 that it returns is stored; None for a function that returns nothing.
    """

    function: Expression
    arguments: tuple[str | Expression | LoadedNumber, ...]
    result: str | None


@dataclass(frozen=True, slots=True)
class CallInnerLoop:
    """Calls an inner loop of a ufunc of NumPy: `void (char **args, npy_intp *extents, npy_intp *strides, void *data)`.

    function, data: addresses. arguments: pointers by name.
    """

    function: Expression
    data: Expression
    arguments: tuple[str, ...]
    extents: tuple[Expression, ...]
    strides: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class CallPython:
    """Calls a function of Python with integers; ends the driver with its exception if it raises one.

    function: the address of the object. arguments: pointers by name, which the function gets as addresses, and numbers.
    """

    function: Expression
    arguments: tuple[str | Expression, ...]


@dataclass(frozen=True, slots=True)
class RequireNumber:
    """Ends the driver if the float at a pointer, or the real part of the complex number, is NaN."""

    pointer: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class ChooseStatements:
    """Runs the statements of the first choice whose conditions, bools, all hold; ends the driver if none does."""

    choices: tuple[tuple[tuple[Expression, ...], tuple[DriverStatement, ...]], ...]


DriverStatement: TypeAlias = (
    RunKernel
    | CallFunction
    | CallInnerLoop
    | CallPython
    | RequireNumber
    | DefineNumber
    | CopyElements
    | ChooseStatements
    | LocalMemory
    | CopyMemory
    | StoreNumber
    | LoadNumber
    | OffsetPointer
    | NamePointer
    | ExchangePointers
    | CountedSteps
    | ConditionalSteps
)


@dataclass(frozen=True, slots=True)
class LoopDriver:
    """A loop with everything that its steps run.

    A driver raises what Python raises in it. Else it returns `result`, an int64 that is not negative, FAILED if a
    kernel met an index out of range or a required number is NaN, or NO_CHOICE if the conditions of no choice of a step
    held.
    """

    name: str
    kernels: tuple[Kernel, ...]
    parameters: tuple[Buffer | Variable, ...]
    body: tuple[DriverStatement, ...]
    result: Expression

    def __str__(self) -> str:
        parameters = ", ".join(map(parameter_text, self.parameters))
        lines = [
            f"driver {self.name}({parameters})",
            *self._lines(self.body, "  "),
            f"  return {expression(self.result)}",
        ]
        return "\n".join([*lines, ""]) + "".join(map(kernel_text, self.kernels))

    def _call(self, statement: RunKernel | CallFunction | CallInnerLoop | CallPython) -> str:
        match statement:
            case RunKernel(kernel, arguments, flag):
                texts = [a if isinstance(a, str) else str(expression(a)) for a in arguments]
                checked = "" if flag is None else f", ends if {flag} is set"
                return f"run {self.kernels[kernel].name}({', '.join(texts)}){checked}"
            case CallFunction(function, values, result):
                texts = [_argument_text(one) for one in values]
                target = "" if result is None else f"{result}[0] = "
                return f"{target}call {expression(function)}({', '.join(texts)})"
            case CallInnerLoop(function, _, pointers, extents, _):
                sizes = ", ".join(str(expression(extent)) for extent in extents)
                return f"call loop {expression(function)}({', '.join(pointers)}) of [{sizes}]"
            case CallPython(function, values):
                texts = [_argument_text(one) for one in values]
                return f"call Python's {expression(function)}({', '.join(texts)})"

    def _lines(self, body: tuple[DriverStatement, ...], indent: str) -> Iterator[str]:
        for statement in body:
            match statement:
                case RunKernel() | CallFunction() | CallInnerLoop() | CallPython():
                    yield indent + self._call(statement)
                case RequireNumber(pointer):
                    yield f"{indent}end if {pointer}[0] is NaN"
                case LocalMemory(pointer, size):
                    yield f"{indent}local {pointer}: {size} bytes"
                case CopyMemory(target, source, size):
                    yield f"{indent}copy {expression(size)} bytes of {source} to {target}"
                case StoreNumber(pointer, value):
                    yield f"{indent}{pointer}[0] = {expression(value)}"
                case LoadNumber(variable, pointer):
                    yield f"{indent}let {variable.name} = {pointer}[0]"
                case OffsetPointer() | NamePointer() | ExchangePointers():
                    yield indent + _pointer_text(statement)
                case DefineNumber(variable, value):
                    yield f"{indent}let {variable.name} = {expression(value)}"
                case CopyElements(target, source, _, shape):
                    yield f"{indent}copy [{', '.join(str(expression(e)) for e in shape)}] of {source} to {target}"
                case ChooseStatements(choices):
                    for position, (conditions, statements) in enumerate(choices):
                        text = " and ".join(str(expression(argument)) for argument in conditions) or "true"
                        yield f"{indent}{'else ' if position else ''}if {text}:"
                        yield from self._lines(statements, indent + "  ")
                case CountedSteps(counter, start, stop, reverse, steps, flag, count):
                    text = f"range({expression(start)}, {expression(stop)})"
                    yield f"{indent}for {counter.name} in {f'reversed({text})' if reverse else text}:"
                    if flag is not None:
                        yield f"{indent}  stop unless {flag}[0]"
                    yield from self._lines(steps, indent + "  ")
                    if count is not None:
                        yield f"{indent}let {count.name} = the number of steps"
                case ConditionalSteps(condition, flag, count, steps):
                    yield f"{indent}for {count.name} in count():"
                    yield from self._lines(condition, indent + "  ")
                    yield f"{indent}  stop unless {flag}[0]"
                    yield from self._lines(steps, indent + "  ")


def _pointer_text(statement: OffsetPointer | NamePointer | ExchangePointers) -> str:
    match statement:
        case OffsetPointer(pointer, base, offset, element):
            return f"{pointer} = {base} + {expression(offset)} {element or 'bytes'}"
        case NamePointer(pointer, value):
            return f"{pointer} = {value}"
        case ExchangePointers(first, second):
            return f"exchange {first}, {second}"


def _argument_text(value: str | Expression | LoadedNumber) -> str:
    if isinstance(value, LoadedNumber):
        return f"{value.pointer}[0]"
    return value if isinstance(value, str) else str(expression(value))


FAILED = -2
NO_CHOICE = -3


def same_code(first: Kernel, second: Kernel) -> bool:
    """Whether two kernels differ in comments and names alone, so that one of them can stand in for both."""
    return (
        first.parameters == second.parameters
        and first.grid == second.grid
        and (first.work, first.contract, first.fast_math, first.workers)
        == (second.work, second.contract, second.fast_math, second.workers)
        and without_comments(first.body) == without_comments(second.body)
    )
