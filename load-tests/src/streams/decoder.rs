//! Decodes events from the bytes of a chunked HTTP/1.1 body, however they are split.
//!
//! The decoder keeps only an unfinished line and event, so that tens of thousands of idle streams cost this program
//! little.

use std::time::Duration;

use anyhow::{bail, ensure};

/// Maximum length of a line in bytes, far above that of any event of a scenario.
const LINE_MAX: usize = 1024 * 1024;
/// Maximum number of hexadecimal digits of a chunk size.
const DIGITS_MAX: u32 = 8;

/// A server-sent event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// The id for `Last-Event-ID`, if the event has one.
    pub(crate) id: Option<String>,
    /// The data; empty for the first event of a stream, which only has an id.
    pub(crate) data: Vec<u8>,
    /// The time to wait before reconnecting, if the server states it.
    pub(crate) retry: Option<Duration>,
}

/// State of decoding a body.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    at: At,
    line: Vec<u8>,
    event: Event,
}

/// Position in the chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Inside a chunk size: its value so far, and the number of its digits.
    Size(usize, u32),
    /// Inside the data of a chunk: the number of bytes left.
    Data(usize),
    /// Inside the line end after the data.
    AfterData,
    /// The last chunk has been read.
    End,
}

impl Default for At {
    fn default() -> Self {
        Self::Size(0, 0)
    }
}

impl Decoder {
    /// Decodes the bytes that were read, and calls `take` with each event that is complete.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(Event),
    ) -> anyhow::Result<()> {
        while let Some((&first, rest)) = bytes.split_first() {
            match self.at {
                At::Data(left) => {
                    let (data, after) = bytes.split_at(left.min(bytes.len()));
                    self.data(data, &mut take)?;
                    bytes = after;
                    self.at = match left - data.len() {
                        0 => At::AfterData,
                        more => At::Data(more),
                    };
                    continue;
                }
                At::Size(size, digits) => match char::from(first).to_digit(16) {
                    Some(digit) if digits < DIGITS_MAX => {
                        self.at = At::Size(size * 16 + digit as usize, digits + 1);
                    }
                    None if first == b'\r' && digits > 0 => {}
                    None if first == b'\n' && digits > 0 => {
                        self.at = if size > 0 { At::Data(size) } else { At::End };
                    }
                    _ => bail!("not the size of a chunk: {first:#04x}"),
                },
                At::AfterData => match first {
                    b'\r' => {}
                    b'\n' => self.at = At::Size(0, 0),
                    _ => bail!("a chunk that is longer than it says"),
                },
                // The line end after the last chunk; trailers are not expected.
                At::End => {}
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Returns true if the body has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.at == At::End
    }

    fn data(&mut self, mut data: &[u8], take: &mut impl FnMut(Event)) -> anyhow::Result<()> {
        while let Some(end) = data.iter().position(|byte| *byte == b'\n') {
            if self.line.is_empty() {
                self.field(&data[..end], take);
            } else {
                self.line.extend_from_slice(&data[..end]);
                let line = std::mem::take(&mut self.line);
                self.field(&line, take);
            }
            data = &data[end + 1..];
        }
        self.line.extend_from_slice(data);
        ensure!(
            self.line.len() <= LINE_MAX,
            "a line of an event without end"
        );
        Ok(())
    }

    /// Handles one line; an empty one ends the event. Comments and unknown fields are ignored.
    fn field(&mut self, line: &[u8], take: &mut impl FnMut(Event)) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            if event != Event::default() {
                take(event);
            }
        } else if let Some(id) = line.strip_prefix(b"id: ") {
            self.event.id = Some(String::from_utf8_lossy(id).into_owned());
        } else if let Some(data) = line.strip_prefix(b"data: ") {
            self.event.data.extend_from_slice(data);
        } else if let Some(retry) = line.strip_prefix(b"retry: ") {
            let millis = std::str::from_utf8(retry)
                .ok()
                .and_then(|it| it.parse().ok());
            self.event.retry = millis.map(Duration::from_millis);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"24\r\nid: 1-7\nretry: 1000\ndata: \n\n: ping\n\n\r\n\
          2b\r\nid: 1-9\nevent: message\ndata: {\"a\":1}\n\nid: 1\r\n\
          c\r\n-10\ndata: x\n\r\n1\r\n\n\r\n0\r\n\r\n";

    fn events(parts: &[&[u8]]) -> Vec<(String, String)> {
        let mut decoder = Decoder::default();
        let mut events = Vec::new();
        for part in parts {
            let take = |event: Event| {
                let data = String::from_utf8(event.data).unwrap();
                events.push((event.id.unwrap_or_default(), data));
            };
            decoder.feed(part, take).unwrap();
        }
        assert!(decoder.is_over());
        events
    }

    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        let expected = [("1-7", ""), ("1-9", "{\"a\":1}"), ("1-10", "x")]
            .map(|(id, data)| (id.to_owned(), data.to_owned()));
        assert_eq!(events(&[BODY]), expected);
        for cut in 0..BODY.len() {
            assert_eq!(events(&[&BODY[..cut], &BODY[cut..]]), expected, "{cut}");
        }
        let single: Vec<&[u8]> = BODY.chunks(1).collect();
        assert_eq!(events(&single), expected);
    }

    #[test]
    fn the_time_to_come_back_is_read() {
        let mut told = Vec::new();
        let take = |event: Event| told.push(event.retry);
        Decoder::default()
            .feed(b"d\r\nretry: 1250\n\n\r\n", take)
            .unwrap();
        assert_eq!(told, [Some(Duration::from_millis(1250))]);
    }

    #[test]
    fn an_event_that_is_cut_off_is_none() {
        let mut decoder = Decoder::default();
        let mut events = 0;
        let cut = BODY.len() - 8;
        decoder.feed(&BODY[..cut], |_| events += 1).unwrap();
        assert_eq!((events, decoder.is_over()), (2, false));
    }

    #[test]
    fn what_is_no_chunk_is_an_error() {
        for body in ["x", "\r\n", "fffffffff\r\n", "1\r\nab", "1;a=b\r\n"] {
            let fed = Decoder::default().feed(body.as_bytes(), |_| {});
            assert!(fed.is_err(), "{body:?}");
        }
    }
}
