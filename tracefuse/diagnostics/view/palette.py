"""The colours of segments and ops by kind: those of Okabe and Ito, which people with any colour vision can tell apart.

No fact is shown by colour alone: every box also has its template or op as text.
"""

from __future__ import annotations

from collections.abc import Mapping

KIND_COLOURS: Mapping[str, str] = {
    "pointwise": "#56B4E9",
    "reduction": "#E69F00",
    "scan": "#F0E442",
    "library": "#009E73",
    "movement": "#CC79A7",
    "collective": "#D55E00",
}

OTHER_COLOUR = "#BBBBBB"
"""Of control flow and of any other kind."""

TEXT_COLOUR, EDGE_COLOUR, PAPER_COLOUR = "#111111", "#444444", "#FFFFFF"


def colour_of(kind: str) -> str:
    """Returns the fill of a box, as #RRGGBB."""
    return KIND_COLOURS.get(kind, OTHER_COLOUR)
