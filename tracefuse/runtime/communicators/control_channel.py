"""The control channel of a job: TCP to rank 0, one line of JSON a message.

Ranks report the exchanges that they start, and values such as the identifiers of communicators. Rank 0 compares the
exchanges and tells every rank of the first difference, and of a rank whose connection ends. A rank proves that it knows
the secret of the job before anything else is read from it.

Must not know: fusions, devices.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from tracefuse.errors import CommunicationError, DeviceError
from tracefuse.runtime.communicators.agreement import END, Agreement
from tracefuse.runtime.communicators.record_texts import RecordText, record_text
from tracefuse.runtime.communicators.world import World

REPORT_EVERY = 0.05
"""Seconds between reports of a rank's exchanges."""
CONNECT_FOR = 60.0
"""Seconds for which a rank tries to reach rank 0."""


def _proof(secret: str, challenge: str) -> str:
    return hmac.new(secret.encode(), challenge.encode(), hashlib.sha256).hexdigest()


class _Connection:
    """A socket that carries lines of JSON."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._channel, self._sending = channel, threading.Lock()
        self._lines = channel.makefile("r", encoding="utf-8")

    def send(self, **message: Any) -> None:
        """Sends a message. Raises OSError if the connection has ended."""
        with self._sending:
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields messages until the connection ends."""
        try:
            for line in self._lines:
                yield json.loads(line)
        except (OSError, ValueError):
            return

    def close(self) -> None:
        """Ends the connection."""
        with contextlib.suppress(OSError):  # the other side may have closed it
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()


class ControlServer:
    """The side of rank 0. address: (host, port, secret) for the clients."""

    def __init__(self, host: str, port: int, size: int, secret: str) -> None:
        self._listening = socket.create_server((host, port), backlog=size)
        self.address = (host, self._listening.getsockname()[1], secret)
        self._agreement = Agreement(size)
        self._secret, self._size = secret, size
        self._connections: dict[int, _Connection] = {}
        self._values: dict[str, Any] = {}
        self._waiting: list[tuple[int, str]] = []
        self._lock = threading.Lock()
        self._left: set[int] = set()
        self.all_left = threading.Event()
        threading.Thread(target=self._accept, daemon=True, name="tracefuse control server").start()

    @classmethod
    def on_free_port(cls, size: int) -> ControlServer:
        """Starts a server that ranks on this host reach through the loop-back interface, others by its name."""
        try:
            host = socket.gethostbyname(socket.gethostname())
        except OSError:  # the host's name has no address
            host = "127.0.0.1"
        return cls(host, 0, size, secrets.token_hex(16))

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(_Connection(channel),), daemon=True).start()

    def _serve(self, connection: _Connection) -> None:
        challenge = secrets.token_hex(16)
        connection.send(challenge=challenge)
        messages = connection.messages()
        hello = next(messages, {})
        rank = hello.get("rank")
        if not hmac.compare_digest(str(hello.get("proof")), _proof(self._secret, f"{challenge}{rank}")):
            connection.close()
            return
        assert isinstance(rank, int)
        with self._lock:
            self._connections[rank] = connection
        for message in messages:
            self._take(rank, message)
        with self._lock:
            left = rank in self._left
        if not left:
            self._lose(rank, "ended without warning")

    def _take(self, rank: int, message: dict[str, Any]) -> None:
        match message["do"]:
            case "put":
                with self._lock:
                    self._values[message["key"]] = message["value"]
                    ready = [request for request in self._waiting if request[1] == message["key"]]
                    self._waiting = [request for request in self._waiting if request[1] != message["key"]]
                for other, key in ready:
                    self._send(other, key=key, value=message["value"])
            case "get":
                with self._lock:
                    is_known = message["key"] in self._values
                    if not is_known:
                        self._waiting.append((rank, message["key"]))
                if is_known:
                    self._send(rank, key=message["key"], value=self._values[message["key"]])
            case "report":
                failure = self._agreement.report(rank, message["texts"])
                if failure is not None:
                    self._tell(failure)
            case "leave":
                if message["cause"]:
                    self._lose(rank, message["cause"])
                self._leave(rank)

    def _leave(self, rank: int) -> None:
        with self._lock:
            self._left.add(rank)
            if len(self._left) == self._size:
                self.all_left.set()

    def _lose(self, rank: int, cause: str) -> None:
        self._tell(self._agreement.lose(rank, cause))
        self._leave(rank)

    def _tell(self, failure: str) -> None:
        for rank in list(self._connections):
            self._send(rank, failure=failure)

    def _send(self, rank: int, **message: Any) -> None:
        try:
            self._connections[rank].send(**message)
        except OSError:  # the thread that reads from this rank notices
            return


