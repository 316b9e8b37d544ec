//! Parsers for the values of environment variables. An error message contains only the fault; the caller adds the variable's
//! name.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use tooldock_base::config::Concurrency;
use tooldock_base::names::{InvalidNamespaceName, NamespaceName};
use tooldock_base::secret::Secret;
use tooldock_process::repositories::GitScheme;
use tooldock_sessions::session::config::PollAfter;
use tooldock_upstream::protocol::ProtocolVersion;

use crate::config::LogLevel;

/// Parses a token, whose characters must be allowed in a header. The error never contains the token.
pub(super) fn token(text: &str) -> Result<Secret, String> {
    match tooldock_filters::token::SecretToken::new(text) {
        Ok(_) => Ok(Secret::new(text)),
        Err(error) => Err(error.to_string()),
    }
}

/// Minimum length of a session key, in characters. A client that guessed the key could forge session ids.
const SESSION_KEY_MIN: usize = 32;

/// Parses a key for session ids. The error never contains the key.
pub(super) fn session_key(text: &str) -> Result<Secret, String> {
    match text.chars().count() {
        SESSION_KEY_MIN.. => Ok(Secret::new(text)),
        short => Err(format!(
            "has {short} characters, and a key needs at least {SESSION_KEY_MIN}; `openssl rand -hex 32` makes one"
        )),
    }
}

/// Parses a user name for `Authorization: Basic`, which cannot contain a colon.
pub(super) fn user(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_graphic() && c != ':';
    match text.chars().all(plain) && text.len() <= 64 {
        true => Ok(text.to_owned()),
        false => Err(
            "is no user name: use up to 64 ASCII letters, digits and signs, no colon and no space"
                .to_owned(),
        ),
    }
}

/// Parses the namespace to debug. A list or a pattern is refused: a debugger's port runs code for whoever connects to it, so each
/// is opened by its name.
pub(super) fn debugged(text: &str) -> Result<NamespaceName, String> {
    text.parse().map_err(|_: InvalidNamespaceName| {
        format!("{text:?} is no namespace: name one, the folder whose worker waits for a debugger")
    })
}

/// Parses the number of a port to listen on.
pub(super) fn port(text: &str) -> Result<u16, String> {
    text.parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("{text:?} is no port: expected 1 to 65535"))
}

/// Parses a whole number.
pub(super) fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no whole number"))
}

/// Parses a maximum number of concurrent calls, or `auto`.
pub(super) fn calls_at_once(text: &str) -> Result<Concurrency, String> {
    text.parse().map_err(|error| format!("{text:?}: {error}"))
}

/// Parses a size in bytes, with or without a unit.
pub(super) fn bytes(text: &str) -> Result<ByteSize, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no size: expected bytes, or a size such as 4MiB"))
}

/// Parses a duration in seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    span(text, 1.0)
}

/// Parses a duration in whole milliseconds.
pub(super) fn milliseconds(text: &str) -> Result<Duration, String> {
    whole(text).map(Duration::from_millis)
}

/// Parses a duration in milliseconds; `off` and 0 disable the feature.
pub(super) fn milliseconds_or_off(text: &str) -> Result<PollAfter, String> {
    match text {
        "off" | "0" => Ok(PollAfter::Off),
        number => milliseconds(number).map(PollAfter::After),
    }
}

/// Parses a duration in hours.
pub(super) fn hours(text: &str) -> Result<Duration, String> {
    span(text, 3600.0)
}

/// Parses a positive duration in units of `unit_seconds` seconds.
fn span(text: &str, unit_seconds: f64) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|number| *number > 0.0)
        .and_then(|number| Duration::try_from_secs_f64(number * unit_seconds).ok())
        .filter(|span| !span.is_zero())
        .ok_or_else(|| format!("{text:?} is no number above 0"))
}

/// Parses a log level.
pub(super) fn log_level(text: &str) -> Result<LogLevel, String> {
    LogLevel::from_name(text).ok_or_else(|| "expected error, warn, info, debug or trace".to_owned())
}

/// Parses a yes or no, in any of four spellings and in upper or lower case.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// Parses the name of a container, with the characters that Docker allows: users paste the name into a shell.
pub(super) fn container(text: &str) -> Result<String, String> {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    let first = text
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric());
    match first && text.len() <= 128 && text.bytes().all(is_part) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is no name of a container")),
    }
}

/// Parses a word of a fixed list, in upper or lower case.
pub(super) fn choice<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    let mut all = words.iter();
    let chosen = all.find(|(word, _)| word.eq_ignore_ascii_case(text));
    chosen.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        format!("{text:?} is none of {}", words.join(", "))
    })
}

/// Parses a list of URL schemes for repositories, separated by commas.
pub(super) fn git_schemes(text: &str) -> Result<Vec<GitScheme>, String> {
    let words = GitScheme::ALL.map(|it| (it.as_str(), it));
    let entries = text.split(',').map(str::trim).filter(|it| !it.is_empty());
    entries.map(|entry| choice(entry, &words)).collect()
}

/// Parses a list whose entries are separated by commas.
pub(super) fn list<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<Vec<T>, String> {
    let entries = text
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty());
    entries
        .map(|entry| entry.parse().map_err(|error| format!("{entry:?}: {error}")))
        .collect()
}

/// Parses a protocol version of MCP.
pub(super) fn version(text: &str) -> Result<ProtocolVersion, String> {
    text.parse().map_err(|error| format!("{text:?}: {error}"))
}

/// Parses a list of at least one protocol version, separated by commas.
pub(super) fn versions(text: &str) -> Result<Vec<ProtocolVersion>, String> {
    let versions: Vec<ProtocolVersion> = list(text)?;
    if versions.is_empty() {
        return Err("names no version".to_owned());
    }
    Ok(versions)
}
