"""Where the text of a traced value goes: `return f"{loss:.3f}"`, `print(f"{loss:.3f}")`.

Text that is only returned, printed or stored can be made after the kernels, so that no call depends on the value. The
source of the running functions shows whether it is; text that anything else reads, such as `len(text)` or
`text == "0.0"`, is asked for. What reads a place that a text was stored in is known once the trace has ended.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import re
import string
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from tracefuse.source import is_internal

_COMPREHENSIONS = frozenset({"<listcomp>", "<genexpr>", "<dictcomp>"})
_READS_LOCALS = frozenset({"locals", "vars", "eval", "exec"})


class FileSyntax:
    """The syntax tree of a file. parents: of each node.

    Before Python 3.12, an f-string, its fields and their specifications have one position. specifications: their nodes.
    """

    def __init__(self, filename: str, names: Any) -> None:
        self.tree: ast.AST | None = None
        self.parents: dict[ast.AST, ast.AST] = {}
        lines = linecache.getlines(filename, names)
        try:
            self.tree = ast.parse("".join(lines)) if lines else None
        except (SyntaxError, ValueError):
            return
        if self.tree is not None:
            for node in ast.walk(self.tree):
                self.parents.update(dict.fromkeys(ast.iter_child_nodes(node), node))
        specs = [
            parent.format_spec
            for parent in self.parents
            if isinstance(parent, ast.FormattedValue) and parent.format_spec
        ]
        self.specifications: set[ast.AST] = {inner for spec in specs for inner in ast.walk(spec)}

    def node_at(self, frame: FrameType) -> ast.AST | None:
        """Returns the innermost expression that holds the instruction of a frame."""
        position = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
        if position is None or None in position or self.tree is None:
            return None
        first, last, start, end = position
        best: ast.AST | None = None
        for node in ast.walk(self.tree):  # breadth first: an inner node comes after those around it
            if node in self.specifications or self._is_constant_of_text(node):
                continue
            if isinstance(node, ast.expr) and node.end_lineno is not None and node.end_col_offset is not None:
                begins = (node.lineno, node.col_offset) <= (first, start)
                if begins and (node.end_lineno, node.end_col_offset) >= (last, end):
                    best = node
        return best

    def _is_constant_of_text(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Constant) and isinstance(self.parents.get(node), ast.JoinedStr)

    def only_extends(self, container: ast.AST) -> bool:
        """Whether a use of a container stores in it, or asks for its length."""
        parent = self.parents.get(container)
        match parent:
            case ast.Attribute(attr="append"):
                call = self.parents.get(parent)
                return isinstance(call, ast.Call) and call.func is parent
            case ast.Subscript(ctx=ast.Store()):
                return parent.value is container
            case ast.Call(func=ast.Name(id="len")):
                return True
        return False


_FUNCTIONS = (ast.FunctionDef, ast.Lambda)


def _reachable(root: Any, functions: Iterable[FunctionType]) -> list[FunctionType]:
    """The functions that a trace may have called: not the methods that no code mentions by name."""
    waiting = list(functions)
    is_known = any(candidate is root for candidate in waiting)
    reached = [candidate for candidate in waiting if candidate is root or not is_known or not _is_method(candidate)]
    waiting = [candidate for candidate in waiting if candidate not in reached]
    for function in reached:
        codes = [function.__code__]
        for code in codes:
            codes += [candidate for candidate in code.co_consts if isinstance(candidate, CodeType)]
        names = {name for code in codes for name in code.co_names}
        called = [candidate for candidate in waiting if candidate.__name__ in names or "getattr" in names]
        waiting = [candidate for candidate in waiting if candidate not in called]
        reached += called
    return reached


def _is_method(function: FunctionType) -> bool:
    """Whether a function is reached by its name alone: a method that Python does not call by itself."""
    owner = function.__qualname__.rpartition(".")[0]
    return bool(owner) and not owner.endswith("<locals>") and not function.__name__.startswith("__")


def _first_line(function: Any) -> int:
    """The line where the code of a function begins: that of its first decorator."""
    return min(
        [function.lineno, *(decorator.lineno for decorator in getattr(function, "decorator_list", ()))], default=0
    )


def _last_name(node: ast.AST) -> str | None:
    """The last name of the path of a variable or an attribute."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


