//! Recognizes, by the text of a refusal, that a server does not know the session.
//!
//! Servers phrase the refusal freely, in JSON of any shape, in plain text or in a page. A text counts as such a refusal if a
//! denial is near the word "session": `Invalid session ID`, `Session 123 does not exist`, `SessionNotFound`, `Mcp-Session-Id is
//! required`.

use serde_json::Value;

/// Maximum size of a text that is searched, in bytes.
pub(super) const REFUSAL_MAX: usize = 4096;
/// Maximum distance from the word "session" to a denial after it, in words.
const NEAR: usize = 8;
/// Maximum distance from a denial to the word "session" after it, in words.
const BEFORE: usize = 5;

/// Denials of one word that are searched for in the words before "session".
const DENIALS_BEFORE: [&str; 20] = [
    "no",
    "invalid",
    "unknown",
    "bad",
    "missing",
    "expired",
    "wrong",
    "stale",
    "unrecognized",
    "unrecognised",
    "terminated",
    "nonexistent",
    "without",
    "lost",
    "malformed",
    "closed",
    "deleted",
    "inactive",
    "requires",
    "absent",
];
/// Denials of several words that are searched for in the words before "session".
const PHRASES_BEFORE: [&str; 6] = [
    "cannot find",
    "could not find",
    "not find",
    "not found",
    "unable to find",
    "failed to find",
];
/// Denials of one word that are searched for in the words after "session".
const DENIALS_AFTER: [&str; 26] = [
    "notfound",
    "unknown",
    "invalid",
    "expired",
    "missing",
    "required",
    "terminated",
    "closed",
    "gone",
    "ended",
    "unrecognized",
    "unrecognised",
    "stale",
    "nonexistent",
    "inactive",
    "lost",
    "destroyed",
    "deleted",
    "removed",
    "uninitialized",
    "uninitialised",
    "absent",
    "malformed",
    "disconnected",
    "evicted",
    "mismatch",
];
/// Denials of several words that are searched for in the words after "session".
const PHRASES_AFTER: [&str; 18] = [
    "not found",
    "not be found",
    "not exist",
    "doesn t exist",
    "not valid",
    "not known",
    "not recognized",
    "not recognised",
    "not active",
    "not initialized",
    "not initialised",
    "not open",
    "not provided",
    "not registered",
    "no longer",
    "timed out",
    "must be provided",
    "not present",
];
/// Phrases without the word "session" which also mean that the session is unknown.
const UNINITIALIZED: [&str; 8] = [
    "server not initialized",
    "server is not initialized",
    "server not initialised",
    "client not initialized",
    "connection not initialized",
    "not initialized yet",
    "before initialization",
    "must initialize",
];

/// Statement of a refusal's text about the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionWords {
    /// The text does not mention a session.
    None,
    /// The text contains the word "session" without a denial.
    Named,
    /// The text states that the session is unknown.
    Denied,
}

/// Evaluates whether the body of a refusal denies the session. All strings of a JSON body are searched, or the body as text.
pub(super) fn session_words(body: &[u8]) -> SessionWords {
    let body = &body[..body.len().min(REFUSAL_MAX)];
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    match serde_json::from_slice::<Value>(body) {
        // In an object with an `error`, only the error and the message count.
        Ok(Value::Object(members)) => match members.get("error") {
            Some(error) if !error.is_null() => {
                let code = members.get("message").map_or(SessionWords::None, of_value);
                strongest(of_value(error), code)
            }
            _ => of_value(&Value::Object(members)),
        },
        Ok(value) => of_value(&value),
        Err(_) => of_text(&String::from_utf8_lossy(body)),
    }
}

fn strongest(one: SessionWords, other: SessionWords) -> SessionWords {
    match (one, other) {
        (SessionWords::Denied, _) | (_, SessionWords::Denied) => SessionWords::Denied,
        (SessionWords::Named, _) | (_, SessionWords::Named) => SessionWords::Named,
        _ => SessionWords::None,
    }
}

fn of_value(value: &Value) -> SessionWords {
    match value {
        Value::String(text) => of_text(text),
        Value::Array(values) => values
            .iter()
            .map(of_value)
            .fold(SessionWords::None, strongest),
        Value::Object(members) => members
            .values()
            .map(of_value)
            .fold(SessionWords::None, strongest),
        Value::Null | Value::Bool(_) | Value::Number(_) => SessionWords::None,
    }
}

