"""The Java that Spark runs on: found, or a message that says exactly what to run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from clarion.model.errors import PermanentError

OLDEST = 17
_ASKED_WITHIN_S = 30.0
# By the command that a system installs packages with.
_INSTALLS = {
    "apt-get": "sudo apt-get install -y openjdk-17-jre-headless",
    "dnf": "sudo dnf install -y java-17-openjdk-headless",
    "apk": "sudo apk add openjdk17-jre-headless",
    "zypper": "sudo zypper install -y java-17-openjdk-headless",
    "brew": "brew install openjdk@17",
}


class NoJava(PermanentError):
    """There is no Java that Spark could run on."""


def find_java() -> Path:
    """Give the `java` that Spark will use: that of JAVA_HOME, else the one on the path; NoJava where none will do."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        raise NoJava(f"Spark needs Java {OLDEST} or newer, and none was found. {how_to_install()}")
    said = _ask_version(found)
    version = read_version(said)
    where = f"{found} (by JAVA_HOME)" if home else found
    if version is None:
        raise NoJava(f"Spark needs Java {OLDEST} or newer; {where} did not tell its version. {how_to_install()}")
    if version < OLDEST:
        raise NoJava(f"Spark needs Java {OLDEST} or newer; {where} is version {version}. {how_to_install()}")
    return Path(found)


def read_version(said: str) -> int | None:
    """Read the main version from what `java -version` says; 1.8 is 8."""
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None


def how_to_install() -> str:
    """Say what to run on this system."""
    for command, line in _INSTALLS.items():
        if shutil.which(command):
            return f"Run: {line}"
    return f"Install a JRE, version {OLDEST} or newer, and set JAVA_HOME to its folder."


def _ask_version(java: str) -> str:
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ASKED_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout
