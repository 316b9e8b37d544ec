//! Hides secrets in the output of a child process before a line is logged.
//!
//! Exact copies of a secret are found, and copies that Python's `repr` or JSON has escaped. A secret that a child encodes in
//! another way before printing it is not hidden.

use std::fmt::Write as _;
use std::ops::Range;

use memchr::memmem::Finder;

use crate::secret::Secret;

/// Text that replaces a secret.
const MARK: &[u8] = b"[redacted]";
/// Minimum length of a value that is hidden, in bytes. Hiding shorter values, such as every `1`, would make logs unreadable.
const SECRET_MIN: usize = 4;
/// Minimum length, in bytes, from which a single line of a multi-line value, such as a key in PEM, is hidden. Output is logged
/// line by line, so the complete value would never be found in it.
const PART_MIN: usize = 8;

/// The secret values that are hidden in texts.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Searchers: one for each secret value, and one for each of its escaped forms.
    needles: Vec<Finder<'static>>,
}

impl Redactor {
    /// Creates a redactor that hides these secrets.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let mut needles = Vec::new();
        for secret in secrets {
            let value = secret.expose();
            let whole = value.trim_matches(['\r', '\n']);
            if whole.contains('\n') {
                let parts = whole.lines().map(str::trim);
                for part in parts.filter(|part| part.len() >= PART_MIN) {
                    push_forms(&mut needles, part);
                    needles.push(part.to_owned());
                }
                // The complete value is hidden in its escaped forms only: these write all its lines as one.
                push_forms(&mut needles, whole);
            } else if whole.len() >= SECRET_MIN {
                push_forms(&mut needles, whole);
                needles.push(whole.to_owned());
            }
        }
        needles.sort_unstable();
        needles.dedup();
        let needles = needles.into_iter();
        Self {
            needles: needles
                .map(|text| Finder::new(&text).into_owned())
                .collect(),
        }
    }

    /// Returns true if there are no values to hide.
    pub fn is_empty(&self) -> bool {
        self.needles.is_empty()
    }

    /// Returns true if a JSON text may contain one of the values to hide, literally or escaped. A text with a backslash always
    /// gives true, since escapes are not decoded.
    pub fn may_be_in_json(&self, json: &[u8]) -> bool {
        let is_escaped = || memchr::memchr(b'\\', json).is_some();
        let mut needles = self.needles.iter();
        !self.is_empty() && (is_escaped() || needles.any(|needle| needle.find(json).is_some()))
    }

    /// Returns the line with all values hidden. Values that overlap, such as a value that ends with the beginning of another, are
    /// hidden completely. If the line was `cut`, an end that may be the beginning of a value is hidden, too.
    pub fn hide(&self, line: Vec<u8>, cut: bool) -> Vec<u8> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for needle in &self.needles {
            let length = needle.needle().len();
            // Continued behind the beginning of each place, since a value may overlap with itself.
            let mut from = 0;
            while let Some(at) = line.get(from..).and_then(|rest| needle.find(rest)) {
                let start = from + at;
                found.push(start..start + length);
                from = start + 1;
            }
            found.extend(cut.then(|| begun(&line, needle.needle())).flatten());
        }
        if found.is_empty() {
            return line;
        }
        found.sort_unstable_by_key(|span| span.start);
        let mut shown = Vec::new();
        let mut hidden_to = 0;
        for span in found {
            if span.start >= hidden_to {
                shown.extend_from_slice(&line[hidden_to..span.start]);
                shown.extend_from_slice(MARK);
            }
            hidden_to = hidden_to.max(span.end);
        }
        shown.extend_from_slice(&line[hidden_to..]);
        shown
    }
}

/// Returns the position of a line's end that may be the beginning of a value; `None` if the line ends with no such text.
fn begun(line: &[u8], needle: &[u8]) -> Option<Range<usize>> {
    let mut lengths = (SECRET_MIN..needle.len()).rev();
    let length = lengths.find(|length| line.ends_with(&needle[..*length]))?;
    Some(line.len() - length..line.len())
}

/// Adds the escaped forms of a value that differ from the value itself: JSON, JSON in ASCII, and Python's `repr` in
/// single and in double quotes.
fn push_forms(needles: &mut Vec<String>, value: &str) {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !b"\"'\\".contains(&byte);
    if value.bytes().all(is_plain) {
        return;
    }
    let json = serde_json::Value::String(value.to_owned()).to_string();
    let json = json[1..json.len() - 1].to_owned();
    let forms = [
        json_in_ascii(&json),
        json,
        repr(value, true),
        repr(value, false),
    ];
    needles.extend(forms.into_iter().filter(|form| form != value));
}

