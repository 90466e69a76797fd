"""The core alone: disconnects and resumed sessions."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import msgpack
import pytest
from fake import Connection, Sidecar, frame
from session_harness import S, SessionHarness

from locksidecar import ClientClosed, Denied, LockLost, ProtocolError, Unavailable, Unsupported
from locksidecar import _protocol as protocol
from locksidecar._calls import (
    Call,
    Confirm,
    Options,
    acquire_call,
    confirm_call,
    force_release_call,
    force_release_orphaned_call,
    info_call,
    list_call,
    ping_call,
)
from locksidecar._core import MAX_UNSENT, Entry, Session, Stage


@pytest.fixture
def harness() -> SessionHarness:
    return SessionHarness()


def claims(harness: SessionHarness) -> dict[int, int]:
    """The claimed holds with their entries, all in one frame."""
    (claim,) = harness.sent()
    assert (claim["op"], "more" in claim) == ("claim", False)
    harness.claim_id = claim["id"]
    return dict(zip(claim["holds"][::2], claim["holds"][1::2], strict=True))


def resume(harness: SessionHarness) -> dict[int, int]:
    harness.connect("next ticket", resumed=True)
    held = claims(harness)
    harness.deliver(id=harness.claim_id)
    assert harness.session.stage is Stage.SERVING
    return held


# --- Without a connection ---


def test_disconnect_ends_neither_calls_nor_holds(harness: SessionHarness) -> None:
    entry, call = harness.acquired(), harness.acquire("other")
    harness.session.on_disconnected(S)
    assert harness.session.failure is None
    assert not call.done
    entry.check(30 * S - 1)
    assert harness.sent() == []


def test_hello_is_resumable_and_has_the_newest_ticket(harness: SessionHarness) -> None:
    harness.session.on_disconnected(0)
    hello = harness.connect("second", resumed=True)
    assert (hello["resumable"], hello["resume"]) == (True, "ticket")
    harness.session.on_disconnected(0)
    assert harness.connect("third", resumed=True)["resume"] == "second"
    assert "resume" not in SessionHarness().hello


def test_stopping_sidecar_is_a_disconnect(harness: SessionHarness) -> None:
    call = harness.acquire()
    harness.deliver(err={"code": "unavailable", "msg": "the sidecar is stopping"})
    assert harness.session.stage is Stage.DISCONNECTED
    assert not call.done


@pytest.mark.parametrize(
    "refusal",
    [
        {"err": {"code": "limit", "msg": "no file descriptors to spare"}},
        {"err": {"code": "no_hello", "msg": "no hello within 5 s"}},
        {"id": True, "err": {"code": "unavailable", "msg": "the sidecar is stopping"}},
        {"id": True, "err": {"code": "limit", "msg": "too many sessions"}},
    ],
)
def test_refused_resume_is_tried_again(harness: SessionHarness, refusal: dict[str, Any]) -> None:
    entry, call = harness.acquired(), harness.acquire("other")
    harness.session.on_disconnected(0)
    harness.session.on_connected(0)
    (hello,) = harness.sent()
    harness.deliver(**{**refusal, **({"id": hello["id"]} if "id" in refusal else {})})
    assert harness.session.stage is Stage.DISCONNECTED
    assert not call.done
    entry.check(30 * S - 1)
    assert resume(harness) == {7: 1}


def test_requests_without_a_connection_are_sent_later(harness: SessionHarness) -> None:
    harness.session.on_disconnected(0)
    harness.acquire("a")
    harness.submit(info_call("b"))
    assert harness.sent() == []
    resume(harness)
    assert [(m["op"], m["name"]) for m in harness.sent()] == [("acquire", "a"), ("info", "b")]


def test_acquires_are_sent_again_in_order_with_the_rest_of_their_timeouts(harness: SessionHarness) -> None:
    calls = [harness.acquire(f"n{i}", Options(timeout=t)) for i, t in enumerate((None, 10, 3))]
    before = [m["id"] for m in harness.sent()]
    harness.session.on_disconnected(0)
    harness.now = 4 * S + 1
    resume(harness)
    again = harness.sent()
    assert [(m["name"], m.get("wait_ms")) for m in again] == [("n0", None), ("n1", 6000), ("n2", 0)]
    assert not {m["id"] for m in again} & set(before)
    for call, message in zip(calls, again, strict=True):
        harness.deliver(id=message["id"], token=1, hold=message["id"], count=1, deadline_ns=60 * S)
        assert call.result().hold == message["id"]


def test_answer_to_a_request_of_an_earlier_connection_is_a_protocol_error(harness: SessionHarness) -> None:
    call = harness.acquire()
    (before,) = harness.sent()
    harness.session.on_disconnected(0)
    resume(harness)
    harness.deliver(id=before["id"], token=1, hold=1, count=1, deadline_ns=60 * S)
    assert isinstance(harness.session.failure, ProtocolError)
    assert call.error is not None


def test_queries_are_sent_again_but_no_force_release(harness: SessionHarness) -> None:
    queries: list[Call[Any]] = [
        harness.submit(info_call("n")),
        harness.submit(info_call("n", "db-7")),
        harness.submit(list_call(5)),
        harness.submit(ping_call()),
    ]

    def force() -> list[Call[Any]]:
        return [
            harness.submit(force_release_call("n")),
            harness.submit(force_release_call("n", "db-7")),
            harness.submit(force_release_orphaned_call("n")),
        ]

    forced = force()
    harness.sent()
    unsent = force()
    harness.session.on_disconnected(0)
    for call in forced:
        with pytest.raises(Unavailable, match="may have been carried out") as e:
            call.result()
        assert e.value.may_have_happened
    assert not any(call.done for call in [*queries, *unsent])
    resume(harness)
    ops = ["info", "host_info", "list", "ping", "force_release", "host_force_release", "force_release_orphaned"]
    assert [m["op"] for m in harness.sent()] == ops


def test_abandoned_acquire_is_not_sent_again(harness: SessionHarness) -> None:
    before, after = harness.acquire("before"), harness.acquire("after")
    harness.sent()
    harness.abandon(before)
    harness.session.on_disconnected(0)
    harness.abandon(after)
    assert before.done
    assert after.done
    assert resume(harness) == {}  # the sidecar releases their grants
    assert harness.sent() == []


def test_acquire_abandoned_during_an_interrupted_resend_is_not_sent(harness: SessionHarness) -> None:
    abandoned, call = harness.acquire("a"), harness.acquire("b")
    harness.session.on_disconnected(0)
    harness.session.on_connected(0)
    (hello,) = harness.sent()
    encode = call.encode

    def interrupted(id: int, at: int) -> bytes:
        call.encode = encode
        raise KeyboardInterrupt

    call.encode = interrupted
    answer = {"v": 1, "sidecar": "s", "version": "0", "session": 2, "lease_ms": 30_000, "now_ns": 0, "ticket": "t"}
    with pytest.raises(KeyboardInterrupt):
        harness.deliver(id=hello["id"], **answer)
    harness.abandon(abandoned)
    harness.session.process(0)
    assert [(m["op"], m["name"]) for m in harness.sent()] == [("acquire", "b")]


def test_requests_without_a_connection_do_not_count_as_unsent(harness: SessionHarness) -> None:
    harness.session.on_disconnected(0)
    for _ in range(2 * MAX_UNSENT // 512):
        harness.acquire("n" * 512)
    assert not harness.session.unsent


# --- Claims ---


def test_holds_are_claimed_before_other_requests(harness: SessionHarness) -> None:
    harness.acquired(7)
    entry = harness.acquired(8)
    harness.grant(harness.acquire("n8"), hold=8, count=2)
    harness.acquire("n9")
    harness.sent()
    harness.session.on_disconnected(0)
    harness.connect(resumed=True)
    assert claims(harness) == {7: 1, 8: 2}
    harness.deliver(id=harness.claim_id)
    assert [m["op"] for m in harness.sent()] == ["acquire"]
    entry.check(0)


def test_claim_is_sent_without_holds(harness: SessionHarness) -> None:
    harness.session.on_disconnected(0)
    assert resume(harness) == {}


def test_claims_are_sent_in_pages(harness: SessionHarness) -> None:
    holds = 2 * protocol.MAX_CLAIMS + 1
    for number in range(1, holds + 1):
        harness.acquired(number)
    call = harness.acquire("last")
    harness.sent()
    harness.session.on_disconnected(0)
    harness.connect(resumed=True)
    pages = harness.sent()
    assert [len(p["holds"]) // 2 for p in pages] == [protocol.MAX_CLAIMS, protocol.MAX_CLAIMS, 1]
    assert [p.get("more", False) for p in pages] == [True, True, False]
    assert sorted(n for p in pages for n in p["holds"][::2]) == list(range(1, holds + 1))
    assert all(len(frame(p)) <= 4 + protocol.MAX_FRAME for p in pages)
    for page in pages:
        assert harness.sent() == []
        harness.deliver(id=page["id"])
    assert [m["name"] for m in harness.sent()] == ["last"]
    assert not call.done


def test_full_page_of_claims_may_be_the_last(harness: SessionHarness) -> None:
    for number in range(1, protocol.MAX_CLAIMS + 1):
        harness.acquired(number)
    harness.session.on_disconnected(0)
    assert len(resume(harness)) == protocol.MAX_CLAIMS


def test_released_and_lost_holds_are_not_claimed(harness: SessionHarness) -> None:
    released, lost, reported, _ = (
        harness.acquired(1),
        harness.acquired(2, deadline=S),
        harness.acquired(3),
        harness.acquired(4),
    )
    harness.deliver(ev="lost", hold=3, reason="stolen")
    harness.session.on_disconnected(0)
    released.release(0)
    assert lost.lost(S) == "expired"
    assert reported.lost(0) == "stolen"
    assert resume(harness) == {4: 1}
    with pytest.raises(LockLost) as lost_again:
        lost.release(S)
    assert lost_again.value.reason == "expired"
    assert harness.sent() == []  # the sidecar released it when it was not claimed


def test_release_during_claims_is_sent_after_them(harness: SessionHarness) -> None:
    first, second = harness.acquired(1), harness.acquired(2)
    harness.acquire("n1")
    harness.sent()
    harness.session.on_disconnected(0)
    first.release(0)
    harness.connect(resumed=True)
    assert claims(harness) == {2: 1}
    second.release(0)
    assert harness.sent() == []
    harness.deliver(id=harness.claim_id)
    assert [(m["op"], m.get("hold")) for m in harness.sent()] == [("release", 2), ("acquire", None)]


def test_release_between_claims_and_the_next_disconnect_is_delivered(harness: SessionHarness) -> None:
    entry = harness.acquired(1)
    harness.session.on_disconnected(0)
    harness.connect(resumed=True)
    assert claims(harness) == {1: 1}
    entry.release(0)
    harness.session.on_disconnected(0)
    assert harness.session.unreleased_until
    assert resume(harness) == {}
    assert not harness.session.unreleased_until
    assert harness.sent() == []


def test_lease_event_during_claims_extends_a_passed_deadline(harness: SessionHarness) -> None:
    good, fixed = harness.acquired(1), harness.acquired(2, options=Options(lease=30))
    harness.session.on_disconnected(0)
    harness.now = 100 * S
    harness.connect(resumed=True)
    assert claims(harness) == {1: 1, 2: 1}
    harness.deliver(ev="lease", deadline_ns=120 * S)
    harness.deliver(ev="lost", hold=2, reason="expired")
    harness.deliver(id=harness.claim_id)
    good.check(harness.now)
    assert fixed.lost(harness.now) == "expired"


def test_claimed_hold_that_the_sidecar_does_not_know_is_lost(harness: SessionHarness) -> None:
    entry = harness.acquired(1)
    harness.session.on_disconnected(0)
    harness.connect(resumed=True)
    harness.deliver(ev="lost", hold=1, reason="forgotten")
    harness.deliver(id=claims(harness) and harness.claim_id)
    with pytest.raises(LockLost, match="restarted and knows nothing of it") as e:
        entry.check(0)
    assert e.value.reason == "forgotten"


def test_lost_event_for_an_unknown_hold_is_ignored(harness: SessionHarness) -> None:
    harness.deliver(ev="lost", hold=99, reason="expired")
    assert harness.session.failure is None
    assert harness.session.lost_holds == []


def test_only_the_valid_one_of_two_holds_with_one_number_is_claimed(harness: SessionHarness) -> None:
    """The other one expired here, and the sidecar releases its entry."""
    outer = harness.acquired(deadline=30 * S)
    assert outer.lost(30 * S) == "expired"
    inner = harness.grant(harness.acquire(), deadline=60 * S, count=2)
    harness.sent()
    harness.session.on_disconnected(0)
    assert resume(harness) == {7: 1}
    with pytest.raises(LockLost):
        outer.release(31 * S)
    inner.release(31 * S)
    assert harness.sent() == [{"op": "release", "hold": 7}]


def test_disconnect_in_any_stage_is_recovered(harness: SessionHarness) -> None:
    entry = harness.acquired()
    call = harness.acquire("other", Options(timeout=60))
    harness.session.on_disconnected(0)
    harness.session.on_connected(0)
    harness.session.on_disconnected(0)  # before the answer to hello
    harness.connect("second", resumed=True)
    harness.session.on_disconnected(0)  # before the claims were answered
    hello = harness.connect("third", resumed=True)
    assert hello["resume"] == "second"
    assert claims(harness) == {7: 1}
    harness.deliver(id=harness.claim_id)
    assert [m["op"] for m in harness.sent()] == ["acquire"]
    entry.check(0)
    assert not call.done


# --- New sessions ---


def test_new_session_leaves_holds_valid_until_their_deadlines(harness: SessionHarness) -> None:
    entry = harness.acquired(7, deadline=30 * S)
    harness.deliver(ev="lease", deadline_ns=50 * S)
    call = harness.acquire("other")
    harness.sent()
    harness.session.on_disconnected(0)
    harness.connect("new", resumed=False)
    assert [m["op"] for m in harness.sent()] == ["acquire"]
    harness.deliver(ev="lease", deadline_ns=90 * S)
    entry.check(50 * S - 1)
    assert entry.lost(50 * S) == "expired"
    assert not call.done


def test_new_session_does_not_send_releases_of_the_old_one(harness: SessionHarness) -> None:
    old = harness.acquired(7)
    harness.session.on_disconnected(0)
    harness.connect("new")
    new = harness.acquired(7)
    old.release(0)
    assert harness.sent() == []
    new.check(0)
    new.release(0)
    assert harness.sent() == [{"op": "release", "hold": 7}]
    assert harness.session.live_holds == 0


def test_new_session_has_a_new_ticket(harness: SessionHarness) -> None:
    harness.session.on_disconnected(0)
    harness.connect("new")
    harness.session.on_disconnected(0)
    assert harness.connect("newer", resumed=True)["resume"] == "new"


def test_session_without_a_ticket_is_not_resumed(harness: SessionHarness) -> None:
    old = SessionHarness(ticket="")
    entry = old.acquired()
    old.session.on_disconnected(0)
    assert "resume" not in old.connect("now it can")
    assert old.sent() == []
    entry.check(30 * S - 1)


# --- Failed handshakes ---


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ({"v": 2}, Unsupported, r"speaks protocol version 2, this client .* 1: upgrade this package"),
        ({"v": 0}, Unsupported, r"speaks protocol version 0, this client .* 1: upgrade the sidecar"),
        ({"now_ns": 60 * S}, Unsupported, "time namespace"),
        ({"ticket": "t" * 129}, ProtocolError, "more than 128 bytes"),
        ({"err": {"code": "denied", "msg": "the process cannot be found"}}, Denied, "process"),
        ({"err": {"code": "sunspots", "msg": "wait for the night"}}, Exception, "night"),
    ],
)
def test_invalid_answer_to_hello_fails_the_session(
    harness: SessionHarness, answer: dict[str, Any], error: type[Exception], words: str
) -> None:
    entry, call = harness.acquired(), harness.acquire("other")
    harness.session.on_disconnected(0)
    harness.session.on_connected(0)
    good = {"v": 1, "sidecar": "s", "version": "0", "session": 1, "lease_ms": 1, "now_ns": 0, "ticket": "t"}
    harness.deliver(id=harness.sent()[0]["id"], **{**good, **answer})
    with pytest.raises(error, match=words):
        call.result()
    entry.check(30 * S - 1)


def test_resumed_answer_to_the_first_hello_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="without having been asked"):
        raise SessionHarness(resumed=True).session.failure or AssertionError


# --- Locks that the sidecar may keep ---


def test_release_is_unacknowledged_until_a_later_answer(harness: SessionHarness) -> None:
    entry = harness.acquired(1)
    entry.release(0)
    ping = harness.submit(ping_call())
    harness.deliver(id=ping.id, now_ns=0, redis="ok")
    harness.session.on_disconnected(0)
    assert not harness.session.unreleased_until  # the ping was sent after the release
    resume(harness)
    harness.acquired(2).release(0)
    harness.session.on_disconnected(0)
    assert harness.session.unreleased_until
    resume(harness)
    assert not harness.session.unreleased_until


def test_unread_release_ends_a_lease_after_its_deadline(harness: SessionHarness) -> None:
    entry = harness.acquired(1, deadline=40 * S)
    harness.submit(ping_call())
    harness.session.on_disconnected(0)
    entry.release(10 * S)
    assert harness.session.unreleased_until == 70 * S


def test_unread_release_after_the_deadline_allows_for_unknown_renewals(
    harness: SessionHarness,
) -> None:
    entry = harness.acquired(1, deadline=30 * S)
    harness.session.on_disconnected(99 * S)
    with pytest.raises(LockLost, match="expired"):
        entry.release(100 * S)
    assert harness.session.unreleased_until == 160 * S


def test_abandoned_acquire_may_be_granted_only_if_it_was_sent(harness: SessionHarness) -> None:
    sent = harness.acquire()
    harness.sent()
    harness.session.on_disconnected(0)
    never = harness.acquire()
    harness.abandon(never)
    assert not harness.session.unreleased_until
    harness.abandon(sent)
    assert harness.session.unreleased_until


# --- Bye ---


def test_close_sends_bye_and_loses_holds(harness: SessionHarness) -> None:
    entry, call = harness.acquired(), harness.acquire("other")
    harness.sent()
    bye = harness.session.close(0)
    with pytest.raises(ClientClosed):
        call.result()
    assert entry.lost(0) == "closed"
    (message,) = harness.sent()
    assert message["op"] == "bye"
    harness.deliver(id=2, token=1, hold=8, count=1, deadline_ns=60 * S)  # a grant that crossed the bye
    assert not bye.done
    harness.deliver(id=message["id"])
    assert bye.done
    assert harness.session.stage is Stage.ENDED
    with pytest.raises(ClientClosed):
        harness.submit(ping_call())


def test_unanswered_bye_is_sent_again_instead_of_claims(harness: SessionHarness) -> None:
    harness.acquired()
    bye = harness.session.close(0)
    harness.sent()
    harness.session.on_disconnected(0)
    assert harness.session.unreleased_until
    harness.connect(resumed=True)
    (message,) = harness.sent()
    assert message["op"] == "bye"
    harness.deliver(id=message["id"])
    assert bye.done


def test_bye_is_not_sent_in_a_new_session(harness: SessionHarness) -> None:
    harness.acquired()
    harness.session.on_disconnected(0)
    bye = harness.session.close(0)
    assert not bye.done
    harness.connect(resumed=False)
    assert bye.done
    assert harness.sent() == []
    assert harness.session.stage is Stage.ENDED


def test_close_during_claims_sends_bye(harness: SessionHarness) -> None:
    harness.acquired()
    harness.session.on_disconnected(0)
    harness.connect(resumed=True)
    claims(harness)
    bye = harness.session.close(0)
    (message,) = harness.sent()
    assert message["op"] == "bye"
    harness.deliver(id=harness.claim_id)
    harness.deliver(id=message["id"])
    assert bye.done
    assert harness.sent() == []


@pytest.mark.parametrize("ticket", ["", "ticket"])
def test_close_before_the_answer_to_the_first_hello_sends_no_bye(ticket: str) -> None:
    session = Session("/path")
    session.on_connected(0)
    assert session.close(0).done
    assert session.stage is Stage.ENDED


# --- Disconnects at any frame ---


class SimulatedNetwork:
    """A Session and a fake sidecar. The test decides how many frames between them are delivered."""

    def __init__(self) -> None:
        self.now = 0
        self.sidecar = Sidecar()
        self.sidecar.clock = lambda: self.now
        self.session = Session("/path")
        self.delivered = 0  # frames in both directions
        self.disconnects: tuple[int, ...] = ()  # the frames before which the connection ends
        self._to_client: deque[bytes] = deque()
        self._to_sidecar = bytearray()
        self._connection: Connection | None = None

    def connect(self) -> None:
        to_client: deque[bytes] = deque()
        self._to_client = to_client
        self._to_sidecar = bytearray()
        self._connection = self.sidecar.connect(to_client.append, lambda: None)
        self.session.on_connected(self.now)

    def deliver(self, most: int = 1 << 30) -> None:
        """Delivers up to `most` frames, and disconnects where it is due."""
        for _ in range(most):
            if self._connection is None:
                self.connect()
            self._to_sidecar += self.session.unsent
            self.session.unsent.clear()
            found = protocol.split(bytes(self._to_sidecar), 0)
            if found is None and not self._to_client:
                return
            if self.delivered in self.disconnects:
                self.delivered += 1
                self.sidecar.restart()
                self.session.on_disconnected(self.now)
                self._connection = None
                continue
            self.delivered += 1
            assert self._connection is not None
            if found is not None:
                body, end = found
                del self._to_sidecar[:end]
                self.sidecar.handle(self._connection, msgpack.unpackb(body))
            else:
                self.session.on_data(self._to_client.popleft(), self.now)
            assert self.session.failure is None

    @property
    def number(self) -> int:
        assert self._connection is not None
        return self._connection.session.number


class Scenario:
    """A client that acquires, re-enters, abandons and releases at random, by a seed, and checks what it gets.

    If the seed is odd, it also acquires permits.
    """

    def __init__(self, seed: int, *disconnects: int) -> None:
        self.has_permits = seed % 2 == 1
        self.rng = random.Random(seed)
        self.network = SimulatedNetwork()
        self.network.disconnects = disconnects
        self.waiting: list[Call[protocol.AcquireOK]] = []
        self.entries: list[Entry] = []
        self.tokens: dict[int, int] = {}
        self.queries: list[Call[Any]] = []
        self.confirms: list[Confirm] = []
        self.entered: set[str] = set()  # names that may be entered again

    def act(self) -> None:
        session, rng = self.network.session, self.rng
        match rng.randrange(8):
            case 0 | 1 | 2 if self.has_permits and rng.random() < 0.5:
                name, permits = f"p{rng.randrange(3)}", rng.randrange(1, 4)
                call = acquire_call(name, 0, Options(reentrant=True), self.network.now, permits, of=3)
                session.submit(call, self.network.now)
                self.waiting.append(call)
            case 0 | 1 | 2:
                options = Options(reentrant=rng.random() < 0.7, lease=rng.choice((None, 20)))
                # A new owner each time, so that no owner waits for itself.
                owner = rng.randrange(1, 3) if options.reentrant else 1000 + rng.randrange(10**6)
                name = f"n{rng.randrange(4)}-{owner if options.reentrant else 0}"
                call = acquire_call(name, owner, options, self.network.now)
                session.submit(call, self.network.now)
                self.waiting.append(call)
                if options.reentrant:
                    self.entered.add(name)
            case 3 | 4 if self.entries:
                self.entries.pop(rng.randrange(len(self.entries))).release(self.network.now)
            case 5 if self.entries:
                entry = self.entries.pop(rng.randrange(len(self.entries)))
                self.confirms.append(confirm_call(entry.hold))
                entry.release_confirmed(self.confirms[-1], self.network.now)
            case 6 if self.waiting:
                session.given_up += [self.waiting.pop(rng.randrange(len(self.waiting)))]
                session.complete_given_up(self.network.now)
            case 7:
                self.queries.append(ping_call())
                session.submit(self.queries[-1], self.network.now)

    def observe(self) -> None:
        for call in [c for c in self.waiting if c.done]:
            self.waiting.remove(call)
            answer = call.result()
            assert call.hold is not None
            assert self.tokens.setdefault(answer.hold, answer.token) == answer.token
            self.entries.append(Entry(self.network.session, call.hold))
        for entry in self.entries:
            entry.check(self.network.now)
        for confirm in [c for c in self.confirms if c.done]:
            self.confirms.remove(confirm)
            confirm.result()
            assert confirm.released_hold is not None
            number = confirm.released_hold.number
            # A re-entry, or an abandoned one, may have been granted meanwhile.
            if confirm.name not in self.entered | {entry.hold.name for entry in self.entries}:
                assert self.network.sidecar._find_hold(number) is None

    def run(self) -> None:
        for _ in range(40):
            self.act()
            self.network.deliver(self.rng.randrange(4))
            self.observe()
        self.network.deliver()
        self.observe()
        while self.waiting:  # the waiting acquires are granted when the other entries are released
            while self.entries:
                self.entries.pop().release(self.network.now)
            self.network.deliver()
            self.observe()
        self.act()
        self.network.deliver()
        self.observe()

    def check(self) -> None:
        held: dict[int, int] = {}
        for entry in self.entries:
            held[entry.hold.number] = held.get(entry.hold.number, 0) + 1
        assert self.network.sidecar.held_by(self.network.number) == held
        assert self.network.session.live_holds == len(held)
        assert all(call.done and call.error is None for call in self.queries)
        assert not self.confirms
        names = [f"n{i}-{j}" for i in range(4) for j in range(3)] + [f"p{i}" for i in range(3)]
        assert sum(map(self.network.sidecar.waiting, names)) == len(self.waiting)
        assert all(self.network.sidecar.permits_held(name) <= 3 for name in names)


@pytest.mark.parametrize("seed", range(12))
def test_both_sides_agree_after_a_disconnect_at_any_frame(seed: int) -> None:
    """No lock is granted twice or stays held, and the tokens do not change."""
    undisturbed = Scenario(seed)
    undisturbed.run()
    undisturbed.check()
    assert undisturbed.network.delivered > 20
    for at in range(undisturbed.network.delivered):
        scenario = Scenario(seed, at)
        scenario.run()
        scenario.check()


def test_both_sides_agree_after_a_disconnect_during_the_handshake() -> None:
    """The second disconnect comes at each frame of the handshake that follows the first one."""
    undisturbed = Scenario(99)
    undisturbed.run()
    for first in range(0, undisturbed.network.delivered, 4):
        for second in range(1, 6):
            scenario = Scenario(99, first, first + second)
            scenario.run()
            scenario.check()
