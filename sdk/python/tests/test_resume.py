"""The core alone, when its connection ends and there is another one."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import msgpack
import pytest
from fake import Connection, Sidecar, frame
from talk import S, Talk

from locksidecar import ClientClosed, LimitExceeded, LockLost, ProtocolError, Unavailable, Unsupported
from locksidecar import _protocol as protocol
from locksidecar._calls import (
    Call,
    Confirm,
    Options,
    acquire_call,
    confirm_call,
    force_release_call,
    info_call,
    list_call,
    ping_call,
)
from locksidecar._core import MAX_UNSENT, Entry, Session, Stage


@pytest.fixture
def talk() -> Talk:
    return Talk()


def claims(talk: Talk) -> dict[int, int]:
    """What was claimed, all of it in one frame."""
    (claim,) = talk.sent()
    assert (claim["op"], "more" in claim) == ("claim", False)
    talk.claim = claim["id"]
    return dict(zip(claim["holds"][::2], claim["holds"][1::2], strict=True))


def resume(talk: Talk) -> dict[int, int]:
    talk.greet("next ticket", resumed=True)
    held = claims(talk)
    talk.say(id=talk.claim)
    assert talk.session.stage is Stage.SERVING
    return held


# --- Adrift ---


def test_end_of_the_connection_ends_neither_calls_nor_holds(talk: Talk) -> None:
    entry, call = talk.held(), talk.acquire("other")
    talk.session.on_disconnected(S)
    assert talk.session.failure is None
    assert not call.done
    entry.check(30 * S - 1)
    assert talk.sent() == []


def test_hello_says_that_the_session_can_be_resumed_and_later_which(talk: Talk) -> None:
    talk.session.on_disconnected(0)
    hello = talk.greet("second", resumed=True)
    assert (hello["resumable"], hello["resume"]) == (True, "ticket")
    talk.session.on_disconnected(0)
    assert talk.greet("third", resumed=True)["resume"] == "second"
    assert "resume" not in Talk().hello


def test_a_sidecar_that_stops_is_one_that_comes_back(talk: Talk) -> None:
    call = talk.acquire()
    talk.say(err={"code": "unavailable", "msg": "the sidecar is stopping"})
    assert talk.session.stage is Stage.DISCONNECTED
    assert not call.done


@pytest.mark.parametrize(
    "refusal",
    [
        {"err": {"code": "limit", "msg": "no file descriptors to spare"}},
        {"err": {"code": "no_hello", "msg": "no hello within 5 s"}},
        {"id": True, "err": {"code": "unavailable", "msg": "the sidecar is stopping"}},
    ],
)
def test_who_is_not_let_in_just_now_comes_again(talk: Talk, refusal: dict[str, Any]) -> None:
    entry, call = talk.held(), talk.acquire("other")
    talk.session.on_disconnected(0)
    talk.session.on_connected(0)
    (hello,) = talk.sent()
    talk.say(**{**refusal, **({"id": hello["id"]} if "id" in refusal else {})})
    assert talk.session.stage is Stage.DISCONNECTED
    assert not call.done
    entry.check(30 * S - 1)
    assert resume(talk) == {7: 1}


def test_what_is_asked_while_nobody_listens_is_asked_later(talk: Talk) -> None:
    talk.session.on_disconnected(0)
    talk.acquire("a")
    talk.ask(info_call("b"))
    assert talk.sent() == []
    resume(talk)
    assert [(m["op"], m["name"]) for m in talk.sent()] == [("acquire", "a"), ("info", "b")]


def test_waiting_acquires_are_sent_again_in_order_with_what_is_left_of_their_wait(talk: Talk) -> None:
    calls = [talk.acquire(f"n{i}", Options(timeout=t)) for i, t in enumerate((None, 10, 3))]
    before = [m["id"] for m in talk.sent()]
    talk.session.on_disconnected(0)
    talk.now = 4 * S + 1
    resume(talk)
    again = talk.sent()
    assert [(m["name"], m.get("wait_ms")) for m in again] == [("n0", None), ("n1", 6000), ("n2", 0)]
    assert not {m["id"] for m in again} & set(before)
    for call, message in zip(calls, again, strict=True):
        talk.say(id=message["id"], token=1, hold=message["id"], count=1, deadline_ns=60 * S)
        assert call.result().hold == message["id"]


def test_answer_to_a_request_of_the_connection_before_is_a_breach(talk: Talk) -> None:
    call = talk.acquire()
    (before,) = talk.sent()
    talk.session.on_disconnected(0)
    resume(talk)
    talk.say(id=before["id"], token=1, hold=1, count=1, deadline_ns=60 * S)
    assert isinstance(talk.session.failure, ProtocolError)
    assert call.error is not None


def test_questions_are_asked_again_but_no_lock_is_forced_twice(talk: Talk) -> None:
    asked: list[Call[Any]] = [talk.ask(info_call("n")), talk.ask(list_call(5)), talk.ask(ping_call())]
    forced = talk.ask(force_release_call("n"))
    talk.sent()
    unsent = talk.ask(force_release_call("n"))
    talk.session.on_disconnected(0)
    with pytest.raises(Unavailable, match="may have been carried out") as e:
        forced.result()
    assert e.value.may_have_happened
    assert not any(call.done for call in [*asked, unsent])
    resume(talk)
    assert [m["op"] for m in talk.sent()] == ["info", "list", "ping", "force_release"]


def test_abandoned_acquire_is_not_sent_again(talk: Talk) -> None:
    before, after = talk.acquire("before"), talk.acquire("after")
    talk.sent()
    talk.session.abandon(before, 0)
    talk.session.on_disconnected(0)
    talk.session.abandon(after, 0)
    assert before.done
    assert after.done
    assert resume(talk) == {}  # whatever they were granted, the sidecar releases
    assert talk.sent() == []


def test_acquire_whose_waiter_was_interrupted_while_it_was_sent_again_is_not(talk: Talk) -> None:
    abandoned, call = talk.acquire("a"), talk.acquire("b")
    talk.session.on_disconnected(0)
    talk.session.on_connected(0)
    (hello,) = talk.sent()
    encode = call.encode

    def interrupted(id: int, at: int) -> bytes:
        call.encode = encode
        raise KeyboardInterrupt

    call.encode = interrupted
    answer = {"v": 1, "sidecar": "s", "version": "0", "session": 2, "lease_ms": 30_000, "now_ns": 0, "ticket": "t"}
    with pytest.raises(KeyboardInterrupt):
        talk.say(id=hello["id"], **answer)
    talk.session.abandon(abandoned, 0)
    talk.session.process(0)
    assert [(m["op"], m["name"]) for m in talk.sent()] == [("acquire", "b")]


def test_requests_that_wait_for_a_connection_are_not_unsent_bytes(talk: Talk) -> None:
    talk.session.on_disconnected(0)
    for _ in range(2 * MAX_UNSENT // 512):
        talk.acquire("n" * 512)
    assert not talk.session.unsent


# --- Claims ---


def test_what_is_held_is_claimed_before_anything_else(talk: Talk) -> None:
    talk.held(7)
    entry = talk.held(8)
    talk.grant(talk.acquire("n8"), hold=8, count=2)
    talk.acquire("n9")
    talk.sent()
    talk.session.on_disconnected(0)
    talk.greet(resumed=True)
    assert claims(talk) == {7: 1, 8: 2}
    talk.say(id=talk.claim)
    assert [m["op"] for m in talk.sent()] == ["acquire"]
    entry.check(0)


def test_nothing_held_is_claimed_too(talk: Talk) -> None:
    talk.session.on_disconnected(0)
    assert resume(talk) == {}


def test_claims_are_paged(talk: Talk) -> None:
    holds = 2 * protocol.MAX_CLAIMS + 1
    for number in range(1, holds + 1):
        talk.held(number)
    call = talk.acquire("last")
    talk.sent()
    talk.session.on_disconnected(0)
    talk.greet(resumed=True)
    pages = talk.sent()
    assert [len(p["holds"]) // 2 for p in pages] == [protocol.MAX_CLAIMS, protocol.MAX_CLAIMS, 1]
    assert [p.get("more", False) for p in pages] == [True, True, False]
    assert sorted(n for p in pages for n in p["holds"][::2]) == list(range(1, holds + 1))
    assert all(len(frame(p)) <= 4 + protocol.MAX_FRAME for p in pages)
    for page in pages:
        assert talk.sent() == []
        talk.say(id=page["id"])
    assert [m["name"] for m in talk.sent()] == ["last"]
    assert not call.done


def test_a_full_page_is_the_last(talk: Talk) -> None:
    for number in range(1, protocol.MAX_CLAIMS + 1):
        talk.held(number)
    talk.session.on_disconnected(0)
    assert len(resume(talk)) == protocol.MAX_CLAIMS


def test_what_was_released_or_found_lost_is_not_claimed(talk: Talk) -> None:
    released, lost, told, _ = talk.held(1), talk.held(2, deadline=S), talk.held(3), talk.held(4)
    talk.say(ev="lost", hold=3, reason="stolen")
    talk.session.on_disconnected(0)
    released.release(0)
    assert lost.lost(S) == "expired"
    assert told.lost(0) == "stolen"
    assert resume(talk) == {4: 1}
    with pytest.raises(LockLost) as lost_again:
        lost.release(S)
    assert lost_again.value.reason == "expired"
    assert talk.sent() == []  # the sidecar released it when it was not claimed


def test_release_goes_behind_the_claims(talk: Talk) -> None:
    first, second = talk.held(1), talk.held(2)
    talk.acquire("n1")
    talk.sent()
    talk.session.on_disconnected(0)
    first.release(0)
    talk.greet(resumed=True)
    assert claims(talk) == {2: 1}
    second.release(0)
    assert talk.sent() == []
    talk.say(id=talk.claim)
    assert [(m["op"], m.get("hold")) for m in talk.sent()] == [("release", 2), ("acquire", None)]


def test_release_between_claims_and_another_end_is_not_lost(talk: Talk) -> None:
    entry = talk.held(1)
    talk.session.on_disconnected(0)
    talk.greet(resumed=True)
    assert claims(talk) == {1: 1}
    entry.release(0)
    talk.session.on_disconnected(0)
    assert talk.session.unreleased_until
    assert resume(talk) == {}
    assert not talk.session.unreleased_until
    assert talk.sent() == []


def test_hold_that_outlived_its_deadline_unseen_is_good_if_the_sidecar_says_so(talk: Talk) -> None:
    good, fixed = talk.held(1), talk.held(2, options=Options(lease=30))
    talk.session.on_disconnected(0)
    talk.now = 100 * S
    talk.greet(resumed=True)
    assert claims(talk) == {1: 1, 2: 1}
    talk.say(ev="lease", deadline_ns=120 * S)
    talk.say(ev="lost", hold=2, reason="expired")
    talk.say(id=talk.claim)
    good.check(talk.now)
    assert fixed.lost(talk.now) == "expired"


def test_hold_that_the_sidecar_has_forgotten_is_lost(talk: Talk) -> None:
    entry = talk.held(1)
    talk.session.on_disconnected(0)
    talk.greet(resumed=True)
    talk.say(ev="lost", hold=1, reason="forgotten")
    talk.say(id=claims(talk) and talk.claim)
    with pytest.raises(LockLost, match="restarted and knows nothing of it") as e:
        entry.check(0)
    assert e.value.reason == "forgotten"


def test_loss_of_an_unknown_hold_is_ignored(talk: Talk) -> None:
    talk.say(ev="lost", hold=99, reason="expired")
    assert talk.session.failure is None
    assert talk.session.lost_holds == []


def test_one_belief_of_two_in_the_same_hold_is_claimed(talk: Talk) -> None:
    """The other was found lost here; its entry is the sidecar's to release."""
    outer = talk.held(deadline=30 * S)
    assert outer.lost(30 * S) == "expired"
    inner = talk.grant(talk.acquire(), deadline=60 * S, count=2)
    talk.sent()
    talk.session.on_disconnected(0)
    assert resume(talk) == {7: 1}
    with pytest.raises(LockLost):
        outer.release(31 * S)
    inner.release(31 * S)
    assert talk.sent() == [{"op": "release", "hold": 7}]


