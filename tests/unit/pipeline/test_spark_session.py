"""What is true of a session before there is one."""

from __future__ import annotations

import logging
import signal
import subprocess

import pytest

from clarion.pipeline.spark_session import end_jvm_of, plain_interrupts


def test_a_jvm_that_ctrl_c_met_while_it_started_is_ended() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def launch_gateway() -> None:  # as PySpark's is called, and as it names the process
        proc = subprocess.Popen(["sleep", "600"])
        started.append(proc)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as told:
        launch_gateway()
    end_jvm_of(told.value)
    assert started[0].poll() is not None


def test_ctrl_c_is_an_interrupt_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    def interrupted() -> None:
        place = "/site-packages/py4j/java_gateway.py"
        with plain_interrupts():
            logging.getLogger("py4j.clientserver").error("of its own")
            logging.getLogger().handle(logging.LogRecord("root", logging.ERROR, place, 1, "as the root's", (), None))
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as if it were Spark's
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert not caplog.records
    logging.getLogger("py4j.clientserver").error("later")
    assert caplog.messages == ["later"]


def test_pyspark_calls_it_so() -> None:
    from pyspark.java_gateway import launch_gateway

    assert launch_gateway.__name__ == "launch_gateway"
    code = launch_gateway.__code__
    assert "proc" in code.co_varnames + code.co_cellvars
