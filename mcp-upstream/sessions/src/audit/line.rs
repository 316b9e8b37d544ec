//! Formats an audit record as one JSON line. Operators' tools read these lines, so the names of the fields must not change.
//!
//! The code does not use a serializer, since a line is written for each call: field names are copied as constant bytes, and few
//! texts need escaping.

use std::io::Write;
use std::net::IpAddr;

use tooldock_protocol::version::method::TOOLS_CALL;

use super::{AuditRecord, KeptArguments, Transport, mask};
use crate::caller::RelayPeer;
use crate::log_file::Clock;

/// Appends a record to `line`, formatted as one JSON line.
pub(super) fn format(record: &AuditRecord, clock: &mut Clock, line: &mut Vec<u8>) {
    line.extend_from_slice(b"{\"ts\":\"");
    clock.rfc3339(record.at, line);
    line.push(b'"');
    text(line, b",\"request_id\":", &record.request_id);
    let transport = match record.transport {
        Transport::Mcp => "mcp",
        Transport::Rest => "rest",
        Transport::Relay => "relay",
    };
    text(line, b",\"transport\":", transport);
    text(line, b",\"namespace\":", record.namespace.as_str());
    if let Some(via) = &record.via {
        text(line, b",\"via\":", via);
    }
    // Most records are about tool calls. To keep their lines short, a single field `tool` replaces `method` and `subject`.
    if record.method == TOOLS_CALL {
        text(line, b",\"tool\":", &record.subject);
    } else {
        text(line, b",\"method\":", record.method);
        if !record.subject.is_empty() {
            text(line, b",\"subject\":", &record.subject);
        }
    }
    text(line, b",\"status\":", record.status);
    number(line, b",\"http_status\":", record.http_status.into());
    let latency = u64::try_from(record.latency.as_millis()).unwrap_or(u64::MAX);
    number(line, b",\"latency_ms\":", latency);
    if let Some(version) = record.protocol_version {
        text(line, b",\"protocol_version\":", version);
    }
    if let Some(session) = &record.session {
        text(line, b",\"session\":", session);
    }
    address(line, record.client);
    if let Some(principal) = &record.principal {
        text(line, b",\"principal\":", principal);
    }
    if let Some(id) = &record.token_id {
        text(line, b",\"token_id\":", id);
    }
    if let Some(at_other_end) = &record.relay {
        peer(line, at_other_end);
    }
    put_arguments(line, &record.arguments);
    if let Some(cause) = &record.cause {
        text(line, b",\"cause\":{\"code\":", &cause.code);
        if !cause.detail.is_empty() {
            text(line, b",\"detail\":", &cause.detail);
        }
        line.push(b'}');
    }
    if record.coerced {
        line.extend_from_slice(b",\"coerced\":true");
    }
    if let Some(hook) = record.hook {
        text(line, b",\"hook\":", hook);
    }
    line.extend_from_slice(b"}\n");
}

/// Appends the arguments with secrets masked, if the record contains a copy that is valid JSON; else their digest.
fn put_arguments(line: &mut Vec<u8>, arguments: &KeptArguments) {
    match arguments {
        KeptArguments::None => {}
        KeptArguments::Digest { digest, bytes } => put_digest(line, digest, *bytes),
        KeptArguments::Full(arguments) => match mask::masked(arguments) {
            Some(masked) => {
                line.extend_from_slice(b",\"arguments\":");
                line.extend_from_slice(masked.get().as_bytes());
            }
            None => put_digest(line, &blake3::hash(arguments), arguments.len()),
        },
    }
}

fn put_digest(line: &mut Vec<u8>, digest: &blake3::Hash, bytes: usize) {
    line.extend_from_slice(b",\"arguments_blake3\":");
    line.push(b'"');
    line.extend_from_slice(digest.to_hex().as_bytes());
    line.push(b'"');
    number(line, b",\"arguments_bytes\":", bytes as u64);
}

