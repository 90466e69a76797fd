"""A root process with two clients, which hold "shown" and "kept", becomes another user.

After a line of its standard input the client of "shown" connects again. The program prints what it logs.
"""

from __future__ import annotations

import logging
import os
import sys

import locksidecar

logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
kept = locksidecar.connect().lock("kept")
kept.acquire()
client = locksidecar.connect()
shown = client.lock("shown")
shown.acquire()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print("held", flush=True)
sys.stdin.readline()
client.ping()
sys.stdout.flush()
sys.stdin.readline()
