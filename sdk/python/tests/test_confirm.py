"""Releases that are confirmed: the core, and the client for threads against a fake sidecar."""

from __future__ import annotations

import os
import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod

import pytest
from fake import PATIENCE, FakeSidecar
from talk import S, Talk
from test_restart import join_releasers
from test_sync import ctrl_c

import locksidecar
from locksidecar import (
    BadRequest,
    Client,
    ClientClosed,
    Denied,
    LimitExceeded,
    LockLost,
    LocksidecarError,
    NotHeld,
    Unavailable,
    Unconfirmed,
    Unsupported,
)
from locksidecar._calls import Confirm, Options
from locksidecar._transport import Socket, Timeouts


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def why(error: Unconfirmed) -> BaseException:
    """What the error names as its cause."""
    assert error.__cause__ is not None
    return error.__cause__


# --- The core ---


@pytest.fixture
def talk() -> Talk:
    return Talk()


def released(talk: Talk, hold: int = 7, options: Options | None = None) -> tuple[Confirm, int]:
    """A release and the request for its confirmation, with its id."""
    entry = talk.held(hold, options=options)
    confirm = talk.release_confirmed(entry, talk.now)
    release, message = talk.sent()
    assert release == {"op": "release", "hold": hold}
    assert message == {"op": "confirm", "id": message["id"], "name": f"n{hold}"}
    return confirm, message["id"]


def test_confirm_is_sent_after_the_release_and_done_with_the_answer(talk: Talk) -> None:
    confirm, id = released(talk)
    assert not confirm.done
    talk.say(id=id)
    assert confirm.done
    assert confirm.result() is True


def test_confirm_is_sent_again_with_a_new_id_when_the_session_was_resumed(talk: Talk) -> None:
    talk.held(8)
    confirm, first = released(talk)
    for _ in range(3):
        talk.session.on_disconnected(0)
        talk.greet(resumed=True)
        (claim,) = talk.sent()
        assert claim["holds"] == [8, 1]
        talk.say(id=claim["id"])
        (message,) = talk.sent()
        assert message == {"op": "confirm", "id": message["id"], "name": "n7"}
        assert message["id"] > first
    talk.say(id=message["id"])
    assert confirm.result() is True


def test_release_while_claims_are_due_is_confirmed_after_them(talk: Talk) -> None:
    entry = talk.held()
    talk.session.on_disconnected(0)
    talk.greet(resumed=True)
    (claim,) = talk.sent()
    assert claim["holds"] == [7, 1]
    confirm = talk.release_confirmed(entry, 0)
    assert talk.sent() == []
    talk.say(id=claim["id"])
    assert [m["op"] for m in talk.sent()] == ["release", "confirm"]
    assert not confirm.done


def test_release_without_a_connection_is_confirmed_when_it_was_not_claimed(talk: Talk) -> None:
    entry, _ = talk.held(), talk.held(8)
    talk.session.on_disconnected(0)
    confirm = talk.release_confirmed(entry, 0)
    talk.greet(resumed=True)
    (claim,) = talk.sent()
    assert claim["holds"] == [8, 1]
    talk.say(id=claim["id"])
    (message,) = talk.sent()
    talk.say(id=message["id"])
    assert confirm.result() is True


def looked(talk: Talk) -> int:
    """The id of the info that the client has sent, and of nothing else."""
    (info,) = talk.sent()
    assert info == {"op": "info", "id": info["id"], "name": "n7"}
    return int(info["id"])


def new_session(talk: Talk) -> int:
    talk.session.on_disconnected(0)
    talk.greet()
    return looked(talk)


def test_new_session_of_the_same_sidecar_confirms_a_release_that_was_read(talk: Talk) -> None:
    """The successor ends sessions that hold nothing, and still knows which of their releases to execute."""
    confirm, _ = released(talk)
    new_session(talk)  # ends before the answer to info
    talk.say(id=new_session(talk))
    assert [m["op"] for m in talk.sent()] == ["confirm"]
    # That session ends before the answer to confirm. In the next one, another owner on this host has the lock.
    talk.say(id=new_session(talk), lock={"name": "n7", "state": "held", "hold": 9})
    (message,) = talk.sent()
    assert message == {"op": "confirm", "id": message["id"], "name": "n7"}
    assert not confirm.done
    talk.say(id=message["id"])
    assert confirm.result() is True