/// Appends the member `peer`, which describes the process at the other end of the relay's socket.
fn peer(line: &mut Vec<u8>, peer: &RelayPeer) {
    number(line, b",\"peer\":{\"uid\":", peer.uid.into());
    number(line, b",\"gid\":", peer.gid.into());
    if let Some(pid) = peer.pid.and_then(|pid| u64::try_from(pid).ok()) {
        number(line, b",\"pid\":", pid);
    }
    line.push(b'}');
    if let Some(project) = &peer.project {
        text(line, b",\"project\":", project);
    }
}

/// Appends a field with a text. `name` is the field's name with the punctuation around it, so that both are copied in one step.
fn text(line: &mut Vec<u8>, name: &'static [u8], text: &str) {
    line.extend_from_slice(name);
    // The loop does not end early, so that the compiler can vectorize it.
    let escaped = |any, byte: u8| any | (byte < b' ') | (byte == b'"') | (byte == b'\\');
    if text.bytes().fold(false, escaped) {
        serde_json::to_writer(line, text).expect("a string serializes into memory");
        return;
    }
    line.push(b'"');
    line.extend_from_slice(text.as_bytes());
    line.push(b'"');
}

fn number(line: &mut Vec<u8>, name: &'static [u8], number: u64) {
    line.extend_from_slice(name);
    digits(line, number);
}