/// Converts JSON to the form that Python's `json.dumps` writes, in which every character beyond ASCII is escaped.
fn json_in_ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            ' '..='~' => text.push(character),
            other => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    let _ = write!(text, "\\u{unit:04x}");
                }
            }
        }
    }
    text
}

fn repr(value: &str, in_single_quotes: bool) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\'' if in_single_quotes => text.push_str("\\'"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            other if other.is_control() || other == '\u{a0}' => {
                let _ = write!(text, "\\x{:02x}", u32::from(other));
            }
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(secrets: &[&str], line: &str, cut: bool) -> String {
        let secrets: Vec<Secret> = secrets.iter().map(|it| Secret::new(*it)).collect();
        let line = Redactor::new(&secrets).hide(line.into(), cut);
        String::from_utf8(line).expect("was text")
    }

    #[test]
    fn every_copy_of_a_secret_is_hidden_and_the_rest_stays() {
        let secrets = ["hunter2", "hunter2-and-more"];
        for (line, shown) in [
            ("nothing here", "nothing here"),
            ("a hunter2 b hunter2", "a [redacted] b [redacted]"),
            ("hunter2-and-more", "[redacted]"),
            ("hunter2-and-mor", "[redacted]-and-mor"),
            ("", ""),
        ] {
            assert_eq!(hidden(&secrets, line, false), shown, "{line}");
        }
        assert_eq!(hidden(&[], "hunter2", true), "hunter2");
    }

    #[test]
    fn what_is_too_short_for_a_secret_is_not_hidden() {
        assert_eq!(hidden(&["1", "abc", ""], "1 abc", false), "1 abc");
        assert_eq!(hidden(&["abcd"], "1 abcd", false), "1 [redacted]");
    }

    #[test]
    fn a_value_of_several_lines_is_hidden_line_by_line() {
        let key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nabc\n-----END KEY-----\n";
        for line in key.lines().filter(|line| *line != "abc") {
            assert_eq!(hidden(&[key], line, false), "[redacted]");
        }
    }

    #[test]
    fn a_value_is_hidden_as_python_and_json_write_it_in_quotes() {
        let secret = "quo\"te\\back'tick\té😀";
        for line in [
            r#"KeyError: 'quo"te\\back\'tick\té😀'"#,
            r#"KeyError: "x quo"te\\back'tick\té😀""#,
            r#"{"a": "quo\"te\\back'tick\té😀"}"#,
            r#"{"a": "quo\"te\\back'tick\t\u00e9\ud83d\ude00"}"#,
        ] {
            let shown = hidden(&[secret], line, false);
            assert!(!shown.contains("back"), "{shown}");
            assert!(shown.contains("[redacted]"), "{shown}");
        }
        // A value of several lines is escaped into a single line, its short lines included.
        let key = "-----BEGIN KEY-----\nabc\nMIIEvQIBADANBg\n";
        for line in [
            r"ValueError: '-----BEGIN KEY-----\nabc\nMIIEvQIBADANBg\n'",
            r#"{"k":"-----BEGIN KEY-----\nabc\nMIIEvQIBADANBg"}"#,
        ] {
            assert!(!hidden(&[key], line, false).contains("abc"), "{line}");
        }
        assert_eq!(Redactor::new(&[Secret::new("hunter2")]).needles.len(), 1);
    }

    #[test]
    fn of_a_line_that_was_cut_the_beginning_of_a_secret_is_hidden() {
        assert_eq!(hidden(&["hunter2"], "xx hunt", true), "xx [redacted]");
        assert_eq!(hidden(&["hunter2"], "xx hun", true), "xx hun");
        assert_eq!(hidden(&["hunter2"], "xx hunt", false), "xx hunt");
    }

    #[test]
    fn values_that_overlap_are_hidden_completely() {
        let secrets = ["long-secret-abcd", "abcdefgh"];
        for (line, cut, shown) in [
            ("x long-secret-abcdefgh y", false, "x [redacted] y"),
            ("x long-secret-abcd", true, "x [redacted]"),
            ("abcdefghabcdefgh", false, "[redacted][redacted]"),
        ] {
            assert_eq!(hidden(&secrets, line, cut), shown);
        }
    }
}
