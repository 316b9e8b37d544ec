//! Wire format of events: formats a message as an SSE event, and defines the ids of events.
//!
//! A message is formatted once for all its readers, and is not decoded: JSON cannot contain a raw line break inside a string, so
//! line breaks between its tokens become spaces and the message is one `data:` line.

use std::fmt;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

/// Keep-alive comment, written to an idle stream.
pub const PING: &[u8] = b": ping\n\n";

/// Time that a client waits before it reconnects, unless the stream has sent another time.
pub const RETRY: Duration = Duration::from_secs(1);

/// The id of an event: the number of its stream in the session, and its position among all events of the process.
///
/// Its text is `<stream>-<sequence>`. Sequences increase within a stream. A message that is sent to many sessions has one
/// sequence, so that streams with the same number can share its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventId {
    /// The stream's number in its session.
    pub(crate) stream: u32,
    /// Position of the event. Positions increase within the process.
    pub(crate) sequence: u64,
}

impl EventId {
    /// Reads an id in its written form; `None` for any other text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (stream, sequence) = text.split_once('-')?;
        Some(Self {
            stream: number(stream)?,
            sequence: number(sequence)?,
        })
    }
}

/// Parses a number in its only valid spelling: no sign, no leading zero.
fn number<N: std::str::FromStr>(text: &str) -> Option<N> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = text == "0" || !text.starts_with('0');
    (plain && canonical).then(|| text.parse().ok())?
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stream, self.sequence)
    }
}

/// Formats a JSON-RPC message as an event. A client cannot resume after an event without an id.
pub fn message(id: Option<EventId>, message: &[u8]) -> Bytes {
    let mut frame = begin(id, message.len());
    frame.put_slice(b"event: message\n");
    put_data(&mut frame, message);
    frame.freeze()
}

/// Formats an event with a name other than `message`, such as `endpoint`. Name and data must come from the gateway, because a
/// line break in the name would begin another field.
pub fn named(name: &'static str, data: &str) -> Bytes {
    let mut frame = begin(None, data.len() + name.len());
    frame.put_slice(b"event: ");
    frame.put_slice(name.as_bytes());
    frame.put_u8(b'\n');
    put_data(&mut frame, data.as_bytes());
    frame.freeze()
}

/// Formats the event that precedes the first message: an id to resume from, and the retry time ([`RETRY`]).
pub fn priming(id: EventId) -> Bytes {
    let mut frame = begin(Some(id), 0);
    frame.put_slice(format!("retry: {}\n", RETRY.as_millis()).as_bytes());
    put_data(&mut frame, b"");
    frame.freeze()
}

/// Formats the retry time, which is sent before a stream is ended: the client reconnects after that time.
pub fn retry(after: Duration) -> Bytes {
    Bytes::from(format!("retry: {}\n\n", after.as_millis()))
}

/// Reads the message and the id of an event. The message is `None` for comments, and for events without data.
pub fn read(event: &Bytes) -> (Option<&str>, Option<Bytes>) {
    let mut id = None;
    let mut data = None;
    let mut rest: &[u8] = event;
    while !rest.is_empty() {
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let (line, after) = rest.split_at(end);
        rest = after.get(1..).unwrap_or_default();
        if let Some(value) = line.strip_prefix(b"data: ") {
            data = Some(event.slice_ref(value)).filter(|data| !data.is_empty());
        } else if let Some(value) = line.strip_prefix(b"id: ") {
            id = std::str::from_utf8(value).ok();
        }
    }
    (id, data)
}

fn begin(id: Option<EventId>, data: usize) -> BytesMut {
    const FIELDS: usize = 64;
    let mut frame = BytesMut::with_capacity(data + FIELDS);
    if let Some(id) = id {
        frame.put_slice(format!("id: {id}\n").as_bytes());
    }
    frame
}

