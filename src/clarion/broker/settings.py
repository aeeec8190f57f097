"""Every setting of a broker with its default and meaning; read from TOML, environment and flags, in that order."""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clarion.broker.engine import Limits
from clarion.broker.links.policy import LinkSettings, add_links, read_links, read_topics, why_no_name
from clarion.model.address import DEFAULT_URL, check_listen
from clarion.model.arguments import duration_s, size_bytes
from clarion.model.errors import BadSettings
from clarion.model.options import KEEP

if TYPE_CHECKING:
    from clarion.tracking.accuracy import Accuracy, CannotKeep

ENVIRONMENT_PREFIX = "CLARION_"
_NOT_SETTINGS = {"url", "crash_at", "clock_file"}  # other variables with our prefix
# What Kubernetes gives every pod for a service called clarion, or clarion-…: that is no setting, and no mistake.
_OF_KUBERNETES = re.compile(
    r"(?P<service>CLARION(?:_[A-Z0-9]+)*?)_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|(?P<link>PORT(?:_[0-9]+_(?:TCP|UDP|SCTP))?)|PORT_[0-9]+_(?:TCP|UDP|SCTP)_(?:PROTO|PORT|ADDR))"
)
LEAST_STORE_BYTES = 2**20
LEAST_EFPP = 1e-12  # where a key takes 59 bits of a filter: `log` takes fewer, and is exact
MOST_PERSIST_S = 3600.0
LEAST_TRACKING_AGE_S = 60.0  # how often the broker looks what is too old
LEAST_TRACKING_BYTES = 2**20  # the file with its tables, and some full filters
_MOST = 2**53  # of anything: ZeroMQ and SQLite have no more than 64 bits for what is reckoned from it
_DEFAULTS = Limits()


