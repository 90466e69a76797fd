"""Semaphores: requests, handles, restarts, forks and interrupts. test_semantics.py has what they do."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import sys
import threading
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any

import pytest
from fake import FakeSidecar
from points import profiled
from session_harness import S, SessionHarness
from test_restart import join_releasers
from test_resume import resume

import locksidecar
from locksidecar import (
    BadRequest,
    Client,
    Deadlock,
    LockLost,
    LockTimeout,
    NotHeld,
    OrphanedLock,
    Permits,
    Semaphore,
    Unconfirmed,
    Unsupported,
    _sync,
    aio,
)
from locksidecar._calls import Options, acquire_call, check_freed


@pytest.fixture
async def tasks(sidecar: FakeSidecar) -> AsyncIterator[aio.Client]:
    async with aio.connect(sidecar.path) as client:
        yield client


def wait_free(sidecar: FakeSidecar, name: str = "n") -> None:
    sidecar.wait_for(lambda: not sidecar.permits_held(name))


async def released(sidecar: FakeSidecar, name: str = "n") -> None:
    await asyncio.to_thread(wait_free, sidecar, name)


# --- What is sent ---


def test_semaphore_is_made_without_a_request(sidecar: FakeSidecar) -> None:
    client = Client(sidecar.path, name_prefix="billing:")
    semaphore = client.semaphore("api", permits=10)
    assert (semaphore.name, semaphore.permits) == ("billing:api", 10)
    assert repr(semaphore) == "<locksidecar.Semaphore 'billing:api' permits=10>"
    assert not sidecar.received


def test_request_has_what_the_semaphore_was_made_with(sidecar: FakeSidecar, client: Client) -> None:
    with client.semaphore("n", permits=10, lease=4, max_hold=5, crash_delay=6).acquire(2, timeout=3):
        pass
    (request,) = sidecar.requests("acquire_permits")
    assert request.pop("id")
    assert 2900 <= request.pop("wait_ms") <= 3000
    assert request == {
        "op": "acquire_permits",
        "name": "n",
        "permits": 2,
        "of": 10,
        "lease_ms": 4000,
        "max_hold_ms": 5000,
        "crash_delay_ms": 6000,
    }


async def test_request_of_a_task(sidecar: FakeSidecar, tasks: aio.Client) -> None:
    async with tasks.semaphore("n", permits=300, lease=4, crash_delay=6).acquire():
        pass
    (request,) = sidecar.requests("acquire_permits")
    assert request.pop("id")
    assert request == {"op": "acquire_permits", "name": "n", "of": 300, "lease_ms": 4000, "crash_delay_ms": 6000}


@pytest.mark.parametrize("make", [Client.semaphore, aio.Client.semaphore])
@pytest.mark.parametrize("permits", [0, -1, 65_536])
def test_capacity_out_of_range_is_refused(sidecar: FakeSidecar, make: Callable[..., Any], permits: int) -> None:
    kind = Client if make is Client.semaphore else aio.Client
    with pytest.raises(BadRequest, match=f"permits must be from 1 to 65535, not {permits}"):
        make(kind(sidecar.path), "n", permits=permits)
    make(kind(sidecar.path), "n", permits=65_535)


@pytest.mark.parametrize("permits", [True, 1.0, "1", None])
def test_number_of_permits_that_is_no_int_is_refused(sidecar: FakeSidecar, client: Client, permits: Any) -> None:
    for use in (
        lambda: client.semaphore("n", permits=permits),
        lambda: client.semaphore("n", permits=10).acquire(permits),
        lambda: client.semaphore("n", permits=10).synchronized(permits),
        lambda: aio.Client(sidecar.path).semaphore("n", permits=10).acquire(permits),
        lambda: aio.Client(sidecar.path).semaphore("n", permits=10).synchronized(permits),
    ):
        with pytest.raises(TypeError, match="permits must be an int"):
            use()
    assert not sidecar.requests("acquire_permits")


@pytest.mark.parametrize("permits", [0, -1, 11])
def test_more_permits_than_there_are_are_refused(sidecar: FakeSidecar, client: Client, permits: int) -> None:
    for semaphore in client.semaphore("n", permits=10), aio.Client(sidecar.path).semaphore("n", permits=10):
        for use in semaphore.acquire, semaphore.synchronized:
            with pytest.raises(ValueError, match=f"permits must be from 1 to 10, not {permits}"):
                use(permits)
    assert not sidecar.requests("acquire_permits")


def test_other_arguments_are_checked(client: Client) -> None:
    with pytest.raises(BadRequest, match="must not be empty"):
        client.semaphore("", permits=1)
    with pytest.raises(BadRequest, match="lease must be"):
        client.semaphore("n", permits=1, lease=0)
    with pytest.raises(BadRequest, match="timeout must be"):
        client.semaphore("n", permits=1).acquire(timeout=-2)
    with pytest.raises(ValueError, match="non-blocking"):
        client.semaphore("n", permits=1).acquire(blocking=False, timeout=1)
    with pytest.raises(TypeError, match="on_lost must be a function"):
        client.semaphore("n", permits=1, on_lost=1)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="hold must be from 1"):
        client.force_release("n", hold=0)
    with pytest.raises(TypeError, match="hold must be an int"):
        client.force_release("n", hold="1")  # type: ignore[arg-type]


def test_sidecar_without_semaphores_is_named(sidecar: FakeSidecar, client: Client) -> None:
    sidecar.refuse["acquire_permits"] = ("unsupported", "this sidecar does not know acquire_permits")
    with pytest.raises(
        Unsupported, match=r"acquire 'n': .* \(version 0\) is older .* has no semaphores: upgrade it"
    ) as e:
        client.semaphore("n", permits=1).acquire()
    assert e.value.code == "unsupported"
    with client.lock("n"):  # the session goes on
        pass


async def test_sidecar_without_semaphores_is_named_to_a_task(sidecar: FakeSidecar, tasks: aio.Client) -> None:
    sidecar.refuse["acquire_permits"] = ("unsupported", "this sidecar does not know acquire_permits")
    with pytest.raises(Unsupported, match="has no semaphores"):
        await tasks.semaphore("n", permits=1).acquire()


# --- Handles ---


def test_handle_is_a_hold_of_permits(sidecar: FakeSidecar, client: Client) -> None:
    with client.semaphore("n", permits=10).acquire(2) as permits:
        assert isinstance(permits, locksidecar.Held)
        assert (permits.name, permits.permits, permits.of, permits.released) == ("n", 2, 10, False)
        assert permits.remaining > 0
        permits.check()
        assert sidecar.permits_held("n") == 2
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(permits)
    assert permits.released
    wait_free(sidecar)


def test_number_that_a_policy_lowers_is_read(sidecar: FakeSidecar, client: Client) -> None:
    grant = sidecar._grant

    def lowered(hold: Any, m: Any) -> None:
        hold.of = 5
        grant(hold, m)

    sidecar._grant = lowered  # type: ignore[method-assign]
    with client.semaphore("n", permits=10).acquire() as permits:
        assert permits.of == 5


async def test_answer_may_leave_the_permits_out(sidecar: FakeSidecar, client: Client, tasks: aio.Client) -> None:
    send = sidecar._send

    def left_out(session: Any, m: dict[str, Any]) -> None:
        send(session, {k: v for k, v in m.items() if k not in ("permits", "of")})

    sidecar._send = left_out  # type: ignore[method-assign, assignment]
    with await asyncio.to_thread(client.semaphore("n", permits=10).acquire, 2) as permits:
        assert (permits.permits, permits.of) == (2, 10)
    async with tasks.semaphore("n", permits=10).acquire(2) as held:
        assert (held.permits, held.of) == (2, 10)


async def test_older_sidecar_that_ends_another_hold_is_named(
    sidecar: FakeSidecar, client: Client, tasks: aio.Client
) -> None:
    end = sidecar._on_force_release
    sidecar._on_force_release = lambda session, m: end(session, m | {"hold": 0})  # type: ignore[method-assign]
    await tasks.lock("n").acquire()
    with pytest.raises(Unsupported, match=r"ended hold [0-9]+ in the place of hold 7; upgrade it"):
        await asyncio.to_thread(client.force_release, "n", hold=7)
    await tasks.lock("n").acquire()
    with pytest.raises(Unsupported, match=r"ended hold [0-9]+ in the place of hold 7; upgrade it"):
        await tasks.force_release("n", hold=7)


def test_older_sidecar_that_frees_what_another_had_is_named() -> None:
    freed = OrphanedLock("a", 7)
    assert check_freed("n", None, freed) is check_freed("n", "a", freed) is freed
    with pytest.raises(Unsupported, match="freed what sidecar a had in the place of b; upgrade it"):
        check_freed("n", "b", freed)


def test_handle_is_released_once(sidecar: FakeSidecar, client: Client) -> None:
    permits = client.semaphore("n", permits=2).acquire(2)
    permits.release()
    wait_free(sidecar)
    with pytest.raises(NotHeld, match="the hold of 2 of the permits of 'n' was released before"):
        permits.release()
    with pytest.raises(NotHeld, match="was released before"), permits:
        pytest.fail("a block without permits")
    with pytest.raises(NotHeld, match="is not held any more"):
        permits.check()


def test_permits_released_in_the_block_are_not_released_at_its_end(sidecar: FakeSidecar, client: Client) -> None:
    with client.semaphore("n", permits=2).acquire() as permits, permits:
        permits.release()
    client.ping()
    assert len(sidecar.requests("release")) == 1


def test_loss_is_raised_at_the_end_of_the_block(sidecar: FakeSidecar, client: Client) -> None:
    with (
        pytest.raises(LockLost, match=r"the hold of 2 of the permits of 'n' was lost: .*\(forced\)") as raised,
        client.semaphore("n", permits=10).acquire(2) as permits,
    ):
        sidecar.lose("n", "forced")
    assert (raised.value.name, raised.value.reason, permits.lost) == ("n", "forced", "forced")
    with pytest.raises(ValueError, match="of the body") as error, client.semaphore("n", permits=10).acquire(2):
        sidecar.lose("n", "forced")
        raise ValueError("of the body")
    if sys.version_info >= (3, 11):
        assert "the hold of 2 of the permits of 'n' was lost" in error.value.__notes__[0]


def test_loss_is_logged_and_reported(sidecar: FakeSidecar, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    losses: list[LockLost] = []
    reported = threading.Event()

    def on_lost(loss: LockLost) -> None:
        losses.append(loss)
        reported.set()

    semaphore = client.semaphore("n", permits=10, on_lost=on_lost)
    first, second = semaphore.acquire(), semaphore.acquire(2)
    sidecar.lose("n", "stolen", first.token)
    assert reported.wait(20)
    second.release()
    assert [loss.reason for loss in losses] == ["stolen"]
    assert f"the hold of permits of 'n' (token {first.token}) was lost" in caplog.text


def test_confirmed_release(sidecar: FakeSidecar, client: Client) -> None:
    with client.semaphore("n", permits=1, confirm=True).acquire():
        pass
    assert [m["name"] for m in sidecar.requests("confirm")] == ["n"]
    sidecar.redis_slow = True
    why = (
        r"the release of the hold of 1 of the permits of 'n' is not confirmed: .* The hold is released here, and other"
    )
    with pytest.raises(Unconfirmed, match=why):
        client.semaphore("n", permits=1).acquire().release(confirm=True, timeout=0.01)
    with pytest.raises(Unconfirmed), client.semaphore("n", permits=1, confirm=True, confirm_timeout=0.01).acquire():
        pass
    semaphore = client.semaphore("n", permits=1, confirm=True, confirm_timeout=0.01)
    with pytest.raises(ValueError, match="of the body"), semaphore.acquire():
        raise ValueError("of the body")
    wait_free(sidecar)


def test_dropped_handle_is_a_warning(sidecar: FakeSidecar, client: Client) -> None:
    with pytest.warns(
        ResourceWarning, match=r"the hold of 2 of the permits of 'n' is still held, .* or the Permits and"
    ):
        client.semaphore("n", permits=2).acquire(2)
    assert sidecar.permits_held("n") == 2


def test_same_thread_holds_permits_several_times(sidecar: FakeSidecar, client: Client) -> None:
    semaphore = client.semaphore("n", permits=3)
    with semaphore.acquire() as first, semaphore.acquire() as second, semaphore.acquire() as third:
        assert len({first.token, second.token, third.token}) == 3
        with pytest.raises(LockTimeout, match="acquire 'n'"):
            semaphore.acquire(timeout=0)
        second.release()
        semaphore.acquire(timeout=5).release()
        first.check()
    wait_free(sidecar)


def test_semaphore_is_pickled(sidecar: FakeSidecar) -> None:
    client = Client(sidecar.path, name_prefix="p:")
    semaphore = pickle.loads(pickle.dumps(client.semaphore("n", permits=7, timeout=3)))
    assert isinstance(semaphore, Semaphore)
    assert (semaphore.name, semaphore.permits, semaphore._options.timeout) == ("p:n", 7, 3)
    with semaphore.acquire(7):
        assert sidecar.permits_held("p:n") == 7
    watched = pickle.loads(pickle.dumps(client.semaphore("n", permits=7, on_lost=print)))
    assert watched._on_lost is print
    other = pickle.loads(pickle.dumps(aio.Client(sidecar.path).semaphore("n", permits=7, timeout=3)))
    assert isinstance(other, aio.Semaphore)
    assert (other.permits, other._options.timeout) == (7, 3)
    semaphore._client.close()
    _sync._clients.clear()


def test_decorated_function_holds_permits(sidecar: FakeSidecar, client: Client) -> None:
    @client.semaphore("n", permits=3, timeout=0).synchronized(2)
    def work(depth: int = 0) -> int:
        """Works."""
        assert sidecar.permits_held("n") == 2
        return work(depth - 1) if depth else 5

    assert (work(), work.__name__, work.__doc__) == (5, "work", "Works.")
    wait_free(sidecar)
    with pytest.raises(LockTimeout):
        work(1)  # each call acquires permits of its own
    with pytest.raises(TypeError, match="is a coroutine function"):
        client.semaphore("n", permits=3).synchronized()(asyncio.sleep)


# --- Tasks ---


async def test_permits_of_tasks(sidecar: FakeSidecar, tasks: aio.Client) -> None:
    semaphore = tasks.semaphore("n", permits=3)
    assert repr(semaphore) == "<locksidecar.aio.Semaphore 'n' permits=3>"
    async with semaphore.acquire(2) as permits:
        assert (permits.permits, permits.of, permits.name) == (2, 3, "n")
        assert sidecar.permits_held("n") == 2
        assert await semaphore.acquire(2, blocking=False) is None
        with pytest.raises(LockTimeout):
            await semaphore.acquire(2, timeout=0)
        held = await asyncio.create_task(semaphore.acquire())
        assert sidecar.permits_held("n") == 3
        waiting = asyncio.ensure_future(semaphore.acquire(blocking=True, timeout=20))
        held.release()
        another = await waiting
        async with another:
            another.check()
        assert another.released
    await released(sidecar)
    with pytest.raises(NotHeld, match="was released before"):
        async with permits:
            pytest.fail("a block without permits")
    assert await semaphore.acquire(blocking=False)


async def test_nested_blocks_of_one_handle_end_once(sidecar: FakeSidecar, tasks: aio.Client) -> None:
    shared = tasks._shared
    assert shared is not None
    async with tasks.semaphore("n", permits=3).acquire() as permits, permits:
        pass
    await released(sidecar)
    assert not shared._bodies


async def test_loss_cancels_the_body(sidecar: FakeSidecar, tasks: aio.Client) -> None:
    with pytest.raises(LockLost, match="the hold of 2 of the permits of 'n' was lost"):
        async with tasks.semaphore("n", permits=3).acquire(2):
            sidecar.lose("n", "deleted")
            await asyncio.Event().wait()
    permits = await tasks.semaphore("n", permits=3).acquire(2)
    with pytest.raises(LockLost, match="stolen"):
        async with permits:
            sidecar.lose("n", "stolen")
            await asyncio.Event().wait()


async def test_acquire_that_is_not_awaited_is_a_warning(tasks: aio.Client) -> None:
    with pytest.warns(RuntimeWarning, match=r"Semaphore\._acquire' was never awaited"):
        tasks.semaphore("n", permits=1).acquire()


async def test_confirmed_release_of_a_task(sidecar: FakeSidecar, tasks: aio.Client) -> None:
    async with tasks.semaphore("n", permits=1, confirm=True).acquire():
        pass
    assert len(sidecar.requests("confirm")) == 1
    sidecar.redis_slow = True
    with pytest.raises(Unconfirmed, match="the hold of 1 of the permits"):
        async with tasks.semaphore("n", permits=1, confirm=True, confirm_timeout=0.01).acquire():
            pass
    with pytest.raises(ValueError, match="of the body"):
        async with tasks.semaphore("n", permits=1, confirm=True, confirm_timeout=0.01).acquire():
            raise ValueError("of the body")
    await released(sidecar)


async def test_decorated_coroutine_function_holds_permits(sidecar: FakeSidecar, tasks: aio.Client) -> None:
    running = most = 0

    @tasks.semaphore("n", permits=4).synchronized(2)
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await tasks.ping()
        running -= 1

    await asyncio.gather(*[work() for _ in range(10)])
    assert most == 2
    with pytest.raises(TypeError, match="is no coroutine function"):
        tasks.semaphore("n", permits=4).synchronized()(print)  # type: ignore[arg-type]


async def test_cancelled_acquire_leaves_no_permits(sidecar: FakeSidecar, tasks: aio.Client) -> None:
    semaphore = tasks.semaphore("n", permits=2)
    async with semaphore.acquire(2):

        async def wait() -> None:
            async with semaphore.acquire():
                pytest.fail("permits that are not free")

        waiting = asyncio.create_task(wait())
        await asyncio.to_thread(sidecar.wait_for, lambda: sidecar.waiting("n"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(sidecar.wait_for, lambda: not sidecar.waiting("n"))
    await released(sidecar)


class SoftTimeLimit(Exception):
    """Raised by a signal handler; the task goes on after it."""


@pytest.mark.parametrize(
    ("owner", "name"),
    [(aio.Permits, "__init__"), (aio.Permits, "__aenter__"), (aio._GuardedBody, "__init__"), (aio.Held, "_end_block")],
    ids=lambda x: x.__name__ if isinstance(x, type) else x,
)
async def test_interrupt_of_a_task_leaves_no_permits_held(
    sidecar: FakeSidecar, tasks: aio.Client, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    real, armed = getattr(owner, name), [True]

    def interrupted(*args: Any, **kwargs: Any) -> object:
        if armed.pop() if armed else False:
            raise SoftTimeLimit
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)
    semaphore = tasks.semaphore("n", permits=2)
    with pytest.raises(SoftTimeLimit):
        async with semaphore.acquire(2):
            pass
    await released(sidecar)
    async with semaphore.acquire(2):  # the session continues
        assert sidecar.permits_held("n") == 2
    await released(sidecar)


# --- Restarts ---


@pytest.fixture
def harness() -> SessionHarness:
    return SessionHarness()


def test_holds_are_claimed_and_requests_sent_again(harness: SessionHarness) -> None:
    def acquire(permits: int, timeout: float | None = None) -> Any:
        return harness.submit(acquire_call("n", 0, Options(timeout=timeout, reentrant=True), harness.now, permits, 10))

    def grant(call: Any, hold: int) -> None:
        permits = call.permits
        harness.deliver(id=call.id, token=100 + hold, hold=hold, count=1, deadline_ns=30 * S, permits=permits, of=10)

    first, second, waiting = acquire(1), acquire(2), acquire(10, timeout=5)
    grant(first, 7)
    grant(second, 8)
    assert (first.hold.permits, second.hold.permits) == (1, 2)
    harness.sent()
    harness.session.on_disconnected(S)
    harness.now = 2 * S
    harness.connect("next ticket", resumed=True)
    (claim,) = harness.sent()
    assert claim["holds"] == [7, 1, 8, 1]
    harness.deliver(id=claim["id"])
    (again,) = harness.sent()
    assert {k: v for k, v in again.items() if k != "id"} == {
        "op": "acquire_permits",
        "name": "n",
        "permits": 10,
        "of": 10,
        "wait_ms": 3000,
    }
    harness.session.on_disconnected(2 * S)
    assert resume(harness) == {7: 1, 8: 1}
    grant(waiting, 9)
    assert waiting.result().of == 10
    assert harness.session.live_holds == 3


def test_answer_that_looks_like_that_of_the_other_kind_is_read_as_what_it_answers(harness: SessionHarness) -> None:
    """Only the strict reader reads it: the fields of permits are not defined for a lock."""
    permits = harness.submit(acquire_call("n", 0, Options(), 0, 2, 10))
    lock = harness.acquire("m")
    harness.deliver(id=permits.id, token=1, hold=7, count=1, deadline_ns=30 * S)
    harness.deliver(id=lock.id, token=2, hold=8, count=1, deadline_ns=30 * S, permits=2, of=10)
    assert (permits.result().of, lock.result().of) == (0, 0)
    assert (permits.hold, lock.hold) != (None, None)
    assert permits.hold is not None
    assert lock.hold is not None
    assert (permits.hold.permits, lock.hold.permits) == (2, 0)


def test_permits_and_waits_outlive_a_restart(sidecar: FakeSidecar, client: Client) -> None:
    semaphore = client.semaphore("n", permits=3)
    order: list[int] = []

    def wait() -> None:
        with semaphore.acquire(3) as permits:
            order.append(permits.permits)

    with semaphore.acquire(2) as permits:
        thread = threading.Thread(target=wait)
        thread.start()
        sidecar.wait_for(lambda: sidecar.waiting("n"))
        for _ in range(3):
            sidecar.restart()
            permits.check()
            sidecar.wait_for(lambda: sidecar.waiting("n"))
            assert sidecar.permits_held("n") == 2
        assert not order
    thread.join()
    assert order == [3]
    wait_free(sidecar)


def test_acquire_that_has_no_answer_yet_is_sent_again(sidecar: FakeSidecar, client: Client) -> None:
    sidecar.silent = True
    got: list[Permits] = []
    thread = threading.Thread(target=lambda: got.append(client.semaphore("n", permits=3).acquire(2)))
    thread.start()
    sidecar.wait_for(lambda: sidecar.requests("acquire_permits"))
    sidecar.silent = False
    sidecar.restart()
    thread.join()
    assert len(sidecar.requests("acquire_permits")) == 2
    assert sidecar.permits_held("n") == got[0].permits == 2


def test_sidecar_without_its_state_leaves_permits_until_their_deadlines(sidecar: FakeSidecar, client: Client) -> None:
    permits = client.semaphore("n", permits=3, lease=0.2).acquire()
    sidecar.restart_without_state()
    permits.check()
    while not permits.lost:
        pass
    assert permits.lost == "expired"


# --- Forks ---


def test_forked_child_holds_no_permits(sidecar: FakeSidecar, client: Client) -> None:
    semaphore = client.semaphore("n", permits=2)
    permits = semaphore.acquire()
    pid = os.fork()
    if pid == 0:
        try:
            for use in permits.check, permits.release, permits.__enter__:
                with pytest.raises(NotHeld, match="the hold of 1 of the permits of 'n' is the parent process's"):
                    use()
            assert semaphore.acquire(2, blocking=False) is None
            with semaphore.acquire():
                assert sidecar.path
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    permits.release()
    wait_free(sidecar)


# --- Signal handlers ---


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a generator's close()
@pytest.mark.parametrize(("confirm", "watched"), [(False, False), (True, False), (False, True)])
def test_block_interrupted_at_any_point_leaves_no_permits_held(
    sidecar: FakeSidecar, client: Client, confirm: bool, watched: bool
) -> None:
    """Except after the return of acquire(), and before the first instruction of __enter__ and of __exit__."""

    class Interrupt(Exception):
        pass

    begins = {function.__code__ for function in (Permits.__enter__, Permits.__exit__)}
    last = 0

    def interrupt_at(point: int) -> Callable[[FrameType, str, object], None]:
        def profile(frame: FrameType, event: str, _: object) -> None:
            nonlocal last
            ours = os.path.dirname(frame.f_code.co_filename) == os.path.dirname(_sync.__file__)
            if not ours or event not in ("call", "c_return") or (event == "call" and frame.f_code in begins):
                return
            last += 1
            if last == point:
                sys.setprofile(None)
                raise Interrupt

        return profile

    losses: list[LockLost] = []
    semaphore = client.semaphore("n", permits=3, confirm=confirm, on_lost=losses.append if watched else None)
    kept = client.semaphore("kept", permits=1).acquire()
    for point in itertools.count(1):
        last = 0
        interrupted = False
        try:
            with profiled(interrupt_at(point)), semaphore.acquire(2):
                pass
        except Interrupt:
            interrupted = True
        wait_free(sidecar)  # without another use of the client
        kept.check()
        assert len(sidecar.requests("hello")) == 1, point
        join_releasers()
        assert client.ping() == "ok"
        assert client._shared is not None
        while client._shared._watcher_running:
            pass
        assert not client._shared._watched, point
        assert not losses, point
        assert not client._shared.session._pending, point
        if not interrupted:
            break
    assert point > 50
    kept.release()


def test_handler_that_interrupts_a_use_of_the_semaphore_gets_deadlock(sidecar: FakeSidecar, client: Client) -> None:
    """It would wait for the frame that it has interrupted."""
    with client.semaphore("n", permits=1).acquire():
        shared = client._shared
        assert shared is not None
        with shared.mutex:  # as if the handler had interrupted a method that holds it
            with pytest.raises(Deadlock, match="cannot go on before the signal handler"):
                client.semaphore("n", permits=1).acquire()
            with client.semaphore("other", permits=1).acquire():
                pass
        # The session of the handler stays; outside of a change, its use of the semaphore excludes no request.
        with pytest.raises(LockTimeout):
            client.semaphore("n", permits=1).acquire(timeout=0)
    for state in client._processes.values():
        assert len(state.upper) == 1
