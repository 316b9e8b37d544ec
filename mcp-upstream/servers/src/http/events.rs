//! Reader of server-sent events: splits the chunks of a body into complete events, within bounds.
//!
//! Every line end that the format allows is accepted, also if a chunk ends between `\r` and `\n`. Comments and unknown fields
//! are skipped. An event that is too long is read to its end, chunk by chunk, and only its size is kept.

use bytes::{Buf as _, Bytes, BytesMut};

use super::port::{BodyError, ResponseBody};

/// Factor by which an unfinished event may exceed the maximum size before it is aborted; at least `ENDLESS_MIN` bytes are
/// allowed.
const ENDLESS: u64 = 4;
/// Minimum size in bytes at which an unfinished event is aborted.
const ENDLESS_MIN: u64 = 1024 * 1024;
/// Maximum size of an event's id, in bytes. It is limited because the id is stored, and sent back to resume the stream.
const ID_MAX: usize = 4096;

/// A server-sent event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SseEvent {
    /// The event's name (`event:`); most events have none.
    pub(super) name: Option<String>,
    /// The event's id (`id:`), after which the stream can be resumed.
    pub(super) id: Option<String>,
    /// Milliseconds to wait before reconnecting (`retry:`).
    pub(super) retry: Option<u64>,
    /// The data lines, joined by line feeds.
    pub(super) data: Data,
}

/// The data of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Data {
    Whole(Bytes),
    /// The data were too long and were dropped. Contains their size in bytes.
    TooLong(u64),
}

impl Default for Data {
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

/// Reason why the stream of events ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventsEnd {
    /// The stream ended between two events.
    Complete,
    /// The stream was cut, ended within an event, or took too long.
    Cut,
    /// An unfinished event exceeded the size at which it is aborted.
    Endless,
    /// The stream is compressed and cannot be decoded.
    Undecodable(BodyError),
}

/// Reader of the events in a body.
pub(super) struct EventReader {
    body: Box<dyn ResponseBody>,
    fits: Box<dyn Fn(usize) -> bool + Send>,
    lines: EventLines,
    event: PartialEvent,
    ended: Option<EventsEnd>,
}

/// The event that is being read.
#[derive(Default)]
struct PartialEvent {
    event: SseEvent,
    data: Option<BytesMut>,
    /// Total size of the event's data in bytes, including dropped data.
    size: u64,
    too_long: bool,
    /// True if a line was read since the last blank line; false between two events.
    begun: bool,
}

/// The received bytes, from which complete lines are taken.
#[derive(Default)]
struct EventLines {
    buffer: BytesMut,
    /// Number of bytes at the beginning of the buffer that are known to contain no line end.
    scanned: usize,
    /// True if the last line ended with `\r`, so that a following `\n` belongs to it.
    after_return: bool,
    begun: bool,
}

impl EventLines {
    /// Returns the next complete line.
    fn next(&mut self) -> Option<Bytes> {
        if self.after_return && !self.buffer.is_empty() {
            self.after_return = false;
            if self.buffer[0] == b'\n' {
                self.buffer.advance(1);
            }
        }
        if !self.begun && self.buffer.len() >= 3 {
            self.begun = true;
            if self.buffer.starts_with(b"\xef\xbb\xbf") {
                self.buffer.advance(3);
                self.scanned = 0;
            }
        }
        let rest = &self.buffer[self.scanned..];
        let Some(at) = memchr::memchr2(b'\n', b'\r', rest) else {
            self.scanned = self.buffer.len();
            return None;
        };
        let at = self.scanned + at;
        self.scanned = 0;
        self.begun = true;
        self.after_return = self.buffer[at] == b'\r';
        let line = self.buffer.split_to(at).freeze();
        self.buffer.advance(1);
        Some(line)
    }
}

impl EventReader {
    /// Creates a reader of the events in `body`. `fits` returns true if the data of an event may have this size.
    pub(super) fn new(
        body: Box<dyn ResponseBody>,
        fits: impl Fn(usize) -> bool + Send + 'static,
    ) -> Self {
        Self {
            body,
            fits: Box::new(fits),
            lines: EventLines::default(),
            event: PartialEvent::default(),
            ended: None,
        }
    }