def test_the_connection_may_end_again_and_again(talk: Talk) -> None:
    entry = talk.held()
    call = talk.acquire("other", Options(timeout=60))
    talk.session.on_disconnected(0)
    talk.session.on_connected(0)
    talk.session.on_disconnected(0)  # before the answer to hello
    talk.greet("second", resumed=True)
    talk.session.on_disconnected(0)  # before the claims were heard
    hello = talk.greet("third", resumed=True)
    assert hello["resume"] == "second"
    assert claims(talk) == {7: 1}
    talk.say(id=talk.claim)
    assert [m["op"] for m in talk.sent()] == ["acquire"]
    entry.check(0)
    assert not call.done


# --- A sidecar that knows nothing ---


def test_not_resumed_what_is_held_is_good_as_long_as_was_told(talk: Talk) -> None:
    entry = talk.held(7, deadline=30 * S)
    talk.say(ev="lease", deadline_ns=50 * S)
    call = talk.acquire("other")
    talk.sent()
    talk.session.on_disconnected(0)
    talk.greet("new", resumed=False)
    assert [m["op"] for m in talk.sent()] == ["acquire"]
    talk.say(ev="lease", deadline_ns=90 * S)
    entry.check(50 * S - 1)
    assert entry.lost(50 * S) == "expired"
    assert not call.done


