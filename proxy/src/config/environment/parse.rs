//! Reads the values of environment variables. An error is the fault alone; the caller puts the variable's name before
//! it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use tooldock_base::config::Concurrency;
use tooldock_base::secret::Secret;
use tooldock_process::repositories::GitScheme;
use tooldock_sessions::session::config::PollAfter;
use tooldock_upstream::protocol::ProtocolVersion;

use crate::config::LogLevel;

/// A token that can travel in a header. The error never shows it.
pub(super) fn token(text: &str) -> Result<Secret, String> {
    match tooldock_filters::token::SecretToken::new(text) {
        Ok(_) => Ok(Secret::new(text)),
        Err(error) => Err(error.to_string()),
    }
}

/// Minimum length of a session key, in characters: a client that guesses the key can make session ids.
const SESSION_KEY_MIN: usize = 32;

/// A key for session ids. The error never shows it.
pub(super) fn session_key(text: &str) -> Result<Secret, String> {
    match text.chars().count() {
        SESSION_KEY_MIN.. => Ok(Secret::new(text)),
        short => Err(format!(
            "has {short} characters, and a key needs at least {SESSION_KEY_MIN}; `openssl rand -hex 32` makes one"
        )),
    }
}

/// A user name as in `Authorization: Basic`: it ends at the first colon.
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

/// A port to listen on.
pub(super) fn port(text: &str) -> Result<u16, String> {
    text.parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("{text:?} is no port: expected 1 to 65535"))
}

/// A whole number.
pub(super) fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no whole number"))
}

/// A number of concurrent calls, or `auto`.
pub(super) fn calls_at_once(text: &str) -> Result<Concurrency, String> {
    text.parse().map_err(|error| format!("{text:?}: {error}"))
}

/// A size, in bytes or with a unit.
pub(super) fn bytes(text: &str) -> Result<ByteSize, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no size: expected bytes, or a size such as 4MiB"))
}

/// A number of seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    span(text, 1.0)
}

/// A number of milliseconds.
pub(super) fn milliseconds(text: &str) -> Result<Duration, String> {
    whole(text).map(Duration::from_millis)
}

/// A number of milliseconds. `off` and 0 both mean off.
pub(super) fn milliseconds_or_off(text: &str) -> Result<PollAfter, String> {
    match text {
        "off" | "0" => Ok(PollAfter::Off),
        number => milliseconds(number).map(PollAfter::After),
    }
}

/// A number of hours.
pub(super) fn hours(text: &str) -> Result<Duration, String> {
    span(text, 3600.0)
}

/// A positive number of units of `unit_seconds` seconds each.
fn span(text: &str, unit_seconds: f64) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|number| *number > 0.0)
        .and_then(|number| Duration::try_from_secs_f64(number * unit_seconds).ok())
        .filter(|span| !span.is_zero())
        .ok_or_else(|| format!("{text:?} is no number above 0"))
}

/// The log level.
pub(super) fn log_level(text: &str) -> Result<LogLevel, String> {
    LogLevel::from_name(text).ok_or_else(|| "expected error, warn, info, debug or trace".to_owned())
}

/// A yes or no, in any of four spellings and in upper or lower case.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// The name of a container, as Docker allows it: users paste a command with the name in it into a shell.
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

/// Reads a word of a fixed list, in upper or lower case.
pub(super) fn choice<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    let mut all = words.iter();
    let chosen = all.find(|(word, _)| word.eq_ignore_ascii_case(text));
    chosen.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        format!("{text:?} is none of {}", words.join(", "))
    })
}

/// Schemes by which repositories are reached, separated by commas.
pub(super) fn git_schemes(text: &str) -> Result<Vec<GitScheme>, String> {
    let words = GitScheme::ALL.map(|it| (it.as_str(), it));
    let entries = text.split(',').map(str::trim).filter(|it| !it.is_empty());
    entries.map(|entry| choice(entry, &words)).collect()
}

/// Entries separated by commas.
pub(super) fn list<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<Vec<T>, String> {
    let entries = text
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty());
    entries
        .map(|entry| entry.parse().map_err(|error| format!("{entry:?}: {error}")))
        .collect()
}

/// A protocol version.
pub(super) fn version(text: &str) -> Result<ProtocolVersion, String> {
    text.parse().map_err(|error| format!("{text:?}: {error}"))
}

/// Parses a list of at least one protocol version.
pub(super) fn versions(text: &str) -> Result<Vec<ProtocolVersion>, String> {
    let versions: Vec<ProtocolVersion> = list(text)?;
    if versions.is_empty() {
        return Err("names no version".to_owned());
    }
    Ok(versions)
}
