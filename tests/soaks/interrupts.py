"""Interrupts calls at random times: `python -m tests.soaks.interrupts [seconds]`, 600 by default.

A process compiles and runs random functions, alone and beside a thread that does the same, forks now and then, and
compares every result with NumPy's. This one sends it interrupts, some close together. Nothing but the interrupted call
may notice them: a wrong result, another error, a crash, or a minute without a call that ends are failures. Other
processes are ended by an interrupt that they do not handle, and must end by it.

Prints how many interrupts were sent, and what followed.
"""

from __future__ import annotations

import faulthandler
import os
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HANG_SECONDS = 60.0
"""Without a word from a process for so long, it hangs. A busy machine takes long for one call."""

UNARY = ("np.tanh({})", "np.sin({})", "abs({})", "-{}", "np.sqrt(abs({}) + 1)", "np.exp(-abs({}))")
BINARY = ("{} + {}", "{} - {}", "{} * {}", "np.maximum({}, {})")
REDUCED = ("{}.sum(-1, keepdims=True)", "{}.max(0)", "{}.mean()", "{}[:, ::-1]")


class Counts(NamedTuple):
    """What a storm did. swallowed: interrupts in code that Python lets raise nothing, such as weakref callbacks."""

    sent: int
    interrupted: int
    swallowed: int
    calls: int
    ended: int


# ---------------------------------------------------------------------------------------------------------------------
# the process that is interrupted


def drawn(chance: random.Random) -> Callable[[Any], Any]:
    """A random function of a matrix, with numbers of its own: its kernels are new ones."""
    lines, names = [], ["x"]
    for k in range(chance.randint(1, 6)):
        one, other = chance.choice(names), chance.choice([*names, repr(chance.uniform(0.1, 1.0))])
        forms = chance.choice([UNARY, BINARY, BINARY, REDUCED])
        # A reduction is of the argument, which has the rank for it, and is used by what follows.
        text = f"x * {chance.uniform(0.1, 1.0)!r} + " if k == 0 else ""
        chosen = chance.choice(forms)
        lines.append(f"    t{k} = {text}{chosen.format('x' if forms is REDUCED else one, other)}")
        names.append(f"t{k}")
    source = "\n".join(["def function(x):", *lines, f"    return {names[-1]} + x, {chance.choice(names)} * 2"])
    scope: dict[str, Any] = {"np": np}
    exec(compile(source, "<drawn>", "exec"), scope)
    scope["function"].text = source
    return scope["function"]  # type: ignore[no-any-return]


def check(fused: Any, plain: Any, x: Any) -> None:
    for result, expected in zip(fused(x), plain(x), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9, err_msg=plain.text)


class Interrupted:
    """Counts interrupts; they raise KeyboardInterrupt once after each `arm`."""

    def __init__(self) -> None:
        self.received = self.raised = 0
        self.is_armed = False
        signal.signal(signal.SIGINT, self.handle)

    def handle(self, *_: Any) -> None:
        self.received += 1
        if self.is_armed:
            self.is_armed = False
            self.raised += 1
            raise KeyboardInterrupt


def call_in_fork(fused: Any, plain: Any, x: Any) -> None:
    """Forks, where the other thread may be compiling, and compiles in the child."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            check(fused, plain, x)
        except BaseException as error:
            os.write(2, f"in a fork: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    # In a loop of short waits, so that a child that hangs is seen.
    limit = time.monotonic() + HANG_SECONDS
    while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > limit:
            os.kill(child, signal.SIGABRT)
        time.sleep(0.002)
    assert os.waitstatus_to_exitcode(found[1]) == 0


def one_at_a_time(seed: int, stop: Callable[[], bool]) -> Iterator[tuple[Any, Any, Any]]:
    """Random functions, fused and plain, with an argument."""
    from tracefuse import fuse, rules

    chance = random.Random(seed)
    while not stop():
        plain = drawn(chance)
        merge = chance.choice([None, None, rules.one_op_a_segment])
        x = np.random.default_rng(chance.randrange(1000)).normal(size=(chance.randint(1, 40), chance.randint(1, 40)))
        yield fuse(plain, merge=merge), plain, x


def run_interrupted(seconds: float, seed: int) -> None:
    """The process that is interrupted; prints (interrupts seen, swallowed, calls)."""
    import tracefuse

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    wrong: list[BaseException] = []
    interrupts, caught, swallowed, calls = Interrupted(), 0, 0, 0

    def unraisable(found: Any) -> None:
        nonlocal swallowed
        if isinstance(found.exc_value, KeyboardInterrupt):
            swallowed += 1
        else:
            wrong.append(found.exc_value)

    sys.unraisablehook = unraisable

    def beside() -> None:
        try:
            for one in one_at_a_time(seed + 1, lambda: time.monotonic() > end or bool(wrong)):
                check(*one)
        except BaseException as error:
            wrong.append(error)

    # Imports all there is to import: what an interrupt does to that is Python's affair.
    check(*next(one_at_a_time(seed, lambda: False)))
    end = time.monotonic() + seconds
    thread = threading.Thread(target=beside)
    thread.start()
    print("ready", flush=True)
    for fused, plain, x in one_at_a_time(seed, lambda: time.monotonic() > end or bool(wrong)):
        for _ in range(4):
            try:
                interrupts.is_armed = True
                check(fused, plain, x)
                interrupts.is_armed = False
            except KeyboardInterrupt:
                caught += 1
        # What was interrupted works, also at once.
        check(fused, plain, x)
        calls += 1
        if calls % 16 == 0:
            call_in_fork(fused, plain, x)
        if calls % 32 == 0:
            tracefuse.clear_caches()
        print(".", end="", flush=True)
    thread.join()
    if wrong:
        raise wrong[0]
    assert caught + swallowed >= interrupts.raised, "an interrupt was lost"
    print(f"\n{interrupts.received} {caught} {swallowed} {calls}", flush=True)


def run_until_interrupted(seed: int) -> None:
    """A process that an interrupt ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job of a shell ignores
    functions = one_at_a_time(seed, lambda: False)
    first = next(functions)
    print("ready", flush=True)
    check(*first)
    for one in functions:
        check(*one)