def test_not_resumed_release_is_only_local_though_numbers_are_used_again(talk: Talk) -> None:
    old = talk.held(7)
    talk.session.on_disconnected(0)
    talk.greet("new")
    new = talk.held(7)
    old.release(0)
    assert talk.sent() == []
    new.check(0)
    new.release(0)
    assert talk.sent() == [{"op": "release", "hold": 7}]
    assert talk.session.live_holds == 0


def test_not_resumed_the_new_ticket_counts(talk: Talk) -> None:
    talk.session.on_disconnected(0)
    talk.greet("new")
    talk.session.on_disconnected(0)
    assert talk.greet("newer", resumed=True)["resume"] == "new"


def test_session_without_a_ticket_begins_anew(talk: Talk) -> None:
    old = Talk(ticket="")
    entry = old.held()
    old.session.on_disconnected(0)
    assert "resume" not in old.greet("now it can")
    assert old.sent() == []
    entry.check(30 * S - 1)


# --- Greetings that end a session ---


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ({"v": 2}, Unsupported, "speaks protocol version 2, this client 1"),
        ({"now_ns": 60 * S}, Unsupported, "time namespace"),
        ({"ticket": "t" * 129}, ProtocolError, "more than 128 bytes"),
        ({"err": {"code": "limit", "msg": "raise --max-sessions"}}, LimitExceeded, "--max-sessions"),
        ({"err": {"code": "sunspots", "msg": "wait for the night"}}, Exception, "night"),
    ],
)
def test_hello_that_ends_the_session(talk: Talk, answer: dict[str, Any], error: type[Exception], words: str) -> None:
    entry, call = talk.held(), talk.acquire("other")
    talk.session.on_disconnected(0)
    talk.session.on_connected(0)
    good = {"v": 1, "sidecar": "s", "version": "0", "session": 1, "lease_ms": 1, "now_ns": 0, "ticket": "t"}
    talk.say(id=talk.sent()[0]["id"], **{**good, **answer})
    with pytest.raises(error, match=words):
        call.result()
    entry.check(30 * S - 1)


