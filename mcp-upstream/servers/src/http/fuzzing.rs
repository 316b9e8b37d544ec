//! Fuzzing of the reader of server-sent events. Compiled only for `make fuzz` and for tests.

use std::collections::VecDeque;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;

use super::events::{Data, EventReader, EventsEnd, SseEvent};
use super::port::{BodyError, ResponseBody};

/// Response body whose pieces have all arrived.
struct Pieces(VecDeque<Bytes>);

#[async_trait]
impl ResponseBody for Pieces {
    async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        Ok(self.0.pop_front())
    }
}

/// Reads a stream at once and in pieces, and compares the events. The first byte is the length of a piece.
pub fn server_events(input: &[u8]) {
    let Some((&length, stream)) = input.split_first() else {
        return;
    };
    let whole = events(stream, stream.len().max(1), usize::MAX);
    let pieces = events(stream, usize::from(length).max(1), usize::MAX);
    assert_eq!(whole, pieces, "a stream is read by where it is cut");
    assert_eq!(whole.0, expected(stream), "events differ from the format's");
    let (bounded, end) = events(stream, usize::from(length).max(1), 64);
    assert_ne!(end, EventsEnd::Endless, "no stream here is that long");
    for event in bounded {
        if let Data::Whole(data) = event.data {
            assert!(data.len() <= 64, "data above the bound");
        }
    }
}

fn events(stream: &[u8], piece: usize, max: usize) -> (Vec<SseEvent>, EventsEnd) {
    let pieces = stream.chunks(piece).map(Bytes::copy_from_slice).collect();
    let mut reader = EventReader::new(Box::new(Pieces(pieces)), move |size| size <= max);
    let mut found = Vec::new();
    loop {
        match reader.next().now_or_never().expect("all pieces are there") {
            Ok(event) => found.push(event),
            Err(end) => return (found, end),
        }
    }
}

/// Reads a stream by the rules of the HTML standard, with the gateway's bounds on names and ids.
fn expected(stream: &[u8]) -> Vec<SseEvent> {
    const LENGTH_MAX: usize = 4096;
    let mut rest = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let (mut found, mut event, mut data, mut begun) =
        (Vec::new(), SseEvent::default(), None::<Vec<u8>>, false);
    while let Some(end) = rest.iter().position(|byte| b"\r\n".contains(byte)) {
        let (line, after) = rest.split_at(end);
        rest = after.strip_prefix(b"\r\n").unwrap_or(&after[1..]);
        if line.is_empty() {
            event.data = Data::Whole(data.take().unwrap_or_default().into());
            let event = std::mem::take(&mut event);
            if std::mem::take(&mut begun) {
                found.push(event);
            }
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        if name.is_empty() {
            continue;
        }
        begun = true;
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let text = String::from_utf8(value.to_vec()).ok();
        match name {
            b"data" => match &mut data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend(value);
                }
                None => data = Some(value.to_vec()),
            },
            b"event" => event.name = text.filter(|it| it.len() <= LENGTH_MAX),
            b"id" if value.len() <= LENGTH_MAX && !value.contains(&0) => event.id = text,
            b"retry" => event.retry = text.and_then(|it| it.parse().ok()),
            _ => {}
        }
    }
    found
}
