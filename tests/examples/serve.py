"""Serves an application at each socket that a line names: `MODULE SOCKET`. Prints the process id of each.

The processes are forked, so that the libraries are imported once.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

import fastapi  # noqa: F401
import httpx  # noqa: F401
import locksidecar  # noqa: F401
import psycopg  # noqa: F401
import uvicorn

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    module, path = line.split()
    if (pid := os.fork()) == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        uvicorn.run(importlib.import_module(module).app, uds=path, log_level="error")
        os._exit(0)
    print(pid, flush=True)