# ---------------------------------------------------------------------------------------------------------------------
# the one that interrupts


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ready, with a cache folder of its own."""
    root = str(Path(__file__).resolve().parents[2])
    with tempfile.TemporaryDirectory(prefix="tracefuse-interrupts-") as folder:
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "TRACEFUSE_CACHE_DIR": folder, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-W", "error", "-X", "faulthandler", __file__, *map(str, arguments)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                process.kill()
                raise AssertionError(f"a process did not start:\n{process.communicate()[1].decode()}")
            yield process
        finally:
            process.kill()
            process.communicate()


def storm(seconds: float, seed: int, mean: float = 0.03) -> Counts:
    """Interrupts one process for so long, `mean` seconds apart."""
    chance, sent, said, heard = random.Random(seed), 0, b"", time.monotonic()
    with started("interrupted", seconds, seed) as process, selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        selector.register(process.stdout, selectors.EVENT_READ)
        end = time.monotonic() + seconds - 0.3  # an interrupt ends a Python that shuts down
        while process.poll() is None:
            # Now and then at once after another one.
            if selector.select(chance.expovariate(1 / mean) if chance.random() < 0.9 else 0.0002):
                new = process.stdout.read() or b""
                said, heard = said + new, time.monotonic() if new else heard
            if time.monotonic() - heard > HANG_SECONDS:
                process.send_signal(signal.SIGUSR1)
                time.sleep(2)
                process.kill()
                raise AssertionError(f"seed {seed}: it hangs after {sent} interrupts\n{errors_of(process)}")
            if time.monotonic() < end and process.poll() is None:
                process.send_signal(signal.SIGINT)
                sent += 1
        said += process.stdout.read() or b""
        if process.returncode != 0:
            raise AssertionError(f"seed {seed}: it ended with {process.returncode}\n{errors_of(process)}")
    _, caught, swallowed, calls = map(int, said.decode().split("\n")[-2].split())
    return Counts(sent, caught, swallowed, calls, 0)


def errors_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


def end_one(seed: int, most: float = 1.5) -> None:
    """Ends a process by one interrupt, or by two that come close together."""
    chance = random.Random(seed)
    with started("until", seed) as process:
        time.sleep(chance.uniform(0, most))
        process.send_signal(signal.SIGINT)
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0, 0.02))
            process.send_signal(signal.SIGINT)
        errors = errors_at_end(process, seed)
        # Python ends with 1 where the second interrupt comes while it shows what the first one broke off.
        by_interrupt = process.returncode in (-signal.SIGINT, 1) and b"KeyboardInterrupt" in errors
        if not by_interrupt or b"Fatal" in errors:
            raise AssertionError(f"seed {seed}: it ended with {process.returncode}\n{errors.decode()}")


def errors_at_end(process: subprocess.Popen[bytes], seed: int) -> bytes:
    """What a process that was interrupted says; it is interrupted again where Python swallowed that, as users would."""
    for _ in range(int(HANG_SECONDS / 5)):
        try:
            return process.communicate(timeout=5)[1]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGABRT)
    raise AssertionError(f"seed {seed}: the process does not end\n{process.communicate()[1].decode()}")


def main() -> None:
    kind, *rest = [*sys.argv[1:], "600"]
    if kind == "interrupted":
        run_interrupted(float(rest[0]), int(rest[1]))
    elif kind == "until":
        run_until_interrupted(int(rest[0]))
    else:
        total, seed, end = Counts(0, 0, 0, 0, 0), random.randrange(10**9), time.monotonic() + float(kind)
        while time.monotonic() < end:
            seed += 2
            found = storm(min(30.0, max(end - time.monotonic(), 1.0)), seed)
            for k in range(3):
                end_one(seed + k)
            total = Counts(*(a + b for a, b in zip(total, found._replace(ended=3), strict=True)))
            print(f"seed {seed}: {total}", flush=True)


if __name__ == "__main__":
    main()
