"""`python -m tracefuse` prints versions, devices, options and the cache folder."""

from __future__ import annotations

from tracefuse.diagnostics.configuration import show_config

if __name__ == "__main__":
    print(show_config())
