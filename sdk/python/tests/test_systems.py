"""On macOS and Windows the package can be imported, and a client raises Unsupported."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The parts of the standard library that exist on Linux and not there.
NOT_ON_MACOS = {
    "os": ("eventfd", "eventfd_read", "eventfd_write", "EFD_CLOEXEC", "EFD_NONBLOCK", "pidfd_open", "memfd_create"),
    "select": ("epoll", "EPOLLIN", "EPOLLOUT", "EPOLLONESHOT"),
    "signal": ("pidfd_send_signal",),
    "socket": ("MSG_NOSIGNAL", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED"),
    "time": ("CLOCK_BOOTTIME",),
}
NOT_ON_WINDOWS = {
    "fcntl": None,
    "grp": None,
    "os": (*NOT_ON_MACOS["os"], "fork", "register_at_fork", "geteuid", "getuid", "getgid", "set_blocking"),
    "pwd": None,
    "resource": None,
    "select": (*NOT_ON_MACOS["select"], "poll", "POLLIN", "POLLOUT", "POLLERR", "POLLHUP"),
    "signal": (*NOT_ON_MACOS["signal"], "pthread_sigmask", "setitimer", "siginterrupt", "SIGALRM", "SIGKILL"),
    "socket": (*NOT_ON_MACOS["socket"], "AF_UNIX", "SO_REUSEPORT"),
    "time": (*NOT_ON_MACOS["time"], "clock_gettime", "clock_gettime_ns", "CLOCK_MONOTONIC", "CLOCK_REALTIME"),
}

PROGRAM = """
import asyncio, importlib, sys
import _socket, ctypes, dataclasses, inspect, random, threading, uuid, weakref  # as on this system
import msgpack

loop = asyncio.new_event_loop()
system, lacks = sys.argv[1], eval(sys.argv[2])
for name, attributes in lacks.items():
    if attributes is None:
        sys.modules[name] = None  # its import fails
        continue
    for module in {name, {"os": "posix", "socket": "_socket"}.get(name, name)}:
        for attribute in attributes:
            if hasattr(sys.modules[module], attribute):
                delattr(sys.modules[module], attribute)
sys.platform = system

import locksidecar

def refused(function):
    try:
        function()
    except locksidecar.Unsupported as e:
        assert "Linux" in str(e) and system in str(e), e
    else:
        raise AssertionError("it was not refused")

async def acquire():
    async with locksidecar.aio.Client().lock("stock"):
        raise AssertionError("the lock is held")

async def connect():
    await locksidecar.aconnect()

# A program may make its client where it is imported.
client = locksidecar.Client()
refused(lambda: locksidecar.connect())
refused(lambda: client.lock("stock").acquire())
refused(lambda: client.rlock("stock", timeout=0).acquire())
refused(client.ping)
client.close()
refused(lambda: loop.run_until_complete(connect()))
refused(lambda: loop.run_until_complete(acquire()))
loop.close()
"""


@pytest.mark.parametrize(("system", "lacks"), [("darwin", NOT_ON_MACOS), ("win32", NOT_ON_WINDOWS)])
def test_package_can_be_imported_on_other_systems(system: str, lacks: dict[str, tuple[str, ...] | None]) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, system, repr(lacks)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
