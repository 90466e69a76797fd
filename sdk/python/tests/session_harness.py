"""A Session, with a test in the place of the sidecar: bytes in, bytes out, and the time that the test sets."""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack
from fake import frame

from locksidecar import _protocol as protocol
from locksidecar._calls import Call, Confirm, Options, acquire_call, confirm_call
from locksidecar._core import Entry, Session

S = 1_000_000_000  # nanoseconds per second

T = TypeVar("T")


class SessionHarness:
    """A Session, and the frames of the sidecar that it talks to."""

    def __init__(self, ticket: str = "ticket", resumed: bool = False) -> None:
        self.now = 0
        self.claim_id = 0  # the id of the last claim that a test has read
        self.session = Session("/path")
        self.hello = self.connect(ticket, resumed)
        self.session._last_id = 0

    def connect(self, ticket: str = "ticket", resumed: bool = False, sidecar: str = "s") -> dict[str, Any]:
        """Makes a new connection and answers hello. Returns the hello that the client sent."""
        self.session.on_connected(self.now)
        (hello,) = self.sent()
        answer = {
            "v": 1,
            "sidecar": sidecar,
            "version": "0",
            "session": 1,
            "lease_ms": 30_000,
            "now_ns": self.now,
            "ticket": ticket,
        }
        self.deliver(id=hello["id"], **answer, **({"resumed": True} if resumed else {}))
        return hello

    def sent(self) -> list[dict[str, Any]]:
        """The messages that the client has sent since the last call."""
        messages = []
        buffer = bytes(self.session.unsent)
        self.session.unsent.clear()
        end = 0
        while (found := protocol.split(buffer, end)) is not None:
            body, end = found
            messages.append(msgpack.unpackb(body))
        assert end == len(buffer)
        return messages

    def deliver(self, **message: Any) -> None:
        self.session.on_data(frame(message), self.now)

    def acquire(self, name: str = "n", options: Options | None = None, owner: int = 1) -> Call[protocol.AcquireOK]:
        return self.submit(acquire_call(name, owner, options or Options(), self.now))

    def submit(self, call: Call[T]) -> Call[T]:
        self.session.submit(call, self.now)
        return call

    def abandon(self, call: Call[Any]) -> None:
        self.session.given_up += [call]
        self.session.complete_given_up(0)

    def release_confirmed(self, entry: Entry, now: int) -> Confirm:
        call = confirm_call(entry.hold)
        entry.release_confirmed(call, now)
        return call

    def grant(self, call: Call[protocol.AcquireOK], hold: int = 7, deadline: int = 30 * S, count: int = 1) -> Entry:
        self.deliver(id=call.id, token=100 + hold, hold=hold, count=count, deadline_ns=deadline)
        assert call.hold is not None
        return Entry(self.session, call.hold)

    def acquired(self, hold: int = 7, deadline: int = 30 * S, options: Options | None = None) -> Entry:
        entry = self.grant(self.acquire(f"n{hold}", options), hold, deadline)
        self.sent()
        return entry
