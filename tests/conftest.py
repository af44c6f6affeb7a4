"""Fixtures and settings of all tests: hypothesis profiles, a cache folder of their own, and the backends."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile

import pytest
from hypothesis import settings

from tests.session import jax_settings, optimized_tests, two_processes
from tests.session.samples import is_interpreted, times
from tests.ways import BACKENDS, why_not
from tracefuse.kernel.cache import disk_cache
from tracefuse.kernel.llvm import worker_pool

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=times(25))
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=times(50))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# The suite never touches the user's own folder of compiled kernels; set before any test module is imported. The second
# process of a session shares that of the first.
_OWNED = two_processes.ENVIRONMENT not in os.environ
_FOLDER = tempfile.mkdtemp(prefix="tracefuse-tests-") if _OWNED else os.path.dirname(os.environ["TRACEFUSE_CACHE_DIR"])
os.environ["TRACEFUSE_CACHE_DIR"] = os.path.join(_FOLDER, "kernels")
jax_settings.set_environment()
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    # Each of the processes that tests start would compile all that it imports, which takes longer than most run, and
    # the second process of the session would rewrite the assertions of all tests again.
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = os.path.join(_FOLDER, "bytecode")
    sys.dont_write_bytecode = False

# The part of the tests that this process runs, such as 3/8; removed, since tracefuse takes such names for options.
_PART = os.environ.pop("TRACEFUSE_TESTS_PART", None)

# What importing and collecting tests makes lives to the end: collecting garbage meanwhile takes longer than the rest.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    # A GPU is used by one process.
    config.pluginmanager.register(two_processes.plugin(alone=why_not("cuda") is None), "two_processes")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """TRACEFUSE_TESTS_PART=k/n keeps every n-th test from the k-th on: n processes share the tests of one GPU."""
    if _PART is not None:
        first, count = map(int, _PART.split("/"))
        config.hook.pytest_deselected(items=[item for k, item in enumerate(items) if k % count != first])
        items[:] = items[first::count]


def freeze_live_objects() -> None:
    """Later garbage collections skip what is alive now; a trace of a function that asks collects all the others."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    worker_pool.get_pool(disk_cache.in_force())  # optimized: it outlives all tests
    freeze_live_objects()  # thousands of tests and their modules live to the end
    # A trace makes tens of thousands of objects, of which few are garbage in cycles.
    gc.set_threshold(20_000, *gc.get_threshold()[1:])
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    how = optimized_tests.prepare(item.nodeid)
    item.add_report_section("setup", "CPU kernels", f"compiled {how} (tests/session/optimized_tests.py)")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    # So do the compiled functions and caches of the tests that ran: traces would take longer from test to test.
    if nextitem is None or nextitem.path != item.path:
        freeze_live_objects()


def pytest_unconfigure() -> None:
    if _OWNED:
        shutil.rmtree(_FOLDER, ignore_errors=True)


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.gpu] if name == "cuda" else []) for name in BACKENDS],
)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend; skipped, with the reason, where it cannot run."""
    name: str = request.param
    if name == "interpreter" and not is_interpreted(request.node.nodeid):
        pytest.skip("the CPU runs these kernels compiled; whole_suite interprets them all")
    reason = why_not(name)
    if reason is not None:
        pytest.skip(reason)
    return name
