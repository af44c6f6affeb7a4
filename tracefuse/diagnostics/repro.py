"""Reproduction scripts: a definition, inputs with the same shapes and types, and a call under the same options.

Must not know: frontends, plans.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tracefuse import config
from tracefuse.config import Options

_LEFT_OUT = ("target", "check", "eager")


def script_text(definition: str, name: str, arguments: Sequence[str], options: Options | None = None) -> str:
    """A Python script that records `definition`, the text of a function `name`, and executes it.

    arguments: an expression for each input; if empty, the script only records. options: the script sets those that
    differ from the defaults and affect generated code.
    """
    lines = ["import numpy as np", "from tracefuse import *", "", definition, ""]
    lines += ["with FusionDefinition() as fd:", f"    {name}(fd)", ""]
    if not arguments:
        return "\n".join(lines)
    lines += ["inputs = [", *(f"    {argument}," for argument in arguments), "]"]
    call = "outputs = fd.execute(inputs)"
    keywords = _options_text(options)
    lines += [f"with options({keywords}):", textwrap.indent(call, "    ")] if keywords else [call]
    return "\n".join([*lines, ""])


def _options_text(options: Options | None) -> str:
    if options is None:
        return ""
    changing = (o for o in config.TABLE.values() if o.changes_code and o.name not in _LEFT_OUT)
    pairs = ((o.name, getattr(options, o.name)) for o in changing if getattr(options, o.name) != o.default)
    return ", ".join(f"{name}={value!r}" for name, value in pairs)