def _setting(default: Any, meaning: str, least: float | None = None) -> Any:
    return field(default=default, metadata={"meaning": meaning, "least": least})


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings of a broker. `clarion config` prints them."""

    data: Path = _setting(Path("clarion-data"), "folder of the store; made if missing, used by one broker at a time")
    listen: str = _setting(DEFAULT_URL, "address that serves both sides; not used when each has its own")
    listen_publishers: str = _setting("", "address for publishers alone; empty: they use `listen`")
    listen_subscribers: str = _setting("", "address for subscribers alone; empty: they use `listen`")
    name: str = _setting("", "how other brokers call this one; empty: broker- and its id")
    links: tuple[LinkSettings, ...] = _setting(
        (),
        "other brokers to link with: addresses, or in a file a table [[links]] for each, with what may cross; those of"
        " the environment and of options are added, and an address that has a table keeps it",
    )
    accept_links: str = _setting("any", "which brokers may link with this one: any, listed (in `links`) or none")
    link_max_bytes: int = _setting(
        0,
        "bytes of a topic kept for a broker that does not confirm them, beyond which the oldest are given up, and that"
        " is told; 0: all are kept, and publishers are slowed at the topic's own bound",
        0,
    )
    follow: str = _setting(
        "",
        "topics or patterns, with commas or as a list, of which this broker keeps a read-only copy: it then refuses"
        " puts",
    )
    tracking: str = _setting(
        "none",
        "what is kept of where messages went: none, log (exactly; small where many subscribers share a batch) or bloom"
        " (nearly so; its size depends on nothing but the number of batches and histories, and questions read little)",
    )
    tracking_efpp: float = _setting(1e-5, "of bloom: the chance that a history claims a message that it never had", 0)
    tracking_skew_s: float = _setting(
        0.2, "of bloom: by how much stamps of publishers may be off the broker's clock", 0
    )
    tracking_peak_per_s: float = _setting(1000.0, "of bloom: batches a second that a history gets at most", 0)
    tracking_persist_s: float = _setting(2.0, "how often what is noted of messages is saved; at most 1h", 0.01)
    tracking_max_age_s: float = _setting(0.0, "how long it is kept where messages went, at least 1m; 0: for ever", 0)
    tracking_max_bytes: int = _setting(
        0, "how many bytes that may take, about, and at least 1MiB; 0: as many as the disk has", 0
    )
    log_level: str = _setting("info", "debug, info, warning or error; logs go to standard error as JSON lines")
    default_retention: str = _setting(_DEFAULTS.default_retention, "of topics made by use: until-read or keep")
    max_topics_in_memory: int = _setting(
        _DEFAULTS.max_topics_in_memory, "soft limit of topics in memory; the coldest are unloaded", 1
    )
    topic_queue_size: int = _setting(
        _DEFAULTS.topic_queue_size, "newest messages of a topic kept in memory; older ones are read from disk", 0
    )
    memory_bytes: int = _setting(_DEFAULTS.memory_bytes, "bytes of messages kept in memory, all topics together", 0)
    topic_unload_interval_s: float = _setting(
        _DEFAULTS.topic_unload_interval_s, "how often topics beyond max_topics_in_memory are unloaded", 0.01
    )
    stale_msg_interval_s: float = _setting(
        _DEFAULTS.stale_msg_interval_s, "how often messages that everybody has read are removed", 0.01
    )
    max_get_msgs: int = _setting(_DEFAULTS.max_get_msgs, "most messages one get returns", 1)
    max_get_bytes: int = _setting(_DEFAULTS.max_get_bytes, "about the most bytes one get returns", 1024)
    max_get_wait_s: float = _setting(_DEFAULTS.max_get_wait_s, "longest that one get waits at the broker", 0)
    max_batch_bytes: int = _setting(_DEFAULTS.max_batch_bytes, "largest batch, and so the largest message", 1024)
    max_connections: int = _setting(
        10_000, "connections at one time; fewer where the process may not open so many files (ulimit -n)", 1
    )
    max_topics: int = _setting(_DEFAULTS.max_topics, "topics stored, at most", 1)
    max_subscriptions_per_topic: int = _setting(
        _DEFAULTS.max_subscriptions_per_topic, "subscriptions of a topic, at most", 1
    )
    max_subscriptions: int = _setting(_DEFAULTS.max_subscriptions, "subscriptions of all topics together, at most", 1)
    max_publishers: int = _setting(
        _DEFAULTS.max_publishers,
        "publishers at most; one that closes, or is silent for publisher_expiry_s, makes room",
        1,
    )
    max_waiting_gets: int = _setting(_DEFAULTS.max_waiting_gets, "gets that wait at the broker at one time", 1)
    max_acked_ranges: int = _setting(
        _DEFAULTS.max_acked_ranges, "ranges acked out of order that a subscription may have", 1
    )
    max_uncommitted_bytes: int = _setting(
        64 * 2**20, "bytes taken but not yet on disk, beyond which sockets are not read", 1024
    )
    topic_max_bytes: int = _setting(
        _DEFAULTS.topic_max_bytes, "unread bytes of an until-read topic, beyond which puts are refused", 1024
    )
    disk_reserve_bytes: int = _setting(
        _DEFAULTS.disk_reserve_bytes,
        "free disk space below which puts are refused, so that acks go on; at most an eighth of max_store_bytes",
        0,
    )
    max_store_bytes: int = _setting(
        0, "bytes that log and index may take (36 MB more are for their own needs); 0: as many as the disk has", 0
    )
    publisher_expiry_s: float = _setting(
        _DEFAULTS.publisher_expiry_s, "silence after which a publisher is forgotten and must register again", 1
    )
    credit_s: float = _setting(_DEFAULTS.credit_s, "how long a publisher's credit lasts", 0.1)
    credit_max_messages: int = _setting(_DEFAULTS.credit_max_messages, "most messages of credit granted at once", 1)
    max_consumers_per_subscription: int = _setting(
        _DEFAULTS.max_consumers_per_subscription, "consumers that share a subscription at one time", 1
    )
    max_returned: int = _setting(
        _DEFAULTS.max_returned, "messages of a shared subscription that came back and wait to be lent again", 1
    )
    least_hold_s: float = _setting(
        _DEFAULTS.least_hold_s, "seconds for which, after a restart, a backlog is kept for who held it, at least", 0
    )
    max_patterns: int = _setting(_DEFAULTS.max_patterns, "subscriptions to patterns, at most", 0)
    max_states: int = _setting(_DEFAULTS.max_states, "named states stored, at most", 0)
    max_state_bytes: int = _setting(_DEFAULTS.max_state_bytes, "largest value of a named state", 1)
    staged_expiry_s: float = _setting(
        _DEFAULTS.staged_expiry_s, "after which staged batches that nobody committed are dropped", 1
    )
    max_writers: int = _setting(
        _DEFAULTS.max_writers, "writers of staged batches; the last epoch of each is remembered for good", 1
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", read_links(self.links))
        for setting in dataclasses.fields(self):
            _check(setting.name, getattr(self, setting.name))
        if not self.listen and not (self.listen_publishers and self.listen_subscribers):
            _check_address("listen", self.listen)
        if 0 < self.tracking_max_age_s < self.tracking_persist_s:
            raise BadSettings(
                f"tracking_max_age_s ({self.tracking_max_age_s:g}) is less than tracking_persist_s"
                f" ({self.tracking_persist_s:g}): what is noted would be too old before it is saved. Set"
                f" tracking_max_age_s to 0 (for ever) or at least {self.tracking_persist_s:g}, or save more often"
            )
        if self.tracking != "none":  # before a store is made that nobody can use
            self.accuracy()

    def accuracy(self) -> Accuracy:
        """Return what histories promise by these settings; BadSettings where they cannot, or where NumPy is missing."""
        try:
            from clarion.tracking.accuracy import Accuracy, CannotKeep
        except ImportError:
            raise BadSettings(
                'tracking needs NumPy: pip install "clarion[tracking]", or set tracking = "none"'
            ) from None
        if self.tracking == "log":
            return Accuracy()
        try:
            return Accuracy(
                efpp=self.tracking_efpp,
                skew_s=self.tracking_skew_s,
                peak_per_s=self.tracking_peak_per_s,
            )
        except CannotKeep as error:
            raise BadSettings(_cannot_keep(self, error)) from None

    def followed(self) -> tuple[bytes, ...]:
        """Return the topics and patterns that are followed."""
        return _followed(self.follow)

    def limits(self) -> Limits:
        """Return the part that the engine needs."""
        names = {setting.name for setting in dataclasses.fields(Limits)}
        ours = {setting.name: getattr(self, setting.name) for setting in dataclasses.fields(self)}
        if self.tracking == "none":
            ours["tracking_skew_s"] = 0.0
        if self.follow:
            ours["default_retention"] = KEEP
        if self.max_store_bytes:  # or a small store would be nothing but reserve
            ours["disk_reserve_bytes"] = min(self.disk_reserve_bytes, self.max_store_bytes // 8)
        return Limits(**{name: value for name, value in ours.items() if name in names})


def load_settings(
    *, file: Path | None = None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> BrokerSettings:
    """Put settings together: file, then environment, then flags; what is unknown is refused.

    The last one said wins, but of links, which are added to those of before: one with what may cross stays as it is. In
    the environment a setting is CLARION_ and its name in capitals. Sizes and durations are numbers of bytes and
    seconds, or texts with units: 64MB, 64MiB, 500ms, 7d.
    """
    found: list[tuple[str, Any, str]] = []  # with where it is from, as far as whoever typed it may not know
    known = {setting.name for setting in dataclasses.fields(BrokerSettings)}
    if file is not None:
        found += [(name, value, f" (in {file})") for name, value in _read_file(file, known).items()]
    for name, text in _read_environment(environment, known).items():
        found.append((name, text, f" ({_variable(name)} in the environment)"))
    found += [(name, value, "") for name, value in flags.items() if value is not None]
    last = {name: place for place, (name, _, _) in enumerate(found)}
    values: dict[str, Any] = {}
    for place, (name, value, where) in enumerate(found):
        if name != "links" and place != last[name]:
            continue
        try:
            converted = _convert(name, value)
            _check(name, converted)
        except BadSettings as error:
            raise BadSettings(f"{error}{where}") from error
        values[name] = add_links(values.get(name, ()), converted) if name == "links" else converted
    return BrokerSettings(**values)


def did_you_mean(name: str) -> str:
    """Return which setting was likely meant by a name that is none, as a question; empty where none is like it."""
    close = difflib.get_close_matches(name.lower(), BrokerSettings.__dataclass_fields__, n=1)
    return f"did you mean {close[0]}?" if close else ""


def _read_file(file: Path, known: set[str]) -> dict[str, Any]:
    try:
        found = tomllib.loads(file.read_text())
    except OSError as error:
        raise BadSettings(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSettings(f"{file} is not valid TOML: {error}") from error
    if unknown := sorted(set(found) - known):
        raise BadSettings(f"{file} has settings that do not exist: {_listed(unknown, str)} (see `clarion config`)")
    return found


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _listed(unknown: list[str], shown: Callable[[str], str]) -> str:
    guesses = {name: did_you_mean(name) for name in unknown}
    return ", ".join(shown(name) + (f" ({guess})" if guess else "") for name, guess in guesses.items())


def _read_environment(environment: Mapping[str, str], known: set[str]) -> dict[str, str]:
    ours = {
        name: text
        for name, text in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX) and not _is_of_kubernetes(name, text, environment)
    }
    found = {name.removeprefix(ENVIRONMENT_PREFIX).lower(): text for name, text in ours.items()}
    if unknown := sorted(set(found) - known - _NOT_SETTINGS):
        names = _listed(unknown, _variable)
        raise BadSettings(f"the environment has settings that do not exist: {names} (see `clarion config`)")
    return {name: text for name, text in found.items() if name in known}


def _is_of_kubernetes(name: str, text: str, environment: Mapping[str, str]) -> bool:
    found = _OF_KUBERNETES.fullmatch(name)
    if found is None or (found["link"] and "://" not in text):  # CLARION_PORT=5590 is somebody's wish
        return False
    return found["service"] == "CLARION" or f"{found['service']}_SERVICE_HOST" in environment


def _convert(name: str, value: Any) -> Any:
    """Return a value as the setting has it; of a text, sizes and durations may have units (64MB, 7d)."""
    default: Any = BrokerSettings.__dataclass_fields__[name].default
    if name == "links":
        return read_links(value)
    if name == "follow" and isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    read = size_bytes if name.endswith("_bytes") else duration_s if name.endswith("_s") else None
    if read is not None and isinstance(value, str) and not _is_number(value):
        try:
            return read(value)
        except ValueError as error:
            raise BadSettings(f"{name}: {error}") from None
    try:
        if isinstance(default, Path) and value == "":  # a variable that is not set, most likely
            raise ValueError
        if isinstance(value, bool) or (isinstance(default, str) and not isinstance(value, str)):
            raise ValueError
        if isinstance(default, int) and isinstance(value, float):
            raise ValueError
        return type(default)(value) if not isinstance(default, Path) else Path(value)
    except (TypeError, ValueError):
        raise BadSettings(f"{name} is {_kind(default)}, not {value!r}") from None


def _check(name: str, value: Any) -> None:
    """Refuse a value that a setting cannot have, whatever the others are."""
    setting = BrokerSettings.__dataclass_fields__[name]
    least = setting.metadata["least"]
    if least is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise BadSettings(f"{name} is {_kind(setting.default)}, not {value!r}")
    if name.startswith("tracking_"):
        _check_tracking(name, value)
    if least is not None and not abs(value) <= _MOST:
        raise BadSettings(f"{name} is at most {_MOST}, not {value!r:.50}")
    if least is not None and value < least:
        raise BadSettings(f"{name} is at least {least:g}, not {value:g}")
    if name == "max_store_bytes" and 0 < value < LEAST_STORE_BYTES:
        raise BadSettings(f"{name} is 0 or at least {LEAST_STORE_BYTES}, not {value}")
    if name.startswith("listen") and value:
        _check_address(name, value)
    if name == "name" and value and (why := why_no_name(value)):
        raise BadSettings(f"name: {why}")
    if name == "follow":
        _followed(value)
    if name == "accept_links" and value not in ("any", "listed", "none"):
        raise BadSettings(f"{name} is any, listed or none, not {value!r}")
    if name == "tracking" and value not in ("none", "log", "bloom"):
        raise BadSettings(f"{name} is none, log or bloom, not {value!r}")
    if name == "default_retention" and value not in ("until-read", "keep"):
        raise BadSettings(f"{name} is until-read or keep, not {value!r}")
    if name == "log_level" and value not in ("debug", "info", "warning", "error"):
        raise BadSettings(f"{name} is debug, info, warning or error, not {value!r}")


def _check_tracking(name: str, value: float) -> None:
    """Refuse a number that makes no sense for a setting of tracking."""
    if name == "tracking_efpp" and not LEAST_EFPP <= value < 1:
        raise BadSettings(
            f"{name} is a probability of at least {LEAST_EFPP:g} and below 1, not {value:g};"
            ' tracking = "log" is never wrong'
        )
    if name == "tracking_peak_per_s" and not value:
        raise BadSettings(f"{name} is above 0, not {value:g}")
    if name == "tracking_persist_s" and not value <= MOST_PERSIST_S:
        raise BadSettings(
            f"{name} is at most {MOST_PERSIST_S:g} (one hour), not {value:g}: what is not saved is in memory, and holds"
            " back what topics let go of"
        )
    if name == "tracking_max_age_s" and 0 < value < LEAST_TRACKING_AGE_S:
        raise BadSettings(
            f"{name} is 0 (for ever) or at least {LEAST_TRACKING_AGE_S:g}, not {value:g}:"
            " the broker looks once a minute what is too old"
        )
    if name == "tracking_max_bytes" and 0 < value < LEAST_TRACKING_BYTES:
        raise BadSettings(
            f"{name} is 0 (as many as the disk has) or at least {LEAST_TRACKING_BYTES} (1MiB), not {value}:"
            " the file itself and a few filters take that"
        )


def _cannot_keep(settings: BrokerSettings, why: CannotKeep) -> str:
    """Return in the words of settings why bloom cannot keep its promise, and what would do."""
    others = [f"tracking_skew_s to at most {_rounded(why.skew_max_s, ROUND_FLOOR)}"]
    if why.peak_max_per_s:
        others.append(f"tracking_peak_per_s to at most {_rounded(why.peak_max_per_s, ROUND_FLOOR)}")
    return (
        f"tracking_efpp {settings.tracking_efpp:g} cannot be kept by filters alone: at tracking_peak_per_s ="
        f" {settings.tracking_peak_per_s:g} one lasts {why.lasts_s:g} s, and clocks may be {why.spread_s:g} s apart"
        " (twice tracking_skew_s). What would be in too many filters is kept exactly: many notes would be, and take"
        f' more room. Set {", or ".join(others)}; or tracking = "log", which has no such limit'
    )


def _rounded(number: float, towards: str) -> str:
    """Return a bound in four digits, so that what is written is within it."""
    exact = Decimal(f"{number:.12g}")  # without what binary fractions add
    step = Decimal(1).scaleb(exact.adjusted() - 3)
    return f"{exact.quantize(step, towards).normalize():f}"


def _followed(text: str) -> tuple[bytes, ...]:
    return read_topics((each.strip() for each in text.split(",") if each.strip()), "follow")


def _check_address(name: str, value: str) -> None:
    try:
        check_listen(value)
    except BadSettings as error:
        raise BadSettings(f"{name}: {error}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _kind(default: Any) -> str:
    return {int: "a whole number", float: "a number", str: "a text"}.get(type(default), "a path")
