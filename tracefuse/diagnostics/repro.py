"""Scripts that show a problem: a definition, arrays like the inputs, and a call under the same options.

Knows: how a script is put together. Must not know: definitions, plans.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tracefuse import config
from tracefuse.config import Options

_LEFT_OUT = ("target", "check", "eager")


def script_text(definition: str, name: str, arguments: Sequence[str], options: Options | None = None) -> str:
    """A Python script that records `definition`, the text of a function called `name`, and executes it.

    arguments: an expression for each input; without any nothing is executed. options: those that differ from the
    defaults, and change what is compiled, are set again.
    """
    lines = ["import numpy as np", "from tracefuse import *", "", definition, ""]
    lines += ["with FusionDefinition() as fd:", f"    {name}(fd)", ""]
    if not arguments:
        return "\n".join(lines)
    lines += ["inputs = [", *(f"    {argument}," for argument in arguments), "]"]
    call = "outputs = fd.execute(inputs)"
    given = _options_text(options)
    lines += [f"with options({given}):", textwrap.indent(call, "    ")] if given else [call]
    return "\n".join([*lines, ""])


def _options_text(options: Options | None) -> str:
    if options is None:
        return ""
    changing = (o for o in config.TABLE.values() if o.changes_code and o.name not in _LEFT_OUT)
    pairs = ((o.name, getattr(options, o.name)) for o in changing if getattr(options, o.name) != o.default)
    return ", ".join(f"{name}={value!r}" for name, value in pairs)
