"""Who takes part: each system with the settings that were fastest here, what its ack means and what it repeats."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.servers import ClarionServer, Missing, RedisServer, Server, free_port

ROOT = Path(__file__).parents[2]
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
_INSTALL = "sh scripts/install-workflow-peers"
_STOP_S = 30.0
_DRIVE_S = 900.0


class PostgresServer(Server):
    """A PostgreSQL on its own folder, with its own settings but for memory and room for the log."""

    _port = 0

    @classmethod
    def version(cls) -> str:
        """Ask the server that is installed."""
        said = subprocess.run([_postgres("postgres"), "--version"], capture_output=True, text=True, check=True).stdout
        return f"PostgreSQL {said.split()[2]}"

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Make the cluster at the first start; return the command, on the same port at every start."""
        data = self.folder / "data"
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        if not data.exists():
            self.folder.chmod(0o755)
            data.mkdir()
            if user:
                shutil.chown(data, "postgres", "postgres")  # it does not run as root
            made = [*user, _postgres("initdb"), "-D", str(data), "--auth=trust", "--username=postgres", "--no-sync"]
            subprocess.run([*made, "--encoding=UTF8", "--locale=C"], check=True, capture_output=True)
        self._port = self._port or free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/dbos"
        settings = {"listen_addresses": "127.0.0.1", "port": self._port, "unix_socket_directories": "",
                    "max_connections": 300, "shared_buffers": "1GB", "max_wal_size": "4GB"} | self.settings  # fmt: skip
        given = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [*user, _postgres("postgres"), "-D", str(data), *given], {}

    def is_ready(self) -> bool:
        """Return whether it takes connections."""
        asked = [_postgres("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(asked, check=False).returncode == 0


def _postgres(program: str) -> str:
    """Return a program of the newest PostgreSQL; Debian keeps its own out of the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: int(each.parent.name))
    found = shutil.which(program, path=os.pathsep.join([*map(str, reversed(folders)), os.environ.get("PATH", "")]))
    if found is None:
        raise Missing(f"{program} is not installed. On Debian or Ubuntu: sudo apt-get install postgresql")
    return found


class PlainRedisServer(RedisServer):
    """A Redis whose clients are in the peers' own environment."""

    @classmethod
    def version(cls) -> str:
        """Ask the server that is installed."""
        server = shutil.which("redis-server")
        if server is None:
            raise Missing("redis-server is not installed. On Debian or Ubuntu: sudo apt-get install redis-server")
        said = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
        return f"Redis {said.split('v=')[1].split()[0]}"


@dataclass(frozen=True)
class System:
    """A server, workers beside it, and who asks them for jobs."""

    name: str
    title: str
    ack_means: str  # what is true when a job is taken
    repeats: str  # what is done again when a worker is killed, and when
    fsyncs: bool  # whether each step is on disk before the next begins
    server: type[Server]
    client: str  # module under bench.workflows.clients
    package: str  # of the peer
    workers: int  # processes that work
    settings: dict[str, Any] = field(default_factory=dict)  # of the server
    options: dict[str, Any] = field(default_factory=dict)  # of workers and driver

    @property
    def is_ours(self) -> bool:
        """Tell Clarion from its peers."""
        return self.package == "clarion"

    def version(self) -> str:
        """Return the versions of library and server, or raise Missing."""
        server = self.server.version()
        if self.is_ours:
            return server
        if not PEERS_PYTHON.exists():
            raise Missing(f"there is no .venv-peers: {_INSTALL}")
        asked = f"from importlib.metadata import version; print(version({self.package!r}))"
        said = subprocess.run([PEERS_PYTHON, "-c", asked], capture_output=True, text=True, check=False)
        if said.returncode:
            raise Missing(f"{self.package} is not in .venv-peers: {_INSTALL}")
        return f"{self.title.split(',')[0]} {said.stdout.strip()}, {server}"

    def worker_commands(self, url: str) -> list[list[str]]:
        """Return the commands of those who work."""
        if self.is_ours:
            file = str(ROOT / "bench" / "workflows" / "clients" / "clarion_jobs.py")
            each = ",".join(f"{task}={self.workers // 4}" for task in ("first", "second", "third", "fourth"))
            command = [sys.executable, "-m", "clarion", "workflow", "run", file, "--url", url, "--consumers", each]
            return [[*command, "--json"]]
        return [self._client("work", url)] * self.workers

    def driver_command(self, url: str, **more: Any) -> list[str]:
        """Return the command of who asks for jobs."""
        return self._client("drive", url, **more)

    def _client(self, what: str, url: str, **more: Any) -> list[str]:
        python = sys.executable if self.is_ours else str(PEERS_PYTHON)
        options = json.dumps({"url": url, **self.options, **more})
        return [python, "-m", "bench.workflows.clients", self.client, what, options]


def run(system: System, *, idle_jobs: int, seconds: float) -> dict[str, Any]:
    """Have a system do its jobs on a server of its own; return what its driver saw."""
    with tempfile.TemporaryDirectory(prefix="clarion-workflows-", ignore_cleanup_errors=True) as folder:
        server = system.server(Path(folder), system.settings)
        server.start()
        try:
            with ExitStack() as stack:
                for command in system.worker_commands(server.url):
                    stack.enter_context(_worker(command, Path(folder) / "workers.log"))
                asked = system.driver_command(server.url, idle_jobs=idle_jobs, seconds=seconds)
                said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=_DRIVE_S, check=False)
                if said.returncode:
                    raise RuntimeError((said.stderr.strip().splitlines() or ["it said nothing"])[-1])
                return dict(json.loads(said.stdout.strip().splitlines()[-1]))
        finally:
            server.stop()


@contextmanager
def _worker(command: list[str], log: Path) -> Iterator[None]:
    """Run a worker, from its first word on."""
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            env={**os.environ, **path},
        )  # fmt: skip
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise RuntimeError(f"a worker did not start: {log.read_text(errors='replace')[-1000:]}")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


