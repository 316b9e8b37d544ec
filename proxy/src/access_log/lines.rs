//! Formatting of access log entries as lines, in the log's thread.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::Version;
use serde_json::{Map, Value};
use tooldock_filters::network;
use tooldock_sessions::log_file::{Clock, LogFile, Sink};
use tooldock_sessions::session;
use tooldock_upstream::Subject;

use super::entry::AccessEntry;
use crate::config::{AccessLogFormat, LogField, LogPattern};

/// Text that replaces the query of a path in the access log.
const QUERY: &[u8] = b"?***MASKED***";

/// Formats entries of the access log in the configured format, and writes them to the file.
pub(super) struct AccessLogWriter {
    file: LogFile,
    /// The pattern of the lines; `None` for lines in JSON.
    pattern: Option<Arc<LogPattern>>,
    clock: Clock,
    line: Vec<u8>,
}

impl AccessLogWriter {
    pub(super) fn new(file: LogFile, format: AccessLogFormat) -> Self {
        Self {
            file,
            pattern: match format {
                AccessLogFormat::Combined => Some(super::combined()),
                AccessLogFormat::Json => None,
                AccessLogFormat::Pattern(pattern) => Some(pattern),
            },
            clock: Clock::default(),
            line: Vec::with_capacity(512),
        }
    }
}

impl Sink for AccessLogWriter {
    type Record = AccessEntry;

    fn put(&mut self, entry: AccessEntry) {
        self.line.clear();
        let mut values = Values::new(&entry, &mut self.clock);
        match &self.pattern {
            Some(pattern) => pattern.write(|field| values.of(field), &mut self.line),
            None => json(&mut values, &mut self.line),
        }
        self.file.append(&self.line);
    }

    fn flush(&mut self) {
        self.file.flush();
    }

    fn reopen(&mut self) {
        self.file.reopen();
    }

    fn idle(&mut self) {
        self.file.close_if_replaced();
    }
}

/// The values of an entry's fields.
pub(super) struct Values<'a> {
    entry: &'a AccessEntry,
    subject: Option<Subject>,
    clock: &'a mut Clock,
}

impl<'a> Values<'a> {
    pub(super) fn new(entry: &'a AccessEntry, clock: &'a mut Clock) -> Self {
        let message = entry.message.as_deref();
        Self {
            entry,
            subject: message.and_then(Subject::of_message),
            clock,
        }
    }

    /// Returns the unescaped value of a field; empty if the entry has no value for it.
    pub(super) fn of(&mut self, field: LogField) -> Cow<'a, [u8]> {
        let entry = self.entry;
        let text = |text: Option<&'a str>| Cow::Borrowed(text.unwrap_or_default().as_bytes());
        let bytes =
            |value: &'a Option<Box<[u8]>>| Cow::Borrowed(value.as_deref().unwrap_or_default());
        match field {
            LogField::Time => {
                let mut time = Vec::with_capacity(32);
                self.clock.common_log(entry.ended, &mut time);
                time.into()
            }
            LogField::Timestamp => {
                let mut time = Vec::with_capacity(32);
                self.clock.rfc3339(entry.ended, &mut time);
                time.into()
            }
            LogField::Address => network::address_text(entry.address).into_bytes().into(),
            LogField::Principal => text(entry.principal.as_deref()),
            LogField::Namespace => text(entry.namespace.as_ref().map(|name| name.as_str())),
            LogField::Request => {
                let protocol = protocol(entry.version).as_bytes();
                let parts = [entry.method.as_str().as_bytes(), &path(entry), protocol];
                parts.join(&b' ').into()
            }
            LogField::Method => text(Some(entry.method.as_str())),
            LogField::Path => path(entry),
            LogField::Protocol => text(Some(protocol(entry.version))),
            LogField::Status => entry.status.to_string().into_bytes().into(),
            LogField::Bytes => entry.bytes.to_string().into_bytes().into(),
            LogField::Duration => seconds(entry.duration).into(),
            LogField::Outcome => text(entry.call.map(|call| call.outcome)),
            LogField::UpstreamTime => entry
                .call
                .map_or_else(Vec::new, |it| seconds(it.time))
                .into(),
            LogField::UpstreamAddress => Cow::Borrowed(entry.backends.as_bytes()),
            LogField::Reason => text(entry.reason),
            LogField::RequestId => text(Some(&entry.request_id)),
            LogField::UserAgent => bytes(&entry.user_agent),
            LogField::Referer => bytes(&entry.referer),
            LogField::McpMethod => {
                let method = self.subject.as_ref().map(|it| it.method.clone());
                method.unwrap_or_default().into_bytes().into()
            }
            LogField::Tool => {
                let named = self.subject.as_ref().and_then(|it| it.name.clone());
                let tool = entry.tool.clone().or(named).unwrap_or_default();
                tool.into_bytes().into()
            }
            LogField::Session => {
                let tag = entry.session.as_deref().map(session::tag);
                tag.unwrap_or_default().into_bytes().into()
            }
        }
    }
}

fn seconds(time: Duration) -> Vec<u8> {
    format!("{:.6}", time.as_secs_f64()).into_bytes()
}

