"""Clarion's broker as `clarion up` starts it, with the settings a user gets."""

from __future__ import annotations

import sys

from bench.peers.servers.base import Server, free_port, listens
from clarion.version import __version__


class ClarionServer(Server):
    """A broker on its own data folder."""

    _port = 0

    @classmethod
    def version(cls) -> str:
        """Give the version of this checkout."""
        return f"Clarion {__version__}"

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Give the command, on the same port at every start."""
        self._port = self._port or free_port()
        self.url = f"tcp://127.0.0.1:{self._port}"
        command = [sys.executable, "-m", "clarion", "up", "--data", str(self.folder / "data"), "--listen", self.url]
        return [*command, "--log-level", "warning"], {}

    def is_ready(self) -> bool:
        """Tell whether it listens: it does so once its store is open."""
        return listens(self._port)
