"""A real XMPP server, Prosody, in a process of its own on a loopback port. `scripts/install-prosody` unpacks it."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from tests.integration.broker_process import ROOT, hold_port
from tests.integration.waiting import eventually

PASSWORD = "secret"
_PROGRAM = ROOT / ".venv" / "prosody" / "prosody"
_CONFIGURATION = """
run_as_root = true
pidfile = "{folder}/prosody.pid"
data_path = "{folder}/data"
certificates = "{folder}"
log = {{ {{ levels = {{ min = "info" }}, to = "file", filename = "{folder}/prosody.log" }} }}
interfaces = {{ "127.0.0.1" }}
c2s_ports = {{ {port} }}
c2s_direct_tls_ports = {{}}
modules_enabled = {{ "roster", "saslauth", "disco", "ping", "offline", "presence", "message", "iq", "c2s" }}
modules_disabled = {{ "s2s", "tls" }}
c2s_require_encryption = false
allow_unencrypted_plain_auth = true
authentication = "internal_plain"
storage = "internal"
VirtualHost "localhost"
"""


class Prosody:
    """Serves accounts at `localhost`, each with the password PASSWORD, without TLS."""

    def __init__(self, folder: Path, *accounts: str) -> None:
        assert _PROGRAM.exists(), "Prosody is not there: run `sh scripts/install-prosody`, as `make test` does"
        self._held = hold_port()
        self.port: int = self._held.getsockname()[1]
        self._folder = folder
        kept = folder / "data" / "localhost" / "accounts"
        kept.mkdir(parents=True)
        for account in accounts:
            (kept / f"{account}.dat").write_text(f'return {{ ["password"] = "{PASSWORD}"; }};\n')
        (folder / "prosody.cfg.lua").write_text(_CONFIGURATION.format(folder=folder, port=self.port))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Prosody:
        """Start it, and wait until it takes connections."""
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [str(_PROGRAM), "-F", "--config", str(self._folder / "prosody.cfg.lua")],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        eventually(self._answers, "Prosody takes connections")
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "output").read_text(errors="replace")[-2000:]
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """End it; what it keeps for people stays in its folder."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def close(self) -> None:
        """End it, and let go of its port."""
        self.stop()
        self._held.close()
