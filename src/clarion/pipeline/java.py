"""The Java that Spark runs on: found, or a message that says exactly what to run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from clarion.model.errors import PermanentError

OLDEST = 17
_ASKED_WITHIN_S = 30.0
# What installs a JRE, by the command that a system installs packages with.
_INSTALLS = {
    "apt-get": "apt-get install -y default-jre-headless",
    "dnf": "dnf install -y java-17-openjdk-headless",
    "apk": "apk add openjdk17-jre-headless",
    "zypper": "zypper install -y java-17-openjdk-headless",
    "brew": "brew install openjdk@17",
}


class NoJava(PermanentError):
    """There is no Java that Spark could run on."""


def find_java() -> Path:
    """Return the `java` that Spark will use: that of JAVA_HOME, else the one on the path; NoJava where none will do."""
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
    line = install_line()
    if line is None:
        return f"Install a JRE, version {OLDEST} or newer, and set JAVA_HOME to its folder."
    return f"Run: {line}"


def install_line() -> str | None:
    """Return the command that installs a JRE on this system; None where its package manager is not known."""
    for manager, line in _INSTALLS.items():
        if shutil.which(manager):
            return line if _needs_no_sudo(manager) else f"sudo {line}"
    return None


def _needs_no_sudo(manager: str) -> bool:
    return manager == "brew" or os.geteuid() == 0


def install_java() -> Path:
    """Install a JRE with the system's package manager, as its user may have to confirm; return the `java` found."""
    line = install_line()
    if line is None:
        raise NoJava(how_to_install())
    try:
        if shutil.which("apt-get"):  # a machine that was just set up knows of no packages yet
            subprocess.run([*line[: line.index("apt-get")].split(), "apt-get", "update"], check=False)
        done = subprocess.run(line.split(), check=False).returncode
    except OSError as error:
        raise NoJava(f"{line} could not be run: {error.strerror}; nothing was installed") from error
    if done:
        raise NoJava(f"{line} ended with {done}; what it said above tells why")
    return find_java()


def _ask_version(java: str) -> str:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ASKED_WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout


def main() -> None:
    """Find Java for `make setup`; where there is none, install it if root asks, else say what to run."""
    try:
        find_java()
    except NoJava as error:
        if os.geteuid() != 0 or install_line() is None:
            sys.stderr.write(f"clarion: everything but the pipeline is ready. {error}\n")
            return
        sys.stderr.write(f"clarion: {error}; doing that now\n")
        try:
            install_java()
        except NoJava as failed:
            sys.exit(f"clarion: {failed}")


if __name__ == "__main__":
    main()
