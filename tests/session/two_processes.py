"""Runs the tests of a session in two processes; each takes the next group when it is free.

The first process is the one that was started: it reports every test, its own and those of the second, which it starts
with the same arguments. Groups of tests go by numbers in a pipe; each process takes the next number. The session fails
when a test was run by neither, or when the second process ends in any other way than a session ends.

Knows: pytest's hooks, pipes. Must not know: what is tested.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import IO, Any

import pytest

ENVIRONMENT = "TRACEFUSE_TESTS_PIPES"
"""In the second process: the pipe of numbers, and the one for its reports."""

MOST_OF_A_GROUP = 16
"""Tests of one function that are taken at once."""

WORTH_IT = 1000
"""With fewer tests a second process takes longer to start than it saves."""

NUMBER = struct.Struct("<I")


def wanted(config: pytest.Config, count: int) -> bool:
    """Whether this session is for two processes: long, with processors for both, and read by nobody as it goes."""
    stops = config.getoption("maxfail") or config.getoption("usepdb") or config.getoption("collectonly")
    if count < WORTH_IT or stops or config.getoption("capture") == "no":
        return False
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1


def grouped(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """The tests in their order, some of one function together: what they compile is then shared."""
    groups: list[list[pytest.Item]] = []
    for _, same in itertools.groupby(items, lambda item: item.nodeid.partition("[")[0]):
        tests = list(same)
        groups += (tests[k : k + MOST_OF_A_GROUP] for k in range(0, len(tests), MOST_OF_A_GROUP))
    return groups


def digest(items: list[pytest.Item]) -> str:
    """Equal for processes that found the same tests."""
    return hashlib.sha256("\n".join(item.nodeid for item in items).encode()).hexdigest()


def taken(items: list[pytest.Item], numbers: int) -> Iterator[pytest.Item]:
    """The tests whose numbers this process reads from the pipe."""
    groups = grouped(items)
    while read := os.read(numbers, NUMBER.size):
        yield from groups[NUMBER.unpack(read)[0]]


def run(items: Iterator[pytest.Item]) -> Iterator[pytest.Item]:
    """Runs each test once it is known which comes next, since fixtures may live on; yields it then."""
    for item, following in itertools.pairwise(itertools.chain(items, [None])):
        assert item is not None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        yield item


class First:
    """The process that was started. Inert where one is enough, or `alone` asks for one."""

    def __init__(self, alone: bool) -> None:
        self.alone = alone
        self.lines: list[str] = []
        self.done: set[str] = set()
        self.reported = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        config, items = session.config, session.items
        if self.alone or session.testsfailed or not wanted(config, len(items)):
            return None
        groups = range(len(grouped(items)))
        numbers, giving = os.pipe()
        reports, reporting = os.pipe()
        with tempfile.TemporaryFile() as output, os.fdopen(reports) as arriving:
            second = subprocess.Popen(
                [sys.executable, "-m", "pytest", *config.invocation_params.args, "-p", "no:cacheprovider"],
                cwd=config.invocation_params.dir, pass_fds=(numbers, reporting), stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, env={**os.environ, ENVIRONMENT: f"{numbers},{reporting}"},
            )  # fmt: skip
            try:
                os.close(reporting)
                reader = threading.Thread(target=self.read, args=(arriving,), daemon=True)
                reader.start()
                # All of them fit a pipe: it holds 64 KiB.
                os.write(giving, b"".join(map(NUMBER.pack, groups)))
                os.close(giving)
                for item in run(taken(items, numbers)):
                    self.done.add(item.nodeid)
                    self.report(config)
                ended = second.wait()
                reader.join()
                self.report(config, digest(items))
                self.check(session, ended, output)
            finally:
                second.kill()
                second.wait()
                os.close(numbers)
        return True

    def read(self, arriving: IO[str]) -> None:
        for line in arriving:
            self.lines.append(line)

    def report(self, config: pytest.Config, found: str | None = None) -> None:
        """Reports what has arrived of the second process; with `found`, where all has: it must have found the same."""
        arrived = self.lines[self.reported :]
        for number, line in enumerate(arrived, self.reported):
            if number == 0:
                continue
            data = json.loads(line)
            report = config.hook.pytest_report_from_serializable(config=config, data=data)
            if isinstance(report.longrepr, list):
                # Where and why a test was skipped: a tuple, which JSON does not know.
                report.longrepr = tuple(report.longrepr)
            config.hook.pytest_runtest_logreport(report=report)
            if report.when == "teardown":
                self.done.add(report.nodeid)
        self.reported += len(arrived)
        if found is not None and self.lines[:1] != [found + "\n"]:
            raise RuntimeError("the two processes found different tests")

    def check(self, session: pytest.Session, ended: int, output: IO[bytes]) -> None:
        """Raises RuntimeError unless every test has run and the second process has ended as sessions do."""
        left = [item.nodeid for item in session.items if item.nodeid not in self.done]
        if left or ended not in (0, 1, 5):
            output.seek(0)
            text = output.read().decode(errors="replace")[-4000:]
            raise RuntimeError(f"the second process of tests ended with {ended}; not run: {left[:5]}\n{text}")


class Second:
    """The process that the first one started: its reports go through the pipe."""

    def __init__(self, numbers: int, reporting: int) -> None:
        for pipe in (numbers, reporting):
            os.set_inheritable(pipe, False)
        self.numbers, self.reports = numbers, os.fdopen(reporting, "w", buffering=1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.config = session.config
        print(digest(session.items), file=self.reports)
        for _ in run(taken(session.items, self.numbers)):
            pass
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        print(json.dumps(data), file=self.reports)

    def pytest_unconfigure(self) -> None:
        self.reports.close()


def plugin(*, alone: bool) -> First | Second:
    """What the session of this process needs; `alone`: one process, whatever there is."""
    pipes = os.environ.pop(ENVIRONMENT, None)
    return First(alone) if pipes is None else Second(*map(int, pipes.split(",")))