def test_a_first_session_cannot_be_a_resumed_one() -> None:
    with pytest.raises(ProtocolError, match="without having been asked"):
        raise Talk(resumed=True).session.failure or AssertionError


# --- Debts ---


def test_debt_is_what_the_sidecar_may_not_have_heard(talk: Talk) -> None:
    entry = talk.held(1)
    entry.release(0)
    ping = talk.ask(ping_call())
    talk.say(id=ping.id, now_ns=0, redis="ok")
    talk.session.on_disconnected(0)
    assert not talk.session.unreleased_until  # the ping came behind the release
    resume(talk)
    talk.held(2).release(0)
    talk.session.on_disconnected(0)
    assert talk.session.unreleased_until
    resume(talk)
    assert not talk.session.unreleased_until


def test_debt_of_a_release_ends_a_lease_after_its_deadline(talk: Talk) -> None:
    entry = talk.held(1, deadline=40 * S)
    talk.ask(ping_call())
    talk.session.on_disconnected(0)
    entry.release(10 * S)
    assert talk.session.unreleased_until == 70 * S


def test_debt_of_a_release_long_behind_its_deadline_counts_with_renewals_that_were_not_told(talk: Talk) -> None:
    entry = talk.held(1, deadline=30 * S)
    talk.session.on_disconnected(99 * S)
    with pytest.raises(LockLost, match="expired"):
        entry.release(100 * S)
    assert talk.session.unreleased_until == 160 * S


