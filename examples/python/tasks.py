"""The same shop as Celery tasks: all that a holder does to the database is one transaction.

    celery -A tasks worker

A transaction of a worker that dies before COMMIT changes nothing. A broker may deliver a task twice, one after the
other: the lock does not prevent that, but the number of the sale does.
"""

from __future__ import annotations

import os
import urllib.request
from typing import Any

import locksidecar
import psycopg
from celery import Celery

DATABASE = os.environ["DATABASE_URL"]
PRICES = os.environ["PRICES_URL"]

app = Celery("tasks")  # the broker is $CELERY_BROKER_URL
app.conf.task_ignore_result = True
client = locksidecar.Client()


# A task is acknowledged after its end, so one whose worker dies is executed again.
@app.task(bind=True, max_retries=None, acks_late=True, reject_on_worker_lost=True)
def sell(self: Any, item: str, sale: str) -> None:
    try:
        # The transaction ends before the lock is released: the order of the two matters.
        with client.lock(f"item:{item}", timeout=0) as held, psycopg.connect(DATABASE) as database:
            # The token is written first; this locks the row until the end of the transaction. A transaction of an
            # earlier holder that comes later finds a larger token.
            row = database.execute(
                "UPDATE items SET fence = %s WHERE name = %s AND fence <= %s RETURNING stock",
                (held.token, item, held.token),
            ).fetchone()
            if row is None or row[0] == 0:
                return
            with urllib.request.urlopen(f"{PRICES}/{item}", timeout=10) as answer:
                price = int(answer.read())
            database.execute("UPDATE items SET stock = %s WHERE name = %s", (row[0] - 1, item))
            database.execute("INSERT INTO sales VALUES (%s, %s, %s)", (sale, item, price))
    except psycopg.errors.UniqueViolation:
        pass  # this sale was made before; the transaction is rolled back
    except (
        locksidecar.LockTimeout,
        locksidecar.LockLost,
        locksidecar.Unavailable,
        psycopg.OperationalError,
        OSError,
    ) as error:
        # Others have the lock, or it was lost, or a server does not serve. The number of the sale makes it one sale.
        raise self.retry(exc=error, countdown=1) from None