    /// Returns the next event with content.
    ///
    /// # Errors
    ///
    /// [`EventsEnd`] at the end of the stream. A last event that is not followed by a blank line is dropped.
    pub(super) async fn next(&mut self) -> Result<SseEvent, EventsEnd> {
        loop {
            while let Some(line) = self.lines.next() {
                if let Some(event) = self.line(line) {
                    return Ok(event);
                }
            }
            if let Some(end) = self.ended {
                return Err(end);
            }
            if self.is_endless() {
                self.ended = Some(EventsEnd::Endless);
                continue;
            }
            self.skip_long_line();
            match self.body.chunk().await {
                Ok(Some(piece)) => self.lines.buffer.extend_from_slice(&piece),
                Ok(None) if !self.is_within_event() => self.ended = Some(EventsEnd::Complete),
                Err(error @ (BodyError::Coding(_) | BodyError::UnknownCoding(_))) => {
                    self.ended = Some(EventsEnd::Undecodable(error))
                }
                Ok(None) | Err(BodyError::Cut | BodyError::Timeout(_)) => {
                    self.ended = Some(EventsEnd::Cut);
                }
            }
        }
    }

    fn is_within_event(&self) -> bool {
        self.event.begun || !self.lines.buffer.is_empty()
    }

    fn is_endless(&self) -> bool {
        let waiting = self.lines.buffer.len() as u64;
        let size = self.event.size.saturating_add(waiting);
        let fits = |size| usize::try_from(size).is_ok_and(&self.fits);
        size > ENDLESS_MIN && !fits(size / ENDLESS)
    }

    /// Drops the beginning of a line that is too long, and with it the data of its event.
    fn skip_long_line(&mut self) {
        let waiting = self.lines.buffer.len();
        if !(self.fits)(waiting) {
            self.event.begun = true;
            self.event.too_long = true;
            self.event.size += waiting as u64;
            self.event.data = None;
            // The colon turns the remainder of the line into a comment, which is skipped.
            self.lines.buffer = BytesMut::from(&b":"[..]);
            self.lines.scanned = 0;
        }
    }

    /// Processes a line; a blank line ends the event.
    fn line(&mut self, line: Bytes) -> Option<SseEvent> {
        if line.is_empty() {
            let built = std::mem::take(&mut self.event);
            return built.begun.then(|| built.finish());
        }
        let colon = memchr::memchr(b':', &line).unwrap_or(line.len());
        if colon == 0 {
            return None;
        }
        self.event.begun = true;
        let value = line.slice(line.len().min(colon + 1)..);
        let value = match value.first() {
            Some(b' ') => value.slice(1..),
            _ => value,
        };
        let text = || std::str::from_utf8(&value).ok().map(ToOwned::to_owned);
        match &line[..colon] {
            b"data" => self.data(&value),
            b"event" => self.event.event.name = text().filter(|it| it.len() <= ID_MAX),
            b"id" if value.len() <= ID_MAX && !value.contains(&0) => self.event.event.id = text(),
            b"retry" => self.event.event.retry = text().and_then(|it| it.parse().ok()),
            _ => {}
        }
        None
    }

    fn data(&mut self, value: &Bytes) {
        let event = &mut self.event;
        let is_first = event.size == 0;
        event.size += value.len() as u64 + 1;
        if event.too_long || !(self.fits)(usize::try_from(event.size).unwrap_or(usize::MAX)) {
            event.too_long = true;
            event.data = None;
            return;
        }
        match &mut event.data {
            Some(data) => {
                data.extend_from_slice(b"\n");
                data.extend_from_slice(value);
            }
            // Shortcut: nearly every event has a single line of data, which is not copied.
            None if is_first => {
                event.event.data = Data::Whole(value.clone());
            }
            None => {
                let Data::Whole(first) = std::mem::take(&mut event.event.data) else {
                    return;
                };
                let mut data = BytesMut::from(&first[..]);
                data.extend_from_slice(b"\n");
                data.extend_from_slice(value);
                event.data = Some(data);
            }
        }
    }
}

impl PartialEvent {
    fn finish(mut self) -> SseEvent {
        if self.too_long {
            self.event.data = Data::TooLong(self.size);
        } else if let Some(data) = self.data {
            self.event.data = Data::Whole(data.freeze());
        }
        self.event
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use async_trait::async_trait;
    use proptest::prelude::*;
    use tokio::runtime::Builder;

    use super::*;

    struct Pieces(VecDeque<Result<Bytes, BodyError>>);

    #[async_trait]
    impl ResponseBody for Pieces {
        async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
            self.0.pop_front().transpose()
        }
    }