fn put_data(frame: &mut BytesMut, data: &[u8]) {
    frame.put_slice(b"data: ");
    let mut rest = data;
    while let Some(at) = memchr::memchr2(b'\r', b'\n', rest) {
        frame.put_slice(&rest[..at]);
        frame.put_u8(b' ');
        rest = &rest[at + 1..];
    }
    frame.put_slice(rest);
    frame.put_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// The fields of the events in a text, by the rules of the specification.
    fn events(text: &str) -> Vec<Vec<(String, String)>> {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        text.split("\n\n")
            .filter(|event| !event.is_empty())
            .map(|event| {
                let field = |line: &str| {
                    let (name, value) = line.split_once(':').unwrap_or((line, ""));
                    let value = value.strip_prefix(' ').unwrap_or(value);
                    (name.to_owned(), value.to_owned())
                };
                event.lines().map(field).collect()
            })
            .collect()
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[\\PC\\r\\n\u{2028}\u{2029}\u{85}\u{feff}\"\\\\:]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map("[\\PC\\n]{0,6}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_is_one_event_whose_data_is_the_same_json(
            value in json(),
            breaks in "[ \\t\\r\\n]{0,6}",
            pretty: bool,
            stream: u32,
            sequence: u64,
        ) {
            let written = if pretty {
                serde_json::to_string_pretty(&value).expect("plain data")
            } else {
                value.to_string()
            };
            let sent = format!("{breaks}{}{breaks}", written.replace('\n', &format!("\n{breaks}")));
            let id = EventId { stream, sequence };
            let frame = message(Some(id), sent.as_bytes());
            let read = events(std::str::from_utf8(&frame).expect("UTF-8 in, UTF-8 out"));
            prop_assert_eq!(read.len(), 1);
            let names: Vec<_> = read[0].iter().map(|(name, _)| name.as_str()).collect();
            prop_assert_eq!(names, ["id", "event", "data"]);
            prop_assert_eq!(EventId::parse(&read[0][0].1), Some(id));
            prop_assert_eq!(serde_json::from_str::<Value>(&read[0][2].1).expect("JSON"), value);
        }

        #[test]
        fn whatever_is_framed_stays_one_event(bytes: Vec<u8>) {
            let frame = message(None, &bytes);
            let (id, data) = read(&frame);
            prop_assert_eq!(id, None);
            prop_assert_eq!(data.map_or(0, |data| data.len()), bytes.len());
            prop_assert_eq!(memchr::memmem::find(&frame, b"\n\n"), Some(frame.len() - 2));
            prop_assert_eq!(memchr::memchr(b'\r', &frame), None);
        }

        #[test]
        fn ids_are_read_as_they_are_written_and_in_no_other_spelling(text in "[0-9+\\- ]{0,12}") {
            if let Some(id) = EventId::parse(&text) {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "-",
            "1",
            "1-",
            "-1",
            "1-2-3",
            "01-2",
            "1-+2",
            "1- 2",
            "4294967296-1",
            "1-18446744073709551616",
            "a-b",
        ] {
            assert_eq!(EventId::parse(text), None, "{text}");
        }
        let greatest = "4294967295-18446744073709551615";
        assert_eq!(
            EventId::parse(greatest).map(|id| id.to_string()).as_deref(),
            Some(greatest)
        );
    }

    #[test]
    fn a_message_is_read_back_and_what_carries_none_is_told_from_it() {
        let id = EventId {
            stream: 2,
            sequence: 7,
        };
        let event = message(Some(id), b"{\"a\":\n\"data: b\"}");
        let (read_id, data) = read(&event);
        assert_eq!(read_id, Some("2-7"));
        assert_eq!(data.as_deref(), Some(&b"{\"a\": \"data: b\"}"[..]));
        assert_eq!(read(&priming(id)), (Some("2-7"), None));
        assert_eq!(read(&Bytes::from_static(PING)), (None, None));
        assert_eq!(read(&retry(RETRY)), (None, None));
    }

    #[test]
    fn a_stream_begins_and_ends_with_what_a_client_needs_to_come_back() {
        let id = EventId {
            stream: 2,
            sequence: 7,
        };
        assert_eq!(priming(id), "id: 2-7\nretry: 1000\ndata: \n\n");
        assert_eq!(retry(Duration::from_millis(1250)), "retry: 1250\n\n");
        assert_eq!(
            named("endpoint", "/messages?session_id=x"),
            "event: endpoint\ndata: /messages?session_id=x\n\n"
        );
    }
}
