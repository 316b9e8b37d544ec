//! Finds the id in a line that is too long to keep, while the line is read. The result may precede the id, so the complete line
//! must be read, not only its beginning or its end.
//!
//! For valid JSON the id is always right. For invalid JSON it may be any id, which can only harm the call with that id.

use memchr::memchr2;
use tooldock_protocol::jsonrpc::plain::call_number;

/// Maximum number of bytes of a number or key that are stored for comparison.
const CAPTURE_MAX: usize = 20;

/// Scanner that reads a JSON object piece by piece and finds its id.
#[derive(Debug, Default)]
pub struct IdScan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// True while the scanner reads a value of the top-level object; false while it reads a key.
    in_value: bool,
    /// True while the scanner reads the value of `id`.
    is_id: bool,
    /// The bytes of the current key or number so far. A key or number that is too long or has an escape never matches.
    capture: Capture,
    id: Option<u64>,
    /// True while the scanner reads the value of `method`.
    is_method: bool,
    has_method: bool,
}

#[derive(Debug, Default)]
struct Capture {
    bytes: [u8; CAPTURE_MAX],
    len: usize,
    unfit: bool,
}

impl Capture {
    fn push(&mut self, byte: u8) {
        match self.bytes.get_mut(self.len) {
            Some(place) => {
                *place = byte;
                self.len += 1;
            }
            None => self.unfit = true,
        }
    }

    fn text(&self) -> Option<&str> {
        let text = std::str::from_utf8(&self.bytes[..self.len]).ok()?;
        (!self.unfit).then_some(text)
    }
}

impl IdScan {
    /// Scans the next bytes of the line for its id.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            // Shortcut for long strings, which make up most of a long line: they are skipped without looking at each byte.
            if self.in_string && !self.escaped && !self.is_kept() {
                match memchr2(b'"', b'\\', bytes) {
                    Some(0) => {}
                    Some(skipped) => {
                        bytes = &bytes[skipped..];
                        continue;
                    }
                    None => return,
                }
            }
            self.step(byte);
            bytes = rest;
        }
    }

    /// Returns the id of the call that the line answers; `None` if the line is a request, whose id the server has chosen.
    pub(crate) fn answered(&self) -> Option<u64> {
        self.id.filter(|_| !self.has_method)
    }

    /// Returns the id of the request in the line; `None` if the line is a response.
    #[inline]
    pub fn requested(&self) -> Option<u64> {
        self.id.filter(|_| self.has_method)
    }

    fn is_name(&self) -> bool {
        self.depth == 1 && !self.in_value
    }

    /// Returns true if the bytes of the current string must be stored, since it is a key or the value of `id`.
    fn is_kept(&self) -> bool {
        self.depth == 1 && (!self.in_value || self.is_id)
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            self.step_in_string(byte);
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.capture = Capture::default();
                self.capture.unfit = !self.is_kept();
            }
            b'{' | b'[' => {
                self.depth += 1;
                // A top-level array has no keys, so it is treated as a value. It is not a valid message.
                self.in_value = self.depth == 1 && byte == b'[';
                self.capture.unfit = true;
            }
            b'}' | b']' => {
                self.value_ends();
                self.depth = self.depth.saturating_sub(1);
                self.in_value = true;
            }
            b',' if self.depth == 1 => {
                self.value_ends();
                self.in_value = false;
            }
            b':' if self.depth == 1 => {
                self.in_value = true;
                self.capture = Capture::default();
            }
            byte if self.depth == 1 && !byte.is_ascii_whitespace() => self.capture.push(byte),
            _ => {}
        }
    }

    fn step_in_string(&mut self, byte: u8) {
        if self.escaped {
            self.escaped = false;
        } else if byte == b'\\' {
            self.escaped = true;
            self.capture.unfit = true;
        } else if byte == b'"' {
            self.in_string = false;
            if self.is_name() {
                self.is_id = self.capture.text() == Some("id");
                self.is_method = self.capture.text() == Some("method");
                self.has_method |= self.is_method;
            }
        } else if self.is_kept() {
            self.capture.push(byte);
        }
    }

    fn value_ends(&mut self) {
        if self.depth == 1 && self.is_method && self.in_value {
            self.is_method = false;
            // Some servers write `"method": null` in their responses, which are not requests.
            self.has_method = self.capture.text() != Some("null");
        }
        if self.depth == 1 && self.is_id && self.in_value {
            self.is_id = false;
            let number = self.capture.text().and_then(call_number);
            self.id = self.id.or(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    fn answered(line: &str, piece: usize) -> Option<u64> {
        let mut scan = IdScan::default();
        for piece in line.as_bytes().chunks(piece) {
            scan.feed(piece);
        }
        scan.answered()
    }

    #[test]
    fn the_id_is_found_before_and_behind_the_result() {
        for (line, expected) in [
            (
                r#"{"jsonrpc":"2.0","id":65536,"result":{"id":7}}"#,
                Some(65536),
            ),
            (
                r#"{"result":[{"id":7}],"jsonrpc":"2.0","id": 65536 }"#,
                Some(65536),
            ),
            (
                r#" { "error" : {"id":1}, "id" : 12 , "x":"\"id\":3" }"#,
                Some(12),
            ),
            (r#"{"a\\":"id","id":12"#, None),
            (r#"{"x":"id","y":12}"#, None),
            (r#"{"id":"12","result":1}"#, Some(12)),
            (r#"{"result":"\"id\":3","id": "12" }"#, Some(12)),
            (r#"{"id":12.0,"result":1}"#, Some(12)),
            (r#"{"id":"a12","result":1}"#, None),
            (r#"{"id":"+12","result":1}"#, None),
            (
                r#"{"id":12,"method":null,"params":null,"result":1}"#,
                Some(12),
            ),
            (r#"{"id":12,"method":"null","params":null}"#, None),
            (r#"{"method":"x","id":12,"par"#, None),
            (r#"{"id":12,"method":"#, None),
            (r#"{"id":"1\u0032","result":1}"#, None),
            (r#"{"id":{"id":12},"result":1}"#, None),
            (r#"{"id":12,"method":"sampling/createMessage"}"#, None),
            (r#"{"id":99999999999999999999999,"result":1}"#, None),
            (r#"[{"id":12,"result":1}]"#, None),
            (r#"["id",12]"#, None),
            ("}}}{", None),
            ("", None),
        ] {
            for piece in 1..=line.len().max(1) {
                assert_eq!(answered(line, piece), expected, "{line} by {piece}");
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_parser_on_any_message(
            result in tooldock_protocol::testing::any_json(),
            id in 0_u64..1 << 53,
            first in any::<bool>(),
            piece in 1_usize..50,
        ) {
            let line = if first {
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
            } else {
                format!(r#"{{"result":{result},"jsonrpc":"2.0","id":{id}}}"#)
            };
            let _: &RawValue = serde_json::from_str(&line).expect("JSON");
            prop_assert_eq!(answered(&line, piece), Some(id));
        }

        #[test]
        fn survives_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut scan = IdScan::default();
            scan.feed(&bytes);
            let _ = scan.answered();
        }
    }
}
