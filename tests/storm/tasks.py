"""The Celery application of the storm. Its broker is a directory."""

from __future__ import annotations

import os
import random
import time

import locker
import locksidecar
from celery import Celery
from locker import Locker

_queue = str(locker.DIRECTORY / "queue")
os.makedirs(_queue, exist_ok=True)

app = Celery("tasks", broker="filesystem://")
app.conf.broker_transport_options = {
    "data_folder_in": _queue,
    "data_folder_out": _queue,
    "control_folder": str(locker.DIRECTORY / "control"),
}
app.conf.task_ignore_result = True

_locker = Locker(locksidecar.Client())
_locker.client.ping()


@app.task
def operate(until: float) -> None:
    rng = random.Random()
    alarm = locker.AlarmInterrupter()
    end = min(until, time.time() + 1)
    while time.time() < end:
        _locker.operate(rng, alarm)


@app.task
def use() -> None:
    """The next use of a client completes a release that a daemon had not read when it was killed.

    Which worker gets a task is chance. The storm sends tasks until no lock is held.
    """
    _locker.client.ping()
