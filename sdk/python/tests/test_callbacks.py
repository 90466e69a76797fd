"""on_lost: the callback of a thread's lock, in a background thread that ends with the hold."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import pickle
import queue
import re
import threading
import time
from collections.abc import Callable

import pytest
from fake import TIMEOUT, FakeSidecar
from test_interrupts import Handler

import locksidecar
from locksidecar import ClientClosed, LockLost, _log, _shared_session, testing

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


@pytest.mark.parametrize("reason", ["expired", "deleted", "stolen", "forced", "max_hold", "forgotten"])
@pytest.mark.parametrize("find", ["check", "release", "watcher"])
def test_each_loss_is_reported_once_by_whatever_finds_it(
    sidecar: FakeSidecar, losses: Losses, reason: str, find: str
) -> None:
    names = [f"n{i}" for i in range(100)]
    with locksidecar.connect(sidecar.path) as client:
        for name in names:
            lock = client.lock(name, on_lost=losses.put)
            lock.acquire()
            held, shared = lock.held, client._shared
            assert shared is not None
            if find == "watcher":
                sidecar.lose(name, reason)
                continue
            with shared.mutex:  # the watcher does not run
                sidecar.lose(name, reason)
                while not held._entry.hold.lost_reason:
                    shared._process_arrived()
            if find == "check":
                with pytest.raises(LockLost):
                    held.check()
            with pytest.raises(LockLost):
                lock.release()
        reported = [losses.get(timeout=TIMEOUT) for _ in names]
        assert sorted(loss.name for loss in reported) == sorted(names)
        assert {loss.reason for loss in reported} == {reason}
        wait_no_watcher(client)
        assert losses.empty()


def test_hold_that_ended_in_a_blocked_process_is_reported_once(losses: Losses) -> None:
    with testing.Sidecar() as memory, memory.connect() as client:
        for _ in range(100):
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


def test_session_that_failed_is_watched_until_the_deadline(
    sidecar: FakeSidecar, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locksidecar.connect(sidecar.path) as client:
        shared = client._shared
        assert shared is not None
        watch_once = shared._watch_once
        rounds: list[None] = []

        def counted() -> bool:
            rounds.append(None)
            return watch_once()

        monkeypatch.setattr(shared, "_watch_once", counted)
        client.lock("n", lease=0.3, on_lost=losses.put).acquire()
        sidecar.broadcast_bytes(b"\0\0\0\0")  # breaks the protocol
        assert losses.get(timeout=TIMEOUT).reason == "expired"
        assert len(rounds) < 10, "the watcher does not sleep"


def test_close_is_reported_as_a_loss(sidecar: FakeSidecar, losses: Losses) -> None:
    client = locksidecar.connect(sidecar.path)
    for i in range(100):
        client.lock(f"n{i}", on_lost=losses.put).acquire()
    client.close()
    reported = [losses.get(timeout=TIMEOUT) for _ in range(100)]
    assert {loss.reason for loss in reported} == {"closed"}
    assert len({loss.name for loss in reported}) == 100


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
        again = rf"connected to the sidecar at {re.escape(sidecar.path)} again after \d+\.\d+ s\b.*locks held: 1"
        assert re.fullmatch(again, up.getMessage())
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
    assert messages == [
        f"the sidecar at {sidecar.path} does not resume this session: it cannot renew the 1 locks held; "
        "it does not know the session"
    ]


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


class LogOrder(logging.Handler):
    """A handler that blocks in emit() until the rest of the client waits for it, and notes what happens in which order.

    A thread that waits for the log calls Writer.write() with patience.
    """

    def __init__(self, shared: _shared_session.SharedSession, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.order: list[str] = []
        self.entered, self.go = threading.Event(), threading.Event()
        self.changed = threading.Condition()
        self.writers: set[int] = set()  # the threads that log, or wait for the log; guarded by changed
        monkeypatch.setattr(_log, "PATIENCE", TIMEOUT)
        write = shared._log.write

        def observed(patience: float = 0.0) -> None:
            if patience:
                self._add_writer()
            write(patience)

        monkeypatch.setattr(shared._log, "write", observed)
        logging.getLogger("locksidecar").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "was lost" not in record.getMessage():
            return
        self._add_writer()
        self.entered.set()
        assert self.go.wait(TIMEOUT)
        self.note("log")

    def _add_writer(self) -> None:
        with self.changed:
            self.writers.add(threading.get_ident())
            self.changed.notify_all()

    def note(self, what: str) -> None:
        with self.changed:
            self.order.append(what)
            self.changed.notify_all()

    def wait_for(self, reader: threading.Thread, finder: threading.Thread) -> None:
        """Until the reader and the watcher wait for the log, or until one of them did not wait."""

        def wait_or_have_not_waited() -> bool:
            return bool(self.order or (reader.ident in self.writers and self.writers - {reader.ident, finder.ident}))

        with self.changed:
            assert self.changed.wait_for(wait_or_have_not_waited, TIMEOUT)


def read_lost(held: locksidecar.Held) -> None:
    assert held.lost


def read_check(held: locksidecar.Held) -> None:
    with pytest.raises(LockLost):
        held.check()


def read_remaining(held: locksidecar.Held) -> None:
    assert held.remaining == 0


def read_release(held: locksidecar.Held) -> None:
    with pytest.raises(LockLost):
        held.release()


@pytest.mark.parametrize("read", [read_lost, read_check, read_remaining, read_release])
@pytest.mark.parametrize("find", ["call", "lost", "check", "close", "deadline", "watcher"])
def test_loss_is_logged_before_it_is_visible(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    find: str,
    read: Callable[[locksidecar.Held], None],
) -> None:
    caplog.set_level(logging.INFO, "locksidecar")
    with testing.Sidecar() as memory, memory.connect() as client:
        client.ping()
        shared = client._shared
        assert shared is not None
        log = LogOrder(shared, monkeypatch)
        reported = threading.Event()

        def on_lost(loss: LockLost) -> None:
            log.note("callback")
            reported.set()

        lock = client.lock("n", lease=10 if find == "deadline" else None, on_lost=on_lost)
        lock.acquire()
        held = lock.held
        with contextlib.suppress(ClientClosed):
            finders: dict[str, Callable[[], object]] = {
                "call": client.ping,
                "lost": lambda: held.lost,
                "check": lambda: read_check(held),
                "close": client.close,
                "deadline": lambda: held.lost,
                "watcher": lambda: None,
            }
            finder = threading.Thread(target=finders[find])
            if find == "deadline":
                memory.advance(20)
            elif find == "watcher":
                memory.lose("n", "stolen")
            elif find != "close":
                with shared.mutex:  # the watcher does not run
                    memory.lose("n", "stolen")
                    while not held._entry.hold.lost_reason:
                        shared._process_arrived()
            try:
                finder.start()
                assert log.entered.wait(TIMEOUT)

                def reader() -> None:
                    read(held)
                    log.note("read")

                thread = threading.Thread(target=reader)
                thread.start()
                log.wait_for(thread, finder)
                assert log.order == []
            finally:
                log.go.set()
                logging.getLogger("locksidecar").removeHandler(log)
            thread.join(TIMEOUT)
            finder.join(TIMEOUT)
            assert reported.wait(TIMEOUT)
            assert log.order[0] == "log"
            assert sorted(log.order) == ["callback", "log", "read"]


def test_handler_of_the_log_may_read_the_loss(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread waits for itself, and none that is inside of a handler waits for one that needs that handler."""
    with locksidecar.connect(sidecar.path) as client:
        lock = client.lock("n")
        lock.acquire()
        held, shared = lock.held, client._shared
        assert shared is not None
        log = shared._log
        seen: list[str | None] = []
        writing, blocked = threading.Event(), threading.Event()
        write_locked = log._write_locked

        def observed() -> None:
            writing.set()
            write_locked()

        monkeypatch.setattr(log, "_write_locked", observed)

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if record.getMessage() == "of the program":
                    thread.start()  # it logs the loss, and waits for this handler
                    if writing.wait(TIMEOUT):
                        blocked.set()
                seen.append(held.lost)

        sidecar.lose("n", "stolen")
        thread = threading.Thread(target=client.ping)
        logger, handler = logging.getLogger("locksidecar"), Handler()
        logger.addHandler(handler)
        monkeypatch.setattr(_log, "PATIENCE", TIMEOUT)
        started = time.monotonic()
        try:
            logger.warning("of the program")
            thread.join(TIMEOUT)
        finally:
            logger.removeHandler(handler)
        assert blocked.is_set()
        assert seen == ["stolen", "stolen"]
        assert time.monotonic() - started < TIMEOUT


