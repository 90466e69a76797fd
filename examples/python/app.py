"""A shop with FastAPI and PostgreSQL, on any number of hosts: the lock of an item, and the fence in its row.

    uvicorn app:app

The price comes from another service between the read and the write, so there is a lock and not one statement.
Each statement commits by itself: no transaction stays open while the other service answers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

import fastapi
import httpx
import locksidecar
import psycopg

DATABASE = os.environ["DATABASE_URL"]
PRICES = os.environ["PRICES_URL"]

# The token is written first, and the row is read by the same statement. From then on, no write of an earlier holder
# finds its token in the row, also if PostgreSQL executes it only now, after its process has died.
READ = "UPDATE items SET fence = %(token)s WHERE name = %(item)s AND fence <= %(token)s RETURNING stock"

# Each later write has `fence = token`. One statement writes both tables, or neither.
WRITE = """
WITH sold AS (
    UPDATE items SET stock = %(stock)s WHERE name = %(item)s AND fence = %(token)s RETURNING name
)
INSERT INTO sales SELECT %(sale)s, name, %(price)s FROM sold
"""


@contextlib.asynccontextmanager
async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
    async with locksidecar.aconnect() as locks, httpx.AsyncClient(base_url=PRICES) as prices:
        app.state.locks, app.state.prices = locks, prices
        yield


app = fastapi.FastAPI(lifespan=lifespan)


@app.put("/items/{item}/sales/{sale}")
async def sell(item: str, sale: str, request: fastapi.Request) -> dict[str, int]:
    state = request.app.state
    try:
        async with (
            state.locks.lock(f"item:{item}", timeout=2) as held,
            await psycopg.AsyncConnection.connect(DATABASE, autocommit=True) as database,
        ):
            values: dict[str, str | int] = {"item": item, "sale": sale, "token": held.token}
            row = await (await database.execute(READ, values)).fetchone()
            if row is None:
                raise fastapi.HTTPException(409, "there is no such item, or a later request has it; try again")
            if row[0] == 0:
                raise fastapi.HTTPException(404, "the item is sold out")
            answer = await state.prices.get(f"/{item}")
            values |= {"stock": row[0] - 1, "price": int(answer.text)}
            if (await database.execute(WRITE, values)).rowcount != 1:
                raise fastapi.HTTPException(409, "another request has sold this item meanwhile; try again")
    except psycopg.errors.UniqueViolation:
        raise fastapi.HTTPException(409, "this sale was made before") from None
    except locksidecar.LockTimeout:
        raise fastapi.HTTPException(503, "other requests sell this item; try again") from None
    return {"stock": int(values["stock"])}
