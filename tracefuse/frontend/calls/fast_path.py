"""The fast path: a Python function generated for a call signature, from arguments to result.

A call signature is the types of the arguments and of `out`, and the names of the keywords. The generated function
unpacks the pytrees (tuples, lists, dicts, NamedTuples and dataclasses), compares static values and the state that the
trace read, tries the plans of the executable, which test the arrays themselves, and builds the result. If anything
differs, it returns NOT_APPLICABLE before anything has run, and the call is flattened and looked up in full.

Must not know: options.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracefuse.compiler.executable import Executable
from tracefuse.compiler.plan_cache import PlanCache
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.input_texts import (
    InputWriter,
    is_native,
    is_numpy_number,
    is_own,
    tuple_text,
)
from tracefuse.frontend.calls.leaf_texts import LeafTexts
from tracefuse.frontend.calls.trace_entry import Entry
from tracefuse.frontend.python_numbers import number_conditions
from tracefuse.generated_code import compile_function
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.memory.buffer_facts import OutputBufferUse


class FastPath(NamedTuple):
    """The function for calls with one signature.

    run: takes (args, kwargs, the `self` of a bound method, out). use: the output buffers and donated arguments of such
    a call. plans_alone: `first(args)` returns the outputs or None, if the plans of the executable decide alone: the
    positional arguments go to them, NumPy scalars as Python numbers, their one output is the result, and nothing else
    has to be compared.
    """

    run: Callable[[Sequence[Any], Mapping[str, Any], Any, Any], Any]
    entry: Entry
    use: OutputBufferUse
    plans_alone: PlanCache[Any] | ScalarsRead | None


class ScalarsRead(NamedTuple):
    """The first plan of an executable, for arguments with NumPy scalars."""

    first: Callable[[Sequence[Any]], list[Any] | None]


MOST_PASSING = 256
"""Sizes and scalars that a fast path remembers as passing its guards."""

_OUT, _BOUND = object(), object()


def call_signature(
    args: Sequence[Any], kwargs: Mapping[str, Any], bound: Any, is_bound: bool, out: Any
) -> tuple[Any, ...]:
    """The key of fast paths: types of the arguments, names of keywords."""
    types: tuple[Any, ...] = tuple(map(type, args))
    if kwargs:
        types = (*types, *kwargs, *map(type, kwargs.values()))
    if is_bound:
        types = (_BOUND, type(bound), *types)
    return types if out is None else (_OUT, type(out), *types)


def write_fast_path(entry: Entry, call: CallArguments, use: OutputBufferUse, has_out: bool) -> FastPath | None:
    """Generates the fast path for calls like this one; None if they have to be flattened in full.

    use: output buffers and donated arguments of the call. has_out: whether the call has `out`.
    """
    trace = entry.trace
    inputs = [k for k, leaf in enumerate(call.leaves) if not leaf.is_static]
    fits = sorted(origin for origin in trace.sources if origin >= 0) == inputs and not trace.prints
    fits = fits and not trace.updated_numbers
    fits = fits and isinstance(entry.executable, Executable)
    is_shared = entry.kind in arrays.FOREIGN
    if is_shared and (entry.device is not None or has_out or not all(is_own(one) for one in trace.captured)):
        return None
    if not fits or not all(is_native(leaf, entry.kind) for leaf in call.leaves):
        return None
    writer = _Writer(entry, use)
    text = writer.write(call, has_out)
    run = compile_function(text, "call", writer.names, "fast path")
    plans: PlanCache[Any] | ScalarsRead | None = None
    if isinstance(entry.executable, Executable) and _is_flat(entry, call) and not has_out and use == OutputBufferUse():
        plans = entry.executable.plans
        if any(map(is_numpy_number, call.leaves)):
            writer = _Writer(entry, use, otherwise="None")
            text = writer.write_first(call)
            plans = ScalarsRead(compile_function(text, "first", writer.names, "fast path"))
    return FastPath(run, entry, use, plans)


def _is_flat(entry: Entry, call: CallArguments) -> bool:
    """See `FastPath.plans_alone`."""
    trace, (positional, keywords) = entry.trace, call.structure.children()
    is_flat = not keywords.num_children and not call.statics and entry.kind not in arrays.FOREIGN
    is_flat = is_flat and all(node.is_leaf() for node in positional.children())
    has_reads = (
        trace.conditions
        or trace.statics
        or trace.bypassed
        or trace.captured
        or trace.pairs
        or trace.apart
        or trace.scalar_guards
    )
    return entry.single and is_flat and not has_reads and trace.sources == tuple(range(len(call.leaves)))


class _Writer(InputWriter):
    """Writes one fast path."""

    def write(self, call: CallArguments, has_out: bool) -> str:
        executable = self.entry.executable
        assert isinstance(executable, Executable)
        leaves = self._arguments(call)
        buffers = self._buffers() if has_out else []
        arguments = [*self._inputs(leaves), *buffers]
        self._guards(call, arguments)
        if self.use == OutputBufferUse():
            self.names["attempt"], more = executable.plans.attempt, ""
        else:
            self.names["attempt"], more = executable.plans.attempt_into, f", {self._name('use', self.use)}"
        after = [f"    {line}" for line in self._result(leaves, arguments)]
        trace = self.entry.trace
        failed = f"r is None or not r[{number_conditions.position(trace)}]" if trace.conditions else "r is None"
        before = (f"        {line}" for line in self.lines or ["pass"])
        lines = [
            "def call(args, kwargs, bound, out):", "    try:", *before,
            "    except CHANGED:", "        return NOT_APPLICABLE",
            f"    arguments = {tuple_text(arguments)}", f"    r = attempt(arguments{more})",
            f"    if {failed}:", "        return NOT_APPLICABLE", *after, "",
        ]  # fmt: skip
        return "\n".join(lines)

    def write_first(self, call: CallArguments) -> str:
        """The function that reads the numbers of NumPy scalars and calls the first plan; see `FastPath.plans_alone`."""
        executable = self.entry.executable
        assert isinstance(executable, Executable)
        arguments = self._inputs(self._arguments(call))
        plans = self._name("plans", executable.plans)
        lines = ["def first(args):", *(f"    {line}" for line in self.lines)]
        return "\n".join([*lines, f"    return {plans}.first({tuple_text(arguments)})", ""])

    def _facts(self, arguments: Sequence[str]) -> dict[int, str]:
        """The texts of the extents and scalars of the call, by id."""
        fusion = self.entry.trace.fusion
        by_value = dict(zip(fusion.inputs, arguments, strict=False))
        facts = {key: f"{by_value[value]}.shape[{axis}]" for key, value, axis in fusion.axis_ids()}
        return facts | {number: by_value[number] for number in fusion.scalar_inputs}

    def _guards(self, call: CallArguments, arguments: Sequence[str]) -> None:
        """Guards on scalars and sizes, skipped for values that passed before."""
        trace, fusion = self.entry.trace, self.entry.trace.fusion
        if not trace.scalar_guards:
            return
        by_value = dict(zip(fusion.inputs, arguments, strict=False))
        facts = self._facts(arguments)
        signs: list[str] = []
        for number, origin in zip(fusion.inputs, trace.sources, strict=True):
            if number in fusion.scalar_inputs:
                kind = self._kind_of_number(call, origin, number)
                if -origin <= len(trace.captured):  # the prologue checks its own results
                    self._unless(f"type({by_value[number]}) is {self._name('t', kind)}")
                # Zeros are equal, whatever their sign.
                parts = [".real", ".imag"] if kind is complex else [""] if kind is float else []
                signs += [f"copysign(1.0, {by_value[number]}{part})" for part in parts]
        passed, tests = self._name("passed", set()), [self._name("holds", guard.holds) for guard in trace.scalar_guards]
        self.names |= {"copysign": math.copysign, "MOST_PASSING": MOST_PASSING}
        self.lines += [
            f"key = {tuple_text([*facts.values(), *signs])}", f"if key not in {passed}:",
            f"    facts = {{{', '.join(f'{key}: {text}' for key, text in facts.items())}}}",
            f"    if not ({' and '.join(f'{one}(facts)' for one in tests)}):", "        return NOT_APPLICABLE",
            f"    if len({passed}) >= MOST_PASSING:", f"        {passed}.clear()", f"    {passed}.add(key)",
        ]  # fmt: skip

    def _kind_of_number(self, call: CallArguments, origin: int, number: int) -> type:
        """The class of the Python number that the fusion receives for a scalar input."""
        trace = self.entry.trace
        if origin >= 0:
            return type(call.leaves[origin].number)
        if -origin <= len(trace.captured):
            return _item_type(trace.captured[-origin - 1].key)
        return _item_type(trace.fusion.values[number].dtype.numpy.type)

    # -- results -----------------------------------------------------------------------------------------------------

    def _result(self, leaves: Sequence[str], arguments: Sequence[str]) -> list[str]:
        """The statements after the run, which write the state back and return the result; `r` holds the outputs."""
        output = "{}"
        if self.entry.kind in arrays.FOREIGN:
            output = f"{self._name('leave', arrays.leaving(self.entry.kind))}({{}})"
        if self.entry.single:
            return [f"return {output.format('r[0]')}"]
        texts = LeafTexts(self.entry.trace, self._name, self._read, leaves, self._facts(arguments), output)
        if not texts.are_possible():
            outputs = "r" if output == "{}" else f"[{output.format('one')} for one in r]"
            return [
                f"return finish_call(entry, {tuple_text(leaves)}, arguments, {outputs}, CallRoots(bound, args, kwargs))"
            ]
        result, writes = texts.result(), texts.writes()
        return [f"result = {result}", *writes, "return result"] if writes else [f"return {result}"]


def _item_type(kind: type) -> type:
    """The class of Python numbers that a fusion receives for a number of a class."""
    return type(kind().item()) if issubclass(kind, np.generic) else kind
