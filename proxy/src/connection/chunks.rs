//! Checks the framing of a chunked request body. Pingora's parser accepts a bare line feed in chunk extensions; this check does
//! not.
//!
//! A proxy in front of the gateway may see the end of a line where Pingora sees none, and so another request (request smuggling,
//! RFC 9112 §2.2). So a body is only accepted if every line of its framing ends in CR LF.

use std::io;

/// Maximum number of hexadecimal digits of a chunk size; larger numbers are refused.
const SIZE_DIGITS_MAX: u8 = 15;

/// Parser of the framing of a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Chunks {
    place: ChunkState,
    /// True if the last byte of the current line was a carriage return.
    returned: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    /// The parser is in the line with a chunk's size. `ended` is true after the digits.
    Size { bytes: u64, digits: u8, ended: bool },
    /// The parser is in the data of a chunk, with the number of bytes that remain.
    Data(u64),
    /// The parser is in the line end that follows the data of a chunk.
    AfterData,
    /// The parser is in the trailer fields after the last chunk.
    Trailer { empty: bool },
    /// The parser is after the end of the body.
    Over,
}

impl Default for ChunkState {
    fn default() -> Self {
        Self::Size {
            bytes: 0,
            digits: 0,
            ended: false,
        }
    }
}

impl Chunks {
    /// Parses the next bytes that the connection received. Bytes after the body are ignored.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the framing violates RFC 9112 §7.1.
    pub(crate) fn follow(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.place {
                ChunkState::Over => return Ok(()),
                ChunkState::Data(left) => {
                    let here = left.min(bytes.len() as u64);
                    // The cast loses nothing: `here` is at most the length of a slice.
                    bytes = &bytes[here as usize..];
                    self.place = match left - here {
                        0 => ChunkState::AfterData,
                        left => ChunkState::Data(left),
                    };
                }
                _ => {
                    bytes = rest;
                    self.of_a_line(byte)?;
                }
            }
        }
        Ok(())
    }

    /// Parses a byte of a line of the framing, outside the data of chunks.
    fn of_a_line(&mut self, byte: u8) -> io::Result<()> {
        match (byte, self.returned) {
            (b'\n', true) => {
                self.returned = false;
                self.line_ended()
            }
            (b'\n', false) => Err(broken("a line of a chunked body ends in a bare line feed")),
            (_, true) => Err(broken("a carriage return stands alone in a chunked body")),
            (b'\r', false) => {
                self.returned = true;
                Ok(())
            }
            (byte, false) => self.within_a_line(byte),
        }
    }

    fn within_a_line(&mut self, byte: u8) -> io::Result<()> {
        match &mut self.place {
            ChunkState::Size {
                bytes,
                digits,
                ended: ended @ false,
            } => match char::from(byte).to_digit(16) {
                Some(digit) if *digits < SIZE_DIGITS_MAX => {
                    *bytes = *bytes * 16 + u64::from(digit);
                    *digits += 1;
                    Ok(())
                }
                None if *digits > 0 && matches!(byte, b';' | b' ' | b'\t') => {
                    *ended = true;
                    Ok(())
                }
                _ => Err(broken("a chunk without a size")),
            },
            ChunkState::Size { .. } => Ok(()),
            ChunkState::Trailer { empty } => {
                *empty = false;
                Ok(())
            }
            ChunkState::AfterData | ChunkState::Data(_) | ChunkState::Over => {
                Err(broken("a chunk is longer than its size"))
            }
        }
    }

    fn line_ended(&mut self) -> io::Result<()> {
        self.place = match self.place {
            ChunkState::Size { digits: 0, .. } => return Err(broken("a chunk without a size")),
            ChunkState::Size { bytes: 0, .. } => ChunkState::Trailer { empty: true },
            ChunkState::Size { bytes, .. } => ChunkState::Data(bytes),
            ChunkState::Trailer { empty: false } => ChunkState::Trailer { empty: true },
            ChunkState::Trailer { empty: true } | ChunkState::Over => ChunkState::Over,
            ChunkState::AfterData | ChunkState::Data(_) => ChunkState::default(),
        };
        Ok(())
    }
}

fn broken(how: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, how)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows a body in one piece and byte by byte, which has to come to the same.
    fn followed(body: &str) -> Result<bool, String> {
        let mut whole = Chunks::default();
        let at_once = whole.follow(body.as_bytes());
        let mut pieces = Chunks::default();
        let mut bytes = body.as_bytes().chunks(1);
        let one_by_one = bytes.try_for_each(|byte| pieces.follow(byte));
        assert_eq!(at_once.is_ok(), one_by_one.is_ok(), "{body:?}");
        at_once.map_err(|error| error.to_string())?;
        assert_eq!(whole, pieces, "{body:?}");
        Ok(whole.place == ChunkState::Over)
    }

    #[test]
    fn well_framed_bodies_are_followed_to_their_end() {
        for body in [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "5;name=\"a b\"\r\nhello\r\nA \r\n\n\n\n\n\n\n\n\n\n\n\r\n0\r\nTrailer: x\r\n\r\n",
            "0\r\n\r\nGET /next HTTP/1.1\n\n",
        ] {
            assert_eq!(followed(body), Ok(true), "{body:?}");
        }
        for unfinished in ["", "5", "5\r\nhel", "5\r\nhello", "0\r\n", "0\r\nA: b\r\n"] {
            assert_eq!(followed(unfinished), Ok(false), "{unfinished:?}");
        }
    }

    #[test]
    fn a_bare_line_feed_or_carriage_return_in_the_framing_is_refused() {
        for body in [
            "5\nhello\r\n0\r\n\r\n",
            "5;a\nb\r\nhello\r\n0\r\n\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "5\r\nhello\r\n0\n\r\n",
            "0\r\nTrailer: x\n\r\n",
            "0\r\n\n",
            "5;a\rb\r\nhello\r\n",
        ] {
            assert!(followed(body).is_err(), "{body:?}");
        }
    }

    #[test]
    fn a_size_that_is_none_and_a_chunk_beside_its_size_are_refused() {
        for body in [
            "\r\n",
            ";a\r\n",
            "zz\r\n",
            "+5\r\n",
            "0x5\r\n",
            "1000000000000000\r\n",
            "2\r\nabc\r\n",
        ] {
            assert!(followed(body).is_err(), "{body:?}");
        }
    }
}
