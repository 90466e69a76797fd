"""Forks and spawns: a child holds nothing, and changes nothing for its parent."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkContext, SpawnContext

import pytest
from fake import TIMEOUT, FakeSidecar

import locksidecar
from locksidecar import Client, ClientClosed, Lock, NotHeld, _fork, aio

# These tests fork while the thread of the fake sidecar runs. Python 3.12 warns about that.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def fork_in_c() -> int:
    """Forks in C, as uWSGI does: the hooks of os.register_at_fork() do not run.

    If another thread, such as that of the fake sidecar, has just asked for the interpreter, the child waits without end
    for that thread, which it does not have. So no thread asks meanwhile: each asks after one interval of switches.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    time.sleep(2 * interval)  # the threads that wait in the old interval get the interpreter
    pid: int = ctypes.PyDLL(None).fork()
    sys.setswitchinterval(interval)
    return pid


FORKS = pytest.mark.parametrize("fork", [os.fork, fork_in_c])


def in_child(what: Callable[[], object], fork: Callable[[], int] = os.fork) -> None:
    """Runs what in a forked child; fails if it raises."""
    read, write = os.pipe()
    pid = fork()
    if pid == 0:
        code = 1
        try:
            what()
            code = 0
        except BaseException as e:
            os.write(write, f"{type(e).__name__}: {e}".encode())
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as pipe:
        error = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, error


def expect_not_held(what: Callable[[], object]) -> None:
    with pytest.raises(NotHeld, match="parent process"):
        what()


