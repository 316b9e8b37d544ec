//! Reads the tokens of JSON text. Invalid and too deeply nested texts are refused.

use super::block::{STEP, STRIDE, WORD, first_special, plain, specials};

/// Number of words in which the end of a string is searched before whole blocks are. Most keys and short values end there.
const SHORT: usize = 2;

/// Maximum nesting depth of a text, as the number of open brackets.
pub const DEPTH_MAX: usize = 128;

/// Returns true if a text is exactly one JSON value, nested no deeper than [`DEPTH_MAX`]. It is not checked that the text is
/// UTF-8. `key` is called with each key of each object, with its quotes. If the text is invalid, some keys may be missing.
pub fn is_value(text: &[u8], mut key: impl FnMut(&[u8])) -> bool {
    let mut scan = Scan { bytes: text, at: 0 };
    scan.value_with(0, &mut key).is_ok() && scan.peek().is_none()
}

/// The text was refused: it is not JSON, is nested deeper than [`DEPTH_MAX`], or is not the requested kind of value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidJson;

/// A text, and the position up to which it has been read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scan<'a> {
    bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Scan<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            bytes: text.as_bytes(),
            at: 0,
        }
    }

    /// Skips white space, and returns the next byte without reading it.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other.copied(),
            }
        }
    }

    /// Skips white space, and reads the next byte.
    #[inline]
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek();
        self.at += 1;
        byte
    }

    /// Skips white space, and reads the next byte. An error if it is not `byte`.
    #[inline]
    pub(super) fn expect(&mut self, byte: u8) -> Result<(), InvalidJson> {
        (self.next() == Some(byte)).then_some(()).ok_or(InvalidJson)
    }

    /// Reads the key of a member and the colon after it. Returns the range of the key with its quotes.
    #[inline]
    pub(super) fn key(&mut self) -> Result<(usize, usize), InvalidJson> {
        self.expect(b'"')?;
        let begin = self.at - 1;
        self.string()?;
        let end = self.at;
        self.expect(b':')?;
        Ok((begin, end))
    }

    /// Reads a value. `below` is the number of brackets that are open before it.
    #[inline]
    pub(super) fn value(&mut self, below: usize) -> Result<(), InvalidJson> {
        self.value_with(below, &mut |_| {})
    }

    /// Reads a value as [`Self::value`] does, and calls `key` with each key in it, with its quotes.
    #[inline]
    fn value_with(&mut self, below: usize, key: &mut impl FnMut(&[u8])) -> Result<(), InvalidJson> {
        let mut read_key = |scan: &mut Self| {
            let (begin, end) = scan.key()?;
            key(&scan.bytes[begin..end]);
            Ok(())
        };
        // Each open bracket has a bit, which is set if the bracket begins an object. The lowest bit belongs to the innermost
        // bracket.
        let mut objects = 0_u128;
        let mut open = 0;
        loop {
            match self.next().ok_or(InvalidJson)? {
                b'"' => self.string()?,
                bracket @ (b'{' | b'[') => {
                    if below + open >= DEPTH_MAX {
                        return Err(InvalidJson);
                    }
                    let is_object = bracket == b'{';
                    // Compares with the closing bracket: in ASCII its code is that of the opening bracket plus two.
                    if self.peek() == Some(bracket + 2) {
                        self.at += 1;
                    } else {
                        objects = objects << 1 | u128::from(is_object);
                        open += 1;
                        if is_object {
                            read_key(self)?;
                        }
                        continue;
                    }
                }
                b'-' => {
                    let digit = self.bytes.get(self.at).ok_or(InvalidJson)?;
                    self.at += 1;
                    self.number(*digit)?;
                }
                digit @ b'0'..=b'9' => self.number(digit)?,
                b't' => self.rest(b"rue")?,
                b'f' => self.rest(b"alse")?,
                b'n' => self.rest(b"ull")?,
                _ => return Err(InvalidJson),
            }
            // Reads the closing brackets after the value. After a comma (and, in an object, the key that follows), the outer loop
            // reads the next value.
            loop {
                if open == 0 {
                    return Ok(());
                }
                let in_object = objects & 1 == 1;
                match self.next() {
                    Some(b',') => {
                        if in_object {
                            read_key(self)?;
                        }
                        break;
                    }
                    Some(b'}') if in_object => {}
                    Some(b']') if !in_object => {}
                    _ => return Err(InvalidJson),
                }
                objects >>= 1;
                open -= 1;
            }
        }
    }

    /// Reads a string whose first quote has been read.
    #[inline]
    fn string(&mut self) -> Result<(), InvalidJson> {
        let mut at = self.at;
        for _ in 0..SHORT {
            let Some(word) = self
                .bytes
                .get(at..)
                .and_then(|rest| rest.first_chunk::<WORD>())
            else {
                break;
            };
            match first_special(*word).map(|place| at + place) {
                Some(place) if self.bytes.get(place) == Some(&b'"') => {
                    self.at = place + 1;
                    return Ok(());
                }
                Some(_) => break,
                None => at += WORD,
            }
        }
        let mut plain_steps = 0;
        loop {
            let rest = self.bytes.get(at..).ok_or(InvalidJson)?;
            let mut marks = match rest.first_chunk() {
                Some(block) => specials(block),
                None => {
                    // The last block of the text is padded with quotes. A quote found in the padding is an error.
                    let mut block = [b'"'; STEP];
                    block[..rest.len()].copy_from_slice(rest);
                    specials(&block)
                }
            };
            if marks == 0 {
                at += STEP;
                plain_steps += 1;
                // After `STRIDE` bytes without a special byte, the string is probably long, such as a text without line ends. A
                // larger step is then faster.
                if plain_steps * STEP >= STRIDE {
                    at += plain(self.bytes.get(at..).unwrap_or_default());
                }
                continue;
            }
            plain_steps = 0;
            let begin = at;
            at += STEP;
            // The loop handles all special bytes of the block, because several escapes may be close together.
            while marks != 0 {
                let place = begin + marks.trailing_zeros() as usize;
                match self.bytes.get(place) {
                    Some(b'"') => {
                        self.at = place + 1;
                        return Ok(());
                    }
                    Some(b'\\') => {}
                    _ => return Err(InvalidJson),
                }
                let after = escape_end(self.bytes, place + 1)?;
                if after >= at {
                    at = after;
                    break;
                }
                // Marks up to the end of the escape are removed, because an escaped quote does not end the string.
                marks &= u32::MAX << (after - begin);
            }
        }
    }

    fn rest(&mut self, rest: &[u8]) -> Result<(), InvalidJson> {
        let found = self.bytes.get(self.at..self.at + rest.len());
        self.at += rest.len();
        (found == Some(rest)).then_some(()).ok_or(InvalidJson)
    }

    /// Reads a number whose first byte, `first`, has been read.
    #[inline]
    fn number(&mut self, first: u8) -> Result<(), InvalidJson> {
        match first {
            // No digit may follow a zero. It is refused later, as any other byte after a value.
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            _ => return Err(InvalidJson),
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.bytes.get(self.at) {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Ok(())
    }

    fn some_digits(&mut self) -> Result<(), InvalidJson> {
        if !self.is_digit() {
            return Err(InvalidJson);
        }
        self.digits();
        Ok(())
    }

    fn digits(&mut self) {
        while self.is_digit() {
            self.at += 1;
        }
    }

    fn is_digit(&self) -> bool {
        self.bytes.get(self.at).is_some_and(u8::is_ascii_digit)
    }
}

/// Returns the position after an escape whose backslash is just before `at`.
#[inline(always)]
fn escape_end(bytes: &[u8], at: usize) -> Result<usize, InvalidJson> {
    match bytes.get(at) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 1),
        Some(b'u') => {
            let digits = bytes.get(at + 1..at + 5).ok_or(InvalidJson)?;
            let all = digits.iter().all(u8::is_ascii_hexdigit);
            all.then_some(at + 5).ok_or(InvalidJson)
        }
        _ => Err(InvalidJson),
    }
}
