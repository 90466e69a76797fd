"""A process that holds the lock "family" and forks. Parent and child print a report at every SIGUSR1."""

from __future__ import annotations

import json
import os
import signal

import locksidecar

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
client = locksidecar.connect()
family = client.lock("family")
family.acquire()
held = family.held
child = os.fork()


def print_report(**fields: object) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


if child:
    print_report(child=child)
while True:
    signal.sigwait({signal.SIGUSR1})
    err = ""
    try:
        held.check()
    except locksidecar.LocksidecarError as e:
        err = type(e).__name__
    mine = client.lock(f"of {os.getpid()}", timeout=30)
    with mine as own:
        print_report(
            pid=os.getpid(), err=err, own=own.token, entered=not child and client.lock("family", timeout=0).acquire()
        )