def test_new_session_that_is_resumed_goes_on_where_it_was(talk: Talk) -> None:
    confirm, _ = released(talk)
    new_session(talk)
    talk.held(8)
    for op in ("info", "confirm"):
        talk.session.on_disconnected(0)
        talk.greet(resumed=True)
        (claim,) = talk.sent()
        assert claim["holds"] == [8, 1]
        talk.say(id=claim["id"])
        (message,) = talk.sent()
        assert message == {"op": op, "id": message["id"], "name": "n7"}
        talk.say(id=message["id"])
        if op == "info":
            assert [m["op"] for m in talk.sent()] == ["confirm"]
    assert confirm.result() is True


def test_sidecar_that_still_has_the_hold_confirms_nothing(talk: Talk) -> None:
    confirm, _ = released(talk)
    talk.say(id=new_session(talk), lock={"name": "n7", "state": "held", "hold": 7})
    assert talk.sent() == []
    with pytest.raises(LocksidecarError, match="before it had read the release"):
        confirm.result()


def test_info_that_is_refused_confirms_nothing_and_keeps_the_session(talk: Talk) -> None:
    confirm, _ = released(talk)
    talk.say(id=new_session(talk), err={"code": "limit", "msg": "too many"})
    with pytest.raises(LimitExceeded, match="too many"):
        confirm.result()
    talk.held(8).check(talk.now)


def test_confirm_that_is_abandoned_before_info_is_answered_is_not_sent(talk: Talk) -> None:
    confirm, _ = released(talk)
    info = new_session(talk)
    talk.session.abandon(confirm, 0)
    talk.say(id=info)
    assert confirm.done
    assert talk.sent() == []


def test_another_sidecar_is_not_asked(talk: Talk) -> None:
    confirm, _ = released(talk)
    stray = talk.held(8)
    talk.session.on_disconnected(0)
    talk.greet(sidecar="another")
    assert talk.sent() == []
    with pytest.raises(LocksidecarError, match="does not know of the release"):
        confirm.result()
    late = talk.release_confirmed(stray, 0)
    assert talk.sent() == []
    with pytest.raises(LocksidecarError, match="does not know of the release"):
        late.result()


def test_answer_to_an_abandoned_confirm_is_ignored_and_it_is_not_sent_again(talk: Talk) -> None:
    _, other = talk.held(8), talk.held(9)
    confirm, id = released(talk)
    talk.session.abandon(confirm, 0)
    assert talk.sent() == []
    talk.say(id=id)
    assert confirm.done

    again = talk.release_confirmed(other, 0)
    talk.sent()
    talk.session.abandon(again, 0)
    talk.session.on_disconnected(0)
    talk.greet(resumed=True)
    (claim,) = talk.sent()
    talk.say(id=claim["id"])
    assert talk.sent() == []
    assert not talk.session.unreleased_until


def test_entry_that_is_lost_is_not_confirmed(talk: Talk) -> None:
    entry = talk.held()
    with pytest.raises(LockLost):
        talk.release_confirmed(entry, 30 * S)
    assert [m["op"] for m in talk.sent()] == ["release"]


@pytest.mark.parametrize(
    ("lease", "later", "says", "free_within"),
    [
        (None, 0, "within 30 s at the latest", 30.0),
        (None, 1.5, "within 29 s at the latest", 28.5),
        (None, 30, "has ended", 0.0),
        (100.0, 0, "within 33 s at the latest", 32.01),  # a deadline of 30 s, and a fiftieth of the lease more
        (100.0, 60, "has ended", 0.0),
    ],
)
def test_error_says_when_the_lease_ends(
    talk: Talk, lease: float | None, later: float, says: str, free_within: float
) -> None:
    confirm, _ = released(talk, options=Options(lease=lease))
    error = confirm.unconfirmed_error(Denied("Redis refused it", code="denied"), round(later * S))
    assert says in str(error)
    assert str(error).startswith(
        "the release of the lock 'n7' is not confirmed: Redis refused it. The lock is released"
    )
    assert (error.name, error.code) == ("n7", "denied")
    assert error.free_within == pytest.approx(free_within)