fn digits(line: &mut Vec<u8>, mut number: u64) {
    // The largest 64-bit number has 20 digits.
    let mut digits = [b'0'; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] += (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    line.extend_from_slice(&digits[first..]);
}

fn address(line: &mut Vec<u8>, address: IpAddr) {
    line.extend_from_slice(b",\"client\":");
    line.push(b'"');
    match address {
        // The unspecified address stands for a client of a Unix socket, which has no address.
        IpAddr::V4(address) if address.is_unspecified() => line.extend_from_slice(b"unix"),
        IpAddr::V4(address) => {
            for (position, octet) in address.octets().into_iter().enumerate() {
                if position > 0 {
                    line.push(b'.');
                }
                digits(line, octet.into());
            }
        }
        IpAddr::V6(address) => {
            write!(line, "{address}").expect("memory takes what is written");
        }
    }
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::AuditArguments;
    use crate::audit::tests::record;
    use crate::call_error::CallCause;

    fn line(wanted: AuditArguments) -> serde_json::Value {
        let arguments = bytes::Bytes::from_static(br#"{"owner":"x"}"#);
        let record = AuditRecord {
            arguments: KeptArguments::of(&arguments, wanted),
            ..record()
        };
        let mut line = Vec::new();
        format(&record, &mut Clock::default(), &mut line);
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
    fn a_failed_call_says_why() {
        let of = |detail: &str| {
            let failed = AuditRecord {
                cause: Some(Box::new(CallCause {
                    code: "connect".into(),
                    detail: detail.into(),
                    of_tool: false,
                })),
                ..record()
            };
            let mut line = Vec::new();
            format(&failed, &mut Clock::default(), &mut line);
            let line: serde_json::Value = serde_json::from_slice(&line).expect("a line of JSON");
            line["cause"].clone()
        };
        assert_eq!(
            of("a:80: \"refused\""),
            serde_json::json!({"code": "connect", "detail": "a:80: \"refused\""})
        );
        assert_eq!(of(""), serde_json::json!({"code": "connect"}));
    }

    #[test]
    fn what_is_no_tool_call_says_its_method() {
        let of = |method, subject: &str| {
            let mut read = record();
            (read.method, read.subject) = (method, subject.into());
            let mut line = Vec::new();
            format(&read, &mut Clock::default(), &mut line);
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
    fn a_call_by_the_relay_names_the_process_at_the_other_end() {
        let of = |pid, project: Option<&str>| {
            let read = AuditRecord {
                transport: Transport::Relay,
                token_id: Some("k1".into()),
                relay: Some(std::sync::Arc::new(RelayPeer {
                    uid: 1000,
                    gid: 100,
                    pid,
                    project: project.map(Into::into),
                })),
                ..record()
            };
            let mut line = Vec::new();
            format(&read, &mut Clock::default(), &mut line);
            serde_json::from_slice::<serde_json::Value>(&line).expect("a line of JSON")
        };
        let line = of(Some(7), Some("proj_\"1"));
        assert_eq!(line["transport"], "relay");
        assert_eq!(
            line["peer"],
            serde_json::json!({"uid": 1000, "gid": 100, "pid": 7})
        );
        assert_eq!(
            (&line["project"], &line["token_id"]),
            (&"proj_\"1".into(), &"k1".into())
        );
        let line = of(None, None);
        assert_eq!(line["peer"], serde_json::json!({"uid": 1000, "gid": 100}));
        assert!(line.get("project").is_none());
    }

    #[test]
    fn arguments_are_a_digest_or_masked_text() {
        let digest = line(AuditArguments::Digest);
        assert_eq!(digest["arguments_bytes"], 13);
        assert_eq!(
            digest["arguments_blake3"],
            // printf '{"owner":"x"}' | b3sum
            "813735fbbf08e2a2d724b7d2d1bd01390db9e8f4a33a4a2146c30cbd579a569b"
        );
        assert!(digest.get("arguments").is_none());
        let full = line(AuditArguments::Full);
        assert_eq!(full["arguments"]["owner"], "x");
        assert!(full.get("arguments_blake3").is_none());
    }

    /// The fields of a record through serde, the expected form of a line.
    #[derive(serde::Serialize)]
    struct Line<'a> {
        ts: &'a str,
        request_id: &'a str,
        transport: &'static str,
        namespace: &'a str,
        tool: &'a str,
        status: &'static str,
        http_status: u16,
        latency_ms: u64,
        session: &'a str,
        client: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        principal: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        token_id: Option<&'a str>,
        arguments_blake3: String,
        arguments_bytes: usize,
    }

    proptest::proptest! {
        #[test]
        fn is_what_serde_would_write_whatever_the_texts_are(
            texts in proptest::array::uniform5("(?s).{0,40}"),
            awkward in "[\"\\\\\u{0}-\u{1f}\u{7f}é\u{2028}𝄞 /]{0,20}",
            (named, numbers) in proptest::prelude::any::<(bool, (u16, u64))>(),
            client in proptest::prelude::any::<IpAddr>(),
            arguments in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
        ) {
            let [request_id, session, subject, principal, token_id] = &texts;
            let subject = awkward + subject;
            let (http_status, latency) = numbers;
            let record = AuditRecord {
                request_id: request_id.as_str().into(),
                session: Some(session.as_str().into()),
                subject: subject.as_str().into(),
                principal: named.then(|| principal.as_str().into()),
                token_id: named.then(|| token_id.as_str().into()),
                protocol_version: None,
                http_status,
                latency: std::time::Duration::from_millis(latency),
                client,
                arguments: KeptArguments::of(&arguments.clone().into(), AuditArguments::Digest),
                ..record()
            };
            let mut line = Vec::new();
            format(&record, &mut Clock::default(), &mut line);
            let expected = Line {
                ts: "2026-02-13T10:00:00.123Z",
                request_id,
                transport: "mcp",
                namespace: "github",
                tool: &subject,
                status: "ok",
                http_status,
                latency_ms: latency,
                session,
                client: if client == IpAddr::from([0; 4]) { "unix".to_owned() } else { client.to_string() },
                principal: named.then_some(principal),
                token_id: named.then_some(token_id),
                arguments_blake3: blake3::hash(&arguments).to_string(),
                arguments_bytes: arguments.len(),
            };
            let expected = serde_json::to_string(&expected).expect("JSON") + "\n";
            proptest::prop_assert_eq!(String::from_utf8(line).expect("UTF-8"), expected);
        }
    }
}
