"""Confirmed releases: the core, and the client for threads against a fake sidecar."""

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
from fake import TIMEOUT, FakeSidecar
from session_harness import S, SessionHarness
from test_restart import join_releasers
from test_sync import ctrl_c

import locksidecar
from locksidecar import (
    BadRequest,
    Client,
    ClientClosed,
    Denied,
    HolderInfo,
    LimitExceeded,
    LockInfo,
    LockLost,
    LocksidecarError,
    NotHeld,
    Unavailable,
    Unconfirmed,
    Unsupported,
)
from locksidecar._calls import Confirm, Options
from locksidecar._core import may_have
from locksidecar._transport import Socket, Timeouts


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def why(error: Unconfirmed) -> BaseException:
    """The cause of the error."""
    assert error.__cause__ is not None
    return error.__cause__


# --- The core ---


@pytest.fixture
def harness() -> SessionHarness:
    return SessionHarness()


def released(harness: SessionHarness, hold: int = 7, options: Options | None = None) -> tuple[Confirm, int]:
    """A release and the request for its confirmation, with its id."""
    entry = harness.acquired(hold, options=options)
    confirm = harness.release_confirmed(entry, harness.now)
    release, message = harness.sent()
    assert release == {"op": "release", "hold": hold}
    assert message == {"op": "confirm", "id": message["id"], "name": f"n{hold}"}
    return confirm, message["id"]


def test_confirm_is_sent_after_the_release(harness: SessionHarness) -> None:
    confirm, id = released(harness)
    assert not confirm.done
    harness.deliver(id=id)
    assert confirm.done
    assert confirm.result() is True


def test_resumed_session_sends_confirm_again_with_a_new_id(harness: SessionHarness) -> None:
    harness.acquired(8)
    confirm, first = released(harness)
    for _ in range(3):
        harness.session.on_disconnected(0)
        harness.connect(resumed=True)
        (claim,) = harness.sent()
        assert claim["holds"] == [8, 1]
        harness.deliver(id=claim["id"])
        (message,) = harness.sent()
        assert message == {"op": "confirm", "id": message["id"], "name": "n7"}
        assert message["id"] > first
    harness.deliver(id=message["id"])
    assert confirm.result() is True


def test_release_during_claims_is_sent_and_confirmed_after_them(harness: SessionHarness) -> None:
    entry = harness.acquired()
    harness.session.on_disconnected(0)
    harness.connect(resumed=True)
    (claim,) = harness.sent()
    assert claim["holds"] == [7, 1]
    confirm = harness.release_confirmed(entry, 0)
    assert harness.sent() == []
    harness.deliver(id=claim["id"])
    assert [m["op"] for m in harness.sent()] == ["release", "confirm"]
    assert not confirm.done


def test_release_without_a_connection_is_not_claimed_and_then_confirmed(harness: SessionHarness) -> None:
    entry, _ = harness.acquired(), harness.acquired(8)
    harness.session.on_disconnected(0)
    confirm = harness.release_confirmed(entry, 0)
    harness.connect(resumed=True)
    (claim,) = harness.sent()
    assert claim["holds"] == [8, 1]
    harness.deliver(id=claim["id"])
    (message,) = harness.sent()
    harness.deliver(id=message["id"])
    assert confirm.result() is True


def sent_info(harness: SessionHarness) -> int:
    """The id of the info request, which is all that the client has sent."""
    (info,) = harness.sent()
    assert info == {"op": "info", "id": info["id"], "name": "n7"}
    return int(info["id"])


def new_session(harness: SessionHarness) -> int:
    harness.session.on_disconnected(0)
    harness.connect()
    return sent_info(harness)


def test_new_session_of_the_same_sidecar_confirms_a_release(harness: SessionHarness) -> None:
    """The new sidecar ends the sessions that hold nothing, and still knows which of their releases to execute."""
    confirm, _ = released(harness)
    new_session(harness)  # ends before the answer to info
    harness.deliver(id=new_session(harness))
    assert [m["op"] for m in harness.sent()] == ["confirm"]
    # That session ends before the answer to confirm. In the next one, another owner on this host has the lock.
    harness.deliver(id=new_session(harness), lock={"name": "n7", "state": "held", "hold": 9})
    (message,) = harness.sent()
    assert message == {"op": "confirm", "id": message["id"], "name": "n7"}
    assert not confirm.done
    harness.deliver(id=message["id"])
    assert confirm.result() is True


