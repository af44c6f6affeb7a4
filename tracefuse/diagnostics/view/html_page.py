"""The page of a view: one HTML file with its data, style and scripts inside, which loads nothing.

Must not know: fusions, plans.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The content security policy: a browser refuses anything that the page would load."""


def page_of(title: str, data: Mapping[str, Any]) -> str:
    """Returns the page. data: what page.js reads, as JSON can hold it."""
    parts = {
        "title": html.escape(title),
        "policy": _POLICY,
        "style": _resource("page.css"),
        "layout_licence": _resource("dagre.LICENSE.txt"),
        "layout": _resource("dagre.min.js"),
        # A "<" in the data could end the script element.
        "data": json.dumps(data).replace("<", "\\u003c"),
        "script": _resource("page.js"),
    }
    before, *fields = _resource("page.html").split("{{")
    pairs = (field.split("}}", 1) for field in fields)
    return before + "".join(f"{parts[name]}{after}" for name, after in pairs)


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
