"""Adds one to a number in Redis, again and again: reads it, works, and writes it.

Without the lock, two workers read the same number, and one addition is lost.
"""

from __future__ import annotations

import os
import time

import locksidecar
import redis

database: redis.Redis = redis.Redis.from_url(os.environ["REDIS_URL"])
client = locksidecar.connect()

while True:
    with client.lock("example:number") as held:
        number = int(database.get("number") or 0) + 1
        time.sleep(0.2)  # the work
        held.check()
        database.set("number", number)
        print(f"token {held.token}: wrote {number}", flush=True)
