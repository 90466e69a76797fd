"""Descriptors that other code closes under a client, and whose numbers other files get.

python-daemon closes all descriptors of a process when it becomes a daemon, and so does os.closerange().
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from fake import TIMEOUT, FakeSidecar

import locksidecar
from locksidecar import Client, LockLost, _shared_session, _transport, aio
from locksidecar._shared_session import SharedSession


class Foreign:
    """Files of the program, in the place of descriptors that were closed."""

    def __init__(self) -> None:
        self.peers: list[socket.socket] = []
        self.descriptors: list[int] = []

    def replace(self, descriptor: int) -> None:
        mine, peer = socket.socketpair()
        peer.setblocking(False)
        os.dup2(mine.fileno(), descriptor)
        mine.close()
        self.peers.append(peer)
        self.descriptors.append(descriptor)

    def check(self) -> None:
        """They are open, and nothing was read from them or written to them."""
        for descriptor, peer in zip(self.descriptors, self.peers, strict=True):
            with pytest.raises(BlockingIOError):
                peer.recv(1)
            peer.send(b"x")
            assert os.read(descriptor, 10) == b"x"

    def close(self) -> None:
        for descriptor, peer in zip(self.descriptors, self.peers, strict=True):
            os.close(descriptor)
            peer.close()


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    foreign = Foreign()
    yield foreign
    foreign.check()
    foreign.close()


@pytest.fixture(params=["closed", "replaced"])
def take(request: pytest.FixtureRequest, foreign: Foreign) -> Callable[[int], None]:
    """Closes a descriptor, and may give its number to another file."""
    return os.close if request.param == "closed" else foreign.replace


@pytest.fixture
def longest_poll(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor that is closed ends a poll. One that is another file's at once does not: the next look does."""
    closed = request.node.callspec.params["take"] == "closed"
    monkeypatch.setattr(_shared_session, "_LONGEST_POLL", 3600.0 if closed else 0.05)


def of_socket(shared: SharedSession) -> list[int]:
    assert shared.transport.sock is not None
    return [shared.transport.sock.fileno()]


def of_waker(shared: SharedSession) -> list[int]:
    assert shared._waker._ends is not None
    return [end.fileno() for end in shared._waker._ends]


def of_both(shared: SharedSession) -> list[int]:
    return of_socket(shared) + of_waker(shared)


def shared_of(client: Client) -> SharedSession:
    shared = client._shared
    assert shared is not None
    return shared


def wait_until_it_polls(thread: threading.Thread) -> None:
    """Until the thread is inside of the system call: it has read the numbers of the descriptors."""
    calls = ("7", "73")  # poll(), or ppoll() where there is no other
    try:
        while Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0] not in calls:
            pass
    except OSError:
        pytest.skip("the system does not say what a thread waits for")


@contextmanager
def waiting(sidecar: FakeSidecar, client: Client) -> Iterator[threading.Thread]:
    """A thread that waits for the lock "busy", which another client holds until the end of the block."""
    acquired = []
    with ExitStack() as stack:
        elsewhere = stack.enter_context(locksidecar.connect(sidecar.path))
        busy = elsewhere.lock("busy")
        busy.acquire()
        thread = threading.Thread(target=lambda: acquired.append(client.lock("busy", timeout=TIMEOUT).acquire()))
        thread.start()
        sidecar.wait_for(lambda: sidecar.waiting("busy"))
        yield thread
        busy.release()
        thread.join(TIMEOUT)
        assert acquired == [True]


