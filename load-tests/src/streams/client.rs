//! A client with a stream: its session, and every event it has received.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::decoder::Event;

/// The kind of list that an event reports as changed. Kinds are published in turn, so that a wrong order is visible in the
/// kinds as well as in the ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Tools,
    Prompts,
    Resources,
    /// A kind that this program has not published.
    Unknown,
}

/// An event as a client received it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Had {
    /// The sequence number in the event's id, which follows the stream's number.
    pub(crate) sequence: u64,
    pub(crate) kind: Kind,
}

#[derive(Default)]
struct Record {
    last_event_id: Option<String>,
    retry: Option<Duration>,
    events: Vec<Had>,
}

pub(crate) struct Client {
    session: String,
    /// The generation of the current stream; events of earlier ones are ignored.
    generation: AtomicU32,
    record: Mutex<Record>,
}

impl Kind {
    /// The kind that is published as event number `place`.
    pub(crate) fn in_turn(place: usize) -> Self {
        [Self::Tools, Self::Prompts, Self::Resources][place % 3]
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Unknown => "unknown",
        }
    }

    fn of(data: &[u8]) -> Self {
        let says = |kind: &Self| {
            let method = format!("notifications/{}/list_changed\"", kind.name());
            let mut windows = data.windows(method.len());
            windows.any(|window| window == method.as_bytes())
        };
        [Self::Tools, Self::Prompts, Self::Resources]
            .into_iter()
            .find(says)
            .unwrap_or(Self::Unknown)
    }
}

impl Had {
    /// Reads an event; `None` if it has no data.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        if event.data.is_empty() {
            return None;
        }
        let sequence = event.id.as_deref().and_then(sequence);
        Some(Self {
            // An event without an id is not among the published ones, and so counts as wrong.
            sequence: sequence.unwrap_or(0),
            kind: Kind::of(&event.data),
        })
    }
}

fn sequence(id: &str) -> Option<u64> {
    id.split_once('-')?.1.parse().ok()
}

impl Client {
    pub(super) fn new(session: String) -> Self {
        Self {
            session,
            generation: AtomicU32::new(0),
            record: Mutex::default(),
        }
    }

    pub(super) fn session(&self) -> &str {
        &self.session
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Begins a new generation: events on the existing streams no longer count.
    pub(super) fn next_generation(&self) {
        // Under the record's lock, so that no event of the old generation is recorded afterwards.
        let _record = self.record();
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Records an event of a stream. Returns true if it counts.
    pub(super) fn take(&self, generation: u32, event: Event) -> bool {
        let mut record = self.record();
        if self.generation() != generation {
            return false;
        }
        let had = Had::of(&event);
        record.events.extend(had);
        record.retry = event.retry.or(record.retry);
        if event.id.is_some() {
            record.last_event_id = event.id;
        }
        had.is_some()
    }

    pub(super) fn last_event_id(&self) -> Option<String> {
        self.record().last_event_id.clone()
    }

    /// Time for which the server wants the client to wait before it reconnects.
    pub(super) fn retry(&self) -> Duration {
        self.record().retry.unwrap_or_default()
    }

    /// The last event that the client has received.
    pub(super) fn last(&self) -> Option<Had> {
        self.record().events.last().copied()
    }

    /// All events that the client has received, in the order of their arrival.
    pub(crate) fn events(&self) -> Vec<Had> {
        self.record().events.clone()
    }

    pub(super) fn forget_events(&self) {
        self.record().events = Vec::new();
    }

    pub(super) fn forget(&self) {
        *self.record() = Record::default();
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, data: &str) -> Event {
        Event {
            id: Some(id.to_owned()),
            data: data.as_bytes().to_vec(),
            retry: None,
        }
    }

    const PROMPTS: &str = r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#;

    #[test]
    fn an_event_is_known_by_its_id_and_its_kind() {
        let had = Had::of(&event("1-17", PROMPTS)).unwrap();
        assert_eq!((had.sequence, had.kind), (17, Kind::Prompts));
        assert_eq!(Had::of(&event("1-17", "{}")).unwrap().kind, Kind::Unknown);
        assert_eq!(Had::of(&event("1-17", "")), None);
    }

    #[test]
    fn a_client_comes_back_with_the_last_id_it_had_and_takes_nothing_of_its_old_stream() {
        let client = Client::new("s".to_owned());
        assert!(!client.take(0, event("1-1", "")), "no event, but an id");
        assert_eq!(client.last_event_id().as_deref(), Some("1-1"));
        assert!(client.take(0, event("1-2", PROMPTS)));
        client.next_generation();
        assert!(!client.take(0, event("1-3", PROMPTS)));
        assert_eq!(client.last_event_id().as_deref(), Some("1-2"));
        assert!(client.take(1, event("1-3", PROMPTS)));
        assert_eq!(client.events().len(), 2);
        assert_eq!(client.last().unwrap().sequence, 3);
        client.forget();
        assert_eq!((client.last(), client.last_event_id()), (None, None));
    }
}
