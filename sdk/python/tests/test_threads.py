"""Many threads on one connection: the leader, the followers, and the owners."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import FrameType

import pytest
from fake import TIMEOUT, FakeSidecar
from points import profiled

from locksidecar import Client, Deadlock, Held, Lock, LockLost, LockTimeout, NotHeld, _shared_session
from locksidecar._calls import CallState, ping_call
from locksidecar._handles import Handles


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def test_threads_exclude_each_other_on_one_connection(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    counter = 0
    tokens: list[int] = []

    def add(seed: int) -> None:
        nonlocal counter
        rng = random.Random(seed)
        for _ in range(40):
            with client.lock("n") as held:
                tokens.append(held.token)
                value = counter
                if rng.random() < 0.3:
                    held.check()
                counter = value + 1

    for done in [pool.submit(add, seed) for seed in range(16)]:
        done.result(TIMEOUT)
    assert counter == 16 * 40
    assert tokens == sorted(set(tokens))
    assert len(sidecar.requests("hello")) == 1


def test_each_thread_gets_its_own_answers(sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor) -> None:
    def work(seed: int) -> None:
        rng = random.Random(seed)
        for i in range(60):
            name = f"{seed}-{i}"
            match rng.randrange(5):
                case 0:
                    assert client.ping() == "ok"
                case 1:
                    assert client.info(name) is None
                case 2:
                    with contextlib.suppress(LockTimeout), client.lock("shared", timeout=0.001) as held:
                        held.check()
                case 3:
                    with client.rlock(name) as outer, client.rlock(name) as inner:
                        assert outer.token == inner.token
                        row = client.info(name)
                        assert row is not None
                        assert (row.name, row.count) == (name, 2)
                case 4:
                    with client.lock(name) as held:
                        held.check()

    for done in [pool.submit(work, seed) for seed in range(16)]:
        done.result(TIMEOUT)


def test_leader_reads_the_answers_of_all_threads(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    """The first thread that waits is the leader, and reads the answers of the others until it has its own."""
    locks = [client.lock(f"n{i}") for i in range(4)]
    for lock in locks:
        lock.acquire()
    waits = []
    for i in range(4):
        waits.append(pool.submit(client.lock(f"n{i}").acquire))
        sidecar.wait_for(partial(sidecar.waiting, f"n{i}"))
    assert client.ping() == "ok"
    for i in (0, 2, 1, 3):
        locks[i].release()
        assert waits[i].result(TIMEOUT) is True
        assert client.ping() == "ok"


def test_leader_interrupted_while_handing_over_names_another(client: Client) -> None:
    """Otherwise no thread would poll the socket. The interrupted thread calls _hand_over() again."""

    class Interrupt(Exception):
        pass

    last = 0

    def interrupt_at(point: int) -> Callable[[FrameType, str, object], None]:
        def profile(frame: FrameType, event: str, _: object) -> None:
            nonlocal last
            if frame.f_code.co_filename != _shared_session.__file__ or event not in ("call", "c_return"):
                return
            last += 1
            if last == point:
                sys.setprofile(None)
                raise Interrupt

        return profile

    client.ping()
    shared = client._shared
    assert shared is not None
    for point in itertools.count(1):
        last = 0
        leaves, done, waits = (_shared_session._CallWaiter(ping_call()) for _ in range(3))
        leaves.call.state = done.call.state = CallState.DONE
        shared._waiting.clear()
        for thread, waiter in enumerate((leaves, done, waits)):
            waiter.thread = thread
            shared._register(waiter)
        shared._leader, shared._polling = leaves, True
        try:
            with profiled(interrupt_at(point)):
                shared._hand_over(leaves)
        except Interrupt:
            shared._hand_over(leaves)
        assert shared._leader is waits, point
        assert not waits.wakeup.locked(), point
        assert leaves.thread not in shared._waiting, point
        assert not leaves.call.waiters, point
        assert not leaves.registered, point
        if last < point:
            break
    assert point > 3
    shared._hand_over(waits)  # else close() would wait for this leader


def test_check_reads_a_lost_event_while_another_thread_leads(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    for i in range(50):
        blocker = client.lock(f"b{i}")
        blocker.acquire()
        waiter = client.lock(f"b{i}")
        waiting = pool.submit(waiter.acquire)
        sidecar.wait_for(partial(sidecar.waiting, f"b{i}"))
        lock = client.lock(f"n{i}")
        lock.acquire()
        sidecar.lose(f"n{i}", "stolen")
        with pytest.raises(LockLost):
            lock.held.check()
        blocker.release()
        assert waiting.result(TIMEOUT)
        waiter.release()


def test_thread_that_closes_a_cycle_gets_deadlock(
    sidecar: FakeSidecar, client: Client, pool: ThreadPoolExecutor
) -> None:
    a, b = client.lock("a"), client.lock("b")
    a.acquire()

    def other() -> None:
        with b, a:
            pass

    cycle = pool.submit(other)
    sidecar.wait_for(lambda: sidecar.waiting("a"))
    with pytest.raises(Deadlock, match=r"you ask for \"b\", held by owner .*who waits for \"a\", which you hold"):
        b.acquire()
    a.release()
    cycle.result(TIMEOUT)


def in_thread(what: Callable[[], object]) -> None:
    error: list[BaseException] = []

    def run() -> None:
        try:
            what()
        except BaseException as e:
            error.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(TIMEOUT)
    if error:
        raise error[0]


def test_lock_may_be_released_by_another_thread(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")
    lock.acquire()
    in_thread(lock.release)
    sidecar.wait_for(lambda: not sidecar.holder("n"))
    lock.__enter__()
    in_thread(lambda: lock.__exit__(None, None, None))
    sidecar.wait_for(lambda: not sidecar.holder("n"))


def test_rlock_may_not_be_released_by_another_thread(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.rlock("n")
    with lock:
        with pytest.raises(NotHeld):
            in_thread(lock.release)
        with pytest.raises(NotHeld):
            in_thread(lambda: lock.held)
        assert sidecar.holder("n")


def test_release_of_a_lost_lock_does_not_free_the_hold_of_another_thread(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")
    lock.acquire()
    sidecar.lose("n", "deleted")
    in_thread(lock.acquire)
    with pytest.raises(LockLost):
        lock.release()
    assert sidecar.holder("n")


@pytest.mark.parametrize("kind", [Client.lock, Client.rlock])
def test_call_of_a_pool_waits_for_the_lock_of_another_call_on_its_thread(
    sidecar: FakeSidecar, client: Client, kind: Callable[[Client, str], Lock]
) -> None:
    """FastAPI enters and leaves a dependency that yields in two calls, each in its own context and on any thread of a
    pool."""
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        lock = kind(client, "n")

        def dependency() -> Iterator[None]:
            with lock:
                yield

        one, other = dependency(), dependency()
        assert first.submit(copy_context().run, next, one).exception(TIMEOUT) is None
        waiting = first.submit(copy_context().run, next, other)
        sidecar.wait_for(lambda: sidecar.waiting("n") or waiting.done())
        assert isinstance(second.submit(copy_context().run, next, one).exception(TIMEOUT), StopIteration)
        assert waiting.exception(TIMEOUT) is None
        assert isinstance(second.submit(copy_context().run, next, other).exception(TIMEOUT), StopIteration)
    sidecar.wait_for(lambda: not sidecar.holder("n"))


def test_call_of_a_pool_reenters_its_rlock(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.rlock("n")

    def reenter() -> None:
        with lock, lock:
            copy_context().run(reenter_once)

    def reenter_once() -> None:
        with lock:
            assert sidecar.grants[-1][2] == 3

    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            assert pool.submit(copy_context().run, reenter).exception(TIMEOUT) is None
    sidecar.wait_for(lambda: not sidecar.holder("n"))


def test_another_thread_ends_nested_blocks_of_a_generator(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.rlock("n")

    def dependency() -> Iterator[None]:
        with lock, lock:
            yield

    generator = dependency()
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        assert first.submit(next, generator).exception(TIMEOUT) is None
        assert isinstance(second.submit(next, generator).exception(TIMEOUT), StopIteration)
    sidecar.wait_for(lambda: not sidecar.holder("n"))
    assert not list(lock._handles)


def test_another_thread_ends_a_block_while_the_one_before_it_ends(
    sidecar: FakeSidecar, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first block has released its lock, and its handle is not removed yet."""
    lock = client.lock("n")
    reached, go_on = threading.Event(), threading.Event()
    remove = Handles.remove

    def remove_later(handles: Handles[Held], held: Held) -> None:
        if not reached.is_set():
            reached.set()
            assert go_on.wait(TIMEOUT)
        remove(handles, held)

    def dependency() -> Iterator[None]:
        with lock:
            yield

    first, other = dependency(), dependency()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two, ThreadPoolExecutor(1) as three:
        one.submit(next, first).result(TIMEOUT)
        monkeypatch.setattr(Handles, "remove", remove_later)
        ending = one.submit(next, first)
        assert reached.wait(TIMEOUT)
        two.submit(next, other).result(TIMEOUT)
        assert isinstance(three.submit(next, other).exception(TIMEOUT), StopIteration)
        go_on.set()
        assert isinstance(ending.exception(TIMEOUT), StopIteration)
    sidecar.wait_for(lambda: not sidecar.holder("n"))
    assert not list(lock._handles)