def test_resume_moves_the_end_of_the_lease_in_the_error(talk: Talk) -> None:
    talk.held(8)
    confirm, _ = released(talk)
    talk.session.on_disconnected(20 * S)
    talk.now = 25 * S
    talk.greet(resumed=True)
    (claim,) = talk.sent()
    talk.say(id=claim["id"])
    assert confirm.unconfirmed_error(LocksidecarError("m"), 25 * S).free_within == 30


def test_unconfirmed_can_be_pickled() -> None:
    error = Unconfirmed("m", code="denied", name="n", free_within=1.5)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (Unconfirmed, "m", error.__dict__)


# --- Release ---


@pytest.mark.parametrize("of_the_lock", [True, False])
def test_release_returns_when_it_is_confirmed(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor, of_the_lock: bool
) -> None:
    sidecar.away = True
    lock = client.lock("n")
    lock.acquire()
    releasing = pool.submit(lock.release if of_the_lock else lock.held.release, confirm=True)
    sidecar.wait_for(lambda: sidecar.requests("confirm"))
    assert not sidecar.holder("n")
    assert not lock.locked()
    assert client.ping() == "ok"
    assert not releasing.done()
    sidecar.come_back()
    assert releasing.result(PATIENCE) is None
    assert len(sidecar.requests("release")) == 1


