"""The Python code in the README runs, against a sidecar in memory."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import logging
import os
import re
import threading
from pathlib import Path
from types import CodeType
from typing import Any
from unittest.mock import MagicMock

import pytest

import locksidecar
from locksidecar import testing

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def identifier(block: str) -> str:
    return next(line for line in block.splitlines() if line.strip())[:60]


def decorator(*args: Any, **kwargs: Any) -> Any:
    """Stands for the decorators of servers: the function stays as it is."""
    return lambda function: function


class Done:
    """The result of a function of the reader. It can be awaited, too."""

    def __await__(self) -> Any:
        return iter(())


def names(client: locksidecar.Client) -> dict[str, Any]:
    celery, fastapi = MagicMock(), MagicMock()
    celery.shared_task = decorator
    fastapi.FastAPI.return_value.post = decorator
    fastapi.HTTPException = type("HTTPException", (Exception,), {})
    fastapi.Request = MagicMock
    functions = ["charge", "deploy", "signal_the_next_host", "import_rows", "post_entries", "call_partner"]
    functions += ["read_catalog", "write_catalog"]
    return {
        **{name: lambda *args, **kwargs: Done() for name in functions},
        "locksidecar": locksidecar,
        "client": client,
        "celery": celery,
        "fastapi": fastapi,
        "contextlib": contextlib,
        "gevent_timeout": 2,
        "logging": logging,
        "os": os,
        "pytest": pytest,
        "threading": threading,
        "__name__": "readme",
    }


async def run(code: CodeType, space: dict[str, Any]) -> None:
    result = eval(code, space)
    if inspect.isawaitable(result):
        await result


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Any:
    with testing.Sidecar() as sidecar, sidecar.connect() as client:
        monkeypatch.setenv("LOCKSIDECAR_SOCKET", sidecar.path)
        space = names(client)
        space["memory"] = sidecar
        yield space


def execute(block: str, space: dict[str, Any]) -> None:
    code = compile(block, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    asyncio.run(run(code, space))


@pytest.mark.parametrize("block", BLOCKS, ids=identifier)
def test_block_runs(block: str, space: dict[str, Any]) -> None:
    execute(block, space)
    for name, function in list(space.items()):
        if name.startswith("test_"):
            function(space["memory"])


def block_with(text: str) -> str:
    block: str
    (block,) = [b for b in BLOCKS if text in b]
    return block


def test_wsgi_application(space: dict[str, Any]) -> None:
    execute(block_with("def application"), space)
    assert space["application"]({}, lambda status, headers: None) == [b"reserved"]
    assert space["client"].name_prefix == "shop:"


def test_celery_task_is_retried_if_the_lock_is_held(space: dict[str, Any]) -> None:
    execute(block_with("celery.shared_task"), space)
    task = MagicMock()
    task.retry.return_value = RuntimeError("retried")
    space["settle"](task, 7)
    with space["memory"].held_elsewhere("account:7"), pytest.raises(RuntimeError, match="retried"):
        space["settle"](task, 7)


def test_decorated_function(space: dict[str, Any]) -> None:
    execute(block_with("client.synchronized"), space)
    with space["memory"].held_elsewhere("invoice:7"):
        space["charge_once"](8)


def test_permits_are_of_ten(space: dict[str, Any]) -> None:
    with space["memory"].held_elsewhere("partner-api", permits=8):
        execute(block_with("client.semaphore"), space)
    assert (space["held"].permits, space["held"].of, space["held"].released) == (2, 10, True)


def test_callback_ends_the_process(space: dict[str, Any]) -> None:
    execute(block_with("def end_process"), space)
    pid = os.fork()
    if pid == 0:
        lock = space["client"].lock("import", on_lost=space["end_process"])
        lock.acquire()
        space["client"].force_release("import")
        threading.Event().wait(60)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 75


def test_fastapi_endpoint(space: dict[str, Any]) -> None:
    execute(block_with("fastapi.FastAPI"), space)

    async def requests() -> None:
        app, request = MagicMock(), MagicMock()
        async with space["lifespan"](app):
            request.app.state.locks = app.state.locks
            await space["charge_invoice"](7, request)
            assert not space["memory"].waiting("invoice:7")
            with space["memory"].held_elsewhere("invoice:8"):
                task = asyncio.create_task(space["charge_invoice"](8, request))
                await asyncio.to_thread(space["memory"].wait_for_waiters, "invoice:8")
                space["memory"].advance(2)
                with pytest.raises(space["fastapi"].HTTPException):
                    await task

    asyncio.run(requests())


def test_every_error_is_in_the_readme() -> None:
    for name in locksidecar.__all__:
        value = getattr(locksidecar, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert name in README
