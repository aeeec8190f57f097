"""The servers that are compared, each a process on a folder of its own: Clarion, NATS, RabbitMQ, Redis."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from clarion.version import __version__

START_S = 120.0


class Missing(Exception):
    """A system that cannot be had on this machine, and why."""


@dataclass(frozen=True)
class Usage:
    """What a server's processes have used since they began, and hold now."""

    cpu_s: float
    written_bytes: int
    memory_bytes: int


class Server(ABC):
    """One system's server in a folder of its own. Start it, kill it and start it again; what it stored stays."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.settings = settings
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "server.log"

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Return the server's name and version, or raise Missing."""

    @abstractmethod
    def command(self) -> tuple[list[str], dict[str, str]]:
        """Write the configuration; return the command and what to add to its environment. Sets `url`."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether clients can work now."""

    def start(self) -> None:
        """Start it, and wait until clients can work."""
        arguments, environment = self.command()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                arguments, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise Missing(f"{arguments[0]} did not start: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop it in good order, or by force after a while."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """End all its processes with SIGKILL, and wait until they are gone."""
        if self._process is None:
            return
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        while self.pids():
            time.sleep(0.005)
        self._process = None

    def pids(self) -> list[int]:
        """Return all processes of the session that `start` made."""
        assert self._process is not None
        return [pid for pid, session in _sessions() if session == self._process.pid]

    def usage(self) -> Usage:
        """Return what its processes have used and hold."""
        cpu_s, written, memory = 0.0, 0, 0
        for pid in self.pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
                rollup = dict(
                    line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
                )
            except (FileNotFoundError, ProcessLookupError):
                continue
            cpu_s += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # with children that have ended
            written += int(counters["write_bytes"])
            memory += 1024 * int(rollup["Pss"].split()[0])  # pages that processes share count once
        return Usage(cpu_s, written, memory)


def _sessions() -> list[tuple[int, int]]:
    """Return the pid and session of every living process."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] not in "ZX":
            found.append((int(entry.name), int(fields[3])))
    return found


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def listens(port: int) -> bool:
    """Return whether somebody listens on that port of loopback."""
    with socket.socket() as trial:
        trial.settimeout(1.0)
        return trial.connect_ex(("127.0.0.1", port)) == 0


class ClarionServer(Server):
    """A broker on its own data folder."""

    _port = 0

    @classmethod
    def version(cls) -> str:
        """Return the version of this checkout."""
        return f"Clarion {__version__}"

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Return the command, on the same port at every start."""
        self._port = self._port or free_port()
        self.url = f"tcp://127.0.0.1:{self._port}"
        command = [sys.executable, "-m", "clarion", "up", "--data", str(self.folder / "data"), "--listen", self.url]
        return [*command, "--log-level", "warning"], {}

    def is_ready(self) -> bool:
        """Return whether it listens: it does so once its store is open."""
        return listens(self._port)


def _find_server() -> str:
    """Find it also where Debian puts it and not everybody looks."""
    server = shutil.which("nats-server", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    if server is None:
        raise Missing("nats-server is not installed. On Debian or Ubuntu: sudo apt-get install nats-server")
    return server


class NatsServer(Server):
    """A NATS on its own folder, with the settings it has by itself."""

    _port = 0

    @classmethod
    def version(cls) -> str:
        """Ask the server that is installed."""
        server = _find_server()
        if find_spec("nats") is None or find_spec("uvloop") is None:
            raise Missing("nats-py or uvloop is not installed: .venv/bin/pip install -e '.[peers]'")
        said = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
        return f"NATS {said.split()[-1].removeprefix('v')}"

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Return the command, on the same port at every start."""
        self._port = self._port or free_port()
        self.url = f"nats://127.0.0.1:{self._port}"
        data = str(self.folder / "data")
        return [
            _find_server(),
            "--addr",
            "127.0.0.1",
            "--port",
            str(self._port),
            "--jetstream",
            "--store_dir",
            data,
        ], {}

    def is_ready(self) -> bool:
        """Return whether it greets: it does so once JetStream has its streams."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as trial:
                return trial.recv(100).startswith(b"INFO")
        except OSError:
            return False


# The package's own script; the one in the path wants to be run by the user that the package made.
SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
ASSISTANTS_S = 5.0  # after this they are killed
PACKAGES = ("pika", "rstream", "uvloop")

# Erlang's port mapper puts itself into a session of its own if a node starts it, and outlives the node. Here it runs in
# the session of the server, so that it ends with it.
COMMAND = '"$EPMD" & until "$EPMD" -names >/dev/null 2>&1; do sleep 0.01; done; exec "$SERVER"'

CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
stream.listeners.tcp.1 = 127.0.0.1:{stream}
stream.advertised_host = 127.0.0.1
stream.advertised_port = {stream}
log.file.level = warning
log.console = false
"""


class RabbitServer(Server):
    """A node that nobody else can reach: all its ports listen on loopback. It has the settings that a user gets."""

    _ports: tuple[int, int, int, int] | None = None  # AMQP, streams, Erlang nodes, Erlang's port mapper

    @classmethod
    def version(cls) -> str:
        """Return the version that the package's folder names."""
        if not SCRIPT.exists() or shutil.which("epmd") is None:
            raise Missing(f"RabbitMQ is not installed ({SCRIPT} is absent): apt-get install rabbitmq-server")
        for package in PACKAGES:
            try:
                import_module(package)
            except ImportError as error:
                raise Missing(
                    f"its Python clients are not installed ({error}): pip install {' '.join(PACKAGES)}"
                ) from None
        home = SCRIPT.resolve().parent.parent.name  # rabbitmq_server-3.10.8
        return f"RabbitMQ {home.rpartition('-')[2]}"

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Return the command, with the same ports and the same node at every start."""
        self._ports = self._ports or (free_port(), free_port(), free_port(), free_port())
        amqp, stream, nodes, mapper = self._ports
        self.url = f"amqp://127.0.0.1:{amqp}?stream={stream}"
        configuration, plugins = self.folder / "rabbitmq.conf", self.folder / "enabled_plugins"
        configuration.write_text(CONFIGURATION.format(amqp=amqp, stream=stream))
        plugins.write_text("[rabbitmq_stream].\n")
        environment = {
            "SERVER": str(SCRIPT),
            "EPMD": shutil.which("epmd") or "epmd",
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "HOME": str(self.folder),  # the cookie is there
            "RABBITMQ_NODENAME": f"bench-{amqp}@localhost",
            "RABBITMQ_DIST_PORT": str(nodes),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONFIG_FILE": str(configuration),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "rabbitmq.pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.folder / "config"),
        }
        return ["/bin/sh", "-c", COMMAND], environment

    def stop(self) -> None:
        """Stop it, and wait until what it started is gone."""
        assistants = self._assistants()
        super().stop()
        _wait_until_gone(assistants)

    def kill(self) -> None:
        """End it with SIGKILL, and wait until what it started is gone."""
        assistants = self._assistants()
        super().kill()
        _wait_until_gone(assistants)

    def _assistants(self) -> list[psutil.Process]:
        """Return what the server started in sessions of their own: for names of hosts, and to watch the disk."""
        found = []
        for pid in self.pids() if self._process is not None else []:
            try:
                found += psutil.Process(pid).children(recursive=True)
            except psutil.NoSuchProcess:
                continue
        return found

    def is_ready(self) -> bool:
        """Return whether it greets clients: it does so once its queues are recovered."""
        assert self._ports is not None
        return listens(self._ports[1]) and _greets(self._ports[0])


def _wait_until_gone(assistants: list[psutil.Process]) -> None:
    """Wait for processes that end by themselves when their parent is gone; kill them if they do not."""
    deadline = time.monotonic() + ASSISTANTS_S
    while alive := [each for each in assistants if _lives(each)]:
        if time.monotonic() > deadline:
            for each in alive:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        time.sleep(0.005)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _greets(port: int) -> bool:
    """Return whether a broker answers the first words of AMQP."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as trial:
            trial.sendall(b"AMQP\x00\x00\x09\x01")
            return trial.recv(1) == b"\x01"  # the frame that begins a connection
    except OSError:
        return False


class RedisServer(Server):
    """A Redis on its own folder. `append_only` is "no", or how often the append-only file is synced."""

    _port = 0

    @classmethod
    def version(cls) -> str:
        """Ask the server that is installed."""
        server = shutil.which("redis-server")
        if server is None:
            raise Missing("redis-server is not installed. On Debian or Ubuntu: sudo apt-get install redis-server")
        if find_spec("redis") is None or find_spec("hiredis") is None:
            raise Missing("redis-py or hiredis is not installed: .venv/bin/pip install -e '.[peers]'")
        said = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
        return f"Redis {said.split('v=')[1].split()[0]}"

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Return the command, on the same port at every start. What it does not name is as Redis has it."""
        self._port = self._port or free_port()
        self.url = f"redis://127.0.0.1:{self._port}"
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(data)]
        if self.settings["append_only"] != "no":
            command += ["--appendonly", "yes", "--appendfsync", self.settings["append_only"]]
        return command, {}

    def is_ready(self) -> bool:
        """Return whether it answers, and has loaded what it stored."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as trial:
                trial.sendall(b"PING\r\n")
                return trial.recv(100).startswith(b"+PONG")
        except OSError:
            return False