def test_new_session_that_is_resumed_repeats_its_last_request(harness: SessionHarness) -> None:
    confirm, _ = released(harness)
    new_session(harness)
    harness.acquired(8)
    for op in ("info", "confirm"):
        harness.session.on_disconnected(0)
        harness.connect(resumed=True)
        (claim,) = harness.sent()
        assert claim["holds"] == [8, 1]
        harness.deliver(id=claim["id"])
        (message,) = harness.sent()
        assert message == {"op": op, "id": message["id"], "name": "n7"}
        harness.deliver(id=message["id"])
        if op == "info":
            assert [m["op"] for m in harness.sent()] == ["confirm"]
    assert confirm.result() is True


def test_release_is_unconfirmed_if_the_new_sidecar_has_the_hold(harness: SessionHarness) -> None:
    confirm, _ = released(harness)
    harness.deliver(id=new_session(harness), lock={"name": "n7", "state": "held", "hold": 7})
    assert harness.sent() == []
    with pytest.raises(LocksidecarError, match="before it had read the release"):
        confirm.result()


def test_refused_info_leaves_the_release_unconfirmed_and_the_session_open(harness: SessionHarness) -> None:
    confirm, _ = released(harness)
    harness.deliver(id=new_session(harness), err={"code": "limit", "msg": "too many"})
    with pytest.raises(LimitExceeded, match="too many"):
        confirm.result()
    harness.acquired(8).check(harness.now)


def test_confirm_abandoned_before_the_answer_to_info_is_not_sent(harness: SessionHarness) -> None:
    confirm, _ = released(harness)
    info = new_session(harness)
    harness.abandon(confirm)
    harness.deliver(id=info)
    assert confirm.done
    assert harness.sent() == []


def test_confirm_is_not_sent_to_a_sidecar_with_another_uuid(harness: SessionHarness) -> None:
    confirm, _ = released(harness)
    stray = harness.acquired(8)
    harness.session.on_disconnected(0)
    harness.connect(sidecar="another")
    assert harness.sent() == []
    with pytest.raises(LocksidecarError, match="does not know of the release"):
        confirm.result()
    late = harness.release_confirmed(stray, 0)
    assert harness.sent() == []
    with pytest.raises(LocksidecarError, match="does not know of the release"):
        late.result()


def test_abandoned_confirm_is_not_sent_again_and_its_answer_is_ignored(harness: SessionHarness) -> None:
    _, other = harness.acquired(8), harness.acquired(9)
    confirm, id = released(harness)
    harness.abandon(confirm)
    assert harness.sent() == []
    harness.deliver(id=id)
    assert confirm.done

    again = harness.release_confirmed(other, 0)
    harness.sent()
    harness.abandon(again)
    harness.session.on_disconnected(0)
    harness.connect(resumed=True)
    (claim,) = harness.sent()
    harness.deliver(id=claim["id"])
    assert harness.sent() == []
    assert not harness.session.unreleased_until


def test_release_of_a_lost_entry_sends_no_confirm(harness: SessionHarness) -> None:
    entry = harness.acquired()
    with pytest.raises(LockLost):
        harness.release_confirmed(entry, 30 * S)
    assert [m["op"] for m in harness.sent()] == ["release"]


@pytest.mark.parametrize(
    ("lease", "later", "text", "free_within"),
    [
        (None, 0, "within 30 s at the latest", 30.0),
        (None, 1.5, "within 29 s at the latest", 28.5),
        (None, 30, "has ended", 0.0),
        (
            100.0,
            0,
            "within 33 s at the latest",
            32.01,
        ),  # deadline, plus a fiftieth of the lease, plus 10 ms
        (100.0, 60, "has ended", 0.0),
    ],
)
def test_unconfirmed_says_when_the_lease_ends(
    harness: SessionHarness, lease: float | None, later: float, text: str, free_within: float
) -> None:
    confirm, _ = released(harness, options=Options(lease=lease))
    error = confirm.unconfirmed_error(Denied("Redis refused it", code="denied"), round(later * S))
    assert text in str(error)
    assert str(error).startswith(
        "the release of the lock 'n7' is not confirmed: Redis refused it. The lock is released"
    )
    assert (error.name, error.code) == ("n7", "denied")
    assert error.free_within == pytest.approx(free_within)


