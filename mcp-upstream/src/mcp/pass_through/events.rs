//! Splits a server's stream of events at the boundaries of events, without changing them.
//!
//! An event is forwarded only when it is complete. If the server's stream breaks in the middle of an event, the gateway can
//! then still add an error event of its own, since the client has not received half an event.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

/// Splits a byte stream into complete server-sent events.
#[derive(Debug)]
pub(super) struct Splitter {
    held: BytesMut,
    /// Number of buffered bytes that were already searched for the end of an event.
    seen: usize,
    /// True if no byte of the current line was read yet. A line break then ends the event.
    line_is_empty: bool,
}

impl Default for Splitter {
    fn default() -> Self {
        Self {
            held: BytesMut::new(),
            seen: 0,
            line_is_empty: true,
        }
    }
}

impl Splitter {
    /// Appends a piece of the stream to the buffer.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.held.extend_from_slice(piece);
    }

    /// Takes the next complete event from the buffer, including the empty line that ends it; `None` if there is none yet.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        loop {
            let Some(at) = memchr2(b'\n', b'\r', &self.held[self.seen..]) else {
                self.line_is_empty &= self.seen == self.held.len();
                self.seen = self.held.len();
                return None;
            };
            self.line_is_empty &= at == 0;
            let end = self.seen + at;
            let mut next = end + 1;
            if self.held[end] == b'\r' {
                match self.held.get(next) {
                    Some(b'\n') => next += 1,
                    Some(_) => {}
                    // The event ends with this carriage return. A line feed that may follow in the next piece would only form
                    // another empty line.
                    None if self.line_is_empty => {}
                    None => {
                        self.seen = end;
                        return None;
                    }
                }
            }
            let ends = self.line_is_empty;
            self.line_is_empty = true;
            if ends {
                self.seen = 0;
                return Some(self.held.split_to(next).freeze());
            }
            self.seen = next;
        }
    }

    /// Returns the size of the incomplete event in the buffer, in bytes.
    pub(super) fn pending(&self) -> usize {
        self.held.len()
    }

    /// Takes the buffered bytes of an incomplete event out of the buffer.
    pub(super) fn take(&mut self) -> Bytes {
        self.seen = 0;
        self.held.split().freeze()
    }
}

/// The fields of a server-sent event that pass-through mode needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct EventFields<'a> {
    /// The `data` of the event, with its lines joined; `None` if the event has no data.
    pub(super) data: Option<Cow<'a, [u8]>>,
    /// The `id` of the event, from which a client can resume the stream.
    pub(super) id: Option<&'a [u8]>,
}

/// Byte order mark that may stand at the start of a stream and is not part of the first line (HTML, "event stream
/// interpretation").
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Reads the fields of a complete event.
pub(super) fn fields(event: &[u8]) -> EventFields<'_> {
    let mut fields = EventFields::default();
    let mut rest = event.strip_prefix(BYTE_ORDER_MARK).unwrap_or(event);
    while !rest.is_empty() {
        let end = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let (line, after) = rest.split_at(end);
        rest = after.get(1..).unwrap_or_default();
        let (name, value) = match memchr::memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &line[line.len()..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => match &mut fields.data {
                None => fields.data = Some(Cow::Borrowed(value)),
                Some(data) => {
                    let data = data.to_mut();
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
            },
            b"id" if !value.is_empty() => fields.id = Some(value),
            _ => {}
        }
    }
    fields
}

/// Returns the data of a complete event: a view into the event, or a copy if several lines are joined.
pub(super) fn data_of(event: &Bytes) -> Option<Bytes> {
    Some(match fields(event).data? {
        Cow::Borrowed(data) => event.slice_ref(data),
        Cow::Owned(data) => data.into(),
    })
}

/// Replaces the data of an event by the result of `change`. If the data stay the same, the event is returned as it is.
pub(super) fn with_data(event: Bytes, change: impl FnOnce(Bytes) -> Bytes) -> Bytes {
    let Some(before) = data_of(&event) else {
        return event;
    };
    let after = change(before.clone());
    if after == before {
        return event;
    }
    let mut changed = BytesMut::with_capacity(event.len());
    let lines = event.split(|byte| matches!(byte, b'\n' | b'\r'));
    for line in lines.filter(|line| !line.is_empty() && !is_data(line)) {
        changed.extend_from_slice(line);
        changed.extend_from_slice(b"\n");
    }
    for line in after.split(|byte| *byte == b'\n') {
        changed.extend_from_slice(b"data: ");
        changed.extend_from_slice(line);
        changed.extend_from_slice(b"\n");
    }
    changed.extend_from_slice(b"\n");
    changed.freeze()
}