class TextFlow:
    """Follows texts through the sources of one trace. root: the code whose caller gets the result of the trace.

    shows: whether a function only shows the texts that it gets, as `print` does.
    """

    def __init__(self, root: CodeType, shows: Callable[[Any], bool]) -> None:
        self._root, self._shows = root, shows
        self._sources: dict[str, FileSyntax] = {}
        self._stored: set[str] = set()
        self._extended: set[str] = set()

    def is_only_shown(self, frame: FrameType | None) -> bool:
        """Whether the text that the running expression of a frame makes is only returned or printed."""
        if frame is None:
            return False
        source = self._source(frame)
        node = source.node_at(frame)
        return node is not None and _makes_text(node, source) and self._is_shown(node, source, frame, set())

    def reads_stored(self, root: Any, functions: Iterable[FunctionType]) -> bool:
        """Whether the function `root`, or another one of the trace, may read a place that a text was stored in.

        A place is known by the last name of its path. Containers may be extended, and asked for their length.
        """
        return bool(self._stored | self._extended) and any(map(self._reads_stored, _reachable(root, functions)))

    def _reads_stored(self, function: FunctionType) -> bool:
        code = function.__code__
        source = self._source_of(code, function.__globals__)
        functions = (inner for inner in source.parents if isinstance(inner, _FUNCTIONS))
        nodes = [inner for inner in functions if _first_line(inner) == code.co_firstlineno]
        loads = [
            inner for node in nodes for inner in ast.walk(node) if isinstance(getattr(inner, "ctx", None), ast.Load)
        ]
        return not nodes or any(
            name in self._stored or (name in self._extended and not source.only_extends(inner))
            for inner in loads for name in [_last_name(inner)]
        )  # fmt: skip

    def _source(self, frame: FrameType) -> FileSyntax:
        return self._source_of(frame.f_code, frame.f_globals)

    def _source_of(self, code: CodeType, names: Any) -> FileSyntax:
        filename = code.co_filename
        if filename not in self._sources:
            self._sources[filename] = FileSyntax(filename, names)
        return self._sources[filename]

    def _is_stored(self, place: ast.expr, frame: FrameType, names: set[str]) -> bool:
        """Whether a place is one of the state, by its last name, which is added to the names."""
        name = _last_name(place)
        if name is None or (isinstance(place, ast.Name) and name in frame.f_code.co_varnames):
            return False
        names.add(name)
        return True

    def _is_shown(self, node: ast.AST, source: FileSyntax, frame: FrameType, seen: set[str]) -> bool:
        """Whether the value of an expression is only returned or printed. seen: names that are being followed."""
        while True:
            parent = source.parents.get(node)
            if parent is None or not _passes_on(node, parent):
                break
            node = parent
        match parent:
            case ast.Expr():
                return True
            case ast.Call(func=ast.Attribute(attr="append", value=container)):
                is_statement = isinstance(source.parents.get(parent), ast.Expr)
                return is_statement and node in parent.args and self._is_stored(container, frame, self._extended)
            case ast.Call():
                return self._prints(node, parent, frame)
            case ast.Assign(targets=[ast.Attribute() as place]):
                return self._is_stored(place, frame, self._stored)
            case ast.Assign(targets=[ast.Subscript(value=place)]):
                return node is parent.value and self._is_stored(place, frame, self._extended)
            case ast.Return() | ast.Lambda():
                return self._is_returned(frame)
            case ast.Assign(targets=[ast.Name(name)]) | ast.AugAssign(target=ast.Name(name), op=ast.Add()):
                return self._is_name_shown(name, parent, source, frame, seen)
        return False

    def _prints(self, node: ast.AST, call: ast.Call, frame: FrameType) -> bool:
        is_text = node in call.args and isinstance(node, (ast.JoinedStr, ast.Name, ast.BinOp, ast.Call))
        match call.func:
            case ast.Name(name):
                return is_text and name not in frame.f_locals and self._shows(_global(name, frame))
            case ast.Attribute(value=ast.Name(name), attr=method):
                owner = frame.f_locals[name] if name in frame.f_locals else _global(name, frame)
                is_known = isinstance(owner, ModuleType) or self._shows(owner)
                return is_text and is_known and self._shows(getattr(owner, method, None))
        return False

    def _is_returned(self, frame: FrameType) -> bool:
        """Whether the result of the function that runs in a frame is only returned or printed."""
        caller: FrameType | None = frame
        while caller is not None and caller.f_code.co_name in _COMPREHENSIONS:
            caller = caller.f_back
        caller = None if caller is None else caller.f_back
        while caller is not None and caller.f_code is not self._root and is_internal(caller.f_code.co_filename):
            caller = caller.f_back
        if caller is None or caller.f_code is self._root:
            return caller is not None
        node = self._source(caller).node_at(caller)
        is_text = frame.f_code.co_name in _TEXT_METHODS and node is not None and _makes_text(node, self._source(caller))
        if node is None or not (is_text or _calls(node, frame.f_code.co_name)):
            return False
        return self._is_shown(node, self._source(caller), caller, set())

    def _is_name_shown(self, name: str, node: ast.AST, source: FileSyntax, frame: FrameType, seen: set[str]) -> bool:
        """Whether every use of a local variable only shows it."""
        if name in seen:
            return True
        function: ast.AST | None = node
        while function is not None and not isinstance(function, (ast.FunctionDef, ast.Lambda)):
            function = source.parents.get(function)
        if function is None or name not in frame.f_code.co_varnames:
            return False
        for inner in ast.walk(function):
            if isinstance(inner, ast.Name) and inner.id in _READS_LOCALS:
                return False
            is_use = isinstance(inner, ast.Name) and inner.id == name and isinstance(inner.ctx, ast.Load)
            if is_use and not self._is_shown(inner, source, frame, {*seen, name}):
                return False
        return True


