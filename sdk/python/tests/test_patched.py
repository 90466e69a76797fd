"""Monkey patching as of gevent and eventlet, before the first use of a client and at any time after it."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextvars import copy_context

import pytest
from fake import FakeSidecar

from locksidecar import Client, _owners, _transport

current = 0  # the number of the running greenlet


class GreenletLocal:
    """Stands for the threading.local of gevent and eventlet: one namespace for each greenlet."""

    def __init__(self) -> None:
        object.__setattr__(self, "spaces", {})

    def __getattribute__(self, name: str) -> object:
        spaces = object.__getattribute__(self, "spaces")
        try:
            return spaces.setdefault(current, {})[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        object.__getattribute__(self, "spaces").setdefault(current, {})[name] = value


def test_finalizer_of_a_client_lets_no_greenlet_run(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may run at any allocation, also in the hub, which must not switch."""

    def poll() -> object:
        raise AssertionError("a poll of gevent switches to another greenlet")

    client = Client(sidecar.path)
    client.lock("n").acquire()
    monkeypatch.setattr(select, "poll", poll)
    monkeypatch.setattr(_transport, "_POLL", poll)
    shared = client._shared
    assert shared is not None
    monkeypatch.setattr(shared.transport, "_poll", object())
    shared.transport.receive_within(0.001)
    monkeypatch.undo()
    client.close()


@pytest.fixture
def greenlets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    global current
    monkeypatch.setattr(threading, "local", GreenletLocal)
    yield
    current = 0


def switch_to(greenlet: int) -> None:
    global current
    current = greenlet


def test_greenlets_are_owners_if_threading_is_patched_after_the_first_use(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _owners.of_thread()
    monkeypatch.setattr(threading, "local", GreenletLocal)
    try:
        owners = set()
        for greenlet in (1, 2, 1, 2):
            switch_to(greenlet)
            owners.add(_owners.of_thread())
        assert len(owners) == 2
        assert before not in owners
    finally:
        switch_to(0)
    monkeypatch.undo()
    assert _owners.of_thread() == before


@pytest.mark.usefixtures("greenlets")
def test_greenlet_does_not_enter_the_rlock_of_another(sidecar: FakeSidecar, client: Client) -> None:
    lock = client.rlock("n", timeout=0)
    contexts = {1: copy_context(), 2: copy_context()}  # a greenlet has a context of its own

    def acquire(greenlet: int) -> bool:
        switch_to(greenlet)
        return contexts[greenlet].run(lock.acquire)

    assert acquire(1)
    assert not acquire(2)
    assert acquire(1)
    assert [count for _, _, count in sidecar.grants] == [1, 2]


def test_client_makes_its_locks_at_its_first_use(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(sidecar.path)
    made: list[object] = []
    lock_type = threading.RLock

    def patched() -> object:
        made.append(lock := lock_type())
        return lock

    monkeypatch.setattr(threading, "RLock", patched)
    assert client.ping() == "ok"
    assert client._process_state().session_lock in made
    assert client._shared is not None
    assert client._shared.mutex in made
    client.close()


def test_wait_works_without_poll(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    """eventlet removes select.poll."""
    monkeypatch.delattr(select, "poll")
    monkeypatch.setattr(_transport, "_POLL", None)
    with Client(sidecar.path) as client:
        lock = client.lock("n")
        lock.acquire()
        waiting = threading.Thread(target=lambda: client.lock("n").acquire())
        waiting.start()
        sidecar.wait_for(lambda: sidecar.waiting("n"))
        held = lock.held
        sidecar.lose("n", "stolen")
        assert held.lost == "stolen"
        waiting.join()
        assert sidecar.holder("n")


def test_poll_that_is_reused_is_made_again_if_select_is_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    poll = select.poll

    def make() -> select.poll:
        made.append(poll())
        return made[-1]

    reused = _transport.ReusedPoll()
    one, other = socket.socketpair()
    with one, other:
        other.send(b"x")
        for _ in range(2):
            reused.wait((one,), 60)
        monkeypatch.setattr(select, "poll", make)
        for _ in range(2):
            reused.wait((one,), 60)
        assert len(made) == 1
        third = socket.socket()
        with third:
            reused.wait((one, third), 60)
        assert len(made) == 2
        reused.wait((one, third), 60)  # a closed file is readable
        reused.wait((third,), 60)
        monkeypatch.delattr(select, "poll")
        reused.wait((one,), 60)
        assert len(made) == 2
