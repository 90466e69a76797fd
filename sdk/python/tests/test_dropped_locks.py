"""The warning about a held lock that nothing refers to any more."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
from fake import FakeSidecar

import locksidecar
from locksidecar import Client, _dropped, aio

WARNING = r"the lock 'n' is still held, and nothing refers to it any more"


def acquire_only(client: Client) -> None:
    client.lock("n").acquire()


def acquire_in_a_cycle(client: Client) -> None:
    lock = client.lock("n")
    lock.acquire()
    cycle: list[object] = [lock]
    cycle.append(cycle)
    del lock, cycle
    gc.collect()


def enter_only(client: Client) -> None:
    client.rlock("n").__enter__()


def drop_the_held_last(client: Client) -> None:
    lock = client.lock("n")
    lock.acquire()
    held = lock.held
    del lock
    del held


@pytest.mark.parametrize("drop", [acquire_only, acquire_in_a_cycle, enter_only, drop_the_held_last])
def test_dropped_lock_stays_held_and_is_warned_of(
    sidecar: FakeSidecar, client: Client, drop: Callable[[Client], None]
) -> None:
    with pytest.warns(ResourceWarning, match=WARNING) as seen:
        drop(client)
    assert len(seen) == 1
    assert not _dropped._held
    assert sidecar.holder("n")
    client.ping()
    assert sidecar.requests("release") == []


def test_dropped_lock_is_warned_of_although_its_loss_is_watched(sidecar: FakeSidecar, client: Client) -> None:
    with pytest.warns(ResourceWarning, match=WARNING):
        client.lock("n", on_lost=print).acquire()


def release(client: Client, sidecar: FakeSidecar) -> None:
    lock = client.lock("n")
    lock.acquire()
    lock.release()


def leave_a_block(client: Client, sidecar: FakeSidecar) -> None:
    with client.lock("n") as held:
        held.check()


def lose(client: Client, sidecar: FakeSidecar) -> None:
    lock = client.lock("n")
    lock.acquire()
    sidecar.lose("n", "deleted")
    client.ping()


def outlive(client: Client, sidecar: FakeSidecar) -> None:
    lock = client.lock("n", lease=0.05)
    lock.acquire()
    while lock.locked():
        pass


def close(client: Client, sidecar: FakeSidecar) -> None:
    lock = client.lock("n")
    lock.acquire()
    client.close()


def fork(client: Client, sidecar: FakeSidecar) -> None:
    lock = client.lock("n")
    lock.acquire()
    pid = os.fork()
    if pid == 0:
        warnings.simplefilter("error")
        sys.unraisablehook = lambda _: os._exit(1)
        del lock
        gc.collect()
        os._exit(2 if _dropped._held else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lock.release()


@pytest.mark.parametrize("end", [release, leave_a_block, lose, outlive, close, fork])
def test_lock_that_is_not_held_any_more_is_dropped_without_a_warning(
    sidecar: FakeSidecar, client: Client, end: Callable[[Client, FakeSidecar], None]
) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        end(client, sidecar)
        gc.collect()
    assert not seen
    assert not _dropped._held


def test_end_of_the_program_is_no_warning(sidecar: FakeSidecar) -> None:
    """It is a usual way to release a lock that a program holds as long as it lives."""
    program = """
import locksidecar, sys
client = locksidecar.connect(sys.argv[1])
lock = client.lock("n")
lock.acquire()
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program, sidecar.path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_end_of_a_program_that_refers_to_its_client_to_the_last_prints_nothing(sidecar: FakeSidecar) -> None:
    """The globals of the package are None by then."""
    program = """
import locksidecar, sys
client = locksidecar.connect(sys.argv[1])
lock = client.lock("n")
lock.acquire()
sys.excepthook = lambda *_: (client, lock)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, sidecar.path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


async def test_lock_of_a_task_that_is_dropped_is_warned_of(sidecar: FakeSidecar) -> None:
    async with await aio.connect(sidecar.path) as client:
        lock = client.lock("n")
        await lock.acquire()
        with pytest.warns(ResourceWarning, match=WARNING):
            del lock
        async with locksidecar.aconnect(sidecar.path) as other:
            assert not await other.lock("n").acquire(blocking=False)