def test_resume_extends_the_lease_end_in_unconfirmed(harness: SessionHarness) -> None:
    harness.acquired(8)
    confirm, _ = released(harness)
    harness.session.on_disconnected(20 * S)
    harness.now = 25 * S
    harness.connect(resumed=True)
    (claim,) = harness.sent()
    harness.deliver(id=claim["id"])
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
    sidecar.redis_slow = True
    lock = client.lock("n")
    lock.acquire()
    releasing = pool.submit(lock.release if of_the_lock else lock.held.release, confirm=True)
    sidecar.wait_for(lambda: sidecar.requests("confirm"))
    assert not sidecar.holder("n")
    assert not lock.locked()
    assert client.ping() == "ok"
    assert not releasing.done()
    sidecar.recover_redis()
    assert releasing.result(TIMEOUT) is None
    assert len(sidecar.requests("release")) == 1


def test_release_and_confirm_are_sent_in_one_write(
    sidecar: FakeSidecar, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []

    def send(sock: Socket, data: bytearray, flags: int) -> int:
        if sock.getpeername() == sidecar.path:  # and not to that of an earlier test
            sent.append(bytes(data))
        return super(Socket, sock).send(data, flags)

    with client.lock("n") as held:
        monkeypatch.setattr(Socket, "send", send, raising=False)
        held.release(confirm=True)
    assert len(sent) == 1
    assert sidecar.requests("confirm")[0]["name"] == "n"


def test_release_without_confirm_sends_no_confirm(sidecar: FakeSidecar, client: Client) -> None:
    for lock in (client.lock("n"), client.rlock("n"), client.lock("n", confirm=True)):
        lock.acquire()
        lock.release(timeout=5)
    assert client.ping() == "ok"
    assert sidecar.requests("confirm") == []


def test_release_of_a_lost_lock_raises_lock_lost_and_sends_no_confirm(sidecar: FakeSidecar, client: Client) -> None:
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


def test_release_of_an_inner_entry_is_confirmed(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.rlock("n")
    lock.acquire()
    lock.acquire()
    lock.release(confirm=True)
    assert sidecar.holder("n")
    lock.release(confirm=True)
    assert not sidecar.holder("n")
    assert len(sidecar.requests("confirm")) == 2


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("denied", Denied, "Redis refused"),
        ("limit", LimitExceeded, "Redis refused"),
        ("unsupported", Unsupported, "does not confirm releases: upgrade it"),
        ("sunspots", LocksidecarError, "Redis refused"),
    ],
)
def test_refused_confirmation_raises_unconfirmed(
    sidecar: FakeSidecar, client: Client, code: str, kind: type[LocksidecarError], text: str
) -> None:
    sidecar.refuse["confirm"] = (code, "Redis refused")
    with client.lock("n") as held:
        with pytest.raises(Unconfirmed, match=text) as e:
            held.release(confirm=True)
        assert type(why(e.value)) is kind
        assert (e.value.code, e.value.name) == (code, "n")
        assert 29 < e.value.free_within <= 30
        assert held.released
        assert not sidecar.holder("n")
    assert len(sidecar.requests("release")) == 1


@pytest.mark.parametrize("timeout", [0.01, 0, -1, float("nan")])
def test_confirmation_timeout_raises_unconfirmed(sidecar: FakeSidecar, client: Client, timeout: float) -> None:
    sidecar.redis_slow = True
    with client.lock("n") as held, pytest.raises(Unconfirmed, match="in time") as e:
        held.release(confirm=True, timeout=timeout)
    assert isinstance(why(e.value), TimeoutError)
    sidecar.wait_for(lambda: sidecar.requests("confirm"))
    assert not sidecar.holder("n")
    sidecar.recover_redis()  # the client ignores the answer
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

    sidecar.redis_slow = True
    block = pool.submit(body)
    sidecar.wait_for(lambda: sidecar.requests("confirm"))
    assert not sidecar.holder("n")
    assert not block.done()
    sidecar.recover_redis()
    assert block.result(TIMEOUT) is None
    assert not list(lock._handles)


