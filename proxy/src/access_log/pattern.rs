//! `observability.access_log.format` as a pattern: text with fields in braces.
//!
//! A value that a client chose must not pass for another field or another line. Control characters, quotes, backslashes
//! and whatever is not ASCII are written as `\xHH`, and so are spaces outside quotes.

use std::fmt;
use std::str::FromStr;

use super::lines::Values;

/// What a line is put together from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field { field: Field, quoted: bool },
}

/// Declares the fields with the names they have in patterns and in JSON.
macro_rules! fields {
    ($($(#[$docs:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        /// What a line can say of a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Field {
            $($(#[$docs])* $variant),+
        }

        impl Field {
            /// All of them.
            pub(super) const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its name.
            pub(super) fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }
    };
}

fields! {
    /// When the request ended, as web servers write it.
    Time = "time",
    /// When the request ended, in RFC 3339 with milliseconds.
    Timestamp = "ts",
    /// The client's address, trusted proxies seen through.
    Address = "address",
    /// The token's name.
    Principal = "principal",
    /// The namespace.
    Namespace = "namespace",
    /// Method, path and protocol.
    Request = "request",
    /// The HTTP method.
    Method = "method",
    /// The path; of a query only that there was one.
    Path = "path",
    /// The HTTP version.
    Protocol = "protocol",
    /// The status of the answer; 499 without one.
    Status = "status",
    /// Bytes of the answer's body.
    Bytes = "bytes",
    /// Seconds from the request's head to the end of the answer.
    Duration = "duration",
    /// The code of a refusal, or why an answer broke off.
    Reason = "reason",
    /// The request's id.
    RequestId = "request_id",
    /// The client's `User-Agent`.
    UserAgent = "user_agent",
    /// The client's `Referer`, without its query.
    Referer = "referer",
    /// The method of the MCP message.
    McpMethod = "mcp_method",
    /// The tool, prompt or resource it is about.
    Tool = "tool",
    /// The tag that stands for the session, as in the audit log.
    Session = "session",
}

impl Pattern {
    /// Whether a line says what is in a body.
    pub(super) fn reads_bodies(&self) -> bool {
        let of_body = |part: &Part| {
            matches!(
                part,
                Part::Field {
                    field: Field::McpMethod | Field::Tool,
                    ..
                }
            )
        };
        self.parts.iter().any(of_body)
    }

    /// Appends a line, its line feed included. A value that is not there is `-`.
    pub(super) fn write(&self, values: &mut Values<'_>, line: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Text(text) => line.extend_from_slice(text.as_bytes()),
                Part::Field { field, quoted } => {
                    let from = line.len();
                    let value = values.of(*field);
                    escape(&value, *quoted, line);
                    if line.len() == from {
                        line.push(b'-');
                    }
                }
            }
        }
        line.push(b'\n');
    }
}

fn escape(value: &[u8], quoted: bool, line: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in value {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => {}
            b' ' if !quoted => {}
            _ => {
                line.push(byte);
                continue;
            }
        }
        let (high, low) = (usize::from(byte >> 4), usize::from(byte & 0xf));
        line.extend_from_slice(&[b'\\', b'x', DIGITS[high], DIGITS[low]]);
    }
}

/// Why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidPattern {
    /// It says nothing.
    #[error("use combined, json, or a pattern with fields in braces, as {{address}} {{status}}")]
    NoField,
    /// It has more than one line.
    #[error("a pattern is one line")]
    ControlCharacter,
    /// A brace that belongs to no field.
    #[error("a brace belongs to no field: write {{{{ and }}}} for braces in the text")]
    StrayBrace,
    /// There is no such field.
    #[error("there is no field {{{0}}}; there are {known}", known = known())]
    UnknownField(String),
}

fn known() -> String {
    let names: Vec<_> = Field::ALL.iter().map(|field| field.name()).collect();
    names.join(", ")
}

impl FromStr for Pattern {
    type Err = InvalidPattern;

    fn from_str(pattern: &str) -> Result<Self, InvalidPattern> {
        if pattern.contains(char::is_control) {
            return Err(InvalidPattern::ControlCharacter);
        }
        let (mut parts, mut text) = (Vec::new(), String::new());
        let mut quoted = false;
        let mut rest = pattern;
        while let Some(next) = rest.chars().next() {
            if let Some(after) = rest.strip_prefix("{{").or_else(|| rest.strip_prefix("}}")) {
                text.push(next);
                rest = after;
            } else if let Some(after) = rest.strip_prefix('{') {
                let (name, after) = after.split_once('}').ok_or(InvalidPattern::StrayBrace)?;
                let field = Field::ALL.iter().find(|field| field.name() == name);
                let field = *field.ok_or_else(|| InvalidPattern::UnknownField(name.to_owned()))?;
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                // A request has spaces of its own, and brackets keep a time together.
                let quoted = quoted || field == Field::Time;
                parts.push(Part::Field { field, quoted });
                rest = after;
            } else if next == '}' {
                return Err(InvalidPattern::StrayBrace);
            } else {
                quoted ^= next == '"';
                text.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
        if parts.is_empty() {
            return Err(InvalidPattern::NoField);
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(Self {
            text: pattern.to_owned(),
            parts,
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(pattern: &str) -> String {
        pattern.parse::<Pattern>().expect_err(pattern).to_string()
    }

    #[test]
    fn a_pattern_that_cannot_be_used_says_why() {
        assert!(wrong("text").starts_with("use combined, json, or a pattern"));
        assert!(wrong("").starts_with("use combined"));
        assert!(wrong("{status}\n{path}").contains("one line"));
        for stray in ["{status", "{status} }", "}{status}"] {
            assert!(wrong(stray).contains("{{ and }}"), "{stray}");
        }
        let unknown = wrong("{adress}");
        assert!(
            unknown.contains("no field {adress}") && unknown.contains("address"),
            "{unknown}"
        );
    }

    #[test]
    fn a_pattern_is_shown_as_it_was_written() {
        let text = "{{{status}}} \"{user_agent}\"";
        let pattern: Pattern = text.parse().expect("a pattern");
        assert_eq!(pattern.to_string(), text);
    }

    #[test]
    fn bodies_are_read_only_for_what_is_in_them() {
        let reads = |text: &str| text.parse::<Pattern>().expect("a pattern").reads_bodies();
        assert!(reads("{address} {tool}") && reads("{mcp_method}"));
        assert!(!reads("{address} {session}"));
    }
}