    fn read(pieces: Vec<Result<Bytes, BodyError>>, max: usize) -> (Vec<SseEvent>, EventsEnd) {
        let body = Box::new(Pieces(pieces.into()));
        let mut events = EventReader::new(body, move |size| size <= max);
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut all = Vec::new();
            loop {
                match events.next().await {
                    Ok(event) => all.push(event),
                    Err(end) => return (all, end),
                }
            }
        })
    }

    fn in_pieces(text: &[u8], size: usize) -> Vec<Result<Bytes, BodyError>> {
        let pieces = text.chunks(size.max(1));
        pieces.map(|it| Ok(Bytes::copy_from_slice(it))).collect()
    }

    fn data(text: &str) -> Data {
        Data::Whole(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn events_come_out_whole_whatever_ends_their_lines_and_however_their_bytes_come() {
        let texts: [&[u8]; 3] = [
            b"\xef\xbb\xbf: hi\n\nid: 7\nretry: 250\nevent: message\ndata: {\"a\":1}\n\ndata:x\ndata\ndata:  y\n\n",
            b": hi\r\n\r\nid: 7\r\nretry: 250\r\nevent: message\r\ndata: {\"a\":1}\r\n\r\ndata:x\r\ndata\r\ndata:  y\r\n\r\n",
            b": hi\r\rid: 7\rretry: 250\revent: message\rdata: {\"a\":1}\r\rdata:x\rdata\rdata:  y\r\r",
        ];
        for text in texts {
            for size in 1..=text.len() {
                let (events, end) = read(in_pieces(text, size), 100);
                let first = SseEvent {
                    name: Some("message".into()),
                    id: Some("7".into()),
                    retry: Some(250),
                    data: data("{\"a\":1}"),
                };
                let second = SseEvent {
                    data: data("x\n\n y"),
                    ..SseEvent::default()
                };
                assert_eq!((events, end), (vec![first, second], EventsEnd::Complete));
            }
        }
    }

    #[test]
    fn a_first_line_of_data_that_is_empty_counts() {
        let (events, _) = read(in_pieces(b"data\ndata: x\n\n", 3), 100);
        assert_eq!(events[0].data, data("\nx"));
    }

    #[test]
    fn a_byte_order_mark_is_skipped_at_the_beginning_alone_however_the_bytes_come() {
        let text = b"\n\xef\xbb\xbfdata: x\n\n";
        for size in 1..=text.len() {
            let (events, _) = read(in_pieces(text, size), 100);
            assert_eq!(events, [SseEvent::default()], "in pieces of {size}");
        }
    }

    #[test]
    fn an_event_without_its_blank_line_never_comes_out() {
        for text in ["data: {}\n", "data: {}", "id: 1\n"] {
            assert_eq!(
                read(in_pieces(text.as_bytes(), 3), 100),
                (vec![], EventsEnd::Cut)
            );
        }
        let cut = vec![Ok(Bytes::from_static(b"data: 1\n\n")), Err(BodyError::Cut)];
        let (events, end) = read(cut, 100);
        assert_eq!((events.len(), end), (1, EventsEnd::Cut));
    }

    #[test]
    fn an_event_that_is_too_long_is_skipped_and_the_next_one_is_read() {
        let long = "x".repeat(5000);
        for event in [
            format!("data: {long}\n"),
            format!("data: a\ndata: {long}\ndata: b\n"),
            "data: 1234567890\n".repeat(100),
        ] {
            let text = format!("id: 3\n{event}\ndata: ok\n\n");
            for size in [1, 7, 1000, 100_000] {
                let (events, end) = read(in_pieces(text.as_bytes(), size), 300);
                assert_eq!(end, EventsEnd::Complete);
                let Data::TooLong(bytes) = events[0].data else {
                    panic!("{events:?}");
                };
                assert!(bytes >= 1000, "{bytes}");
                assert_eq!((events.len(), &events[1].data), (2, &data("ok")));
            }
        }
    }

    #[test]
    fn an_event_without_an_end_ends_the_reading_without_being_gathered() {
        let piece = Bytes::from(vec![b'x'; 512 * 1024]);
        let body = || Ok(piece.clone());
        let (events, end) = read(vec![body(), body(), body()], 1000);
        assert_eq!((events, end), (vec![], EventsEnd::Endless));
        // If it may be as long, it is just not over yet.
        let (events, end) = read(vec![body(), body(), body()], 512 * 1024);
        assert_eq!((events, end), (vec![], EventsEnd::Cut));
    }

    proptest! {
        #[test]
        fn any_bytes_at_all_come_to_an_end(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            size in 1_usize..20,
        ) {
            let (_, end) = read(in_pieces(&bytes, size), 50);
            prop_assert!(matches!(end, EventsEnd::Complete | EventsEnd::Cut));
        }
    }
}