def test_acquire_given_up_while_nobody_listens_is_a_debt_if_it_was_sent(talk: Talk) -> None:
    sent = talk.acquire()
    talk.sent()
    talk.session.on_disconnected(0)
    never = talk.acquire()
    talk.session.abandon(never, 0)
    assert not talk.session.unreleased_until
    talk.session.abandon(sent, 0)
    assert talk.session.unreleased_until


# --- Bye ---


def test_close_says_bye_and_loses_what_is_held(talk: Talk) -> None:
    entry, call = talk.held(), talk.acquire("other")
    talk.sent()
    bye = talk.session.close(0)
    with pytest.raises(ClientClosed):
        call.result()
    assert entry.lost(0) == "closed"
    (message,) = talk.sent()
    assert message["op"] == "bye"
    talk.say(id=2, token=1, hold=8, count=1, deadline_ns=60 * S)  # a grant that crossed it
    assert not bye.done
    talk.say(id=message["id"])
    assert bye.done
    assert talk.session.stage is Stage.ENDED
    with pytest.raises(ClientClosed):
        talk.ask(ping_call())


def test_bye_that_was_not_heard_is_said_again_instead_of_claims(talk: Talk) -> None:
    talk.held()
    bye = talk.session.close(0)
    talk.sent()
    talk.session.on_disconnected(0)
    assert talk.session.unreleased_until
    talk.greet(resumed=True)
    (message,) = talk.sent()
    assert message["op"] == "bye"
    talk.say(id=message["id"])
    assert bye.done


def test_bye_need_not_be_said_to_who_knows_nothing(talk: Talk) -> None:
    talk.held()
    talk.session.on_disconnected(0)
    bye = talk.session.close(0)
    assert not bye.done
    talk.greet(resumed=False)
    assert bye.done
    assert talk.sent() == []
    assert talk.session.stage is Stage.ENDED


def test_bye_while_claims_are_due(talk: Talk) -> None:
    talk.held()
    talk.session.on_disconnected(0)
    talk.greet(resumed=True)
    claims(talk)
    bye = talk.session.close(0)
    (message,) = talk.sent()
    assert message["op"] == "bye"
    talk.say(id=talk.claim)
    talk.say(id=message["id"])
    assert bye.done
    assert talk.sent() == []


@pytest.mark.parametrize("ticket", ["", "ticket"])
def test_close_before_the_first_hello_was_answered_needs_no_bye(ticket: str) -> None:
    session = Session("/path")
    session.on_connected(0)
    assert session.close(0).done
    assert session.stage is Stage.ENDED


# --- Cut anywhere ---


class Wire:
    """A client's session and a sidecar, with as much of what they say under way as the test wants."""

    def __init__(self) -> None:
        self.now = 0
        self.sidecar = Sidecar()
        self.sidecar.clock = lambda: self.now
        self.session = Session("/path")
        self.carried = 0  # frames, in both directions
        self.cuts: tuple[int, ...] = ()  # before which frames
        self._to_client: deque[bytes] = deque()
        self._to_sidecar = bytearray()
        self._connection: Connection | None = None

    def connect(self) -> None:
        to_client: deque[bytes] = deque()
        self._to_client = to_client
        self._to_sidecar = bytearray()
        self._connection = self.sidecar.connect(to_client.append, lambda: None)
        self.session.on_connected(self.now)

    def carry(self, most: int = 1 << 30) -> None:
        """Carries frames until nobody says anything more, with a cut on the way if it is due."""
        for _ in range(most):
            if self._connection is None:
                self.connect()
            self._to_sidecar += self.session.unsent
            self.session.unsent.clear()
            found = protocol.split(bytes(self._to_sidecar), 0)
            if found is None and not self._to_client:
                return
            if self.carried in self.cuts:
                self.carried += 1
                self.sidecar.die()
                self.session.on_disconnected(self.now)
                self._connection = None
                continue
            self.carried += 1
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


