//! The messages the gateway makes of what a function reports: progress and log messages. Each is one line of JSON, spliced
//! from spans and never decoded. Questions to the client are in `interaction/messages.rs`.

use tooldock_workers::worker::LogLevel;

use crate::interaction::PeerEvent;

/// The notification that an event is for a client of this progress token, raw, which wants log messages from that level
/// on; `None` where the client does not want to hear of the event. Questions are no notifications.
pub(super) fn message(
    event: PeerEvent,
    token: Option<&str>,
    wanted: Option<LogLevel>,
) -> Option<Vec<u8>> {
    let wants = |level: LogLevel| wanted.is_some_and(|wanted| level >= wanted);
    match event {
        PeerEvent::Progress(params) => Some(progress(token?, &params)),
        PeerEvent::Log { level, params } => wants(level).then(|| log(&params)),
        PeerEvent::Message { level, message } => level.is_none_or(wants).then(|| message.into()),
        PeerEvent::InputRequests(_) => None,
    }
}

/// `notifications/progress`. `token` is the client's, raw; `params` is the rest of the object.
fn progress(token: &str, params: &[u8]) -> Vec<u8> {
    const HEAD: &[u8] =
        br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"#;
    let mut out = Vec::with_capacity(HEAD.len() + token.len() + params.len() + 2);
    out.extend_from_slice(HEAD);
    out.extend_from_slice(token.as_bytes());
    // Everything after the opening brace, the closing one included.
    let rest = params.trim_ascii();
    let rest = rest.strip_prefix(b"{").unwrap_or(b"}").trim_ascii_start();
    if rest != b"}" {
        out.push(b',');
    }
    out.extend_from_slice(rest);
    out.push(b'}');
    out
}

/// `notifications/message`.
fn log(params: &[u8]) -> Vec<u8> {
    const HEAD: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/message","params":"#;
    let mut out = Vec::with_capacity(HEAD.len() + params.len() + 1);
    out.extend_from_slice(HEAD);
    out.extend_from_slice(params.trim_ascii());
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(message: Vec<u8>) -> Value {
        serde_json::from_slice(&message).expect("JSON")
    }

    #[test]
    fn progress_keeps_the_tokens_and_the_numbers_spelling() {
        let message = progress(r#""\u0041""#, br#" {"progress":1.50,"total":2}"#);
        let text = String::from_utf8(message.clone()).expect("UTF-8");
        assert!(
            text.contains(r#"{"progressToken":"\u0041","progress":1.50,"total":2}"#),
            "{text}"
        );
        assert_eq!(read(message)["method"], "notifications/progress");
        for odd in ["{}", "{ }", ""] {
            let params = &read(progress("7", odd.as_bytes()))["params"];
            assert_eq!(params, &json!({ "progressToken": 7 }), "{odd:?}");
        }
    }

    #[test]
    fn a_log_message_is_what_the_function_said() {
        assert_eq!(
            read(log(br#"{"level":"info","data":1}"#))["params"],
            json!({ "level": "info", "data": 1 })
        );
    }
}
