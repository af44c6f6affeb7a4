"""`python -m tracefuse` prints what tracefuse runs with here.

Knows: `show_config`. Must not know: anything else.
"""

from __future__ import annotations

from tracefuse.diagnostics.configuration import show_config

if __name__ == "__main__":
    print(show_config())