class Story:
    """A client that acquires, re-enters, gives up and releases, as a seed has it, and looks at what it gets."""

    def __init__(self, seed: int, *cuts: int) -> None:
        self.rng = random.Random(seed)
        self.wire = Wire()
        self.wire.cuts = cuts
        self.waiting: list[Call[protocol.AcquireOK]] = []
        self.entries: list[Entry] = []
        self.tokens: dict[int, int] = {}
        self.asked: list[Call[Any]] = []
        self.confirms: list[Confirm] = []
        self.entered: set[str] = set()  # names that may be entered again

    def act(self) -> None:
        session, rng = self.wire.session, self.rng
        match rng.randrange(8):
            case 0 | 1 | 2:
                options = Options(reentrant=rng.random() < 0.7, lease=rng.choice((None, 20)))
                # Owners of their own, so that nobody waits for itself.
                owner = rng.randrange(1, 3) if options.reentrant else 1000 + rng.randrange(10**6)
                name = f"n{rng.randrange(4)}-{owner if options.reentrant else 0}"
                call = acquire_call(name, owner, options, self.wire.now)
                session.submit(call, self.wire.now)
                self.waiting.append(call)
                if options.reentrant:
                    self.entered.add(name)
            case 3 | 4 if self.entries:
                self.entries.pop(rng.randrange(len(self.entries))).release(self.wire.now)
            case 5 if self.entries:
                entry = self.entries.pop(rng.randrange(len(self.entries)))
                self.confirms.append(confirm_call(entry.hold))
                entry.release_confirmed(self.confirms[-1], self.wire.now)
            case 6 if self.waiting:
                session.abandon(self.waiting.pop(rng.randrange(len(self.waiting))), self.wire.now)
            case 7:
                self.asked.append(ping_call())
                session.submit(self.asked[-1], self.wire.now)

    def look(self) -> None:
        for call in [c for c in self.waiting if c.done]:
            self.waiting.remove(call)
            answer = call.result()
            assert call.hold is not None
            assert self.tokens.setdefault(answer.hold, answer.token) == answer.token
            self.entries.append(Entry(self.wire.session, call.hold))
        for entry in self.entries:
            entry.check(self.wire.now)
        for confirm in [c for c in self.confirms if c.done]:
            self.confirms.remove(confirm)
            confirm.result()
            assert confirm.released_hold is not None
            number = confirm.released_hold.number
            # A re-entry, or what was given up of one, may have been granted meanwhile.
            if confirm.name not in self.entered | {entry.hold.name for entry in self.entries}:
                assert self.wire.sidecar._held(number) is None

    def tell(self) -> None:
        for _ in range(40):
            self.act()
            self.wire.carry(self.rng.randrange(4))
            self.look()
        self.wire.carry()
        self.look()
        while self.waiting:  # whatever waits is granted when the others have gone
            while self.entries:
                self.entries.pop().release(self.wire.now)
            self.wire.carry()
            self.look()
        self.act()
        self.wire.carry()
        self.look()

    def check(self) -> None:
        held: dict[int, int] = {}
        for entry in self.entries:
            held[entry.hold.number] = held.get(entry.hold.number, 0) + 1
        assert self.wire.sidecar.held_by(self.wire.number) == held
        assert self.wire.session.live_holds == len(held)
        assert all(call.done and call.error is None for call in self.asked)
        assert not self.confirms
        assert sum(self.wire.sidecar.waiting(f"n{i}-{j}") for i in range(4) for j in range(3)) == len(self.waiting)


@pytest.mark.parametrize("seed", range(12))
def test_cut_behind_any_frame_both_ends_agree_in_the_end(seed: int) -> None:
    """Nothing is granted twice or left behind, and tokens are what they were."""
    whole = Story(seed)
    whole.tell()
    whole.check()
    assert whole.wire.carried > 20
    for cut_at in range(whole.wire.carried):
        story = Story(seed, cut_at)
        story.tell()
        story.check()


def test_cut_twice() -> None:
    """The second cut falls into the greeting that follows the first, at each of its frames."""
    whole = Story(99)
    whole.tell()
    for first in range(0, whole.wire.carried, 4):
        for second in range(1, 6):
            story = Story(99, first, first + second)
            story.tell()
            story.check()
