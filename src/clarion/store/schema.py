"""The index's tables, as the steps from one version to the next: a new index takes all of them, an older one the rest.

A plain put touches three b-trees: log, receipt and segment. Where a topic stands follows from its last log row; only
when a trim empties the log is it written to the topic row. `segment` is made first and so has the lowest page, which a
checkpoint moves first: `index._moved_sequence` rests on that.
"""

from __future__ import annotations

import apsw

VERSION_1 = """
CREATE TABLE segment (
    number INTEGER PRIMARY KEY, last_at INTEGER NOT NULL, end INTEGER NOT NULL, sequence INTEGER NOT NULL,
    batches INTEGER NOT NULL, batch_bytes INTEGER NOT NULL
) STRICT;
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;
CREATE TABLE topic (
    number INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, retention TEXT NOT NULL,
    next_offset INTEGER NOT NULL DEFAULT 0, last_commit_us INTEGER NOT NULL DEFAULT 0,
    bytes_total INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE log (
    topic INTEGER NOT NULL, first_offset INTEGER NOT NULL, count INTEGER NOT NULL,
    committed_at_us INTEGER NOT NULL, bytes_total INTEGER NOT NULL, size INTEGER NOT NULL, checksum INTEGER NOT NULL,
    segment INTEGER NOT NULL, position INTEGER NOT NULL,
    PRIMARY KEY (topic, first_offset)
) STRICT, WITHOUT ROWID;
CREATE TABLE receipt (
    publisher INTEGER NOT NULL, topic INTEGER NOT NULL, number INTEGER NOT NULL, checksum INTEGER NOT NULL,
    code INTEGER NOT NULL, first_offset INTEGER NOT NULL, committed_at_us INTEGER NOT NULL,
    messages_total INTEGER NOT NULL,
    PRIMARY KEY (publisher, topic, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE subscription (
    topic INTEGER NOT NULL, name BLOB NOT NULL, cursor INTEGER NOT NULL, acked BLOB NOT NULL,
    token INTEGER NOT NULL, nonce BLOB NOT NULL,
    PRIMARY KEY (topic, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE publisher (
    publisher INTEGER PRIMARY KEY AUTOINCREMENT, nonce BLOB NOT NULL, seen_at_us INTEGER NOT NULL
) STRICT;
CREATE INDEX publisher_nonce ON publisher (nonce);
CREATE INDEX publisher_seen ON publisher (seen_at_us);
"""

# What is due when is apart from `staged`: it may be half a megabyte, and a delayed batch that goes to its topic bit by
# bit changes its row each time. The totals follow by triggers, as adding up a million delayed batches takes too long.
# A batch in the log that was staged before keeps its number, by which its first record is known (moving.py).
VERSION_2 = """
ALTER TABLE topic ADD COLUMN settings BLOB NOT NULL DEFAULT x'';
ALTER TABLE subscription ADD COLUMN options BLOB NOT NULL DEFAULT x'';
ALTER TABLE subscription ADD COLUMN consumers BLOB NOT NULL DEFAULT x'';
ALTER TABLE subscription ADD COLUMN seen_at_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE log ADD COLUMN expires_at_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE log ADD COLUMN staged INTEGER NOT NULL DEFAULT 0;
CREATE INDEX log_staged ON log (staged) WHERE staged > 0;
INSERT INTO meta SELECT 'last_topic', coalesce(max(number), 0) FROM topic;
INSERT INTO meta VALUES ('last_version', 0);
CREATE TABLE staged (
    number INTEGER PRIMARY KEY AUTOINCREMENT, topic INTEGER NOT NULL, writer BLOB NOT NULL, epoch INTEGER NOT NULL,
    part BLOB NOT NULL, place INTEGER NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL,
    checksum INTEGER NOT NULL, staged_at_us INTEGER NOT NULL, ttl_ms INTEGER NOT NULL, due_us INTEGER NOT NULL,
    released INTEGER NOT NULL, segment INTEGER NOT NULL, position INTEGER NOT NULL
) STRICT;
CREATE INDEX staged_writer ON staged (writer, epoch, part, place) WHERE writer <> x'';
CREATE INDEX staged_stale ON staged (staged_at_us) WHERE writer <> x'';
CREATE INDEX staged_due_us ON staged (due_us) WHERE due_us > 0;
CREATE INDEX staged_topic ON staged (topic);
CREATE TABLE staged_due (number INTEGER PRIMARY KEY, due BLOB NOT NULL) STRICT;
CREATE TABLE staged_total (
    topic INTEGER PRIMARY KEY, messages INTEGER NOT NULL, bytes INTEGER NOT NULL
) STRICT;
CREATE TRIGGER staged_added AFTER INSERT ON staged BEGIN
    INSERT INTO staged_total VALUES (NEW.topic, NEW.count - NEW.released, NEW.size)
    ON CONFLICT (topic) DO UPDATE SET messages = messages + excluded.messages, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER staged_released AFTER UPDATE OF released ON staged BEGIN
    UPDATE staged_total SET messages = messages - NEW.released + OLD.released WHERE topic = NEW.topic;
END;
CREATE TRIGGER staged_gone AFTER DELETE ON staged BEGIN
    UPDATE staged_total SET messages = messages - OLD.count + OLD.released, bytes = bytes - OLD.size
    WHERE topic = OLD.topic;
    DELETE FROM staged_due WHERE number = OLD.number;
END;
CREATE TABLE writer (
    writer BLOB PRIMARY KEY, epoch INTEGER NOT NULL, messages INTEGER NOT NULL, seen_at_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX writer_seen ON writer (seen_at_us);
CREATE TABLE answer (
    publisher INTEGER NOT NULL, number INTEGER NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (publisher, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE state (
    name BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE returned (
    topic INTEGER NOT NULL, name BLOB NOT NULL, offset INTEGER NOT NULL, attempts INTEGER NOT NULL,
    not_before_us INTEGER NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (topic, name, offset)
) STRICT, WITHOUT ROWID;
CREATE TABLE pattern (
    pattern BLOB NOT NULL, name BLOB NOT NULL, options BLOB NOT NULL,
    PRIMARY KEY (pattern, name)
) STRICT, WITHOUT ROWID;
"""
VERSION_3 = """
ALTER TABLE subscription ADD COLUMN lent BLOB NOT NULL DEFAULT x'';
CREATE TABLE history (
    start BLOB NOT NULL, timeline INTEGER NOT NULL, sequence INTEGER NOT NULL,
    PRIMARY KEY (sequence, start)
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('clock_us', 0);
"""

# Tokens were counted for each subscription, and now for the whole broker.
VERSION_4 = """
ALTER TABLE writer ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pattern ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
DROP INDEX writer_seen;
CREATE TABLE decision (
    place INTEGER PRIMARY KEY, number INTEGER NOT NULL, nonce BLOB NOT NULL, checksum INTEGER NOT NULL,
    kind INTEGER NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE INDEX decision_nonce ON decision (nonce);
INSERT INTO meta SELECT 'count', coalesce(max(token), 0) FROM subscription;
INSERT INTO meta VALUES ('stamp', 0);
"""
_STEPS = (VERSION_1, VERSION_2, VERSION_3, VERSION_4)
SCHEMA_VERSION = len(_STEPS)


def take_steps(connection: apsw.Connection) -> None:
    """Bring the tables to the current version, inside an open transaction."""
    for step in _STEPS[connection.pragma("user_version") :]:
        connection.execute(step)
    connection.pragma("user_version", SCHEMA_VERSION)
