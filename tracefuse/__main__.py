"""`python -m tracefuse` prints versions, devices, options and the cache folder; `view script.py` writes pictures."""

from __future__ import annotations

import sys

from tracefuse.diagnostics.configuration import show_config
from tracefuse.diagnostics.view_script import view_script

if __name__ == "__main__":
    if sys.argv[1:2] == ["view"]:
        view_script(sys.argv[2:])
    elif sys.argv[1:]:
        sys.exit("usage: python -m tracefuse [view [--folder FOLDER] script.py ...]")
    else:
        print(show_config())