def test_block_that_lost_its_lock_does_not_end_that_of_the_next_holder(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")

    def dependency() -> Iterator[None]:
        with lock:
            yield

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        for thread in one, two:
            first, other = dependency(), dependency()
            one.submit(copy_context().run, next, first).result(TIMEOUT)
            client.force_release("n")
            one.submit(copy_context().run, next, other).result(TIMEOUT)
            with pytest.raises(LockLost):
                thread.submit(copy_context().run, next, first).result(TIMEOUT)
            assert sidecar.holder("n")
            assert isinstance(thread.submit(copy_context().run, next, other).exception(TIMEOUT), StopIteration)
            sidecar.wait_for(lambda: not sidecar.holder("n"))


def test_block_of_an_exit_stack_ends_in_another_call(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two, contextlib.ExitStack() as unused:
        for _ in range(2):
            stack = contextlib.ExitStack()
            one.submit(copy_context().run, stack.enter_context, lock).result(TIMEOUT)
            two.submit(copy_context().run, stack.close).result(TIMEOUT)
            sidecar.wait_for(lambda: not sidecar.holder("n"))
        one.submit(copy_context().run, unused.enter_context, lock).result(TIMEOUT)


def test_thread_has_one_owner_in_its_own_context(sidecar: FakeSidecar, client: Client) -> None:
    """So the sidecar finds wait cycles of locks and rlocks."""
    with client.lock("a"), client.rlock("b"), client.lock("c"):
        assert len({m["owner"] for m in sidecar.requests("acquire")}) == 1


@pytest.mark.parametrize("kind", [Client.lock, Client.rlock])
def test_task_does_not_enter_the_lock_of_another_task_on_its_thread(
    sidecar: FakeSidecar, client: Client, kind: Callable[[Client, str], Lock]
) -> None:
    """The thread is the owner: a task that waited for another task would block both of them."""

    async def task() -> None:
        with kind(client, "n"):
            await asyncio.sleep(0)

    async def main() -> list[BaseException | None]:
        return await asyncio.gather(*[task() for _ in range(3)], return_exceptions=True)

    done = asyncio.run(main())
    assert [type(e) for e in done] == [type(None), Deadlock, Deadlock]
    sidecar.wait_for(lambda: not sidecar.holder("n"))
    with client.rlock("n"), client.rlock("n"):
        pass


def test_each_thread_is_an_owner(sidecar: FakeSidecar, client: Client) -> None:
    for _ in range(3):
        in_thread(lambda: client.lock("n", timeout=0).acquire())
    owners = [m["owner"] for m in sidecar.requests("acquire")]
    assert len(set(owners)) == 3


@pytest.mark.parametrize("kind", [Client.lock, Client.rlock])
def test_threads_that_share_a_lock_object_leave_no_handle(
    client: Client, pool: ThreadPoolExecutor, kind: Callable[[Client, str], Lock]
) -> None:
    lock, inside = kind(client, "n"), []

    def use(thread: int) -> None:
        for i in range(50):
            if i % 2:
                with lock:
                    inside.append(thread)
                    assert inside == [thread]
                    inside.pop()
            else:
                assert lock.acquire()
                inside.append(thread)
                assert inside == [thread]
                inside.pop()
                lock.release()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for done in [pool.submit(use, thread) for thread in range(4)]:
            done.result(TIMEOUT)
    finally:
        sys.setswitchinterval(interval)
    assert not list(lock._handles)
