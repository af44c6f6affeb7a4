"""The rewritten code of functions whose loops have asked questions.

It is compiled from the source of a function, if the function is exactly what its source compiles to.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import operator
import weakref
from types import CodeType
from typing import Any

from tracefuse.caches import Cache, register
from tracefuse.frontend.tracer.python_code.generated_syntax import TWIN
from tracefuse.frontend.tracer.python_code.last_entries import with_last_entries
from tracefuse.frontend.tracer.python_code.list_reads import ListReads, lists_of
from tracefuse.frontend.tracer.python_code.lists_in_dicts import with_variables_for_entries
from tracefuse.frontend.tracer.python_code.matched_cases import MatchedCases
from tracefuse.frontend.tracer.python_code.named_states import with_positions_of_names
from tracefuse.frontend.tracer.python_code.optional_variables import with_optional_variables
from tracefuse.frontend.tracer.python_code.rewritten_loops import Rewriting
from tracefuse.frontend.tracer.python_code.separate_assignments import SeparateAssignments
from tracefuse.frontend.tracer.python_code.statement_flow import Block
from tracefuse.frontend.tracer.python_code.tuple_variables import with_variables_for_entries_of_tuples
from tracefuse.frontend.tracer.python_code.variable_uses import uses_of

_rewritten: weakref.WeakKeyDictionary[CodeType, CodeType | None] = weakref.WeakKeyDictionary()
register(Cache(
    "frontend.tracer.python_code.code_replacements._rewritten",
    "the rewritten code of functions whose loops ask questions",
    "code", "the functions that are alive", "the process", "with the functions",
))  # fmt: skip
_originals: weakref.WeakKeyDictionary[CodeType, weakref.ref[CodeType]] = weakref.WeakKeyDictionary()
register(Cache(
    "frontend.tracer.python_code.code_replacements._originals", "the code of a function, by its rewritten code", "code",
    "the functions that are alive", "the process", "with the functions",
))  # fmt: skip


def rewritten_code(code: CodeType, twin: Any = None) -> CodeType | None:
    """Returns the rewritten code of a function; None if it is not known.

    twin: what the code calls. Without it, only code that has been rewritten is known.
    """
    known = _rewritten.get(code)
    is_known = code in _rewritten and (known is None or known.co_filename == code.co_filename)
    if not is_known and twin is not None:
        known = _rewritten[code] = _compile(code, twin)
        if known is not None:
            _originals[known] = weakref.ref(code)
    return known


def original_code(code: CodeType) -> CodeType:
    """Returns the code of a function from what clones run in place of it."""
    reference = _originals.get(code)
    return (None if reference is None else reference()) or code


def _compile(code: CodeType, twin: Any) -> CodeType | None:
    """Returns the code with `twin` in its loops and branches; None if its source is not known."""
    text = "".join(linecache.getlines(code.co_filename))
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    # Calls of functions of imported modules compile to other instructions than those of methods.
    imports: Block = [line for line in module.body if isinstance(line, (ast.Import, ast.ImportFrom))]
    for statement in module.body:
        end = statement.end_lineno or statement.lineno
        if _first_line(statement) <= code.co_firstlineno <= end:
            return _compile_in([*imports, statement], code, twin)
    return None


def _compile_in(statements: Block, code: CodeType, twin: Any) -> CodeType | None:
    """Returns the code of a function in some statements, rewritten."""
    tree = ast.Module(statements, [])
    flags = code.co_flags & _FUTURE
    if code not in _codes_in(compile(tree, code.co_filename, "exec", flags, dont_inherit=True)):
        return None
    functions = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name and _first_line(node) == code.co_firstlineno
    ]  # fmt: skip
    if len(functions) != 1 or any(_yields(node) for node in ast.walk(functions[0])):
        return None
    rewriting = Rewriting()
    MatchedCases(rewriting.new_name).generic_visit(functions[0])
    SeparateAssignments(uses_of(functions[0]).elsewhere).generic_visit(functions[0])
    with_variables_for_entries_of_tuples(functions[0])
    with_positions_of_names(functions[0])
    with_optional_variables(functions[0], rewriting.new_name)
    with_variables_for_entries(functions[0], rewriting.new_name)
    lists = lists_of(functions[0])
    reads, body = ListReads(lists), with_last_entries(functions[0], lists, rewriting.new_name)
    functions[0].body = rewriting.function([reads.visit(statement) for statement in body])
    try:
        compiled = compile(ast.fix_missing_locations(tree), code.co_filename, "exec", flags, dont_inherit=True)
    except SyntaxError:  # too many blocks in one another
        return None
    key = code.co_name, code.co_firstlineno
    (replacement,) = (node for node in _codes_in(compiled) if (node.co_name, node.co_firstlineno) == key)
    if replacement.co_freevars != code.co_freevars or replacement == code:
        return None
    return _with_twin(replacement, twin)


def _with_twin(code: CodeType, twin: Any) -> CodeType:
    """Returns some code, and all code in it, with `twin` in the place of its constant."""
    constants = (_with_twin(one, twin) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_consts=tuple(twin if one == TWIN else one for one in constants))


def _codes_in(code: CodeType) -> list[CodeType]:
    """Returns some code and all code in it."""
    codes = [code]
    for current in codes:
        codes += [constant for constant in current.co_consts if isinstance(constant, CodeType)]
    return codes


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", ())
    lines: list[int] = [statement.lineno, *(decorator.lineno for decorator in decorators)]
    return min(lines)


def _yields(node: ast.AST) -> bool:
    return isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await))


_FUTURE: int = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
"""The flags of code that `from __future__ import` sets."""
