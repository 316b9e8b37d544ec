//! `observability.access_log.format` as a pattern: text with fields, written `{status}`, or `$status` as in formats of nginx.
//! If the pattern contains a dollar sign, fields are written with it, the names of nginx are supported, too, and braces are
//! text.
//!
//! A client's value must not be mistaken for another field or another line. Control characters, quotes, backslashes and
//! non-ASCII characters are written as `\xHH`, and so are spaces outside quotes.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The pattern of a line: texts and fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogPattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field { field: LogField, quoted: bool },
}

/// Declares the fields with the names they have in patterns and in JSON.
macro_rules! fields {
    ($($(#[$docs:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        /// A field of a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum LogField {
            $($(#[$docs])* $variant),+
        }

        impl LogField {
            /// All fields.
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),+];

            /// The field's name.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }
    };
}

fields! {
    /// Time at which the request ended, in the format of web servers.
    Time = "time",
    /// Time at which the request ended, in RFC 3339 with milliseconds.
    Timestamp = "ts",
    /// The client's address, behind trusted proxies.
    Address = "address",
    /// The token's name.
    Principal = "principal",
    /// The namespace.
    Namespace = "namespace",
    /// Method, path and protocol.
    Request = "request",
    /// The HTTP method.
    Method = "method",
    /// The path; a query is masked.
    Path = "path",
    /// The HTTP version.
    Protocol = "protocol",
    /// The status of the answer; 499 without one.
    Status = "status",
    /// Bytes of the answer's body.
    Bytes = "bytes",
    /// Seconds from the request's head to the end of the answer.
    Duration = "duration",
    /// The code of a refusal, or the reason why an answer broke off.
    Reason = "reason",
    /// The request's id.
    RequestId = "request_id",
    /// The client's `User-Agent`.
    UserAgent = "user_agent",
    /// The client's `Referer`, without its query.
    Referer = "referer",
    /// The method of the MCP message.
    McpMethod = "mcp_method",
    /// The tool, prompt or resource of the message.
    Tool = "tool",
    /// The session's tag, as in the audit log.
    Session = "session",
    /// The outcome of the call: `ok`, or the code of the audit log.
    Outcome = "outcome",
    /// Seconds the call took, waiting for its turn included.
    UpstreamTime = "upstream_time",
    /// The backends of a remote server that the request went to.
    UpstreamAddress = "upstream_addr",
}

/// The names of fields in nginx, and in formats made for it.
const NGINX_NAMES: &[(&str, LogField)] = &[
    ("remote_addr", LogField::Address),
    ("remote_user", LogField::Principal),
    ("key_id", LogField::Principal),
    ("time_local", LogField::Time),
    ("time_iso8601", LogField::Timestamp),
    ("request_method", LogField::Method),
    ("uri", LogField::Path),
    ("request_uri", LogField::Path),
    ("server_protocol", LogField::Protocol),
    ("body_bytes_sent", LogField::Bytes),
    ("request_time", LogField::Duration),
    ("http_user_agent", LogField::UserAgent),
    ("http_referer", LogField::Referer),
    ("upstream_response_time", LogField::UpstreamTime),
    ("upstream_addr", LogField::UpstreamAddress),
    ("mcp_tool", LogField::Tool),
    ("mcp_namespace", LogField::Namespace),
    ("mcp_session", LogField::Session),
    ("mcp_outcome", LogField::Outcome),
];

impl LogField {
    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|field| field.name() == name)
    }

    fn of_variable(name: &str) -> Option<Self> {
        let of_nginx = || NGINX_NAMES.iter().find(|(known, _)| *known == name);
        Self::named(name).or_else(|| of_nginx().map(|(_, field)| *field))
    }
}

impl LogPattern {
    /// Returns true if a line contains the outcome of a call.
    pub(crate) fn notes_calls(&self) -> bool {
        self.has(&[
            LogField::Outcome,
            LogField::UpstreamTime,
            LogField::UpstreamAddress,
        ])
    }

    /// Returns true if a line contains values from a body.
    pub(crate) fn reads_bodies(&self) -> bool {
        self.has(&[LogField::McpMethod, LogField::Tool])
    }

    fn has(&self, fields: &[LogField]) -> bool {
        let found =
            |part: &Part| matches!(part, Part::Field { field, .. } if fields.contains(field));
        self.parts.iter().any(found)
    }

