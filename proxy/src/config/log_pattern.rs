//! `observability.access_log.format` as a pattern: text with fields, written as `{status}`, or as `$status` like in formats of
//! nginx. If the pattern contains a dollar sign, braces are plain text, and nginx's names of fields are supported, too.
//!
//! A client must not be able to forge another field or another line. So control characters, quotes, backslashes, non-ASCII
//! characters, and spaces outside quotes are written as `\xHH` in values.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The parsed pattern of an access log line: plain texts and fields.
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

/// Declares the enum of log fields, each with its name in patterns and in JSON.
macro_rules! fields {
    ($($(#[$docs:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        /// A field of an access log line.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum LogField {
            $($(#[$docs])* $variant),+
        }

        impl LogField {
            /// All fields of access log lines.
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the field's name in patterns and in JSON.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }
    };
}

fields! {
    /// Time at which the request ended, in the format of common web servers.
    Time = "time",
    /// Time at which the request ended, in RFC 3339 with milliseconds.
    Timestamp = "ts",
    /// The client's IP address, even if the request came through trusted proxies.
    Address = "address",
    /// The name of the principal: the owner of the request's credential.
    Principal = "principal",
    /// The namespace of the request.
    Namespace = "namespace",
    /// The first line of the request: method, path and protocol.
    Request = "request",
    /// The HTTP method of the request.
    Method = "method",
    /// The path of the request; its query is masked.
    Path = "path",
    /// The HTTP version of the request.
    Protocol = "protocol",
    /// The HTTP status of the response; 499 if there was none.
    Status = "status",
    /// Number of bytes of the response's body.
    Bytes = "bytes",
    /// Seconds from the request's head to the end of the response.
    Duration = "duration",
    /// The code of a refusal, or the reason why a response was aborted.
    Reason = "reason",
    /// The request's id.
    RequestId = "request_id",
    /// The client's `User-Agent`.
    UserAgent = "user_agent",
    /// The client's `Referer` header, without its query.
    Referer = "referer",
    /// The method of the MCP message, such as `tools/call`.
    McpMethod = "mcp_method",
    /// The tool, prompt or resource that the MCP message names.
    Tool = "tool",
    /// A tag derived from the id of the MCP session, as in the audit log.
    Session = "session",
    /// The outcome of the call: `ok`, or the code of the audit log.
    Outcome = "outcome",
    /// Seconds that the call took, including its wait for a free place among the concurrent calls.
    UpstreamTime = "upstream_time",
    /// The backends of a remote server to which the request was sent.
    UpstreamAddress = "upstream_addr",
}

/// nginx's names of fields, including those that nginx users usually define for JSON formats.
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
    /// Returns true if a line with this pattern contains the outcome of a call, which must then be recorded.
    pub(crate) fn notes_calls(&self) -> bool {
        self.has(&[
            LogField::Outcome,
            LogField::UpstreamTime,
            LogField::UpstreamAddress,
        ])
    }

    /// Returns true if a line with this pattern contains values from the request's body, which must then be kept for the log.
    pub(crate) fn reads_bodies(&self) -> bool {
        self.has(&[LogField::McpMethod, LogField::Tool])
    }

    fn has(&self, fields: &[LogField]) -> bool {
        let found =
            |part: &Part| matches!(part, Part::Field { field, .. } if fields.contains(field));
        self.parts.iter().any(found)
    }

    /// Appends a line with its line feed. `value` returns the value of a field; an empty value is written as `-`.
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

/// The reason why a text is not a valid log pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidPattern {
    /// The pattern contains no field.
    #[error("use combined, json, or a pattern with fields in braces, as {{address}} {{status}}")]
    NoField,
    /// The pattern contains a control character, such as a line break.
    #[error("a pattern is one line")]
    ControlCharacter,
    /// The pattern contains a brace that belongs to no field.
    #[error("a brace belongs to no field: write {{{{ and }}}} for braces in the text")]
    StrayBrace,
    /// The pattern contains a field that does not exist.
    #[error("there is no field {{{0}}}; there are {known}", known = known_fields())]
    UnknownField(String),
    /// The pattern contains a `$variable` that does not exist.
    #[error("there is no variable ${0}; there are {known}, and of nginx {nginx}", known = known_fields(), nginx = known_of_nginx())]
    UnknownVariable(String),
    /// The pattern contains a dollar sign without the name of a variable after it.
    #[error("a dollar sign begins no variable: write $$ for a dollar sign in the text")]
    StrayDollar,
}

fn known_fields() -> String {
    let names: Vec<_> = LogField::ALL.iter().map(|field| field.name()).collect();
    names.join(", ")
}

fn known_of_nginx() -> String {
    let names: Vec<_> = NGINX_NAMES.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// Parses a field at the beginning of `rest`. Returns the field and the remaining text; `None` if `rest` begins with no field.
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

/// Parses a doubled special character at the beginning of `rest`, such as `{{`. Returns the single character and the remaining
/// text.
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
                // The space in a time is not escaped, since formats write the time in brackets instead of quotes.
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
