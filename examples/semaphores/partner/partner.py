"""Fetches orders from a partner that serves ten calls at one time, of all hosts together.

    PARTNER_URL=https://partner.example python partner.py 17 18,19,20

Each argument is one call. A bulk call, for several orders, counts as two.
"""

from __future__ import annotations

import asyncio
import os
import sys

import httpx
import locksidecar

CAPACITY = 10  # calls that the partner serves at one time
TIMEOUT = 120.0  # of a call, in seconds
# When a caller dies, the partner may work on its call for so many seconds. Its permits are free after that.
CRASH_DELAY = 1.0


async def call_partner(partner: httpx.AsyncClient, orders: str) -> str:
    response = await partner.get("/orders", params={"ids": orders})
    response.raise_for_status()
    return response.text


async def fetch(api: locksidecar.aio.Semaphore, partner: httpx.AsyncClient, orders: str) -> bool:
    """Waits until the call is allowed, and makes it. Returns whether it succeeded.

    A call that was cut off is made again: to fetch an order twice does no harm.
    """
    permits = 2 if "," in orders else 1
    while True:
        try:
            async with api.acquire(permits):  # the call is cancelled if the permits are lost
                answer = await call_partner(partner, orders)
        except (locksidecar.LockLost, locksidecar.Unavailable) as error:
            # acquire() has waited for the sidecar or its Redis.
            print(f"{orders}: {error}; the call is made again", file=sys.stderr)
        except (locksidecar.LocksidecarError, httpx.HTTPError) as error:
            print(f"{orders}: {error!r}", file=sys.stderr)
            return False
        else:
            print(f"{orders}: {answer}", flush=True)
            return True


async def main() -> int:
    async with (
        locksidecar.aconnect() as client,
        httpx.AsyncClient(base_url=os.environ["PARTNER_URL"], timeout=TIMEOUT) as partner,
    ):
        api = client.semaphore("partner-api", permits=CAPACITY, crash_delay=CRASH_DELAY)
        succeeded = await asyncio.gather(*(fetch(api, partner, orders) for orders in sys.argv[1:]))
    return 0 if all(succeeded) else 1


sys.exit(asyncio.run(main()))