def test_block_without_a_confirmation_raises_unconfirmed(sidecar: FakeSidecar, client: Client) -> None:
    sidecar.redis_slow = True
    lock = client.lock("n", confirm=True, confirm_timeout=0.01)
    with pytest.raises(Unconfirmed), lock:
        pass
    sidecar.wait_for(lambda: not sidecar.holder("n"))
    assert not list(lock._handles)


@pytest.mark.parametrize("exc", [ValueError("of the body"), SystemExit(3)])
def test_exception_of_the_body_gets_a_note_about_unconfirmed(
    sidecar: FakeSidecar, client: Client, exc: BaseException
) -> None:
    sidecar.redis_slow = True
    lock = client.lock("n", confirm=True, confirm_timeout=0.01)
    with pytest.raises(type(exc)) as e, lock:
        raise exc
    assert e.value is exc
    if sys.version_info >= (3, 11):
        assert "the release of the lock 'n' is not confirmed" in exc.__notes__[0]
    sidecar.wait_for(lambda: len(sidecar.requests("confirm")) == 1)
    assert not sidecar.holder("n")


@pytest.mark.parametrize("exc", [KeyboardInterrupt(), GeneratorExit()])
def test_interrupted_block_does_not_wait_for_the_confirmation(
    sidecar: FakeSidecar, client: Client, exc: BaseException
) -> None:
    sidecar.redis_slow = True
    lock = client.lock("n", confirm=True)
    with pytest.raises(type(exc)), lock:
        raise exc
    assert client.ping() == "ok"
    assert not sidecar.holder("n")
    assert sidecar.requests("confirm") == []


def test_invalid_confirm_options_are_refused(client: Client) -> None:
    with pytest.raises(BadRequest, match="confirm_timeout"):
        client.lock("n", confirm=True, confirm_timeout=-1)
    with pytest.raises(BadRequest, match="confirm=True"):
        client.rlock("n", confirm_timeout=1)


# --- The end of the wait ---


@pytest.mark.parametrize("block", [True, False])
def test_ctrl_c_ends_the_wait_for_a_confirmation(sidecar: FakeSidecar, client: Client, block: bool) -> None:
    """The lock is released once, and the client can still be used."""

    def interrupt() -> None:
        sidecar.wait_for(lambda: sidecar.requests("confirm"))
        ctrl_c(client, interrupted)

    sidecar.redis_slow = True
    lock = client.lock("n", confirm=block)
    interrupted = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        if block:
            with lock:
                pass
        else:
            lock.acquire()
            lock.release(confirm=True)
    interrupted.set()
    thread.join()
    assert client.ping() == "ok"
    assert not sidecar.holder("n")
    assert len(sidecar.requests("release")) == 1
    assert not list(lock._handles)
    sidecar.recover_redis()
    with client.lock("n", confirm=True):
        pass


def test_close_ends_the_wait_for_a_confirmation(sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor) -> None:
    sidecar.redis_slow = True
    lock = client.lock("n")
    lock.acquire()
    releasing = pool.submit(lock.release, confirm=True)
    sidecar.wait_for(lambda: sidecar.requests("confirm"))
    client.close()
    with pytest.raises(Unconfirmed, match=r"The client was closed\. The lock is released here") as e:
        releasing.result(TIMEOUT)
    assert type(why(e.value)) is ClientClosed


# --- Restarts ---


@pytest.mark.parametrize("more", [True, False])
def test_new_sidecar_confirms_a_release(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor, more: bool
) -> None:
    """Whether or not the session holds another lock, and is therefore resumed."""
    if more:
        client.lock("other").acquire()
    lock = client.lock("n")
    lock.acquire()
    sidecar.redis_slow = True
    releasing = pool.submit(lock.release, confirm=True)
    sidecar.wait_for(lambda: len(sidecar.requests("confirm")) == 1)
    sidecar.restart()
    sidecar.wait_for(lambda: len(sidecar.requests("confirm")) == 2)
    assert len(sidecar.requests("claim")) == (1 if more else 0)
    assert len(sidecar.requests("info")) == (0 if more else 1)
    assert not releasing.done()
    sidecar.recover_redis()
    assert releasing.result(TIMEOUT) is None
    assert len(sidecar.requests("release")) == 1


