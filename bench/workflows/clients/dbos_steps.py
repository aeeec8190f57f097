"""DBOS: a workflow of four steps, each stored in PostgreSQL before the next begins; a killed worker's workflows go on
from the last stored step when somebody recovers them."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dbos import DBOS, DBOSClient
from sqlalchemy import create_engine

from bench.workflows.clients.driving import payload_of

NAME = "bench"
QUEUE = "jobs"
VERSION = "1"
IN_A_TRANSACTION = 500  # jobs enqueued at once
PAGE = 2000  # results read at once
LOOK_S = 0.02


@DBOS.step()
def first(payload: str) -> str:
    """Return the payload."""
    return payload


@DBOS.step()
def second(payload: str) -> str:
    """Return the payload."""
    return payload


@DBOS.step()
def third(payload: str) -> str:
    """Return the payload."""
    return payload


@DBOS.step()
def fourth(payload: str) -> str:
    """Return the payload."""
    return payload


@DBOS.workflow(name="chain")
def chain(payload: str) -> str:
    """Return what four steps made of the payload."""
    return fourth(third(second(first(payload))))


@DBOS.step(name="first_async")
async def first_async(payload: str) -> str:
    """Return the payload."""
    return payload


@DBOS.step(name="second_async")
async def second_async(payload: str) -> str:
    """Return the payload."""
    return payload


@DBOS.step(name="third_async")
async def third_async(payload: str) -> str:
    """Return the payload."""
    return payload


@DBOS.step(name="fourth_async")
async def fourth_async(payload: str) -> str:
    """Return the payload."""
    return payload


@DBOS.workflow(name="chain_async")
async def chain_async(payload: str) -> str:
    """Return what four steps made of the payload."""
    return await fourth_async(await third_async(await second_async(await first_async(payload))))


def launch(options: dict[str, Any], executor: str) -> None:
    """Begin to run workflows in this process."""
    threads = int(options.get("threads", 16))
    DBOS(
        config={
            "name": NAME, "system_database_url": options["url"], "sys_db_pool_size": threads, "log_level": "ERROR",
            "executor_id": executor, "application_version": VERSION, "run_admin_server": False,
            "max_executor_threads": threads,
        }
    )  # fmt: skip
    DBOS.launch()


def work(options: dict[str, Any]) -> None:
    """Take workflows from the queue until SIGTERM."""
    launch(options, str(os.getpid()))
    DBOS.register_queue(
        QUEUE, worker_concurrency=options.get("concurrency"), polling_interval_sec=options.get("polling_s", 0.005)
    )
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    print("ready", flush=True)
    ended.wait()
    DBOS.destroy()


class QueueDriver:
    """Asks workers for jobs through a queue in the database."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._engine = create_engine(options["url"].replace("postgresql://", "postgresql+psycopg://"))
        self._client = DBOSClient(system_database_url=options["url"], application_name=NAME)
        kind = "chain_async" if options.get("async") else "chain"
        self._options: Any = {"workflow_name": kind, "queue_name": QUEUE, "app_version": VERSION}

    def one(self, number: int) -> Any:
        """Ask for a job and return its result."""
        handle: Any = self._client.enqueue(self._options, payload_of(number))
        return handle.get_result(polling_interval_sec=0.001)

    def many(self, numbers: range) -> list[Any]:
        """Ask for jobs, many in one transaction, and return their results when none is left."""
        asked: list[str] = []
        for begin in range(0, len(numbers), IN_A_TRANSACTION):
            with self._engine.begin() as connection:
                for number in numbers[begin : begin + IN_A_TRANSACTION]:
                    handle: Any = self._client.enqueue_in_transaction(connection, self._options, payload_of(number))
                    asked.append(handle if isinstance(handle, str) else handle.workflow_id)
        while self._client.list_workflows(status=["ENQUEUED", "PENDING"], limit=1, load_input=False, load_output=False):
            time.sleep(LOOK_S)
        found: dict[str, Any] = {}
        for begin in range(0, len(asked), PAGE):
            page = self._client.list_workflows(workflow_ids=asked[begin : begin + PAGE], load_input=False)
            found |= {each.workflow_id: each.output for each in page}
        return [found[each] for each in asked]


class InProcessDriver:
    """Runs jobs in threads or coroutines of this very process, as DBOS does without a queue."""

    def __init__(self, options: dict[str, Any]) -> None:
        launch(options, "driver")
        self._threads = int(options.get("threads", 16))
        self._is_async = bool(options.get("async"))
        self._pool = ThreadPoolExecutor(self._threads)
        self._runner = asyncio.Runner()

    def one(self, number: int) -> Any:
        """Do a job."""
        return chain(payload_of(number))

    def many(self, numbers: range) -> list[Any]:
        """Do jobs, so many at once."""
        if not self._is_async:
            return list(self._pool.map(self.one, numbers))
        return self._runner.run(self._many(numbers))

    async def _many(self, numbers: range) -> list[Any]:
        results: list[Any] = [None] * len(numbers)
        places = itertools.count()

        async def go_on() -> None:
            while (place := next(places)) < len(numbers):
                results[place] = await chain_async(payload_of(numbers[place]))

        await asyncio.gather(*(go_on() for _ in range(self._threads)))
        return results


def driver_of(options: dict[str, Any]) -> QueueDriver | InProcessDriver:
    """Return who asks for jobs."""
    return InProcessDriver(options) if options.get("in_process") else QueueDriver(options)
