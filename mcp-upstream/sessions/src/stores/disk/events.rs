//! The tables `streams` and `events`: how each stream was opened, and its newest messages.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, Result, params};

use super::records::Key;
use super::{Bounds, now};
use crate::stream::store::{EventKind, Replay, StoredEvent, StreamRef};

/// SQL schema of the tables. The ids of events increase with time, so that the oldest events are found without an index on time.
pub(super) const SCHEMA: &str = "
    CREATE TABLE streams (
        session BLOB NOT NULL,
        number INTEGER NOT NULL,
        opened INTEGER,
        owes TEXT NOT NULL DEFAULT '[]',
        dropped INTEGER NOT NULL DEFAULT 0,
        at INTEGER NOT NULL,
        PRIMARY KEY (session, number)
    ) WITHOUT ROWID;
    CREATE INDEX streams_at ON streams (at);
    CREATE TABLE events (
        id INTEGER PRIMARY KEY,
        session BLOB NOT NULL,
        stream INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        message TEXT NOT NULL,
        at INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX events_of_streams ON events (session, stream, sequence);
";

/// Key of a stream: its session and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StreamKey {
    pub(super) session: Key,
    number: u32,
}

impl StreamKey {
    pub(super) fn of(stream: StreamRef<'_>) -> Self {
        Self {
            session: Key::of(stream.session.as_str()),
            number: stream.number,
        }
    }
}

/// Maximum number of streams whose growth is counted. When it is exceeded, all of them are trimmed and their counts dropped.
const COUNTED: usize = 16 * 1024;

/// Number and size of the messages that each stream got since it was last trimmed. A stream is trimmed once this exceeds its
/// bounds. The file therefore contains at most twice the bounds per stream, and an append need not count rows.
pub(super) struct Growth {
    bounds: Bounds,
    streams: HashMap<StreamKey, Grown>,
}

#[derive(Default)]
struct Grown {
    events: usize,
    bytes: usize,
}

impl Growth {
    pub(super) fn within(bounds: Bounds) -> Self {
        Self {
            bounds,
            streams: HashMap::new(),
        }
    }

    /// Counts a stored message. Returns the streams that must be trimmed.
    fn count(&mut self, stream: StreamKey, bytes: usize) -> Vec<StreamKey> {
        let grown = self.streams.entry(stream).or_default();
        grown.events += 1;
        grown.bytes = grown.bytes.saturating_add(bytes);
        if grown.events > self.bounds.stream_events || grown.bytes > self.bounds.stream_bytes {
            self.streams.remove(&stream);
            return vec![stream];
        }
        match self.streams.len() > COUNTED {
            true => self.streams.drain().map(|(stream, _)| stream).collect(),
            false => Vec::new(),
        }
    }
}

/// Stores an event.
pub(super) fn append(
    connection: &Connection,
    growth: &mut Growth,
    stream: StreamKey,
    event: StoredEvent,
) -> Result<()> {
    let sequence = event.sequence;
    match event.kind {
        EventKind::Opened { owes } => {
            let sql = "INSERT INTO streams (session, number, opened, owes, at) VALUES (?1, ?2, ?3, ?4, ?5)
                ON CONFLICT DO UPDATE SET opened = excluded.opened, owes = excluded.owes";
            let owes = serde_json::Value::from(owes).to_string();
            let mut statement = connection.prepare_cached(sql)?;
            statement.execute(params![
                stream.session,
                stream.number,
                sequence,
                owes,
                now()
            ])?;
        }
        EventKind::Message(message) => {
            let sql = "INSERT OR IGNORE INTO events (session, stream, sequence, message, at)
                VALUES (?1, ?2, ?3, ?4, ?5)";
            let mut statement = connection.prepare_cached(sql)?;
            statement.execute(params![
                stream.session,
                stream.number,
                sequence,
                message,
                now()
            ])?;
            for full in growth.count(stream, message.len()) {
                trim(connection, full, &growth.bounds)?;
            }
        }
    }
    Ok(())
}

/// Reads the stored opening of a stream (how it was opened) and the stream's newest messages.
pub(super) fn read(connection: &Connection, stream: StreamKey, max: usize) -> Result<Replay> {
    let mut replay = Replay::default();
    let of_stream = params![stream.session, stream.number];
    let sql = "SELECT opened, owes, dropped FROM streams WHERE session = ?1 AND number = ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let row = |row: &rusqlite::Row<'_>| {
        let opened: Option<u64> = row.get(0)?;
        let owes: String = row.get(1)?;
        let dropped: u64 = row.get(2)?;
        Ok((opened, owes, dropped))
    };
    if let Some((opened, owes, dropped)) = statement.query_row(of_stream, row).optional()? {
        replay.dropped = dropped;
        replay.events.extend(opened.map(|sequence| StoredEvent {
            sequence,
            kind: EventKind::Opened {
                owes: serde_json::from_str(&owes).unwrap_or_default(),
            },
        }));
    }
    let sql = "SELECT sequence, message FROM events WHERE session = ?1 AND stream = ?2
        ORDER BY sequence DESC LIMIT ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let limit = u32::try_from(max).unwrap_or(u32::MAX).saturating_add(1);
    let mut rows = statement.query(params![stream.session, stream.number, limit])?;
    let mut messages = Vec::new();
    while let Some(row) = rows.next()? {
        let sequence = row.get(0)?;
        if messages.len() == max {
            replay.dropped = replay.dropped.max(sequence);
            break;
        }
        messages.push(StoredEvent {
            sequence,
            kind: EventKind::Message(row.get(1)?),
        });
    }
    messages.reverse();
    replay.events.append(&mut messages);
    // The sort is stable, so the stream's opening stays before a message with the same sequence.
    replay.events.sort_by_key(|event| event.sequence);
    Ok(replay)
}

/// Deletes the streams of a session.
pub(super) fn forget(connection: &Connection, session: Key) -> Result<()> {
    for sql in [
        "DELETE FROM events WHERE session = ?1",
        "DELETE FROM streams WHERE session = ?1",
    ] {
        connection.prepare_cached(sql)?.execute([session])?;
    }
    Ok(())
}

/// Deletes the oldest messages of a stream beyond its bounds, but never the newest message.
fn trim(connection: &Connection, stream: StreamKey, bounds: &Bounds) -> Result<()> {
    let sql = "SELECT sequence, length(message) FROM events WHERE session = ?1 AND stream = ?2
        ORDER BY sequence DESC";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params![stream.session, stream.number])?;
    let (mut events, mut bytes) = (0, 0_usize);
    while let Some(row) = rows.next()? {
        events += 1;
        bytes = bytes.saturating_add(row.get(1)?);
        let is_beyond = events > bounds.stream_events || bytes > bounds.stream_bytes;
        if is_beyond && events > 1 {
            let sequence = row.get(0)?;
            drop(rows);
            return drop_until(connection, stream, sequence);
        }
    }
    Ok(())
}

/// Deletes the messages of a stream up to `sequence`, and stores that messages up to there were dropped.
fn drop_until(connection: &Connection, stream: StreamKey, sequence: u64) -> Result<()> {
    let of_stream = params![stream.session, stream.number, sequence];
    let sql = "DELETE FROM events WHERE session = ?1 AND stream = ?2 AND sequence <= ?3";
    connection.prepare_cached(sql)?.execute(of_stream)?;
    let sql = "INSERT INTO streams (session, number, dropped, at) VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT DO UPDATE SET dropped = max(dropped, excluded.dropped)";
    let mut statement = connection.prepare_cached(sql)?;
    statement.execute(params![stream.session, stream.number, sequence, now()])?;
    Ok(())
}