def test_release_is_confirmed_when_a_sidecar_listens_again(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    lock = client.lock("n")
    lock.acquire()
    with sidecar._lock_all:
        sidecar.stop_listening()
        sidecar.restart()
    releasing = pool.submit(lock.release, confirm=True)
    shared = client._shared
    assert shared is not None
    while not any(isinstance(w.call, Confirm) for w in list(shared._waiting.values())):
        os.sched_yield()
    assert sidecar.holder("n")
    sidecar.listen()
    assert releasing.result(TIMEOUT) is None
    assert not sidecar.holder("n")
    join_releasers()


def test_release_without_a_sidecar_raises_unconfirmed(
    sidecar: FakeSidecar, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = client.lock("n")
    lock.acquire()
    with sidecar._lock_all:
        sidecar.stop_listening()
        sidecar.restart()
    with monkeypatch.context() as patch:
        patch.setattr(Timeouts, "__init__", partialmethod(Timeouts.__init__, reconnect=0.01))
        with pytest.raises(Unconfirmed, match="no sidecar") as e:
            lock.release(confirm=True)
    assert type(why(e.value)) is Unavailable
    assert "This confirm" not in str(e.value)
    sidecar.listen()
    sidecar.wait_for(lambda: not sidecar.holder("n"))  # the release is delivered nevertheless
    join_releasers()


def test_sidecar_without_its_state_leaves_releases_unconfirmed(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    lock, stray = client.lock("n"), client.lock("stray")
    lock.acquire()
    stray.acquire()
    held = stray.held
    sidecar.redis_slow = True
    releasing = pool.submit(lock.release, confirm=True, timeout=TIMEOUT)
    # Another thread acquired the lock: any thread may release a lock that is not re-entrant.
    sidecar.wait_for(lambda: sidecar.requests("confirm"))
    sidecar.restart_without_state()
    with pytest.raises(Unconfirmed, match="does not know"):
        releasing.result(TIMEOUT)
    with pytest.raises(Unconfirmed, match="does not know"):
        held.release(confirm=True)
    assert len(sidecar.requests("confirm")) == 1


def test_threads_confirm_over_many_restarts(sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor) -> None:
    rng = random.Random(1)
    rounds = 0
    stop = False

    def work(name: str) -> None:
        nonlocal rounds
        while not stop:
            with client.lock(name, confirm=True, confirm_timeout=TIMEOUT) as held:
                held.check()
            rounds += 1

    def go_on(until: int) -> None:
        sidecar.wait_for(lambda: rounds >= until)

    workers = [pool.submit(work, f"n{i % 3}") for i in range(6)]
    for _ in range(40):
        go_on(rounds + rng.randrange(1, 20))
        sidecar.restart()
    stop = True
    for worker in workers:
        worker.result(TIMEOUT)
    for i in range(3):
        assert not sidecar.holder(f"n{i}")


def test_forked_child_confirms_its_own_releases_only(sidecar: FakeSidecar, client: Client) -> None:
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


def test_unconfirmed_is_public() -> None:
    assert issubclass(locksidecar.Unconfirmed, locksidecar.LocksidecarError)
    assert not issubclass(locksidecar.Unconfirmed, LockLost)


def _typed(client: Client) -> Callable[[], None]:
    """mypy checks the types of both forms."""
    with client.lock("n", confirm=True, confirm_timeout=2.0) as held:
        held.release(confirm=True, timeout=1)
    return client.rlock("n", confirm=False).release


@pytest.mark.parametrize(
    ("lock", "expected"),
    [
        ({"hold": 7}, True),
        ({"hold": 8}, False),
        ({"hold": 6, "held": 2, "holders": [{"hold": 6}, {"hold": 7}]}, True),
        ({"hold": 6, "held": 2, "holders": [{"hold": 6}, {"hold": 8}]}, False),
        ({"hold": 6, "held": 3, "holders": [{"hold": 6}, {"hold": 8}]}, True),  # it names some of them only
    ],
)
def test_hold_that_the_sidecar_may_still_have_is_found_in_its_row(lock: dict[str, object], expected: bool) -> None:
    holders = tuple(HolderInfo(**holder) for holder in lock.pop("holders", ()))  # type: ignore[attr-defined]
    info = LockInfo(name="a", state="held", holders=holders, **lock)  # type: ignore[arg-type]
    assert may_have(info, 7) is expected
