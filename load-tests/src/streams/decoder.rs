//! Events out of the bytes of an HTTP/1.1 body in chunks, however they were cut.
//!
//! It keeps an unfinished line and nothing else, so that tens of thousands of idle streams cost this program little.

use std::time::Duration;

use anyhow::{bail, ensure};

/// No event of a scenario comes near.
const LINE_MAX: usize = 1024 * 1024;
/// Hexadecimal digits of a chunk's size.
const DIGITS_MAX: u32 = 8;

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// What to name when coming back, if it has one.
    pub(crate) id: Option<String>,
    /// Empty for the event that a stream begins with, which only has an id.
    pub(crate) data: Vec<u8>,
    /// How long to wait before coming back, where the server says so.
    pub(crate) retry: Option<Duration>,
}

/// What of a body has been read so far.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    at: At,
    line: Vec<u8>,
    event: Event,
}

/// Where in the chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// In a size: its value so far, and how many digits.
    Size(usize, u32),
    /// In data that goes on for so long.
    Data(usize),
    /// In the line's end after data.
    AfterData,
    /// After the last chunk.
    End,
}

impl Default for At {
    fn default() -> Self {
        Self::Size(0, 0)
    }
}

impl Decoder {
    /// Takes what has been read and hands out each event that is complete with it.
    ///
    /// # Errors
    ///
    /// When the bytes are no chunks, or a line does not end.
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
                // The end of trailers there are none of.
                At::End => {}
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Whether the server has said that this was all.
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

    /// One line, or the empty one that ends an event. Comments and fields without a use here are passed over.
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
