"""NATS with JetStream, which stores in files."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from importlib.util import find_spec

from bench.peers.servers.base import Missing, Server, free_port


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
        """Give the command, on the same port at every start."""
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
        """Tell whether it greets: it does so once JetStream has its streams."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as trial:
                return trial.recv(100).startswith(b"INFO")
        except OSError:
            return False
