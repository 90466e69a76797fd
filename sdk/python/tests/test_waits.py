"""An acquire that waits because Redis does not serve is logged once."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from fake import FakeSidecar

import locksidecar
from locksidecar import _calls, _shared_session, _waits, aio, testing
from locksidecar._core import SERVING


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_shared_session, _waits, aio):
        monkeypatch.setattr(module, "SLOW", 0.02)
    monkeypatch.setattr(_waits, "_ASK_PATIENCE", 30.0)


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        self.logged = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.logged.set()

    def wait(self) -> str:
        assert self.logged.wait(30)
        (message,) = self.messages
        return message


@pytest.fixture
def warnings() -> Iterator[Warnings]:
    handler = Warnings()
    logger = logging.getLogger("locksidecar")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def model() -> Iterator[testing.Sidecar]:
    with testing.Sidecar() as model:
        yield model


def in_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def use(lock: locksidecar.Lock) -> None:
    with lock:
        pass


REDIS = "the lock 'a' is waited for, because Redis does not serve: it cannot be reached"


def test_threads_that_wait_for_redis(model: testing.Sidecar, warnings: Warnings) -> None:
    with model.connect() as client:
        with model.redis_unreachable():
            lock = client.lock("a")
            threads = [in_thread(partial(use, lock)) for _ in range(3)]
            assert warnings.wait() == REDIS
        for thread in threads:
            thread.join()
        # A grant ends the outage; the next one is logged again, and only that one.
        warnings.logged.clear()
        with model.redis_unreachable():
            thread = in_thread(partial(use, lock))
            assert warnings.logged.wait(30)
        thread.join()
        assert warnings.messages == [REDIS, REDIS]


async def test_tasks_that_wait_for_redis(model: testing.Sidecar, warnings: Warnings) -> None:
    async def use_in_task(client: aio.Client) -> None:
        async with client.lock("a"):
            pass

    async with model.aconnect() as client:
        with model.redis_unreachable():
            tasks = [asyncio.create_task(use_in_task(client)) for _ in range(3)]
            while not warnings.messages:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        assert warnings.messages == [REDIS]


def test_wait_for_another_owner_is_not_logged(model: testing.Sidecar, warnings: Warnings) -> None:
    """Redis is asked again, later: an outage that begins in the wait is logged."""
    with model.connect() as client, model.connect() as other:
        held = other.lock("a")
        held.acquire()
        lock = client.lock("a")
        pings = threading.Event()

        def ping() -> object:
            pings.set()
            return _calls.ping_call()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_waits, "ping_call", ping)
            thread = in_thread(partial(use, lock))
            assert pings.wait(30)
        with model.redis_unreachable():
            assert warnings.wait() == REDIS
        held.release()
        thread.join()


def test_wait_for_a_sidecar_that_hangs(
    sidecar: FakeSidecar, warnings: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waits, "_ASK_PATIENCE", 0.05)
    with locksidecar.connect(sidecar.path) as client:
        client.ping()
        sidecar.silent = True
        thread = in_thread(lambda: client.lock("a").acquire())
        assert "does not answer" in warnings.wait()
        sidecar.answer_all()
        thread.join()


def session_with(submit: Callable[[Any, int], None]) -> Any:
    return SimpleNamespace(
        submit=submit, grants=0, warned_after=-1, asked_at=-1e9, stage=SERVING, failure=None, log=[], path="/s"
    )


def test_a_client_asks_once_for_all_its_acquires() -> None:
    """Also while others of them are granted: that ends no outage that was not found."""
    pings: list[Any] = []
    session = session_with(lambda ping, _: pings.append(ping))
    due = [(_waits.SLOW, _waits.WaitWatch(str(n))) for n in range(50)]
    end = 1000 * _waits.SLOW
    while min(due, key=lambda d: d[0])[0] < end:
        now, watch = due.pop(due.index(min(due, key=lambda d: d[0])))
        session.grants += 1
        due.append((watch.look(session, now, 0), watch))
    assert not session.log
    # Each acquire is looked at after 1, 2, 4, … times SLOW, and no two of them in one SLOW.
    assert len(pings) <= 1000
    assert len(pings) <= 50 * 10


def test_acquires_that_ask_at_the_same_time_are_logged_once() -> None:
    pings: list[Any] = []
    session = session_with(lambda ping, _: pings.append(ping))
    first, second = _waits.WaitWatch("a"), _waits.WaitWatch("b")
    first.look(session, 1.0, 0)
    second.look(session, 1.0 + _waits.SLOW, 0)
    assert len(pings) == 2
    first.look(session, 1.0 + _waits._ASK_PATIENCE, 0)
    again = second.look(session, 1.0 + _waits.SLOW + _waits._ASK_PATIENCE, 0)
    assert again < math.inf
    assert [arguments[0] for _, _, arguments in session.log] == ["a"]


def test_a_request_that_cannot_be_sent_shows_a_sidecar_that_hangs() -> None:
    def submit(ping: Any, clock: int) -> None:
        raise locksidecar.Unavailable("too much is unsent")

    session = session_with(submit)
    _waits.WaitWatch("a").look(session, 1.0, 0)
    ((_, text, arguments),) = session.log
    assert "does not answer" in text % arguments
    session = session_with(submit)
    session.failure = locksidecar.ClientClosed("it is closed")
    _waits.WaitWatch("a").look(session, 1.0, 0)
    assert not session.log
