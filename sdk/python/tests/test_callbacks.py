"""on_lost: the callback of a thread's lock, in a background thread that ends with the hold."""

from __future__ import annotations

import logging
import os
import pickle
import queue
import threading
import time

import pytest
from fake import TIMEOUT, FakeSidecar

import locksidecar
from locksidecar import LockLost, testing

Losses = queue.Queue[LockLost]


@pytest.fixture
def losses() -> Losses:
    return queue.Queue()


def wait_no_watcher(client: locksidecar.Client) -> None:
    shared = client._shared
    assert shared is not None
    while shared._watcher_running:
        pass


def test_loss_is_reported_while_the_thread_computes(sidecar: FakeSidecar, losses: Losses) -> None:
    with locksidecar.connect(sidecar.path) as client:
        lock = client.lock("n", on_lost=losses.put)
        lock.acquire()
        sidecar.lose("n", "stolen")
        loss = losses.get(timeout=TIMEOUT)
        assert (loss.name, loss.reason) == ("n", "stolen")
        assert lock.held.lost == "stolen"
        wait_no_watcher(client)
        assert losses.empty()


def test_each_loss_is_reported_once(sidecar: FakeSidecar, losses: Losses) -> None:
    with locksidecar.connect(sidecar.path) as client:
        locks = [client.lock(f"n{i}", on_lost=losses.put) for i in range(20)]
        for lock in locks:
            lock.acquire()
        for i in range(20):
            sidecar.lose(f"n{i}", "deleted")
        assert sorted(losses.get(timeout=TIMEOUT).name for _ in range(20)) == sorted(f"n{i}" for i in range(20))
        wait_no_watcher(client)
        assert losses.empty()


@pytest.mark.parametrize("find", ["check", "release"])
def test_loss_that_the_holder_finds_first_is_reported_once(sidecar: FakeSidecar, losses: Losses, find: str) -> None:
    names = [f"n{i}" for i in range(100)]
    with locksidecar.connect(sidecar.path) as client:
        for name in names:
            lock = client.lock(name, on_lost=losses.put)
            lock.acquire()
            held, shared = lock.held, client._shared
            assert shared is not None
            with shared.mutex:  # the watcher does not run
                sidecar.lose(name, "stolen")
                while not held._entry.hold.lost_reason:
                    shared._process_arrived()
            if find == "check":
                with pytest.raises(LockLost):
                    held.check()
            with pytest.raises(LockLost):
                lock.release()
        assert sorted(losses.get(timeout=TIMEOUT).name for _ in names) == sorted(names)
        wait_no_watcher(client)
        assert losses.empty()


def test_hold_that_ended_in_a_blocked_process_is_reported_once(losses: Losses) -> None:
    with testing.Sidecar() as memory, memory.connect() as client:
        for _ in range(20):
            lock = client.lock("n", max_hold=10, on_lost=losses.put)
            lock.acquire()
            shared = client._shared
            assert shared is not None
            with shared.mutex:  # no thread of the process runs
                memory.advance(20)
            with pytest.raises(LockLost):
                lock.release()
            assert losses.get(timeout=TIMEOUT).reason == "max_hold"
        wait_no_watcher(client)
        assert losses.empty()