@pytest.mark.parametrize("descriptors", [of_socket, of_both])
def test_client_whose_socket_is_gone_connects_again(
    sidecar: FakeSidecar,
    take: Callable[[int], None],
    descriptors: Callable[[SharedSession], list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with locksidecar.connect(sidecar.path) as client:
        lock = client.lock("n")
        lock.acquire()
        held = lock.held
        for descriptor in descriptors(shared_of(client)):
            take(descriptor)
        sidecar.wait_for(lambda: not sidecar.holder("n"))
        with pytest.raises(LockLost) as lost:
            lock.release()
        assert lost.value.reason == held.lost == "closed"
        assert [r.getMessage() for r in caplog.records if "closerange" in r.getMessage()]
        with lock as again:
            assert again.token > held.token
            again.check()
        with waiting(sidecar, client):
            assert client.ping() == "ok"
        assert len(sidecar.requests("hello")) == 3  # two of this client, and that of the other one


def test_socket_is_known_by_its_inode_where_it_has_no_cookie(
    sidecar: FakeSidecar, take: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_transport, "_SO_COOKIE", 9999)
    with locksidecar.connect(sidecar.path) as client:
        with client.lock("n") as held:
            held.check()
        for descriptor in of_both(shared_of(client)):
            take(descriptor)
        assert client.ping() == "ok"
        assert len(sidecar.requests("hello")) == 2


@pytest.mark.parametrize("use", [Client.ping, Client.close])
def test_next_use_does_not_touch_other_files(
    sidecar: FakeSidecar, take: Callable[[int], None], use: Callable[[Client], object]
) -> None:
    with locksidecar.connect(sidecar.path) as client:
        for descriptor in of_both(shared_of(client)):
            take(descriptor)
        use(client)


def test_release_is_not_sent_to_another_file(sidecar: FakeSidecar, take: Callable[[int], None]) -> None:
    with locksidecar.connect(sidecar.path) as client:
        held = [client.lock(f"n{i}") for i in range(3)]
        for lock in held:
            lock.acquire()
        for descriptor in of_socket(shared_of(client)):
            take(descriptor)
        for lock in held:
            with pytest.raises(LockLost, match=r"its connection \(closed\)"):
                lock.release()


@pytest.mark.usefixtures("longest_poll")
def test_leader_notices_that_all_descriptors_are_gone(sidecar: FakeSidecar, take: Callable[[int], None]) -> None:
    """It waits for nothing else: without the waker, its poll would go on with a socket that is closed."""
    with locksidecar.connect(sidecar.path) as client:
        shared = shared_of(client)
        with waiting(sidecar, client) as thread:
            wait_until_it_polls(thread)
            hellos = len(sidecar.requests("hello"))
            for descriptor in of_both(shared):
                take(descriptor)
            sidecar.wait_for(lambda: len(sidecar.requests("hello")) > hellos)


@pytest.mark.usefixtures("longest_poll")
def test_waker_that_is_gone_is_replaced(sidecar: FakeSidecar, take: Callable[[int], None]) -> None:
    """The connection stays, and a hold with it."""
    with locksidecar.connect(sidecar.path) as client, client.lock("n") as held:
        shared = shared_of(client)
        with waiting(sidecar, client) as thread:
            wait_until_it_polls(thread)
            waker = shared._waker
            for descriptor in of_waker(shared):
                take(descriptor)
            while shared._waker is waker:
                pass
            assert client.ping() == "ok"
        held.check()
    assert len(sidecar.requests("hello")) == 2


def test_waker_that_is_gone_wakes_no_other_file(sidecar: FakeSidecar, take: Callable[[int], None]) -> None:
    with locksidecar.connect(sidecar.path) as client:
        shared = shared_of(client)
        for descriptor in of_waker(shared):
            take(descriptor)
        shared._polling = True
        with shared.mutex:
            shared._wake_leader()
        with waiting(sidecar, client):
            assert client.ping() == "ok"


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="needs SIGPIPE")
def test_waker_of_which_one_end_is_gone_kills_nothing(sidecar: FakeSidecar, take: Callable[[int], None]) -> None:
    """A program that has the default handler of SIGPIPE would die of it."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        with locksidecar.connect(sidecar.path) as client:
            shared = shared_of(client)
            take(of_waker(shared)[0])
            shared._polling = True
            with shared.mutex:
                shared._wake_leader()
            with waiting(sidecar, client):
                assert client.ping() == "ok"
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_loss_by_a_closed_descriptor_is_reported(
    sidecar: FakeSidecar, take: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the watcher is just about to poll."""
    monkeypatch.setattr(_shared_session, "_LONGEST_POLL", 0.02)
    losses: queue.Queue[LockLost] = queue.Queue()
    with locksidecar.connect(sidecar.path) as client:
        client.lock("n", on_lost=losses.put).acquire()
        shared = shared_of(client)
        for descriptor in of_both(shared):
            take(descriptor)
        assert losses.get(timeout=TIMEOUT).reason == "closed"


def test_asyncio_client_whose_socket_is_gone_connects_again(sidecar: FakeSidecar, take: Callable[[int], None]) -> None:
    async def main() -> None:
        async with await aio.connect(sidecar.path) as client:
            lock = client.lock("n")
            await lock.acquire()
            shared = client._shared
            assert shared is not None
            assert shared.transport.sock is not None
            take(shared.transport.sock.fileno())
            assert await client.ping() == "ok"
            with pytest.raises(LockLost, match=r"its connection \(closed\)"):
                lock.release()
            async with client.lock("n", timeout=TIMEOUT) as again:
                again.check()

    asyncio.run(main())


def test_asyncio_client_whose_socket_is_gone_can_be_closed(sidecar: FakeSidecar, take: Callable[[int], None]) -> None:
    async def main() -> None:
        client = await aio.connect(sidecar.path)
        shared = client._shared
        assert shared is not None
        assert shared.transport.sock is not None
        take(shared.transport.sock.fileno())
        await client.aclose()

    asyncio.run(main())


def test_forked_child_closes_no_other_file(sidecar: FakeSidecar, take: Callable[[int], None]) -> None:
    with locksidecar.connect(sidecar.path) as client:
        descriptors = of_both(shared_of(client))
        for descriptor in descriptors:
            take(descriptor)
        there = [os.path.exists(f"/proc/self/fd/{d}") for d in descriptors]
        pid = os.fork()
        if pid == 0:
            os._exit([os.path.exists(f"/proc/self/fd/{d}") for d in descriptors] != there)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