class ControlClient:
    """A rank's side. failure: what rank 0 reported, or that its connection ended. server: on rank 0, the other side."""

    def __init__(self, address: tuple[str, int, str], rank: int, server: ControlServer | None = None) -> None:
        host, port, secret = address
        self.failure: str | None = None
        self._rank, self._server = rank, server
        self._values: dict[str, Any] = {}
        self._arrived = threading.Condition()
        self._leaving = False
        self._connection = _Connection(_connect(host, port))
        messages = self._connection.messages()
        challenge = next(messages, {}).get("challenge", "")
        self._connection.send(rank=rank, proof=_proof(secret, f"{challenge}{rank}"))
        self._reading = threading.Thread(target=self._read, args=(messages,), daemon=True, name="tracefuse control")
        self._reading.start()

    def _read(self, messages: Iterator[dict[str, Any]]) -> None:
        for message in messages:
            with self._arrived:
                if "failure" in message:
                    self.failure = self.failure or message["failure"]
                else:
                    self._values[message["key"]] = message["value"]
                self._arrived.notify_all()
        with self._arrived:
            if not self._leaving:
                self.failure = self.failure or "the connection to rank 0 ended: it has ended, or refused the job secret"
            self._arrived.notify_all()

    def put(self, key: str, value: Any) -> None:
        """Publishes a value that JSON can hold."""
        self._send(do="put", key=key, value=value)

    def get(self, key: str) -> Any:
        """Returns a value once a rank has published it. Raises CommunicationError if the job fails."""
        self._send(do="get", key=key)
        with self._arrived:
            while key not in self._values and self.failure is None:
                self._arrived.wait(1.0)
            if key not in self._values:
                raise CommunicationError(
                    f"{self.failure} (this is rank {self._rank})", hint="see the first error of the job"
                )
            return self._values.pop(key)

    def report(self, texts: list[RecordText]) -> None:
        """Reports the next exchanges."""
        self._send(do="report", texts=texts)

    def leave(self) -> None:
        """Tells rank 0 that this rank ends; on rank 0, waits for a moment for the others to end."""
        self._leaving = True
        self._send(do="leave", cause="")
        if self._server is not None:
            self._server.all_left.wait(5.0 if self.failure else 30.0)

    def leave_with_error(self, cause: str) -> None:
        """Tells rank 0 that this rank ends with an error."""
        self._leaving = True
        self._send(do="leave", cause=cause)
        time.sleep(0.1)  # the other ranks should report the error before the job ends

    def _send(self, **message: Any) -> None:
        try:
            self._connection.send(**message)
        except OSError:
            self.failure = self.failure or "the connection to rank 0 ended"


def _connect(host: str, port: int) -> socket.socket:
    start = time.monotonic()
    while True:
        try:
            channel = socket.create_connection((host, port), timeout=5.0)
            channel.settimeout(None)
            return channel
        except OSError as error:
            if time.monotonic() - start > CONNECT_FOR:
                raise DeviceError(
                    f"rank 0 does not answer at {host}:{port}: {error}",
                    hint="start every rank, and let them reach each other",
                ) from None
            time.sleep(0.1)


class ConnectedWorld(World):
    """A rank that is a process. A thread reports its exchanges, so that starting one does not wait for the channel."""

    def __init__(self, rank: int, size: int, client: ControlClient) -> None:
        super().__init__(rank, size)
        self.client = client
        self._reporting = threading.Lock()
        self._stop = threading.Event()
        self._reporter = threading.Thread(target=self._report_often, daemon=True, name="tracefuse reports")
        self._reporter.start()
        atexit.register(self.close)

    def _report_often(self) -> None:
        while not self._stop.wait(REPORT_EVERY):
            self._report()
            self.on_poll()

    def _report(self) -> None:
        with self._reporting:
            texts = [record_text(record, self.rank) for record in self.take_records()]
            if texts:
                self.client.report(texts)
        self.failure = self.client.failure

    def on_poll(self) -> None:
        """Runs between reports, on the reporting thread."""

    def report(self) -> None:
        """Reads the failure of the job; the reporting thread sends the exchanges."""
        self.failure = self.client.failure

    def close(self) -> None:
        """Reports the end of the program and leaves the job."""
        if not self._stop.is_set():
            self._stop.set()
            self._reporter.join(5.0)
            self.records.append((END,))
            self._report()
            self.client.leave()
            if self.client.failure is not None:
                sys.stderr.write(f"tracefuse: rank {self.rank}: {self.client.failure}\n")
                sys.stderr.flush()
                self.abort()

    def abort(self) -> None:
        """Ends a job that failed: this process exits with a status that is not 0."""
        os._exit(1)
