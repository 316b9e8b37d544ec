//! The events of streams in Redis.
//!
//! The messages of a stream are a list, each `SEQUENCE MESSAGE`, trimmed to the bounds of the event log at every append. The
//! list expires when no message was appended for the maximum age of events. Data that must outlive the list are in the hash of
//! the session's streams, which expires with the session:
//!
//! | field | holds |
//! |---|---|
//! | `NUMBER.opened` | the opening of the stream: JSON |
//! | `NUMBER.newest` | the highest sequence that was appended |
//! | `NUMBER.dropped` | the highest sequence that was trimmed |
//! | `NUMBER.bytes` | bytes of the list |

use std::collections::BTreeSet;
use std::sync::LazyLock;

use async_trait::async_trait;
use redis::{RedisResult, Script};
use tooldock_protocol::seal::SessionId;

use super::connect::RedisConnection;
use super::keys::SessionKeys;
use super::{RedisStore, millis};
use crate::stream::store::{AppendOutcome, EventKind, Replay, StoredEvent, StreamRef};
use crate::stream::{EventStore, StoreError, UNRECORDED_MAX};

/// Maximum number of stored streams of one kind (request or general) per session, so that a session that lasts for years does
/// not grow without bound. Opening a stream deletes the oldest stream beyond this number, and a process that adopts the session
/// deletes surplus streams of earlier processes. A process keeps only 32 finished streams; the larger number here ensures that
/// the stream of a long call is not deleted because of many short calls.
const STREAMS_MAX: u32 = 1024;

/// Result of `open.lua` and `append.lua` if another replica has the session.
const FOREIGN: i64 = -1;

static OPEN: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("open.lua")));
static APPEND: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("append.lua")));

/// Names of the fields of a stream in the hash of the session's streams, as in `open.lua`.
const FIELDS: [&str; 4] = ["opened", "newest", "dropped", "bytes"];

fn field(number: u32, name: &str) -> String {
    format!("{number}.{name}")
}

#[async_trait]
impl EventStore for RedisStore {
    async fn append(
        &self,
        stream: StreamRef<'_>,
        event: &StoredEvent,
    ) -> Result<AppendOutcome, StoreError> {
        match &event.kind {
            EventKind::Opened { .. } => self.keep_opening(stream, event).await,
            EventKind::Message(message) => self.keep(stream, event.sequence, message).await,
        }
    }

    async fn read(&self, stream: StreamRef<'_>, max: usize) -> Result<Replay, StoreError> {
        let keys = self.keys.of(stream.session.as_str());
        let fields = ["opened", "newest", "dropped"].map(|name| field(stream.number, name));
        let mut read = redis::pipe();
        read.atomic();
        read.hmget(keys.streams(), &fields[..]);
        read.lrange(keys.events(stream.number), 0, -1);
        let read = &read;
        let asked = self.link.run(|mut connection| async move {
            let (told, messages): (StoredStreamState, Vec<String>) =
                read.query_async(&mut connection).await?;
            Ok((told, messages))
        });
        let (told, messages) = asked.await?;
        replay(told, &messages, max)
    }

    async fn trim(&self, session: &SessionId) -> Result<(), StoreError> {
        let keys = self.keys.of(session.as_str());
        let keys = &keys;
        self.link
            .run(|mut connection| async move {
                let surplus = surplus(&stream_numbers(&mut connection, keys).await?);
                if surplus.is_empty() {
                    return Ok(());
                }
                let names = |number: &u32| FIELDS.map(|name| field(*number, name));
                let fields: Vec<_> = surplus.iter().flat_map(names).collect();
                let events: Vec<_> = surplus.iter().map(|it| keys.events(*it)).collect();
                let mut trim = redis::pipe();
                trim.atomic();
                trim.hdel(keys.streams(), fields).unlink(events);
                trim.exec_async(&mut connection).await
            })
            .await
    }

    async fn forget(&self, session: &SessionId) -> Result<(), StoreError> {
        let keys = self.keys.of(session.as_str());
        let keys = &keys;
        self.link
            .run(|mut connection| async move {
                let numbers = stream_numbers(&mut connection, keys).await?;
                let events: Vec<_> = numbers.iter().map(|it| keys.events(*it)).collect();
                // All keys of a session are on one node, so that one command can delete them.
                let mut forget = redis::cmd("UNLINK");
                forget.arg(keys.streams());
                forget.arg(events);
                forget.exec_async(&mut connection).await
            })
            .await
    }
}