fn path(entry: &AccessEntry) -> Cow<'_, [u8]> {
    if entry.has_query {
        [&*entry.path, QUERY].concat().into()
    } else {
        Cow::Borrowed(&entry.path)
    }
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// Appends a line in JSON, with all fields that have a value.
fn json(values: &mut Values<'_>, line: &mut Vec<u8>) {
    let mut object = Map::new();
    for field in LogField::ALL {
        let value = match field {
            // `time` and `request` are omitted from JSON, as they only combine data of other fields.
            LogField::Time | LogField::Request => continue,
            LogField::Status => values.entry.status.into(),
            LogField::Bytes => values.entry.bytes.into(),
            LogField::Duration => values.entry.duration.as_secs_f64().into(),
            LogField::UpstreamTime => match values.entry.call {
                Some(call) => call.time.as_secs_f64().into(),
                None => continue,
            },
            _ => {
                let value = values.of(*field);
                if value.is_empty() {
                    continue;
                }
                Value::from(String::from_utf8_lossy(&value))
            }
        };
        object.insert(field.name().to_owned(), value);
    }
    serde_json::to_writer(&mut *line, &object).expect("a map of texts and numbers");
    line.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use bytes::Bytes;

    use super::*;

    fn entry(path: &str, headers: &[(&str, &[u8])]) -> Box<AccessEntry> {
        let mut request = http::Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).expect("a request").into_parts();
        let address = "192.0.2.7".parse().expect("an address");
        let mut entry = AccessEntry::new(&head, &"r-1".into(), address);
        entry.answered(401, 17, Duration::from_micros(1_500));
        entry.ended = SystemTime::UNIX_EPOCH + Duration::from_millis(1_770_976_800_123);
        entry
    }

    fn line(entry: &AccessEntry, format: &str) -> String {
        let pattern: LogPattern = format.parse().expect("a pattern");
        let mut line = Vec::new();
        let mut clock = Clock::default();
        let mut values = Values::new(entry, &mut clock);
        pattern.write(|field| values.of(field), &mut line);
        String::from_utf8(line).expect("ASCII")
    }

    fn object(entry: &AccessEntry) -> Value {
        let mut line = Vec::new();
        json(&mut Values::new(entry, &mut Clock::default()), &mut line);
        assert_eq!(line.pop(), Some(b'\n'));
        serde_json::from_slice(&line).expect("a line of JSON")
    }

    #[test]
    fn a_combined_line_is_that_of_web_servers_with_the_reason_of_a_refusal() {
        let mut entry = entry(
            "/mcp",
            &[
                ("user-agent", b"curl/8"),
                ("referer", b"https://a/b?secret#x"),
            ],
        );
        let line = |entry: &AccessEntry| line(entry, &super::super::combined().to_string());
        assert_eq!(
            line(&entry),
            "192.0.2.7 - - [13/Feb/2026:10:00:00 +0000] \"GET /mcp HTTP/1.1\" 401 17 \"https://a/b\" \"curl/8\" \"-\"\n"
        );
        entry.principal = Some("ci".into());
        entry.reason = Some("rate_limited");
        assert!(line(&entry).starts_with("192.0.2.7 - ci ["));
        assert!(line(&entry).ends_with(" \"rate_limited\"\n"));
    }

    #[test]
    fn no_query_is_ever_written() {
        let entry = entry("/messages?session_id=hush", &[]);
        let line = line(&entry, "{path} \"{request}\"");
        assert_eq!(
            line,
            "/messages?***MASKED*** \"GET /messages?***MASKED*** HTTP/1.1\"\n"
        );
        assert!(!object(&entry).to_string().contains("hush"));
    }

    #[test]
    fn a_client_writes_no_lines_or_fields_of_its_own() {
        let entry = entry("/", &[("user-agent", b"a\" 200 \\ \t\xff")]);
        assert_eq!(
            line(&entry, "\"{user_agent}\" {user_agent} {referer}"),
            "\"a\\x22 200 \\x5C \\x09\\xFF\" a\\x22\\x20200\\x20\\x5C\\x20\\x09\\xFF -\n"
        );
        assert_eq!(object(&entry)["user_agent"], "a\" 200 \\ \t\u{fffd}");
    }

    #[test]
    fn long_values_are_cut() {
        let long = vec![b'x'; 100_000];
        let entry = entry(
            &format!("/{}", "y".repeat(50_000)),
            &[("user-agent", &long), ("referer", &long)],
        );
        assert!(line(&entry, "{path} {user_agent} {referer}").len() < 4096);
    }

    #[test]
    fn json_has_the_fields_that_have_a_value() {
        let mut entry = entry("/mcp", &[]);
        entry.session = Some("secret-session-id".to_owned());
        entry.message = Some(Bytes::from_static(
            br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{}}}"#,
        ));
        assert_eq!(
            object(&entry),
            serde_json::json!({
                "ts": "2026-02-13T10:00:00.123Z", "address": "192.0.2.7", "method": "GET", "path": "/mcp",
                "protocol": "HTTP/1.1", "status": 401, "bytes": 17, "duration": 0.0015, "request_id": "r-1",
                "mcp_method": "tools/call", "tool": "add", "session": session::tag("secret-session-id"),
            })
        );
    }
}
