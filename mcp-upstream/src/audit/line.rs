//! One record as one JSON line. The field names are contract.

use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use super::{AuditArguments, AuditRecord, Transport, mask};
use crate::engine::TOOLS_CALL;

/// Arguments larger than this are never written in full.
const FULL_ARGUMENTS_MAX: usize = 16 * 1024;

#[derive(Serialize)]
struct Line<'a> {
    ts: String,
    request_id: &'a str,
    transport: &'static str,
    namespace: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    status: &'static str,
    http_status: u16,
    latency_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol_version: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    client: std::net::IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments_bytes: Option<usize>,
}

/// Appends the record as a line.
pub(super) fn format(record: &AuditRecord, arguments: AuditArguments, line: &mut Vec<u8>) {
    let full = match arguments {
        AuditArguments::Full if record.arguments.len() <= FULL_ARGUMENTS_MAX => {
            mask::masked(&record.arguments)
        }
        _ => None,
    };
    // A tool call is the usual line and keeps its two fields out of it.
    let is_tool = record.method == TOOLS_CALL;
    let digest = arguments != AuditArguments::None && full.is_none();
    let fields = Line {
        ts: timestamp(record.at.into()),
        request_id: &record.request_id,
        transport: match record.transport {
            Transport::Mcp => "mcp",
            Transport::Rest => "rest",
        },
        namespace: record.namespace.as_str(),
        tool: is_tool.then_some(&*record.subject),
        method: (!is_tool).then_some(record.method),
        subject: Some(&*record.subject).filter(|subject| !is_tool && !subject.is_empty()),
        status: record.status,
        http_status: record.http_status,
        latency_ms: u64::try_from(record.latency.as_millis()).unwrap_or(u64::MAX),
        protocol_version: record.protocol_version,
        session: record.session.as_deref(),
        client: record.client,
        principal: record.principal.as_deref(),
        arguments: full,
        arguments_sha256: digest.then(|| hex::encode(Sha256::digest(&record.arguments))),
        arguments_bytes: digest.then_some(record.arguments.len()),
    };
    if serde_json::to_writer(&mut *line, &fields).is_ok() {
        line.push(b'\n');
    } else {
        line.clear();
    }
}

/// RFC 3339 with milliseconds, UTC.
fn timestamp(at: OffsetDateTime) -> String {
    format!(
        "{}T{:02}:{:02}:{:02}.{:03}Z",
        at.date(),
        at.hour(),
        at.minute(),
        at.second(),
        at.millisecond()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::tests::record;

    fn line(arguments: AuditArguments) -> serde_json::Value {
        let mut line = Vec::new();
        format(&record(), arguments, &mut line);
        assert_eq!(line.pop(), Some(b'\n'));
        serde_json::from_slice(&line).expect("a line of JSON")
    }

    #[test]
    fn carries_the_documented_fields() {
        assert_eq!(
            line(AuditArguments::None),
            serde_json::json!({
                "ts": "2026-02-13T10:00:00.123Z", "request_id": "r-1", "transport": "mcp",
                "namespace": "github", "tool": "list_issues", "status": "ok", "http_status": 200,
                "latency_ms": 23, "protocol_version": "2025-11-25", "session": "0123456789abcdef",
                "client": "127.0.0.1", "principal": "ci",
            })
        );
    }

    #[test]
    fn what_is_no_tool_call_says_its_method() {
        let of = |method, subject: &str| {
            let mut read = record();
            (read.method, read.subject) = (method, subject.into());
            let mut line = Vec::new();
            format(&read, AuditArguments::None, &mut line);
            serde_json::from_slice::<serde_json::Value>(&line).expect("a line of JSON")
        };
        let read = of("resources/read", "a://b");
        assert_eq!(
            (&read["method"], &read["subject"]),
            (&"resources/read".into(), &"a://b".into())
        );
        assert!(read.get("tool").is_none());
        assert!(of("completion/complete", "").get("subject").is_none());
    }

    #[test]
    fn arguments_are_a_digest_or_masked_text() {
        let digest = line(AuditArguments::Digest);
        assert_eq!(digest["arguments_bytes"], 13);
        assert_eq!(digest["arguments_sha256"].as_str().map(str::len), Some(64));
        assert!(digest.get("arguments").is_none());
        let full = line(AuditArguments::Full);
        assert_eq!(full["arguments"]["owner"], "x");
        assert!(full.get("arguments_sha256").is_none());
    }
}