def _global(name: str, frame: FrameType) -> Any:
    return frame.f_globals.get(name, frame.f_builtins.get(name))


_TEXT_METHODS = frozenset({"__str__", "__repr__", "__format__"})
_TEXT_FUNCTIONS = frozenset({"str", "repr", "format"})


def _calls(node: ast.AST, name: str) -> bool:
    """Whether an expression is a call of a function of this name, not of one that calls it, such as `sorted`."""
    if not isinstance(node, ast.Call):
        return False
    return name == "<lambda>" if isinstance(node.func, ast.Lambda) else _last_name(node.func) == name


def _makes_text(node: ast.AST, source: FileSyntax) -> bool:
    """Whether an expression is a text with the texts of values in it as they are, not padded, cut, or escaped."""
    match node:
        case ast.FormattedValue():
            return _makes_text(source.parents[node], source)
        case ast.JoinedStr():
            fields = [field for field in ast.walk(node) if isinstance(field, ast.FormattedValue)]
            # A text may be a specification.
            return all(_keeps_text(field.conversion, field.format_spec) for field in fields) and not any(
                field in source.specifications for field in fields
            )
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str(form))):
            return re.fullmatch(r"([^%]|%(\(\w*\))?([dieEfFgGsr%]|[0-9.+ #-]+[dieEfFgG]))*", form) is not None
        case ast.Call(func=ast.Name(name)):
            return name in _TEXT_FUNCTIONS
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(form)), attr=method)):
            return method == "join" or (method == "format" and _keeps_texts(form))
    return False


def _keeps_text(conversion: int, specification: ast.expr | None) -> bool:
    return conversion == -1 or (conversion != ord("a") and specification is None)


def _keeps_texts(form: str) -> bool:
    """Whether the fields of a text for `format` take the text of a value as it is."""
    try:
        fields = list(string.Formatter().parse(form))
    except ValueError:
        return False
    return all(not conversion or (conversion != "a" and not specification) for *_, specification, conversion in fields)


def _passes_on(node: ast.AST, parent: ast.AST) -> bool:
    """Whether the value of an expression is a text with the text of an inner one, or a container of it."""
    match parent:
        case ast.JoinedStr() | ast.List() | ast.Tuple() | ast.ListComp():
            return not isinstance(node, ast.comprehension)
        case ast.FormattedValue():
            return parent.format_spec is None and parent.conversion in (-1, ord("s"))
        case ast.BinOp(op=ast.Add()):
            return True
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str(form))):
            return re.fullmatch(r"([^%]|%(\(\w*\))?[s%])*", form) is not None
        case ast.IfExp():
            return node is not parent.test
        case ast.Dict():
            return any(node is value for value in parent.values)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(form)), attr="format" | "join" as method)):
            is_kept = method == "join" or not re.search("[:!]", form)
            return is_kept and any(node is argument for argument in parent.args)
        case ast.Call(func=ast.Name(id="str" | "format")):
            return len(parent.args) == 1 and node is parent.args[0]
    return False