fn is_data(line: &[u8]) -> bool {
    let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
    line.strip_prefix(b"data")
        .is_some_and(|rest| matches!(rest.first(), None | Some(b':')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = "id: 1\nretry: 5\ndata:\n\ndata: {\"a\":1}\r\n\r\n: ping\n\nevent: message\ndata: x\ndata: y\n\n";

    fn events(pieces: &[&[u8]]) -> (Vec<Bytes>, Bytes) {
        let mut splitter = Splitter::default();
        let mut events = Vec::new();
        for piece in pieces {
            splitter.push(piece);
            while let Some(event) = splitter.next() {
                events.push(event);
            }
        }
        (events, splitter.take())
    }

    #[test]
    fn the_data_of_an_event_are_a_part_of_it() {
        let event = Bytes::from("id: 1\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n");
        let message = data_of(&event).expect("data");
        assert_eq!(message, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        assert!(event.as_ptr_range().contains(&message.as_ptr()));
        let lines = data_of(&Bytes::from("data: [\ndata: 1]\n\n"));
        assert_eq!(lines.expect("data"), "[\n1]");
        assert_eq!(data_of(&Bytes::from(": ping\n\n")), None);
    }

    #[test]
    fn events_end_at_empty_lines() {
        let (found, rest) = events(&[STREAM.as_bytes(), b"data: half"]);
        let texts: Vec<_> = found
            .iter()
            .map(|it| std::str::from_utf8(it).expect("text"))
            .collect();
        assert_eq!(
            texts,
            [
                "id: 1\nretry: 5\ndata:\n\n",
                "data: {\"a\":1}\r\n\r\n",
                ": ping\n\n",
                "event: message\ndata: x\ndata: y\n\n",
            ]
        );
        assert_eq!(rest, "data: half");
        assert_eq!(fields(&found[0]).id, Some(&b"1"[..]));
        assert_eq!(fields(&found[1]).data.as_deref(), Some(&b"{\"a\":1}"[..]));
        assert_eq!(fields(&found[2]), EventFields::default());
        assert_eq!(fields(&found[3]).data.as_deref(), Some(&b"x\ny"[..]));
    }

    #[test]
    fn a_byte_order_mark_is_passed_on_and_hides_nothing() {
        let stream = "\u{feff}data: a\n\n";
        let (found, _) = events(&[stream.as_bytes()]);
        assert_eq!(found, [stream]);
        assert_eq!(fields(&found[0]).data.as_deref(), Some(&b"a"[..]));
    }

    #[test]
    fn lines_may_end_with_carriage_returns_alone() {
        let (found, rest) = events(&[b"data: a\r\rdata: b\r\r"]);
        assert_eq!(found, ["data: a\r\r", "data: b\r\r"]);
        assert!(rest.is_empty());
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_no_event_depends_on_where_it_was_cut(
            cuts in proptest::collection::vec(0..STREAM.len(), 0..6)
        ) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&STREAM.as_bytes()[from..cut]);
                from = cut;
            }
            pieces.push(&STREAM.as_bytes()[from..]);
            let (found, rest) = events(&pieces);
            prop_assert!(rest.is_empty());
            prop_assert_eq!(found.concat(), STREAM.as_bytes());
            let data = |events: &[Bytes]| -> Vec<Vec<u8>> {
                let data = events.iter().filter_map(|it| fields(it).data.map(Cow::into_owned));
                data.collect()
            };
            let (whole, _) = events(&[STREAM.as_bytes()]);
            prop_assert_eq!(data(&found), data(&whole));
        }
    }

    #[test]
    fn an_event_gets_other_data_and_keeps_its_other_lines() {
        let with = |event: &'static str| {
            let event = with_data(Bytes::from_static(event.as_bytes()), |data| {
                let text = String::from_utf8(data.to_vec()).expect("was text");
                text.replace("secret", "[redacted]").into()
            });
            String::from_utf8(event.to_vec()).expect("was text")
        };
        for (event, changed) in [
            (": comment\r\n\r\n", ": comment\r\n\r\n"),
            ("data: plain\r\n\r\n", "data: plain\r\n\r\n"),
            (
                "id: 7\r\ndata: a secret\r\n\r\n",
                "id: 7\ndata: a [redacted]\n\n",
            ),
            (
                "data:secret\nevent: message\ndata: b\n\n",
                "event: message\ndata: [redacted]\ndata: b\n\n",
            ),
        ] {
            assert_eq!(with(event), changed);
        }
    }
}
