"""The sidecar in memory of locksidecar.testing, with what the tests of the SDK need: records of the requests, faults.

A test waits for a state of a FakeSidecar with wait_for(), never by the clock.
"""

from __future__ import annotations

import faulthandler
import selectors
import socket
from collections.abc import Callable

import pytest

from locksidecar._clock import boottime
from locksidecar._fake import Connection, Hold, Message, Server, ServerSocket, Session, Table, frame

__all__ = ["TIMEOUT", "Connection", "FakeSidecar", "Message", "Session", "Sidecar", "boottime", "frame"]

# The sockets of the FakeSidecars of this test. Those of earlier tests are gone, and the releasers of sessions with them
# go on until the leases end; such a session may also be made when a client of an earlier test is collected.
# So what a test puts in the place of a function of the SDK asks whose session calls it.
sockets_of_this_test: set[str] = set()

TIMEOUT = 20.0  # seconds; only a failing test waits that long


class _Recording(Table):
    """Leases are neither renewed nor ended by a timer: a test does that."""

    keeps_leases = False
    renewed = True  # a session that is resumed gets a lease event

    def __init__(self, *path: str) -> None:
        self.received: list[tuple[int, Message]] = []  # all requests, with the numbers of their sessions
        self.grants: list[tuple[str, int, int]] = []  # name, hold, count after the grant
        super().__init__(*path)

    def handle(self, connection: Connection, message: Message) -> None:
        self.received.append((connection.session.number, message))
        super().handle(connection, message)

    def extend_leases(self, deadline_ns: int) -> None:
        """Sends a lease event to all sessions."""
        self.broadcast({"ev": "lease", "deadline_ns": deadline_ns})

    def requests(self, op: str) -> list[Message]:
        return [m for _, m in self.received if m["op"] == op]

    def _grant(self, hold: Hold, m: Message) -> None:
        self.grants.append((hold.lock.name, hold.number, hold.count))
        super()._grant(hold, m)

    def _end_claims(self, session: Session, claimed: dict[int, int]) -> None:
        super()._end_claims(session, claimed)
        if self.renewed and self.held_by(session.number):
            self._send(session, {"ev": "lease", "deadline_ns": self.clock() + self.lease_ns})


class Sidecar(_Recording):
    """The protocol alone: a test delivers its frames. Not thread-safe."""


class FakeSidecar(_Recording, Server):
    def __init__(self, path: str) -> None:
        self.silent = False  # reads requests and does not answer them
        self.reading = True
        self.rejection: Message | None = None  # sent to a new connection before it is closed; {}: nothing is sent
        self._unanswered: list[tuple[Connection, Message]] = []
        sockets_of_this_test.add(path)
        super().__init__(path)

    # --- Controls ---

    def restart(self) -> None:
        with self._lock_all:
            self._unanswered.clear()
            super().restart()

    def answer_all(self) -> None:
        """Ends `silent`, and answers the requests that were received meanwhile."""
        with self._lock_all:
            self.silent = False
            unanswered, self._unanswered = self._unanswered, []
            for connection, message in unanswered:
                Table.handle(self, connection, message)
            self._wake()

    def resume_reading(self) -> None:
        with self._lock_all:
            self.reading = True
            self._wake()

    # --- State ---

    def requests(self, op: str) -> list[Message]:
        with self._lock_all:
            return super().requests(op)

    def wait_for(self, what: Callable[[], object], timeout: float = TIMEOUT) -> bool:
        if not super().wait_for(what, timeout):
            faulthandler.dump_traceback()
            with self._lock_all:
                received = [(number, m["op"]) for number, m in self.received[-20:]]
                pytest.fail(
                    f"the expected state did not occur in {timeout:.0f} s: {self.connections()} connections, sessions "
                    f"{list(self.sessions.values())}, the last requests {received}"
                )
        return True

    # --- The thread ---

    def handle(self, connection: Connection, message: Message) -> None:
        if self.silent:
            self.received.append((connection.session.number, message))
            self._unanswered.append((connection, message))
        else:
            super().handle(connection, message)

    def _admit(self, sock: socket.socket, send: Callable[[bytes], None]) -> bool:
        if self.rejection:
            send(frame(self.rejection))
        return self.rejection is None

    def _read(self, entry: ServerSocket) -> None:
        if self.reading:
            super()._read(entry)

    def _after_events(self) -> None:
        for entry in self._sockets.values():
            registered = entry.sock in self._selector.get_map()
            if self.reading and not registered:
                self._selector.register(entry.sock, selectors.EVENT_READ, entry)
            elif not self.reading and registered:
                self._selector.unregister(entry.sock)
