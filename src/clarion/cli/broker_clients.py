"""The clients with which commands ask a broker, and what is told where it does not answer or refuses."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec

from clarion.cli.command_errors import note, tells_errors
from clarion.cli.command_options import (
    DEFAULT_TIMEOUT,
    DEFAULT_TIMEOUT_S,
    DEFAULT_URL,
    AsJson,
    Timeout,
    Url,
    with_options,
)
from clarion.cli.output import counted, print_result, readable_duration
from clarion.model.errors import BufferFull, ClarionError, NoSubscriber, TimedOut, Unreachable
from clarion.model.names import how_to_subscribe, to_text

if TYPE_CHECKING:
    from clarion.admin import Admin
    from clarion.publisher import Publisher


Parameters = ParamSpec("Parameters")
_OPTIONS = (("url", Url, DEFAULT_URL), ("timeout_s", Timeout, DEFAULT_TIMEOUT), ("as_json", AsJson, False))
_IS_ONE_RUNNING = "Is one running there? `clarion up` starts one"


class BrokerCall(NamedTuple):
    """What a command that asks a broker was told: where the broker is, how long to wait for it, and how to print."""

    url: str
    timeout_s: float = DEFAULT_TIMEOUT_S
    as_json: bool = False

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        """Yield a client that asks the broker; where no broker answers, say so meanwhile and at last."""
        from clarion.admin import Admin

        with (
            no_answer_told(self.url),
            Admin(self.url, timeout_s=self.timeout_s) as admin,
            waiting_told(self.url, self.timeout_s),
        ):
            yield admin

    @contextmanager
    def publisher(self, topic: bytes, *, compress: bool = False) -> Iterator[Publisher]:
        """Yield a publisher, whose user waits for the receipts; errors say what became of the messages."""
        from clarion.publisher import Publisher

        publisher = Publisher(self.url, block_s=self.timeout_s, compression="zstd" if compress else None)
        try:
            with waiting_told(self.url, self.timeout_s):
                yield publisher
            _close(publisher, self.timeout_s)
        except ClarionError as error:
            raise explain_failure(error, publisher.stats, self.url, topic) from error
        finally:
            _close(publisher, 0.0)  # does nothing where all went well, and waits for nothing where it did not

    def print(self, value: dict[str, Any], text: str) -> None:
        """Print what the command did: JSON for programs, or a line for people."""
        print_result(value, text, as_json=self.as_json)


def broker_command(command: Callable[Concatenate[BrokerCall, Parameters], None]) -> Callable[..., None]:
    """Give a command the options --url, --timeout and --json, which reach it as its first argument."""
    own = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def called(*args: Any, url: str, timeout_s: float, as_json: bool, **kwargs: Any) -> None:
        command(BrokerCall(url, timeout_s, as_json), *args, **kwargs)

    called.__signature__ = own.replace(parameters=list(own.parameters.values())[1:])  # type: ignore[attr-defined]
    return tells_errors(with_options(_OPTIONS)(called))


@contextmanager
def no_answer_told(url: str) -> Iterator[None]:
    """Say in the same words in every command that no broker answers."""
    try:
        yield
    except (TimedOut, Unreachable):
        raise Unreachable(f"no broker answers at {url}. {_IS_ONE_RUNNING}") from None


@contextmanager
def waiting_told(url: str, timeout_s: float) -> Iterator[ClientNotes]:
    """Say what a client warns of as a note: above all that no broker answers yet, and how long it will be tried."""
    notes = ClientNotes(url, timeout_s)
    log = logging.getLogger("clarion")
    log.addHandler(notes)
    try:
        yield notes
    finally:
        log.removeHandler(notes)


class ClientNotes(logging.Handler):
    """Makes notes of a client's warnings. `for_ever`: a broker that goes away is waited for, however long."""

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(logging.WARNING)
        self._url = url
        self._timeout_s = timeout_s
        self.for_ever = False
        self._told = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Say what the client warns of."""
        if record.name == "clarion.session" and record.levelno == logging.WARNING and not self.for_ever:
            text = f"no answer from {self._url} yet; trying for {readable_duration(self._timeout_s)} in all"
            if text != self._told:  # once, though a command may have several clients
                note(text)
            self._told = text
        else:
            note(record.getMessage())


def _close(publisher: Publisher, timeout_s: float) -> None:
    try:
        publisher.close(timeout_s)
    except ClarionError:  # the receipts have told by now what is stored, and the broker forgets us in time
        pass


def explain_failure(error: ClarionError, stats: dict[str, Any], url: str, topic: bytes) -> ClarionError:
    """Return the error in the words of a command that ends: what is stored, what is not, and what to do."""
    stored = stats["messages_stored"]
    kept = f"{counted(stored, 'message')} confirmed as stored, no more" if stored else "nothing was confirmed as stored"
    if isinstance(error, NoSubscriber):
        return NoSubscriber(f"nobody subscribes to {to_text(topic)}, so nothing was stored. {how_to_subscribe(topic)}")
    if isinstance(error, BufferFull | TimedOut) and not stats["connected"]:
        return Unreachable(f"no broker answers at {url}; {kept}. {_IS_ONE_RUNNING}")
    refusal = stats.get("refusal")
    if isinstance(error, BufferFull | TimedOut) and isinstance(refusal, ClarionError):
        return type(refusal)(f"{refusal}; {kept}. Try again later")
    if isinstance(error, TimedOut):
        return TimedOut(f"the broker at {url} did not answer in time; {kept}. A longer --timeout may help")
    return type(error)(f"{error}; {kept}" if stored else str(error))