    /// Appends a line, its line feed included. `value` returns the value of a field; an empty one is written as `-`.
    pub(crate) fn write<'a>(
        &self,
        mut value: impl FnMut(LogField) -> Cow<'a, [u8]>,
        line: &mut Vec<u8>,
    ) {
        for part in &self.parts {
            match part {
                Part::Text(text) => line.extend_from_slice(text.as_bytes()),
                Part::Field { field, quoted } => {
                    let from = line.len();
                    escape(&value(*field), *quoted, line);
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

/// The reason why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidPattern {
    /// The pattern has no field.
    #[error("use combined, json, or a pattern with fields in braces, as {{address}} {{status}}")]
    NoField,
    /// The pattern contains a control character, such as a line break.
    #[error("a pattern is one line")]
    ControlCharacter,
    /// A brace that belongs to no field.
    #[error("a brace belongs to no field: write {{{{ and }}}} for braces in the text")]
    StrayBrace,
    /// The field does not exist.
    #[error("there is no field {{{0}}}; there are {known}", known = known())]
    UnknownField(String),
    /// The variable does not exist.
    #[error("there is no variable ${0}; there are {known}, and of nginx {nginx}", known = known(), nginx = known_of_nginx())]
    UnknownVariable(String),
    /// A dollar sign that begins no variable.
    #[error("a dollar sign begins no variable: write $$ for a dollar sign in the text")]
    StrayDollar,
}

fn known() -> String {
    let names: Vec<_> = LogField::ALL.iter().map(|field| field.name()).collect();
    names.join(", ")
}

fn known_of_nginx() -> String {
    let names: Vec<_> = NGINX_NAMES.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// Reads the field at the beginning of `rest`, if there is one; returns it and the remaining text.
fn field_at(rest: &str, dollars: bool) -> Result<Option<(LogField, &str)>, InvalidPattern> {
    if !dollars {
        let Some(after) = rest.strip_prefix('{') else {
            return Ok(None);
        };
        let (name, after) = after.split_once('}').ok_or(InvalidPattern::StrayBrace)?;
        let unknown = || InvalidPattern::UnknownField(name.to_owned());
        return Ok(Some((LogField::named(name).ok_or_else(unknown)?, after)));
    }
    let Some(after) = rest.strip_prefix('$') else {
        return Ok(None);
    };
    let (name, after) = match after.strip_prefix('{') {
        Some(braced) => braced.split_once('}').ok_or(InvalidPattern::StrayDollar)?,
        None => {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            after.split_at(end.unwrap_or(after.len()))
        }
    };
    if name.is_empty() {
        return Err(InvalidPattern::StrayDollar);
    }
    let unknown = || InvalidPattern::UnknownVariable(name.to_owned());
    Ok(Some((
        LogField::of_variable(name).ok_or_else(unknown)?,
        after,
    )))
}

/// Reads a doubled special character at the beginning of `rest`; returns the character and the remaining text.
fn doubled(rest: &str, dollars: bool) -> Option<(char, &str)> {
    let characters: &[char] = if dollars { &['$'] } else { &['{', '}'] };
    characters.iter().find_map(|&c| {
        let after = rest.strip_prefix(c)?.strip_prefix(c)?;
        Some((c, after))
    })
}

impl FromStr for LogPattern {
    type Err = InvalidPattern;

    fn from_str(pattern: &str) -> Result<Self, InvalidPattern> {
        if pattern.contains(char::is_control) {
            return Err(InvalidPattern::ControlCharacter);
        }
        let (mut parts, mut text) = (Vec::new(), String::new());
        let mut quoted = false;
        let dollars = pattern.contains('$');
        let mut rest = pattern;
        while let Some(next) = rest.chars().next() {
            if let Some((c, after)) = doubled(rest, dollars) {
                text.push(c);
                rest = after;
            } else if let Some((field, after)) = field_at(rest, dollars)? {
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                // A time keeps its space without quotes, since formats put the time in brackets.
                let quoted = quoted || field == LogField::Time;
                parts.push(Part::Field { field, quoted });
                rest = after;
            } else if next == '}' && !dollars {
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

impl fmt::Display for LogPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(pattern: &str) -> String {
        pattern
            .parse::<LogPattern>()
            .expect_err(pattern)
            .to_string()
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
        let pattern: LogPattern = text.parse().expect("a pattern");
        assert_eq!(pattern.to_string(), text);
    }

    #[test]
    fn formats_of_nginx_are_read_as_they_are() {
        let parts = |text: &str| text.parse::<LogPattern>().expect("a pattern").parts;
        let nginx = "$remote_addr - $remote_user [$time_local] \"$request\" $status ${body_bytes_sent}b $mcp_tool";
        let ours = "{address} - {principal} [{time}] \"{request}\" {status} {bytes}b {tool}";
        assert_eq!(parts(nginx), parts(ours));
        // Braces are text beside dollar signs.
        let text = |text: &str| Part::Text(text.to_owned());
        let [before, _, after] = &parts("{\"cost\": $$ $status}")[..] else {
            panic!("three parts");
        };
        assert_eq!((before, after), (&text("{\"cost\": $ "), &text("}")));
        for (pattern, named) in [
            ("$adress", "no variable $adress; there are time, "),
            ("$http_x_secret $status", "no variable $http_x_secret"),
            ("$status costs 5$", "write $$"),
            ("${status", "write $$"),
        ] {
            assert!(wrong(pattern).contains(named), "{}", wrong(pattern));
        }
    }

    #[test]
    fn bodies_are_read_only_for_what_is_in_them() {
        let reads = |text: &str| {
            text.parse::<LogPattern>()
                .expect("a pattern")
                .reads_bodies()
        };
        assert!(reads("{address} {tool}") && reads("{mcp_method}"));
        assert!(!reads("{address} {session}"));
    }
}