def test_interrupted_writer_drops_no_record_and_stays_usable(caplog: pytest.LogCaptureFixture) -> None:
    """A signal handler raises at each point at which the interpreter runs handlers, as in test_interrupts.py."""
    for point in itertools.count(1):
        caplog.clear()
        writer = _log.Writer([(_log.WARNING, "first", ()), (_log.WARNING, "second", ())])
        handler = Handler(point)
        interrupted = handler.run(functools.partial(writer.write, TIMEOUT))
        thread = threading.Thread(target=writer.write)
        thread.start()
        thread.join(TIMEOUT)
        assert [r.getMessage() for r in caplog.records] == ["first", "second"]
        assert not writer.records
        assert not writer._writing
        if not interrupted:
            return


def test_handler_that_raises_does_not_keep_on_lost_from_being_called(
    sidecar: FakeSidecar, losses: Losses, capfd: pytest.CaptureFixture[str]
) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the disk is full")

    logger, handler = logging.getLogger("locksidecar"), Handler()
    with locksidecar.connect(sidecar.path) as client:
        client.lock("a", on_lost=losses.put).acquire()
        client.lock("b", on_lost=losses.put).acquire()
        logger.addHandler(handler)
        try:
            for name in ("a", "b"):
                sidecar.lose(name, "deleted")
                assert losses.get(timeout=TIMEOUT).name == name
        finally:
            logger.removeHandler(handler)
        wait_no_watcher(client)
    assert "the disk is full" in capfd.readouterr().err


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