_TIMEOUT = "after the visibility timeout (1 h as installed); what followed from it may have been queued already"
_PREFORK_REPEATS = (
    "the task that ran: soon where a pool process is killed, and where its worker is killed as well "
) + _TIMEOUT
_SOLO_REPEATS = f"the tasks that ran or were fetched, {_TIMEOUT}"
_PREFORK = {"pool": "prefork", "concurrency": 1, "prefetch": 64}
_SOLO = {"pool": "solo", "concurrency": 1, "prefetch": 16}


def _celery(name: str, title: str, sync: str, repeats: str, options: dict[str, Any]) -> System:
    is_on_disk = sync == "always"
    means = "the job is on disk (fsync)" if is_on_disk else "the job is in memory, on disk within a second or so"
    return System(
        name, f"Celery, {title}, Redis {sync}", means, repeats, is_on_disk, PlainRedisServer, "celery_chain",
        "celery", 4, {"append_only": sync}, options,
    )  # fmt: skip


SYSTEMS = [
    System(
        "clarion", "Clarion", "the job is on disk (fsync)",
        "the task that ran, when its lease has lapsed (15 s as installed); steps that "
        "were done stay done", True, ClarionServer, "clarion_jobs", "clarion", 4,
    ),
    _celery("celery-always", "prefork", "always", _PREFORK_REPEATS, _PREFORK),
    _celery("celery-everysec", "prefork", "everysec", _PREFORK_REPEATS, _PREFORK),
    _celery("celery-solo-always", "solo workers", "always", _SOLO_REPEATS, _SOLO),
    _celery("celery-solo-everysec", "solo workers", "everysec", _SOLO_REPEATS, _SOLO),
    System(
        "dbos-queue", "DBOS, queue", "the job is on disk (fsync)", "the step that ran, when somebody recovers the "
        "executor's workflows (its restart, or an operator); steps that were done stay done", True, PostgresServer,
        "dbos_steps", "dbos", 2, {}, {"threads": 8, "concurrency": 200, "polling_s": 0.01},
    ),
    System(
        "dbos-in-process", "DBOS, within the asking process", "the job is on disk (fsync)", "the step that ran, when "
        "the process is started again; steps that were done stay done", True, PostgresServer, "dbos_steps", "dbos", 0,
        {}, {"threads": 16, "in_process": True, "async": True},
    ),
]  # fmt: skip