def test_other_calls_are_answered_while_the_watcher_polls(sidecar: FakeSidecar, losses: Losses) -> None:
    with locksidecar.connect(sidecar.path) as client, client.lock("n", on_lost=losses.put):
        for _ in range(50):
            with client.lock("other"):
                assert client.ping() == "ok"
        threads = [threading.Thread(target=lambda: [client.ping() for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()
    assert losses.empty()


def test_watcher_ends_with_the_last_release(sidecar: FakeSidecar, losses: Losses) -> None:
    with locksidecar.connect(sidecar.path) as client:
        outer, inner = client.lock("outer", on_lost=losses.put), client.lock("inner", on_lost=losses.put)
        with outer:
            with inner:
                pass
            shared = client._shared
            assert shared is not None
            assert shared._watcher_running
        wait_no_watcher(client)
        outer.acquire()  # a watcher is started again
        sidecar.lose("outer", "forced")
        assert losses.get(timeout=TIMEOUT).name == "outer"


def test_released_lock_is_not_reported(losses: Losses) -> None:
    with testing.Sidecar() as memory, memory.connect() as client:
        with client.lock("n", lease=10, on_lost=losses.put):
            pass
        memory.advance(20)
        wait_no_watcher(client)
        assert losses.empty()


def test_deadline_is_reported_without_a_sidecar(losses: Losses) -> None:
    with testing.Sidecar() as memory, memory.connect() as client:
        client.lock("n", lease=0.2, on_lost=losses.put).acquire()
        with memory.stopped():
            assert losses.get(timeout=TIMEOUT).reason == "expired"
        wait_no_watcher(client)


def test_hold_with_an_earlier_deadline_is_watched_too(losses: Losses) -> None:
    with testing.Sidecar() as memory, memory.connect() as client:
        client.lock("long", on_lost=losses.put).acquire()
        client.lock("short", lease=0.2, on_lost=losses.put).acquire()
        with memory.stopped():
            assert losses.get(timeout=TIMEOUT).name == "short"


def test_watcher_reconnects_after_a_restart(sidecar: FakeSidecar, losses: Losses) -> None:
    with locksidecar.connect(sidecar.path) as client:
        client.lock("n", on_lost=losses.put).acquire()
        sidecar.restart()
        sidecar.wait_for(lambda: len(sidecar.requests("claim")) == 1)  # no thread uses the client
        sidecar.wait_for(lambda: sidecar.holder("n"))
        sidecar.lose("n", "deleted")
        assert losses.get(timeout=TIMEOUT).reason == "deleted"


def test_session_that_failed_is_watched_until_the_deadline(losses: Losses, tmp_path: os.PathLike[str]) -> None:
    sidecar = FakeSidecar(os.path.join(tmp_path, "s"))
    with locksidecar.connect(sidecar.path) as client:
        client.lock("n", lease=0.3, on_lost=losses.put).acquire()
        sidecar.broadcast_bytes(b"\0\0\0\0")  # breaks the protocol
        started = time.process_time()
        assert losses.get(timeout=TIMEOUT).reason == "expired"
        assert time.process_time() - started < 0.2, "the watcher does not sleep"
    sidecar.stop()


def test_close_is_reported_as_a_loss(sidecar: FakeSidecar, losses: Losses) -> None:
    client = locksidecar.connect(sidecar.path)
    client.lock("n", on_lost=losses.put).acquire()
    client.close()
    assert losses.get(timeout=TIMEOUT).reason == "closed"


def test_callback_may_use_the_client(sidecar: FakeSidecar) -> None:
    with locksidecar.connect(sidecar.path) as client:
        answers: queue.Queue[str] = queue.Queue()
        client.lock("n", on_lost=lambda loss: answers.put(client.ping())).acquire()
        sidecar.lose("n", "deleted")
        assert answers.get(timeout=TIMEOUT) == "ok"


def test_exception_of_a_callback_is_logged(
    sidecar: FakeSidecar, losses: Losses, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(loss: LockLost) -> None:
        raise RuntimeError("the callback failed")

    with locksidecar.connect(sidecar.path) as client:
        client.lock("a", on_lost=fail).acquire()
        client.lock("b", on_lost=losses.put).acquire()
        sidecar.lose("a", "deleted")
        sidecar.lose("b", "deleted")
        assert losses.get(timeout=TIMEOUT).name == "b"
        wait_no_watcher(client)
    assert "on_lost of the lock 'a' failed" in caplog.text
    assert "the callback failed" in caplog.text


def test_forked_child_has_no_watcher(sidecar: FakeSidecar, losses: Losses) -> None:
    with locksidecar.connect(sidecar.path) as client, client.lock("n", on_lost=losses.put):
        pid = os.fork()
        if pid == 0:
            with client.lock("child", on_lost=losses.put):
                pass
            wait_no_watcher(client)
            os._exit(0 if losses.empty() else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert losses.empty()


def report(loss: LockLost) -> None:
    pass


def test_lock_with_a_callback_can_be_pickled(sidecar: FakeSidecar) -> None:
    with locksidecar.connect(sidecar.path) as client:
        lock = pickle.loads(pickle.dumps(client.lock("n", on_lost=report)))
        assert lock._on_lost is report
        lock._client.close()
        with pytest.raises(TypeError, match="on_lost must be a function"):
            client.lock("n", on_lost="report")  # type: ignore[arg-type]


# --- The log ---


def test_losses_and_reconnects_are_logged(sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "locksidecar")
    with locksidecar.connect(sidecar.path) as client:
        assert not caplog.records
        lock = client.lock("n")
        lock.acquire()
        token = lock.token
        sidecar.restart()
        client.ping()
        sidecar.lose("n", "deleted")
        client.ping()
        down, up, lost = caplog.records
        assert (down.levelname, down.getMessage()) == (
            "INFO",
            f"the sidecar at {sidecar.path} has closed the connection; locks held: 1",
        )
        assert up.levelname == "INFO"
        assert up.getMessage().startswith(f"connected to the sidecar at {sidecar.path} again after 0.")
        assert up.getMessage().endswith("locks held: 1")
        assert (lost.levelname, lost.getMessage()) == (
            "WARNING",
            f"the lock 'n' (token {token}) was lost: its key vanished from Redis (deleted)",
        )


def test_sidecar_without_its_state_is_logged(sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "locksidecar")
    with locksidecar.connect(sidecar.path) as client, client.lock("n"):
        sidecar.restart_without_state()
        client.ping()
    messages = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert messages == [f"the sidecar at {sidecar.path} does not know this session: it cannot renew the 1 locks held"]


def test_loss_by_the_deadline_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with testing.Sidecar() as memory, memory.connect() as client:
        lock = client.lock("n", lease=5)
        lock.acquire()
        memory.advance(6)
        assert lock.held.lost == "expired"
        assert [r.getMessage() for r in caplog.records if "was lost" in r.getMessage()]


async def test_tasks_log_losses_and_reconnects(sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "locksidecar")
    async with locksidecar.aconnect(sidecar.path) as client:
        lock = client.lock("n")
        await lock.acquire()
        sidecar.restart()
        await client.ping()
        sidecar.lose("n", "stolen")
        await client.ping()
    assert [r.levelname for r in caplog.records] == ["INFO", "INFO", "WARNING"]
    assert "(stolen)" in caplog.text


def test_handler_of_the_log_may_use_the_client(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    answers = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            answers.append(client.ping())

    logger, handler = logging.getLogger("locksidecar"), Handler()
    logger.addHandler(handler)
    try:
        client.lock("n").acquire()
        sidecar.lose("n", "deleted")
        client.ping()
        assert answers == ["ok"]
    finally:
        logger.removeHandler(handler)
        client.close()