impl RedisStore {
    async fn keep_opening(
        &self,
        stream: StreamRef<'_>,
        event: &StoredEvent,
    ) -> Result<AppendOutcome, StoreError> {
        let keys = self.keys.of(stream.session.as_str());
        let number = stream.number;
        let event = serde_json::to_string(event).map_err(|error| StoreError(error.to_string()))?;
        let mut open = OPEN.key(keys.streams());
        open.key(keys.record())
            .arg(number)
            .arg(event)
            .arg(millis(self.record_ttl))
            .arg(self.replica_argument());
        // Numbers of streams of one kind are two apart. A process that adopts a session skips some numbers, so the stream to
        // delete has one of two numbers.
        for before in [STREAMS_MAX, STREAMS_MAX + UNRECORDED_MAX] {
            if let Some(oldest) = number.checked_sub(2 * before).filter(|it| *it > 0) {
                open.key(keys.events(oldest)).arg(oldest);
            }
        }
        let open = &open;
        let opened = self
            .link
            .run(|mut connection| async move { open.invoke_async::<i64>(&mut connection).await });
        Ok(outcome(opened.await?))
    }

    async fn keep(
        &self,
        stream: StreamRef<'_>,
        sequence: u64,
        message: &str,
    ) -> Result<AppendOutcome, StoreError> {
        let keys = self.keys.of(stream.session.as_str());
        let mut append = APPEND.key(keys.streams());
        append
            .key(keys.events(stream.number))
            .key(keys.record())
            .arg(stream.number)
            .arg(sequence)
            .arg(format!("{sequence} {message}"))
            .arg(self.bounds.events.max(1))
            .arg(self.bounds.bytes.as_u64())
            .arg(millis(self.bounds.age))
            .arg(millis(self.record_ttl))
            .arg(self.replica_argument());
        let append = &append;
        // The command may be repeated: readers drop a second entry with the same sequence.
        let appended = self
            .link
            .run(|mut connection| async move { append.invoke_async::<i64>(&mut connection).await });
        Ok(outcome(appended.await?))
    }
}

/// The numbers of a session's stored streams.
async fn stream_numbers(
    connection: &mut RedisConnection,
    keys: &SessionKeys<'_>,
) -> RedisResult<BTreeSet<u32>> {
    let mut ask = redis::cmd("HKEYS");
    ask.arg(keys.streams());
    let fields: Vec<String> = ask.query_async(connection).await?;
    let numbers = fields.iter().filter_map(|field| field.split('.').next());
    Ok(numbers.filter_map(|it| it.parse().ok()).collect())
}

/// Returns the oldest streams beyond [`STREAMS_MAX`] of each kind. Numbers of one kind are all even or all odd.
fn surplus(numbers: &BTreeSet<u32>) -> Vec<u32> {
    let of_kind = |odd: u32| {
        let newest_first = numbers.iter().rev().filter(move |it| *it % 2 == odd);
        newest_first.skip(STREAMS_MAX as usize).copied()
    };
    of_kind(0).chain(of_kind(1)).collect()
}

fn outcome(answer: i64) -> AppendOutcome {
    match answer {
        FOREIGN => AppendOutcome::Foreign,
        _ => AppendOutcome::Kept,
    }
}

/// Stored state of a stream: its opening (how it was opened) as JSON, its newest sequence, and the newest sequence that was
/// trimmed.
type StoredStreamState = (Option<String>, Option<u64>, Option<u64>);

/// Builds a stream's replay from Redis's response: at most the newest `max` messages, in order and without duplicates.
fn replay(told: StoredStreamState, messages: &[String], max: usize) -> Result<Replay, StoreError> {
    let damaged = || StoreError("an event in Redis cannot be read".into());
    let (opened, newest, dropped) = told;
    let mut dropped = dropped.unwrap_or_default();
    if messages.is_empty() {
        // All messages have expired.
        dropped = dropped.max(newest.unwrap_or_default());
    }
    let mut read = Vec::with_capacity(messages.len());
    for message in messages {
        let (sequence, message) = message.split_once(' ').ok_or_else(damaged)?;
        let sequence: u64 = sequence.parse().map_err(|_| damaged())?;
        read.push((sequence, message));
    }
    // Messages may have been appended in another order than their sequence, and a repeated write stores a message twice.
    read.sort_by_key(|(sequence, _)| *sequence);
    read.dedup_by_key(|(sequence, _)| *sequence);
    // Messages may be appended out of order. One that is older than a trimmed message counts as trimmed, too.
    read.retain(|(sequence, _)| *sequence > dropped);
    let surplus = read.len().saturating_sub(max);
    if let Some((newest_left_out, _)) = read.drain(..surplus).next_back() {
        dropped = newest_left_out;
    }
    let opened = opened.map(|opened| serde_json::from_str(&opened).map_err(|_| damaged()));
    let mut events: Vec<StoredEvent> = opened.transpose()?.into_iter().collect();
    events.extend(read.into_iter().map(|(sequence, message)| StoredEvent {
        sequence,
        kind: EventKind::Message(message.to_owned()),
    }));
    events.sort_by_key(|event| event.sequence);
    Ok(Replay { events, dropped })
}