def test_release_and_confirm_leave_in_one_write(
    sidecar: FakeSidecar, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []

    def send(sock: Socket, data: bytearray, flags: int) -> int:
        sent.append(bytes(data))
        return super(Socket, sock).send(data, flags)

    with client.lock("n") as held:
        monkeypatch.setattr(Socket, "send", send, raising=False)
        held.release(confirm=True)
    assert len(sent) == 1
    assert sidecar.requests("confirm")[0]["name"] == "n"


def test_release_without_confirm_asks_for_nothing(sidecar: FakeSidecar, client: Client) -> None:
    for lock in (client.lock("n"), client.rlock("n"), client.lock("n", confirm=True)):
        lock.acquire()
        lock.release(timeout=5)
    assert client.ping() == "ok"
    assert sidecar.requests("confirm") == []


def test_lost_lock_is_lost_and_not_confirmed(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n", confirm=True)
    lock.acquire()
    held = lock.held
    sidecar.lose("n", "stolen")
    with pytest.raises(LockLost, match="stolen"):
        held.release(confirm=True)
    with pytest.raises(NotHeld):
        held.release(confirm=True)
    with pytest.raises(LockLost), lock:
        sidecar.lose("n", "stolen")
    assert sidecar.requests("confirm") == []


def test_entries_that_are_left_are_confirmed(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.rlock("n")
    lock.acquire()
    lock.acquire()
    lock.release(confirm=True)
    assert sidecar.holder("n")
    lock.release(confirm=True)
    assert not sidecar.holder("n")
    assert len(sidecar.requests("confirm")) == 2


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        ("denied", Denied, "Redis refused"),
        ("limit", LimitExceeded, "Redis refused"),
        ("unsupported", Unsupported, "does not confirm releases: upgrade it"),
        ("sunspots", LocksidecarError, "Redis refused"),
    ],
)
def test_confirmation_that_is_refused(
    sidecar: FakeSidecar, client: Client, code: str, kind: type[LocksidecarError], says: str
) -> None:
    sidecar.refuse["confirm"] = (code, "Redis refused")
    with client.lock("n") as held:
        with pytest.raises(Unconfirmed, match=says) as e:
            held.release(confirm=True)
        assert type(why(e.value)) is kind
        assert (e.value.code, e.value.name) == (code, "n")
        assert 29 < e.value.free_within <= 30
        assert held.released
        assert not sidecar.holder("n")
    assert len(sidecar.requests("release")) == 1


@pytest.mark.parametrize("timeout", [0.01, 0, -1, float("nan")])
def test_confirmation_that_does_not_come_in_time(sidecar: FakeSidecar, client: Client, timeout: float) -> None:
    sidecar.away = True
    with client.lock("n") as held, pytest.raises(Unconfirmed, match="in time") as e:
        held.release(confirm=True, timeout=timeout)
    assert isinstance(why(e.value), TimeoutError)
    sidecar.wait_for(lambda: sidecar.requests("confirm"))
    assert not sidecar.holder("n")
    sidecar.come_back()  # the client ignores the answer
    assert client.ping() == "ok"
    with client.lock("n", confirm=True):
        pass


# --- Blocks ---


@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_block_ends_when_the_release_is_confirmed(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor, kind: str
) -> None:
    lock = getattr(client, kind)("n", confirm=True)

    def body() -> None:
        with lock:
            assert sidecar.requests("confirm") == []

    sidecar.away = True
    block = pool.submit(body)
    sidecar.wait_for(lambda: sidecar.requests("confirm"))
    assert not sidecar.holder("n")
    assert not block.done()
    sidecar.come_back()
    assert block.result(PATIENCE) is None
    assert not list(lock._handles)


def test_block_that_is_not_confirmed_raises(sidecar: FakeSidecar, client: Client) -> None:
    sidecar.away = True
    lock = client.lock("n", confirm=True, confirm_timeout=0.01)
    with pytest.raises(Unconfirmed), lock:
        pass
    assert not sidecar.holder("n")
    assert not list(lock._handles)


@pytest.mark.parametrize("exc", [ValueError("of the body"), SystemExit(3)])
def test_exception_of_the_body_is_raised_with_a_note(sidecar: FakeSidecar, client: Client, exc: BaseException) -> None:
    sidecar.away = True
    lock = client.lock("n", confirm=True, confirm_timeout=0.01)
    with pytest.raises(type(exc)) as e, lock:
        raise exc
    assert e.value is exc
    if sys.version_info >= (3, 11):
        assert "the release of the lock 'n' is not confirmed" in exc.__notes__[0]
    assert len(sidecar.requests("confirm")) == 1
    assert not sidecar.holder("n")


@pytest.mark.parametrize("exc", [KeyboardInterrupt(), GeneratorExit()])
def test_block_that_is_interrupted_does_not_wait(sidecar: FakeSidecar, client: Client, exc: BaseException) -> None:
    sidecar.away = True
    lock = client.lock("n", confirm=True)
    with pytest.raises(type(exc)), lock:
        raise exc
    assert client.ping() == "ok"
    assert not sidecar.holder("n")
    assert sidecar.requests("confirm") == []


def test_options_of_a_lock_that_cannot_be(client: Client) -> None:
    with pytest.raises(BadRequest, match="confirm_timeout"):
        client.lock("n", confirm=True, confirm_timeout=-1)
    with pytest.raises(BadRequest, match="confirm=True"):
        client.rlock("n", confirm_timeout=1)


# --- Ends of the wait ---


@pytest.mark.parametrize("block", [True, False])
def test_ctrl_c_ends_the_wait_for_a_confirmation(sidecar: FakeSidecar, client: Client, block: bool) -> None:
    """The lock is released once, and the client goes on."""

    def interrupt() -> None:
        sidecar.wait_for(lambda: sidecar.requests("confirm"))
        ctrl_c(client, felt)

    sidecar.away = True
    lock = client.lock("n", confirm=block)
    felt = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        if block:
            with lock:
                pass
        else:
            lock.acquire()
            lock.release(confirm=True)
    felt.set()
    thread.join()
    assert client.ping() == "ok"
    assert not sidecar.holder("n")
    assert len(sidecar.requests("release")) == 1
    assert not list(lock._handles)
    sidecar.come_back()
    with client.lock("n", confirm=True):
        pass


def test_close_ends_the_wait_for_a_confirmation(sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor) -> None:
    sidecar.away = True
    lock = client.lock("n")
    lock.acquire()
    releasing = pool.submit(lock.release, confirm=True)
    sidecar.wait_for(lambda: sidecar.requests("confirm"))
    client.close()
    with pytest.raises(Unconfirmed, match=r"The client was closed\. The lock is released here") as e:
        releasing.result(PATIENCE)
    assert type(why(e.value)) is ClientClosed


# --- Restarts ---


@pytest.mark.parametrize("more", [True, False])
def test_successor_confirms(sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor, more: bool) -> None:
    """Whether or not the session holds anything that it is resumed for."""
    if more:
        client.lock("other").acquire()
    lock = client.lock("n")
    lock.acquire()
    sidecar.away = True
    releasing = pool.submit(lock.release, confirm=True)
    sidecar.wait_for(lambda: len(sidecar.requests("confirm")) == 1)
    sidecar.die()
    sidecar.wait_for(lambda: len(sidecar.requests("confirm")) == 2)
    assert len(sidecar.requests("claim")) == (1 if more else 0)
    assert len(sidecar.requests("info")) == (0 if more else 1)
    assert not releasing.done()
    sidecar.come_back()
    assert releasing.result(PATIENCE) is None
    assert len(sidecar.requests("release")) == 1


def test_release_while_no_sidecar_listens_is_confirmed_later(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    lock = client.lock("n")
    lock.acquire()
    with sidecar._lock:
        sidecar.deafen()
        sidecar.die()
    releasing = pool.submit(lock.release, confirm=True)
    shared = client._shared
    assert shared is not None
    while not any(isinstance(call, Confirm) for call in shared._waiting):
        os.sched_yield()
    assert sidecar.holder("n")
    sidecar.listen()
    assert releasing.result(PATIENCE) is None
    assert not sidecar.holder("n")
    join_releasers()


def test_release_without_a_sidecar_is_not_confirmed(
    sidecar: FakeSidecar, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = client.lock("n")
    lock.acquire()
    with sidecar._lock:
        sidecar.deafen()
        sidecar.die()
    with monkeypatch.context() as patch:
        patch.setattr(Timeouts, "__init__", partialmethod(Timeouts.__init__, reconnect=0.01))
        with pytest.raises(Unconfirmed, match="no sidecar") as e:
            lock.release(confirm=True)
    assert type(why(e.value)) is Unavailable
    assert "This confirm" not in str(e.value)
    sidecar.listen()
    sidecar.wait_for(lambda: not sidecar.holder("n"))  # it is delivered all the same
    join_releasers()


def test_sidecar_without_its_state_confirms_nothing(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    lock, stray = client.lock("n"), client.lock("stray")
    lock.acquire()
    stray.acquire()
    held = stray.held
    sidecar.away = True
    releasing = pool.submit(lock.release, confirm=True, timeout=PATIENCE)
    # Its thread does not own the lock's handle: a lock that is not re-entrant may be released by any.
    sidecar.wait_for(lambda: sidecar.requests("confirm"))
    sidecar.forget()
    with pytest.raises(Unconfirmed, match="does not know"):
        releasing.result(PATIENCE)
    with pytest.raises(Unconfirmed, match="does not know"):
        held.release(confirm=True)
    assert len(sidecar.requests("confirm")) == 1


def test_threads_confirm_over_many_restarts(sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor) -> None:
    rng = random.Random(1)
    turns = 0
    stop = False

    def work(name: str) -> None:
        nonlocal turns
        while not stop:
            with client.lock(name, confirm=True, confirm_timeout=PATIENCE) as held:
                held.check()
            turns += 1

    def go_on(until: int) -> None:
        sidecar.wait_for(lambda: turns >= until)

    workers = [pool.submit(work, f"n{i % 3}") for i in range(6)]
    for _ in range(40):
        go_on(turns + rng.randrange(1, 20))
        sidecar.die()
    stop = True
    for worker in workers:
        worker.result(PATIENCE)
    for i in range(3):
        assert not sidecar.holder(f"n{i}")


def test_children_of_a_fork_confirm_for_themselves(sidecar: FakeSidecar, client: Client) -> None:
    with client.lock("n", confirm=True) as held:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with pytest.raises(NotHeld):
                    held.release(confirm=True)
                with client.lock("m", confirm=True):
                    pass
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        held.check()
    assert [m["name"] for m in sidecar.requests("confirm")] == ["m", "n"]


def test_it_is_public() -> None:
    assert issubclass(locksidecar.Unconfirmed, locksidecar.LocksidecarError)
    assert not issubclass(locksidecar.Unconfirmed, LockLost)


def _typed(client: Client) -> Callable[[], None]:
    """mypy checks that both forms are understood."""
    with client.lock("n", confirm=True, confirm_timeout=2.0) as held:
        held.release(confirm=True, timeout=1)
    return client.rlock("n", confirm=False).release
