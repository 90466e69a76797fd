"""A process that holds the lock "x", and executes another program after a line of its standard input."""

from __future__ import annotations

import os
import sys

import locksidecar

lock = locksidecar.connect().lock("x")
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
os.execvp("cat", ["cat"])