fn of_text(text: &str) -> SessionWords {
    let sentences = text.split(['\n', '<', '>', ';', '{', '}']);
    let sentences = sentences.flat_map(|line| line.split(". "));
    sentences
        .map(of_sentence)
        .fold(SessionWords::None, strongest)
}

fn of_sentence(sentence: &str) -> SessionWords {
    let words = words(sentence);
    let text = words.join(" ");
    if text == "not initialized" || UNINITIALIZED.iter().any(|it| has_phrase(&text, it)) {
        return SessionWords::Denied;
    }
    let mut found = SessionWords::None;
    for (at, word) in words.iter().enumerate() {
        if !matches!(&**word, "session" | "sessions" | "sessionid") {
            if word.starts_with("session") && DENIALS_AFTER.iter().any(|it| word.ends_with(it)) {
                return SessionWords::Denied;
            }
            continue;
        }
        found = SessionWords::Named;
        let before = &words[at.saturating_sub(BEFORE)..at];
        let after = &words[at + 1..words.len().min(at + 1 + NEAR)];
        let has = |near: &[String], denials: &[&str], phrases: &[&str]| {
            let text = near.join(" ");
            near.iter().any(|word| denials.contains(&&**word))
                || phrases.iter().any(|it| has_phrase(&text, it))
        };
        if has(before, &DENIALS_BEFORE, &PHRASES_BEFORE)
            || has(after, &DENIALS_AFTER, &PHRASES_AFTER)
        {
            return SessionWords::Denied;
        }
    }
    found
}

fn has_phrase(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(at, _)| {
        let before = at == 0 || text.as_bytes()[at - 1] == b' ';
        let end = text.as_bytes().get(at + phrase.len());
        before && end.is_none_or(|it| *it == b' ')
    })
}

/// The words of a sentence in lower case; `SessionNotFound` and `session_not_found` are three words.
fn words(sentence: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut after_lower = false;
    for letter in sentence.chars() {
        let ends = !letter.is_alphanumeric() || (letter.is_uppercase() && after_lower);
        if ends && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        after_lower = letter.is_lowercase();
        if letter.is_alphanumeric() {
            word.extend(letter.to_lowercase());
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_in_many_words_that_the_session_is_not_known() {
        for text in [
            "Server not initialized",
            "Bad Request: Server not initialized",
            "Invalid session ID",
            "Invalid or missing session ID",
            "No session",
            "No such session",
            "No active session for this id",
            "Session not found",
            "Session 123 does not exist",
            "Session doesn't exist",
            "invalid_session_id",
            "SessionNotFound",
            "SESSION_NOT_FOUND",
            "sessionnotfound",
            "Mcp-Session-Id is not valid",
            "Mcp-Session-Id header is required",
            "The session has been terminated. Please reconnect.",
            "sessionId expired",
            "Could not find session abc",
            "Your session is no longer available",
        ] {
            let json = |value: Value| value.to_string();
            for body in [
                text.to_owned(),
                format!("<html><body><h1>Bad Request</h1><p>{text}</p></body></html>"),
                json(text.into()),
                json(serde_json::json!({ "detail": text, "status": 400 })),
                json(
                    serde_json::json!({ "error": { "code": -32000, "message": "Bad Request", "data": { "why": text } } }),
                ),
                json(serde_json::json!({ "error": text })),
            ] {
                assert_eq!(
                    session_words(body.as_bytes()),
                    SessionWords::Denied,
                    "{body}"
                );
            }
        }
    }

    #[test]
    fn a_refusal_that_is_about_the_request_says_nothing_of_an_unknown_session() {
        for (text, expected) in [
            ("the session must be a number", SessionWords::Named),
            ("the tool keeps one session per user", SessionWords::Named),
            (
                "this tool may not be called in this session",
                SessionWords::Named,
            ),
            ("no such tool", SessionWords::None),
            ("the camera is not initialized", SessionWords::None),
            ("file not found", SessionWords::None),
            ("", SessionWords::None),
        ] {
            assert_eq!(session_words(text.as_bytes()), expected, "{text}");
        }
        let long = format!("{}session not found", "x".repeat(REFUSAL_MAX));
        assert_eq!(session_words(long.as_bytes()), SessionWords::None);
    }
}
