"""Redis: as installed, or with its append-only file."""

from __future__ import annotations

import shutil
import socket
import subprocess
from importlib.util import find_spec

from bench.peers.servers.base import Missing, Server, free_port


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
        """Give the command, on the same port at every start. What it does not name is as Redis has it."""
        self._port = self._port or free_port()
        self.url = f"redis://127.0.0.1:{self._port}"
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(data)]
        if self.settings["append_only"] != "no":
            command += ["--appendonly", "yes", "--appendfsync", self.settings["append_only"]]
        return command, {}

    def is_ready(self) -> bool:
        """Tell whether it answers, and has loaded what it stored."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as trial:
                trial.sendall(b"PING\r\n")
                return trial.recv(100).startswith(b"+PONG")
        except OSError:
            return False
