"""RabbitMQ as the system's package brings it, with its stream plugin, in a folder of its own."""

from __future__ import annotations

import shutil
import socket
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import psutil

from bench.peers.servers.base import Missing, Server, free_port, listens

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
        """Give the version that the package's folder names."""
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
        """Give the command, with the same ports and the same node at every start."""
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
        """Give what the server started in sessions of their own: for names of hosts, and to watch the disk."""
        found = []
        for pid in self.pids() if self._process is not None else []:
            try:
                found += psutil.Process(pid).children(recursive=True)
            except psutil.NoSuchProcess:
                continue
        return found

    def is_ready(self) -> bool:
        """Tell whether it greets clients: it does so once its queues are recovered."""
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
    """Tell whether a broker answers the first words of AMQP."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as trial:
            trial.sendall(b"AMQP\x00\x00\x09\x01")
            return trial.recv(1) == b"\x01"  # the frame that begins a connection
    except OSError:
        return False
