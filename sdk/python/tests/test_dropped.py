"""Clients that are dropped without close(): nothing that they held, or have released, stays held."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from fake import TIMEOUT, FakeSidecar
from test_restart import join_releasers, wait_free

import locksidecar
from locksidecar import _shared_session
from locksidecar._core import Session


@pytest.fixture(params=["an answer at once", "an answer later"])
def finalizer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With and without the thread that waits for the answer."""
    if request.param == "an answer later":
        monkeypatch.setattr(_shared_session, "_DROPPED_WAIT", 0)
    else:
        monkeypatch.setattr(_shared_session, "_DROPPED_WAIT", TIMEOUT)
    yield
    join_releasers()


@pytest.mark.usefixtures("finalizer")
def test_client_dropped_after_a_release_says_bye(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    with client.lock("n"):
        pass
    del client
    sidecar.wait_for(lambda: sidecar.requests("bye"))
    sidecar.wait_for(lambda: not sidecar.connections())


@pytest.mark.usefixtures("finalizer")
def test_client_dropped_while_it_holds_gives_the_lock_back(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    client.lock("n").acquire()
    del client
    sidecar.wait_for(lambda: sidecar.requests("bye"))
    wait_free(sidecar, "n")


def test_release_that_no_sidecar_has_read_before_the_client_was_dropped_is_delivered(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    lock = client.lock("n")
    lock.acquire()
    with sidecar._lock_all:
        lock.release()
        del client, lock
        sidecar.restart()
        assert sidecar.holder("n")
    wait_free(sidecar, "n")
    join_releasers()


def test_client_dropped_while_it_holds_and_no_sidecar_runs_gives_the_lock_back_later(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    lock = client.lock("n")
    lock.acquire()
    sidecar.stop_listening()
    sidecar.restart()
    del client, lock
    assert sidecar.holder("n")
    sidecar.listen()
    wait_free(sidecar, "n")
    join_releasers()


def test_held_lock_outlives_its_client(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    client.lock("n").acquire()
    lock = client.lock("m")
    lock.acquire()
    held = lock.held
    del client, lock
    held.check()
    assert sidecar.holder("n")
    del held
    wait_free(sidecar, "n")
    wait_free(sidecar, "m")


def test_client_that_has_no_lock_is_dropped_without_bye(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    with client.lock("n"):
        pass
    client.ping()  # its answer acknowledges the release
    del client
    sidecar.wait_for(lambda: not sidecar.connections())
    assert not sidecar.requests("bye")


def test_copy_of_a_client_that_a_forked_child_drops_is_not_closed(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    lock = client.lock("n")
    lock.acquire()
    pid = os.fork()
    if pid == 0:
        del client, lock
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    lock.held.check()
    assert client.ping() == "ok"
    assert not sidecar.requests("bye")
    client.close()


def test_finalizer_does_not_wait_for_a_sidecar_that_does_not_answer(sidecar: FakeSidecar) -> None:
    client = locksidecar.connect(sidecar.path)
    client.lock("n").acquire()
    sidecar.silent = True
    del client
    assert sidecar.holder("n")
    sidecar.answer_all()
    wait_free(sidecar, "n")
    join_releasers()


def test_session_without_a_connection_may_have_locks_only_if_it_can_be_resumed() -> None:
    session = Session("/path")
    session.unreleased_until = 1
    assert not session.may_have_locks
    session._ticket = "ticket"
    assert session.may_have_locks
    session.finish()
    assert not session.may_have_locks
