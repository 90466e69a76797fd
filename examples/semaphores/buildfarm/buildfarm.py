"""Makes targets on a farm with eight slots, on any number of hosts.

    python buildfarm.py zlib curl kernel:4

kernel takes four slots, and make runs as many jobs; the others take one.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import locksidecar

SLOTS = 8  # of the farm


async def make(target: str, jobs: int) -> int:
    """Returns the exit code. If this is cancelled, make has ended before it returns."""
    process = await asyncio.create_subprocess_exec("make", f"-j{jobs}", target)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()  # make passes SIGTERM to its jobs
            await process.wait()


async def build(farm: locksidecar.aio.Semaphore, arg: str) -> bool:
    """Waits for the slots of a target, TARGET or TARGET:SLOTS, and makes it. Returns whether it is built."""
    target, _, size = arg.partition(":")
    try:
        jobs = int(size or 1)
        async with farm.acquire(jobs):  # the block is cancelled if the slots are lost
            code = await make(target, jobs)
    except (locksidecar.LocksidecarError, OSError, ValueError) as error:
        print(f"{arg}: {error}", file=sys.stderr)
        return False
    print(f"{arg} is built" if code == 0 else f"{arg}: make ended with {code}", flush=True)
    return code == 0


async def main() -> int:
    async with locksidecar.aconnect() as client:
        farm = client.semaphore("build-slots", permits=SLOTS)
        # With return_exceptions, gather also waits for builds that are cancelled.
        builds = asyncio.gather(*(build(farm, arg) for arg in sys.argv[1:]), return_exceptions=True)
        # These signals end the builds, and then their slots are free.
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, builds.cancel)
        try:
            results = await builds
        except asyncio.CancelledError:
            return 1
    return 0 if all(result is True for result in results) else 1


sys.exit(asyncio.run(main()))
