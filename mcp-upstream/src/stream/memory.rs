//! The event log in this process: the events live in the streams, the streams in their session.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use super::config::EventLogConfig;
use super::frame::{self, EventId};
use super::ledger::{Ledger, in_memory};
use super::log::{EventLog, ResumeError, StreamKind};
use super::resumable::Appended;
use super::{Found, Pulse, StoreError, Stream, StreamMetrics, StreamOwner, Subscription};

/// Sessions a broadcast serves before it lets others run.
const BROADCAST_STEP: usize = 256;

/// Streams kept in this process.
pub struct MemoryEventLog {
    pulse: Arc<Pulse>,
    ledger: Arc<Ledger>,
}

impl MemoryEventLog {
    /// A log within these bounds, whose streams go by that pulse.
    ///
    /// What is read from a stream once and not kept has a total of the same size, beside that of the log.
    pub fn new(limits: EventLogConfig, pulse: Arc<Pulse>, metrics: Arc<StreamMetrics>) -> Self {
        pulse.bound_passing(in_memory(limits.total));
        Self {
            pulse,
            ledger: Arc::new(Ledger::new(limits, metrics)),
        }
    }

    fn stream(
        &self,
        session: &dyn StreamOwner,
        kind: StreamKind,
        prime: bool,
    ) -> Result<Arc<Stream>, StoreError> {
        let readers = session.readers();
        let share = self.ledger.share(session.principal());
        session
            .streams()
            .open(kind, |number| {
                Stream::of_session(&self.pulse, kind, number, readers, share, prime)
            })
            .ok_or_else(|| StoreError("a session has used up its stream numbers".into()))
    }

    /// Puts one message on one stream, and makes room for it.
    fn put(&self, session: &dyn StreamOwner, stream: &Arc<Stream>, message: &[u8]) {
        if !stream.is_kept() {
            stream.push(frame::message(None, message));
            return;
        }
        let sequence = self.ledger.next_sequence();
        let framed = frame::message(Some(stream.event_id(sequence)), message);
        match stream.append(sequence, framed, message) {
            Appended::Over => return,
            Appended::Unlisted => stream.list(sequence),
            Appended::Taken => {}
        }
        self.ledger.metrics.events.inc();
        session.streams().shrink(self.ledger.session_max(), stream);
        self.ledger.enforce_total();
    }
}

/// One message under one sequence, framed once per stream number.
struct Broadcast<'a> {
    message: &'a [u8],
    sequence: u64,
    passing: Option<Bytes>,
    /// Most clients have one general stream, so most streams share a number.
    kept: HashMap<u32, Bytes>,
}

impl Broadcast<'_> {
    fn kept(&mut self, stream: u32) -> Bytes {
        let id = EventId {
            stream,
            sequence: self.sequence,
        };
        let message = self.message;
        let framed = self.kept.entry(stream);
        framed
            .or_insert_with(|| frame::message(Some(id), message))
            .clone()
    }

    fn passing(&mut self) -> Bytes {
        let message = self.message;
        let framed = self
            .passing
            .get_or_insert_with(|| frame::message(None, message));
        framed.clone()
    }
}

#[async_trait]
impl EventLog for MemoryEventLog {
    async fn open(
        &self,
        session: &dyn StreamOwner,
        kind: StreamKind,
        prime: bool,
    ) -> Result<Arc<Stream>, StoreError> {
        self.stream(session, kind, prime)
    }

    async fn append(
        &self,
        session: &dyn StreamOwner,
        stream: &Arc<Stream>,
        message: &[u8],
    ) -> Result<(), StoreError> {
        self.put(session, stream, message);
        Ok(())
    }

    async fn append_general(
        &self,
        session: &dyn StreamOwner,
        message: &[u8],
    ) -> Result<bool, StoreError> {
        let Some(stream) = session.streams().general() else {
            return Ok(false);
        };
        self.put(session, &stream, message);
        Ok(true)
    }

    async fn broadcast(
        &self,
        sessions: &[&dyn StreamOwner],
        message: &[u8],
    ) -> Result<usize, StoreError> {
        let mut broadcast = Broadcast {
            message,
            sequence: self.ledger.next_sequence(),
            passing: None,
            kept: HashMap::new(),
        };
        let mut reached = 0;
        for some in sessions.chunks(BROADCAST_STEP) {
            for session in some {
                let Some(stream) = session.streams().general() else {
                    continue;
                };
                reached += 1;
                if !stream.is_kept() {
                    stream.push(broadcast.passing());
                    continue;
                }
                let framed = broadcast.kept(stream.number());
                let sequence = broadcast.sequence;
                if stream.append(sequence, framed, message) == Appended::Unlisted {
                    stream.list(sequence);
                }
                let max = self.ledger.session_max();
                session.streams().shrink(max, &stream);
            }
            self.ledger.enforce_total();
            tokio::task::yield_now().await;
        }
        self.ledger.metrics.events.inc_by(reached as u64);
        Ok(reached)
    }

    async fn resume(
        &self,
        session: &dyn StreamOwner,
        last_event_id: &str,
    ) -> Result<Subscription, ResumeError> {
        let id = EventId::parse(last_event_id).ok_or(ResumeError::Malformed)?;
        let (stream, forgotten) = match session.streams().find(id.stream) {
            Found::Kept(stream) => (stream, false),
            Found::Never => return Err(ResumeError::Unknown),
            Found::Forgotten(_) if id.sequence > self.ledger.newest_sequence() => {
                return Err(ResumeError::Unknown);
            }
            Found::Forgotten(kind) => {
                let stream = match kind {
                    StreamKind::General => self.stream(session, kind, false)?,
                    StreamKind::Request | StreamKind::Sse => Stream::detached(&self.pulse),
                };
                if kind != StreamKind::General {
                    stream.finish();
                }
                (stream, true)
            }
        };
        let (subscription, missed) = if forgotten {
            (stream.read(), true)
        } else {
            stream.read_after(id.sequence).ok_or(ResumeError::Unknown)?
        };
        let metrics = &self.ledger.metrics;
        metrics.replays.inc();
        metrics.window_misses.inc_by(u64::from(missed));
        Ok(subscription)
    }

    async fn forget(&self, session: &dyn StreamOwner) {
        session.streams().close();
    }

    fn sweep(&self, now: Instant) {
        self.ledger.sweep(now);
    }
}

impl fmt::Debug for MemoryEventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryEventLog")
            .field("bytes", &self.ledger.bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