@FORKS
@pytest.mark.parametrize("page", [True, False])
def test_process_id_is_that_of_each_child(fork: Callable[[], int], page: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not page:
        monkeypatch.setattr(_fork, "_page", None)

    def expect_own() -> None:
        assert _fork.process_id() == os.getpid()

    def expect_own_in_a_child(before: bool) -> None:
        if before:
            expect_own()
        in_child(expect_own, fork)
        expect_own()

    expect_own()
    for before in True, False:
        in_child(lambda before=before: expect_own_in_a_child(before), fork)  # type: ignore[misc]
    expect_own()


def test_page_is_not_used_if_an_emulator_ignores_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ignoring(mmap.mmap):
        def madvise(self, *advice: int) -> None:
            pass

    assert _fork._wiped_page() is not None
    monkeypatch.setattr(mmap, "mmap", Ignoring)
    assert _fork._wiped_page() is None


@FORKS
def test_child_holds_nothing_and_sends_nothing(sidecar: FakeSidecar, client: Client, fork: Callable[[], int]) -> None:
    lock = client.lock("n")
    lock.acquire()
    held = lock.held
    before = len(sidecar.received)

    def child() -> None:
        expect_not_held(held.check)
        expect_not_held(held.release)
        expect_not_held(lambda: held.lost)
        assert held.remaining == 0
        assert not lock.locked()
        expect_not_held(lock.release)

    in_child(child, fork)
    assert len(sidecar.received) == before
    held.check()
    lock.release()
    sidecar.wait_for(lambda: not sidecar.holder("n"))
    assert sidecar.connections() == 1


@FORKS
def test_child_cannot_end_the_with_block_of_its_parent(
    sidecar: FakeSidecar, client: Client, fork: Callable[[], int]
) -> None:
    def child() -> None:
        block.__exit__(None, None, None)

    block = client.lock("n")
    with block:
        in_child(lambda: expect_not_held(child), fork)
        assert sidecar.holder("n")


@FORKS
def test_child_has_its_own_connection(sidecar: FakeSidecar, client: Client, fork: Callable[[], int]) -> None:
    with client.lock("n") as held:

        def child() -> None:
            assert not client.lock("n", timeout=0).acquire()
            with client.lock("m") as mine:
                mine.check()

        in_child(child, fork)
        held.check()
    assert len(sidecar.requests("hello")) == 2
    assert client.ping() == "ok"


@FORKS
def test_child_does_not_enter_the_rlock_of_its_parent(
    sidecar: FakeSidecar, client: Client, fork: Callable[[], int]
) -> None:
    """The owner number of its thread is the parent's, but its session is another one."""
    lock = client.rlock("n", timeout=0)

    def child() -> None:
        assert not lock.acquire()

    with lock:
        in_child(child, fork)
    assert [count for _, _, count in sidecar.grants] == [1]


def test_child_of_a_fork_in_c_closes_its_copy_of_the_socket(sidecar: FakeSidecar, client: Client) -> None:
    client.ping()
    shared = client._shared
    assert shared is not None
    assert shared.transport.sock is not None
    inherited = shared.transport.sock.fileno()

    def child() -> None:
        with contextlib.suppress(OSError):
            client._process_state()
            os.fstat(inherited)
            os._exit(3)

    in_child(child, fork_in_c)
    assert client.ping() == "ok"


def test_end_of_the_parent_frees_its_lock_while_a_child_lives(sidecar: FakeSidecar) -> None:
    """The child has closed its copy of the socket."""
    go, stop = os.pipe()

    def parent() -> None:
        client = locksidecar.connect(sidecar.path)
        client.lock("n").acquire()
        if os.fork() == 0:
            os.close(stop)
            os.read(go, 1)
            os._exit(0)
        os.kill(os.getpid(), 9)

    pid = os.fork()
    if pid == 0:
        parent()
    os.waitpid(pid, 0)
    sidecar.wait_for(lambda: sidecar.requests("acquire") and not sidecar.holder("n"))
    os.close(stop)
    os.close(go)


def test_child_works_if_other_threads_waited_at_the_fork(sidecar: FakeSidecar, client: Client) -> None:
    holder = client.lock("n")
    holder.acquire()

    def wait() -> None:
        with contextlib.suppress(ClientClosed):
            client.lock("n").acquire()

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    sidecar.wait_for(lambda: sidecar.waiting("n") == 3)

    def child() -> None:
        assert client.ping() == "ok"
        assert client.lock("m", timeout=0).acquire()

    for _ in range(5):
        in_child(child)
    client.close()
    for thread in threads:
        thread.join(TIMEOUT)


def test_child_works_if_another_thread_held_a_mutex_at_the_fork(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.lock("n")
    inside, forked = threading.Event(), threading.Event()

    def stay() -> None:
        shared = client._shared
        assert shared is not None
        with client._process_state().session_lock, shared.mutex:
            inside.set()
            forked.wait(TIMEOUT)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait(TIMEOUT)

    def child() -> None:
        signal.alarm(int(TIMEOUT))  # ends the child if it waits for a thread that exists in the parent only
        assert lock.acquire(timeout=0)
        lock.release()

    in_child(child)
    forked.set()
    thread.join()


def test_prefork_workers_share_a_client_made_before_the_fork(sidecar: FakeSidecar) -> None:
    """Like gunicorn --preload: the module is imported once, and then the workers are forked."""
    client = Client(sidecar.path)
    lock = client.lock("n")
    counter, write = os.pipe()

    def worker() -> None:
        for _ in range(20):
            with lock:
                os.write(write, b"x")
                assert os.read(counter, 1) == b"x"

    pids = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                worker()
            except BaseException:
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 4
    assert len(sidecar.requests("hello")) == 4
    assert len(sidecar.requests("acquire")) == 80
    os.close(write)
    os.close(counter)


def increment(lock: Lock, counter: object) -> None:
    for _ in range(10):
        with lock as held:
            held.check()
            counter.value += 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_locks_can_be_passed_to_multiprocessing(sidecar: FakeSidecar, client: Client, method: str) -> None:
    context: ForkContext | SpawnContext = multiprocessing.get_context(method)  # type: ignore[assignment]
    counter = context.Value("i", 0, lock=False)
    with client.lock("n"):
        workers = [context.Process(target=increment, args=(client.lock("n"), counter)) for _ in range(2)]
        for worker in workers:
            worker.start()
        sidecar.wait_for(lambda: sidecar.waiting("n") == 2)
        assert counter.value == 0
    for worker in workers:
        worker.join(TIMEOUT)
        assert worker.exitcode == 0
    assert counter.value == 20


@FORKS
async def test_child_of_an_asyncio_process_runs_its_own_loop(sidecar: FakeSidecar, fork: Callable[[], int]) -> None:
    """The child does not change the selector that it shares with the parent."""
    async with await aio.connect(sidecar.path) as client:
        async with client.lock("n") as held:

            def child() -> None:
                expect_not_held(held.check)
                expect_not_held(held.release)

                async def main() -> None:
                    assert not await client.lock("n", timeout=0).acquire()
                    async with client.lock("m"):
                        pass

                # Python still takes the parent's loop for the running one.
                asyncio.events._set_running_loop(None)
                asyncio.run(main())

            in_child(child, fork)
            held.check()
            assert await client.ping() == "ok"
        assert len(sidecar.requests("hello")) == 2
