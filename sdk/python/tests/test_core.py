"""The core alone: bytes in, bytes out, and the time that the test sets."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from fake import frame
from points import times
from session_harness import S, SessionHarness

from locksidecar import (
    BadRequest,
    Deadlock,
    LockLost,
    LocksidecarError,
    LockTimeout,
    NotHeld,
    ProtocolError,
    Unavailable,
)
from locksidecar import _protocol as protocol
from locksidecar._calls import (
    Hold,
    Options,
    acquire_call,
    force_release_call,
    info_call,
    list_call,
    make_options,
    ping_call,
)
from locksidecar._core import MAX_UNSENT, Entry


@pytest.fixture
def harness() -> SessionHarness:
    return SessionHarness()


def test_acquire_omits_defaults(harness: SessionHarness) -> None:
    harness.acquire(owner=3)
    harness.acquire(owner=3, options=Options(1.2501, 0.05, 60, 2.5, reentrant=True, fair=True, keep=50))
    assert harness.sent() == [
        {"op": "acquire", "id": 1, "name": "n", "owner": 3, "reentrant": False},
        {
            "op": "acquire",
            "id": 2,
            "name": "n",
            "owner": 3,
            "fair": True,
            "wait_ms": 1251,
            "lease_ms": 50,
            "max_hold_ms": 60000,
            "crash_delay_ms": 2500,
            "keep_ms": 50000,
        },
    ]


def test_answers_may_come_in_any_order(harness: SessionHarness) -> None:
    first, second = harness.submit(ping_call()), harness.submit(info_call("n"))
    harness.deliver(id=second.id)
    assert (first.done, second.done) == (False, True)
    harness.deliver(id=first.id, now_ns=1, redis="ok")
    assert first.result().redis == "ok"
    assert harness.session.done_calls == [second, first]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("timeout", LockTimeout),
        ("deadlock", Deadlock),
        ("unavailable", Unavailable),
        ("not_held", NotHeld),
        ("bad_request", BadRequest),
    ],
)
def test_error_code_becomes_an_exception(harness: SessionHarness, code: str, error: type[LocksidecarError]) -> None:
    call = harness.acquire()
    harness.deliver(id=call.id, err={"code": code, "msg": "do this"})
    with pytest.raises(error, match="acquire 'n': do this") as e:
        call.result()
    assert e.value.code == code


def test_unknown_error_code_fails_that_request_only(harness: SessionHarness) -> None:
    call = harness.acquire()
    harness.deliver(id=call.id, err={"code": "sunspots", "msg": "wait for the night"})
    with pytest.raises(LocksidecarError, match="night") as e:
        call.result()
    assert e.value.code == "sunspots"
    assert harness.session.failure is None


def test_exceptions_have_base_classes_of_the_standard_library() -> None:
    assert issubclass(LockTimeout, TimeoutError)
    assert issubclass(NotHeld, RuntimeError)
    assert issubclass(Unavailable, ConnectionError)
    assert issubclass(BadRequest, ValueError)


# --- Deadlines ---


def test_hold_is_lost_at_its_deadline_and_not_before(harness: SessionHarness) -> None:
    entry = harness.acquired(deadline=30 * S)
    entry.check(30 * S - 1)
    assert entry.remaining(30 * S - 1) == 1
    with pytest.raises(LockLost, match="n7") as e:
        entry.check(30 * S)
    assert (e.value.name, e.value.reason) == ("n7", "expired")
    assert entry.remaining(30 * S) == 0


def test_lost_hold_stays_lost(harness: SessionHarness) -> None:
    entry = harness.acquired(deadline=30 * S)
    assert entry.lost(30 * S) == "expired"
    harness.deliver(ev="lease", deadline_ns=60 * S)
    assert entry.lost(31 * S) == "expired"
    harness.deliver(ev="lost", hold=7, reason="stolen")
    assert entry.lost(31 * S) == "expired"
    assert len(harness.session.lost_holds) == 1


def test_lease_event_extends_earlier_watchdog_holds_only(harness: SessionHarness) -> None:
    watched, fixed = harness.acquired(1), harness.acquired(2, options=Options(lease=30))
    harness.deliver(ev="lease", deadline_ns=50 * S)
    later = harness.acquired(3, deadline=45 * S)
    deadlines = [harness.session.deadline(e.hold) for e in (watched, fixed, later)]
    assert deadlines == [50 * S, 30 * S, 45 * S]


def test_lease_event_does_not_extend_a_hold_past_max_hold(harness: SessionHarness) -> None:
    call = harness.acquire()
    harness.deliver(id=call.id, token=1, hold=7, count=1, deadline_ns=30 * S, end_ns=40 * S)
    assert call.hold is not None
    entry = Entry(harness.session, call.hold)
    harness.deliver(ev="lease", deadline_ns=50 * S)
    entry.check(40 * S - 1)
    with pytest.raises(LockLost) as e:
        entry.check(40 * S)
    assert e.value.reason == "max_hold"


def test_deadline_never_moves_back(harness: SessionHarness) -> None:
    first = harness.acquired(1, deadline=30 * S)
    harness.deliver(ev="lease", deadline_ns=50 * S)
    second = harness.acquired(2, deadline=35 * S)
    harness.deliver(ev="lease", deadline_ns=40 * S)
    assert harness.session.deadline(first.hold) == 50 * S
    assert harness.session.deadline(second.hold) == 40 * S
    harness.deliver(ev="lease", deadline_ns=45 * S)
    assert harness.session.deadline(first.hold) == 50 * S
    assert harness.session.deadline(second.hold) == 45 * S


def test_deadline_is_the_largest_ever_received(harness: SessionHarness) -> None:
    """Compared with a model that applies every event to every hold."""
    rng = random.Random(1)
    expected: dict[Entry, int] = {}
    for n in range(1, 400):
        deadline = rng.randrange(S, 100 * S)
        if rng.random() < 0.3:
            expected[harness.acquired(n, deadline)] = deadline
        else:
            harness.deliver(ev="lease", deadline_ns=deadline)
            expected = {e: max(d, deadline) for e, d in expected.items()}
        assert {e: harness.session.deadline(e.hold) for e in expected} == expected


# --- Release ---


def test_release_is_sent_once(harness: SessionHarness) -> None:
    entry = harness.acquired()
    entry.release(0)
    assert harness.sent() == [{"op": "release", "hold": 7}]
    with pytest.raises(NotHeld, match="released before"):
        entry.release(0)
    with pytest.raises(NotHeld, match="was released"):
        entry.check(0)
    assert harness.sent() == []
    assert entry.lost(100 * S) == ""
    assert harness.session.live_holds == 0


def test_release_of_a_hold_with_a_lost_event_is_not_sent(harness: SessionHarness) -> None:
    entry = harness.acquired()
    harness.deliver(ev="lost", hold=7, reason="stolen")
    with pytest.raises(LockLost, match="another owner's field") as e:
        entry.release(0)
    assert e.value.reason == "stolen"
    assert harness.sent() == []
    with pytest.raises(NotHeld):
        entry.release(0)


def test_release_after_the_deadline_is_sent(harness: SessionHarness) -> None:
    """The sidecar may have renewed the lock without this client having read the event, and would keep it."""
    entry = harness.acquired()
    with pytest.raises(LockLost):
        entry.release(31 * S)
    assert harness.sent() == [{"op": "release", "hold": 7}]


def test_lost_event_for_a_released_hold_is_ignored(harness: SessionHarness) -> None:
    harness.acquired().release(0)
    harness.deliver(ev="lost", hold=7, reason="expired")
    assert harness.session.lost_holds == []
    assert harness.session.failure is None


def test_each_entry_is_released_once(harness: SessionHarness) -> None:
    outer = harness.acquired()
    inner = harness.grant(harness.acquire(), deadline=40 * S, count=2)
    harness.sent()
    assert inner.hold is outer.hold
    assert harness.session.deadline(outer.hold) == 40 * S
    inner.release(0)
    outer.check(0)
    outer.release(0)
    assert harness.sent() == [{"op": "release", "hold": 7}] * 2
    assert harness.session.live_holds == 0


def test_entry_into_a_hold_that_expired_here_gets_its_own_hold(harness: SessionHarness) -> None:
    outer = harness.acquired(deadline=30 * S)
    assert outer.lost(30 * S) == "expired"
    inner = harness.grant(harness.acquire(), deadline=60 * S, count=2)
    harness.sent()
    inner.check(31 * S)
    assert outer.lost(31 * S) == "expired"
    inner.release(31 * S)
    with pytest.raises(LockLost):
        outer.release(31 * S)
    assert harness.sent() == [{"op": "release", "hold": 7}] * 2
    assert harness.session.live_holds == 0


# --- Abandoned acquires ---


@pytest.mark.parametrize("left", ["abandoned", "released"])
def test_lease_event_does_not_extend_a_reentry_of_unknown_lease(harness: SessionHarness, left: str) -> None:
    first = harness.acquire(options=Options(lease=1, reentrant=True))
    if left == "abandoned":
        harness.abandon(first)
        second = harness.acquire(options=Options(reentrant=True))
        harness.deliver(id=first.id, token=107, hold=7, count=1, deadline_ns=S)
    else:
        outer = harness.grant(first, deadline=S)
        second = harness.acquire(options=Options(reentrant=True))
        outer.release(0)
    inner = harness.grant(second, deadline=S, count=2)
    harness.deliver(ev="lease", deadline_ns=30 * S)  # for the other holds of the session: this one has a fixed lease
    assert inner.lost(S - 1) == ""
    assert inner.lost(S) == "expired"


def test_abandoned_acquire_is_cancelled(harness: SessionHarness) -> None:
    call = harness.acquire()
    harness.sent()
    harness.abandon(call)
    assert harness.sent() == [{"op": "cancel", "target": call.id}]
    harness.deliver(id=call.id, err={"code": "canceled", "msg": ""})
    assert harness.sent() == []


def test_grant_that_crosses_the_cancel_is_released(harness: SessionHarness) -> None:
    call = harness.acquire()
    harness.abandon(call)
    harness.sent()
    harness.deliver(id=call.id, token=1, hold=9, count=1, deadline_ns=30 * S)
    assert harness.sent() == [{"op": "release", "hold": 9}]
    assert harness.session.live_holds == 0


def test_acquire_abandoned_after_its_grant_is_released(harness: SessionHarness) -> None:
    call = harness.acquire()
    harness.grant(call)
    harness.sent()
    harness.abandon(call)
    harness.abandon(call)
    assert harness.sent() == [{"op": "release", "hold": 7}]
    assert harness.session.live_holds == 0


# --- The end of a session ---


def test_failure_says_whether_each_call_may_have_happened(harness: SessionHarness) -> None:
    sent, forced = harness.acquire(), harness.submit(force_release_call("n"))
    harness.sent()
    unsent = harness.acquire()
    del harness.session.unsent[:3]
    harness.session.fail("It is over.")
    for call, happened, words in (
        (sent, True, "If this acquire was granted, that ended with the session"),
        (forced, True, "may have been carried out"),
        (unsent, False, "was not carried out"),
    ):
        with pytest.raises(Unavailable, match=words) as e:
            call.result()
        assert e.value.may_have_happened is happened
    with pytest.raises(Unavailable, match="It is over"):
        harness.submit(ping_call())


def test_holds_stay_valid_until_their_deadlines_after_a_failure(harness: SessionHarness) -> None:
    entry = harness.acquired()
    harness.session.fail("It is over.")
    entry.check(30 * S - 1)
    with pytest.raises(LockLost):
        entry.check(30 * S)


def test_release_in_an_ended_session_is_not_sent(harness: SessionHarness) -> None:
    entry = harness.acquired()
    harness.session.fail("It is over.")
    entry.release(0)
    assert harness.sent() == []


def test_connection_error_of_the_client_is_a_protocol_error(harness: SessionHarness) -> None:
    call = harness.acquire()
    harness.deliver(err={"code": "bad_frame", "msg": "an id that is in use"})
    with pytest.raises(ProtocolError, match="in use"):
        call.result()


@pytest.mark.parametrize(
    "message",
    [
        {"id": 99, "count": 1},
        {"id": 1, "token": 1, "hold": 1, "count": 1},
        {"id": 1, "token": "1", "hold": 1, "count": 1, "deadline_ns": 1},
        {"ev": "lost", "hold": 1},
    ],
)
def test_protocol_violation_fails_every_call(harness: SessionHarness, message: dict[str, Any]) -> None:
    call = harness.acquire()
    harness.sent()
    harness.session.on_data(frame(message), 0)
    with pytest.raises(ProtocolError, match="/path broke the protocol"):
        call.result()
    with pytest.raises(ProtocolError):
        harness.submit(ping_call())


def test_grant_for_another_request_is_a_protocol_error(harness: SessionHarness) -> None:
    ping = harness.submit(ping_call())
    harness.deliver(id=ping.id, token=1, hold=2, count=1, deadline_ns=3)
    assert isinstance(harness.session.failure, ProtocolError)
    assert not harness.session.live_holds


def test_unsent_requests_are_bounded(harness: SessionHarness) -> None:
    def pile() -> None:
        while len(harness.session.unsent) < 2 * MAX_UNSENT:
            harness.acquire("n" * 512)

    with pytest.raises(Unavailable, match="does not read"):
        pile()


# --- Invalid arguments ---


@pytest.mark.parametrize("name", ["", "n" * 513, "ö" * 257, "a\nb", "\x7f", "\x80", "\ud800"], ids=ascii)
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="name of a lock"):
        protocol.check_name(name)


@pytest.mark.parametrize("name", ["n" * 512, "ö" * 256, " ", "{a}:b", "\u00a0"])
def test_valid_name_is_accepted(name: str) -> None:
    assert protocol.check_name(name) == name


def test_name_must_be_text() -> None:
    with pytest.raises(TypeError, match="str, not bytes"):
        protocol.check_name(b"n")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        {"timeout": -2},
        {"timeout": float("nan")},
        {"timeout": 2_592_001},
        {"lease": 0.049},
        {"lease": 0},
        {"max_hold": 0},
        {"crash_delay": -1},
        {"crash_delay": 3601},
        {"keep": -1},
        {"keep": 86_401},
    ],
)
def test_invalid_duration_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(BadRequest, match=next(iter(bad))):
        Options(**bad)  # type: ignore[arg-type]


def test_lock_that_was_given_up_is_not_used(harness: SessionHarness) -> None:
    """An acquire in another session must not be refused for it: it waits until this session has released the lock."""
    options = Options(reentrant=True)
    outer = harness.grant(harness.acquire("n", options), count=1)
    inner = harness.grant(harness.acquire("n", options), count=2)
    waiting = harness.acquire("m")
    session = harness.session
    assert session.is_used_by("n", 1)
    session.given_up += [inner, inner]
    assert session.is_used_by("n", 1)
    session.given_up += [outer]
    assert not session.is_used_by("n", 1)
    assert session.is_used_by("m", 1)
    session.given_up += [waiting]
    assert not session.is_used_by("m", 1)
    session.complete_given_up(0)
    assert not session.is_used_by("n", 1)


def test_grant_to_an_abandoned_acquire_is_not_used_by_its_owner(harness: SessionHarness) -> None:
    """It arrives in another thread while the session is read."""
    call = harness.acquire("n")
    harness.abandon(call)
    session = harness.session
    arrived: list[bool] = []

    class GivenUp(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            items = self[:]
            if not arrived:
                arrived.append(True)
                session._on_grant(call, protocol.AcquireOK(107, 7, 1, 30 * S))
            return iter(items)

    session.given_up = GivenUp()
    assert not session.is_used_by("n", 1)
    assert call.hold is not None
    assert not session.is_used_by("n", 1)


# --- Encoding ---


@pytest.mark.parametrize("n", [0, 1, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 63) - 1])
def test_packed_integers_are_those_of_msgpack(n: int) -> None:
    assert protocol._packed_int(n) == msgpack.packb(n)
    assert protocol.release(n) == frame({"op": "release", "hold": n})


@pytest.mark.parametrize("size", [1, 31, 32, 255, 256, 512])
def test_packed_names_are_those_of_msgpack(size: int) -> None:
    for name in "n" * size, ("ä" * (size // 2 + 1))[: max(size // 2, 1)]:
        assert protocol.acquire(7, name, 0, protocol.acquire_options()) == frame(
            {"op": "acquire", "id": 7, "name": name}
        )


def test_packed_acquire_has_each_option() -> None:
    flags: dict[str, Any] = {"reentrant": False, "fair": True}
    durations: dict[str, Any] = {"lease_ms": 300, "max_hold_ms": 70_000, "crash_delay_ms": 5, "keep_ms": 86_400_000}
    packed = protocol.acquire(1 << 33, "n", 200, protocol.acquire_options(**flags, **durations), 0)
    options = {"owner": 200, **flags, "wait_ms": 0, **durations}
    assert packed == frame({"op": "acquire", "id": 1 << 33, "name": "n", **options})


def test_options_of_defaults_are_made_once() -> None:
    plain = (None, None, None, 0.0, False, False, None, False, 0.0)
    assert make_options(*plain) is make_options(*plain)
    for i, value in enumerate((1.0, 2.0, 3.0, 4.0, True, True, None, True, 5.0)):
        arguments = [*plain[:i], value, *plain[i + 1 :]]
        assert make_options(*arguments) == Options(*arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="crash_delay must be a number"):
        make_options(None, None, None, "0", False, False, None, False, 0.0)  # type: ignore[arg-type]


# --- Hostile input ---


def decode_or_refuse(body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        protocol.decode(body)


def test_random_bytes_raise_only_protocol_errors() -> None:
    rng = random.Random(2)
    for _ in range(20_000):
        decode_or_refuse(rng.randbytes(rng.randrange(1, 40)))


def test_mutated_replies_cause_only_protocol_errors() -> None:
    rng = random.Random(3)
    row = {"name": "n", "state": "held", "waiters": [{"session": 1}], "x": [1, {"y": None}]}
    good: list[dict[str, Any]] = [
        {"id": 1, "token": 1, "hold": 2, "count": 1, "deadline_ns": 1 << 40},
        {"id": 1, "err": {"code": "timeout", "msg": "m"}},
        {"ev": "lost", "hold": 2, "reason": "expired"},
        {"id": 1, "locks": [row, row], "next": 3},
    ]
    for _ in range(times(20_000, 4_000)):
        body = bytearray(frame({**rng.choice(good)})[4:])
        for _ in range(rng.randrange(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        session = SessionHarness().session
        session.submit(list_call(0) if rng.random() < 0.5 else acquire_call("n", 1, Options(), 0), 0)
        session.on_data(len(body).to_bytes(4, "big") + body, 0)
        assert session.failure is None or isinstance(session.failure, ProtocolError | Unavailable)


@pytest.mark.parametrize(
    "body",
    [
        b"\x81\xa1x" + b"\x91" * 65_000,
        b"\x81\xa5locks" + b"\x91" * 65_000,
        b"\x81\xa5locks" + b"\xdd\x00\x00\xff\xff" * 13_000,
        b"\x81\xa5locks\xdd\x04\x00\x00\x00",
        b"\x81\xa3err\xdf\xff\xff\xff\xff" + b"\xa1a\xc0" * 20_000,
        b"\xdf\xff\xff\xff\xff" + b"\xa1a\xc0" * 20_000,
        b"\x81\xa2id\xc6\x20\x00\x00\x00",
        b"\x81\xa2id\xc9\x20\x00\x00\x00\x01",
        b"\x81\xa5redis\xdb\x20\x00\x00\x00",
        b"\x91" * 65_000,
    ],
    ids=["deep", "deep known", "wide and deep", "64 M rows", "wide err", "wide map", "bin", "ext", "str", "no map"],
)
def test_hostile_frame_costs_at_most_its_size(body: bytes) -> None:
    decode_or_refuse(b"\x80")  # the first call allocates what stays allocated
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            protocol.decode(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_unknown_fields_may_nest_eight_deep() -> None:
    def nested(depth: int) -> bytes:
        return b"\x82\xa1x" + b"\x91" * depth + b"\xc0\xa2id\x01"

    assert isinstance(protocol.decode(nested(8)), protocol.Answer)
    with pytest.raises(ProtocolError, match="deeper than 8"):
        protocol.decode(nested(9))


def test_unknown_event_may_have_any_fields() -> None:
    assert protocol.decode(frame({"ev": "weather", "version": 2, "locks": "many", "err": None})[4:])


def test_hold_is_compared_by_identity() -> None:
    assert Hold(1, "n", 1, 1, False, 0, 1) != Hold(1, "n", 1, 1, False, 0, 1)
