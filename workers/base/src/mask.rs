//! Masks credentials in the configuration of servers before it is shown: names are kept, values are masked.
//!
//! Values of variables and headers are shown only if they consist of a reference `${NAME}`. In other texts, such as arguments
//! and addresses, everything that looks like a credential is masked; ambiguous texts are masked, too.

mod address;
mod pasted;

use serde_json::{Map, Value};

use crate::logins::redact_credentials;
use crate::template::Template;

pub use address::address;
pub use pasted::{is_credential_of, pasted};

/// Text that replaces a masked value.
pub const MASK: &str = "***MASKED***";

/// Prefixes of credentials of well-known services.
const KNOWN: [&str; 27] = [
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "sk-",
    "sk_",
    "rk_",
    "pk_",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xoxs-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "npm_",
    "pypi-",
    "hf_",
    "eyJ",
    "td_",
    "oub_",
    "SG.",
];
/// Prefixes that occur only in credentials. A word with any other prefix of `KNOWN` is masked only if its rest mixes letters and
/// digits.
const CERTAIN: [&str; 14] = [
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xoxs-",
    "xapp-",
    "AIza",
    "ya29.",
];
/// The end of the first line of a private key in PEM format.
const PRIVATE_KEY: &str = "PRIVATE KEY-----";
/// Number of characters that must follow a prefix listed in [`KNOWN`] for the word to be masked.
const KNOWN_REST_MIN: usize = 4;
/// A word with at least this number of letters and digits is treated as a credential.
const RANDOM_MIN: usize = 32;

/// Masks the value of a variable or a header.
pub fn value(text: &str) -> String {
    Template::new(text).masked().to_owned()
}

/// Masks a URL: removes user and password, and masks the values of its query and the credentials in its path.
pub fn url(text: &str) -> String {
    let clean = redact_credentials(text);
    let (clean, fragment) = split_kept(&clean, '#');
    let (path, query) = split_kept(clean, '?');
    let segments = path.split('/').map(|it| match is_credential(it) {
        true => MASK,
        false => it,
    });
    let mut shown = segments.collect::<Vec<_>>().join("/");
    for (mark, part) in [('?', query), ('#', fragment)] {
        if let Some(part) = part {
            let fields = part.split('&').map(|field| match field.split_once('=') {
                Some((name, said)) => format!("{name}={}", value(said)),
                None => value(field),
            });
            shown.push(mark);
            shown.push_str(&fields.collect::<Vec<_>>().join("&"));
        }
    }
    shown
}

fn split_kept(text: &str, mark: char) -> (&str, Option<&str>) {
    match text.split_once(mark) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

/// Masks the credentials in a text of any kind, such as an argument or a shell script.
pub fn text(text: &str) -> String {
    if text.contains(PRIVATE_KEY) {
        return MASK.to_owned();
    }
    // Logins in URLs are removed before the text is split into words, since a password may contain blanks and quotes.
    let text = redact_credentials(text);
    let mut shown = String::with_capacity(text.len());
    let mut next = NextWord::Shown;
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (word, after) = rest.split_at(rest.find(is_gap).unwrap_or(rest.len()));
        if !word.is_empty() {
            shown.push_str(&in_text(word, &mut next));
        }
        let (gap, after) = after.split_at(after.find(|c| !is_gap(c)).unwrap_or(after.len()));
        shown.push_str(gap);
        rest = after;
    }
    shown
}

/// Masks the credentials in the arguments of a command.
pub fn arguments<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut next = NextWord::Shown;
    let masked = arguments.into_iter().map(|argument| {
        let now = std::mem::replace(&mut next, NextWord::Shown);
        match now {
            NextWord::Masked => return value(argument),
            NextWord::Pair => return pair(argument),
            // If another option follows, the previous one has no value to mask.
            NextWord::Login if !argument.starts_with('-') => return login(argument),
            NextWord::Password if !argument.starts_with('-') => return password(argument),
            NextWord::Shown | NextWord::Separator | NextWord::Login | NextWord::Password => {}
        }
        if !argument.starts_with('-') {
            return text(argument);
        }
        if let Some(shown) = attached(argument) {
            return shown;
        }
        let Some((name, said)) = argument.split_once('=') else {
            next = after_option(argument);
            return text(argument);
        };
        match after_option(name) {
            NextWord::Masked => format!("{name}={}", value(said)),
            NextWord::Pair => format!("{name}={}", pair(said)),
            NextWord::Login => format!("{name}={}", login(said)),
            NextWord::Password => format!("{name}={}", password(said)),
            NextWord::Shown | NextWord::Separator => text(argument),
        }
    });
    masked.collect()
}

/// Masks a value that is attached to its one-letter option: `-pPASSWORD`, `-uUSER:PASSWORD`, `-HName: value`, `-eNAME=value`.
/// Returns `None` for other arguments.
fn attached(argument: &str) -> Option<String> {
    let (letter, said) = attached_option(argument)?;
    let shown = match letter {
        'p' => value(said),
        'u' | 'U' => login(said),
        _ => pair(said),
    };
    Some(format!("-{letter}{shown}"))
}

/// Splits a one-letter option from the value attached to it. Returns `None` for other arguments, such as `-p8080`, which is a
/// port, and `-python`, which is a long option.
fn attached_option(argument: &str) -> Option<(char, &str)> {
    let mut letters = argument.strip_prefix('-')?.chars();
    let letter = letters.next()?;
    let said = letters.as_str();
    if said.is_empty() || said.starts_with('=') {
        return None;
    }
    let is_one = match letter {
        'p' => !is_long_name(argument) && !is_port(said),
        'u' | 'U' => said.contains([':', '%']),
        'H' => said.contains(':'),
        'e' => is_variable(said),
        _ => false,
    };
    is_one.then_some((letter, said))
}

/// Returns true if an argument such as `-package` is a long option with a single dash, and not `-p` with a value.
fn is_long_name(argument: &str) -> bool {
    const NAMES: [&str; 44] = [
        "package",
        "packages",
        "page",
        "parallel",
        "param",
        "params",
        "pass",
        "passcode",
        "passphrase",
        "passwd",
        "password",
        "pat",
        "path",
        "paths",
        "pattern",
        "patterns",
        "persist",
        "pid",
        "pidfile",
        "pin",
        "plaintext",
        "platform",
        "plugin",
        "plugins",
        "policy",
        "poll",
        "pool",
        "port",
        "ports",
        "pprof",
        "prefix",
        "pretty",
        "print",
        "prod",
        "production",
        "profile",
        "progress",
        "project",
        "protocol",
        "proxy",
        "public",
        "pull",
        "pwd",
        "python",
    ];
    let name = argument.split_once('=').map_or(argument, |(name, _)| name);
    NAMES.contains(&name.trim_start_matches('-'))
}

/// Returns true if a text begins with `NAME=`, the name being in capitals.
fn is_variable(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    text.split_once('=')
        .is_some_and(|(name, _)| !name.is_empty() && name.bytes().all(allowed))
}

/// Returns true if a text is a port, or a mapping of ports of containers: `8080`, `8080:80/tcp`, `127.0.0.1:8080:80`.
fn is_port(text: &str) -> bool {
    /// Maximum number of digits of a port; a longer row of digits is not a port.
    const DIGITS_MAX: usize = 5;
    let ports = match text.rsplit_once('/') {
        Some((ports, "tcp" | "udp" | "sctp")) => ports,
        _ => text,
    };
    let is_number =
        |part: &str| part.len() <= DIGITS_MAX && part.bytes().all(|byte| byte.is_ascii_digit());
    !ports.is_empty() && ports.split([':', '.', '-']).all(is_number)
}

/// Masks an argument that follows `-p`. It counts as a password unless it is a port, a path, a variable, or a word such as the
/// name of a package.
fn password(text: &str) -> String {
    let is_word = text
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'-' || byte == b'_');
    let is_place = text.contains('/') || text.starts_with(['.', '~', '@', '$']);
    let is_file = text.rsplit_once('.').is_some_and(|(_, end)| {
        matches!(end, "json" | "js" | "py" | "toml" | "ts" | "yaml" | "yml")
    });
    match is_port(text) || is_word || is_place || is_file {
        true => self::text(text),
        false => value(text),
    }
}

/// Masks the password in a text `USER:PASSWORD` or `USER%PASSWORD`; a user name alone is shown.
fn login(text: &str) -> String {
    if text.contains("://") {
        return url(text);
    }
    let Some(at) = text.find([':', '%']) else {
        return self::text(text);
    };
    let (user, said) = text.split_at(at + 1);
    let is_id = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    // Numbers as in `-u 1000:1000` are the user and the group of a container, and are shown.
    match said.is_empty() || (is_id(&user[..at]) && is_id(said)) {
        true => text.to_owned(),
        false => format!("{user}{}", value(said)),
    }
}

/// Masks the credentials in a server's entry, as it stands in a file or in the configuration.
pub fn server(entry: &Value) -> Value {
    match entry {
        Value::Object(keys) => {
            let masked = keys.iter().map(|(key, it)| (key.clone(), of_key(key, it)));
            Value::Object(masked.collect::<Map<_, _>>())
        }
        Value::Array(all) => all.iter().map(server).collect(),
        Value::String(said) => text(said).into(),
        Value::Null | Value::Bool(_) | Value::Number(_) => entry.clone(),
    }
}

fn of_key(key: &str, entry: &Value) -> Value {
    match (key, entry) {
        ("args" | "arguments", Value::Array(all)) => {
            let is_text = all.iter().all(Value::is_string);
            match is_text {
                true => arguments(all.iter().filter_map(Value::as_str)).into(),
                false => all.iter().map(values).collect(),
            }
        }
        ("personal", _) => server(entry),
        ("env" | "environment" | "headers" | "header", _) => values(entry),
        _ if is_secret(key) => values(entry),
        _ => server(entry),
    }
}

/// Masks the values in a list of variables or headers; their names are kept.
fn values(entry: &Value) -> Value {
    match entry {
        Value::Object(keys) => {
            let masked = keys.iter().map(|(key, it)| match key.as_str() {
                // The lists `pass` and `remove` contain names of headers, not values.
                "pass" | "remove" => (key.clone(), server(it)),
                name if has_token(name) => (MASK.to_owned(), values(it)),
                _ => (key.clone(), values(it)),
            });
            Value::Object(masked.collect::<Map<_, _>>())
        }
        Value::Array(all) => {
            let entries = all.iter().map(|it| match it.as_str() {
                Some(said) => pair(said).into(),
                None => values(it),
            });
            entries.collect()
        }
        Value::String(said) => value(said).into(),
        Value::Null => Value::Null,
        Value::Bool(_) | Value::Number(_) => MASK.into(),
    }
}

/// Meaning of the next word, as announced by the option or name before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextWord {
    /// The next word has no special meaning.
    Shown,
    /// The next word is a credential.
    Masked,
    /// The next word is a name with its value, `NAME=VALUE` or `Name: value`.
    Pair,
    /// The next word is a colon or an equals sign before a credential; any other word is shown.
    Separator,
    /// The next word is a user name, optionally with a colon and a password.
    Login,
    /// The next word is a password, unless it looks like a port, a path or a name.
    Password,
}

fn after_option(name: &str) -> NextWord {
    match name {
        "-H" | "--header" | "--headers" | "-e" | "--env" => NextWord::Pair,
        "-u" | "-U" | "--user" | "--username" | "--login" | "--proxy-user" | "--http-user" => {
            NextWord::Login
        }
        "-p" => NextWord::Password,
        _ if is_secret(name) => NextWord::Masked,
        _ => NextWord::Shown,
    }
}

/// Masks the credentials in a text `NAME=VALUE` or `Name: value`. A name alone is shown, unless it looks like a credential.
fn pair(text: &str) -> String {
    let Some(at) = text.find(['=', ':']) else {
        return match is_credential(text) {
            true => MASK.to_owned(),
            false => text.to_owned(),
        };
    };
    let (name, said) = text.split_at(at + 1);
    let blank = said.len() - said.trim_start().len();
    format!("{name}{}{}", &said[..blank], value(&said[blank..]))
}

/// Masks a word of a text, and records in `next` if the following word is a credential.
fn in_text(word: &str, next: &mut NextWord) -> String {
    let now = std::mem::replace(next, NextWord::Shown);
    let is_separator = word.chars().all(|c| ":=,".contains(c));
    if is_separator && now != NextWord::Shown {
        *next = NextWord::Masked;
        return word.to_owned();
    }
    if is_scheme(word) {
        *next = NextWord::Masked;
        return word.to_owned();
    }
    if now == NextWord::Masked {
        return value(word);
    }
    if let Some(shown) = of_option(word, now, next) {
        return shown;
    }
    if word.contains("://") {
        // Text before the URL is the name of a pair: `URL=https://…`.
        return url(word);
    }
    if let Some(at) = word.find(['=', ':']) {
        let (name, said) = word.split_at(at + 1);
        let secret = is_secret(&name[..at]);
        return match said {
            "" if secret => {
                *next = NextWord::Masked;
                word.to_owned()
            }
            _ if secret && is_scheme(said) => {
                *next = NextWord::Masked;
                word.to_owned()
            }
            _ if secret || is_credential(said) => format!("{name}{}", value(said)),
            _ => word.to_owned(),
        };
    }
    if is_credential(word) {
        return MASK.to_owned();
    }
    *next = match (is_secret(word), word.starts_with('-')) {
        (true, true) => NextWord::Masked,
        (true, false) => NextWord::Separator,
        (false, _) => NextWord::Shown,
    };
    word.to_owned()
}

/// Masks a word that is an option for a user or a password, or that follows such an option. Returns `None` for other words.
fn of_option(word: &str, now: NextWord, next: &mut NextWord) -> Option<String> {
    if !word.starts_with('-') {
        return match now {
            NextWord::Login => Some(login(word)),
            NextWord::Password => Some(password(word)),
            _ => None,
        };
    }
    if let Some(shown) = attached(word) {
        return Some(shown);
    }
    let (name, said) = match word.split_once('=') {
        Some((name, said)) => (name, Some(said)),
        None => (word, None),
    };
    match (after_option(name), said) {
        (NextWord::Login, Some(said)) => Some(format!("{name}={}", login(said))),
        (NextWord::Password, Some(said)) => Some(format!("{name}={}", password(said))),
        (after @ (NextWord::Login | NextWord::Password), None) => {
            *next = after;
            Some(word.to_owned())
        }
        _ => None,
    }
}

fn is_gap(c: char) -> bool {
    c.is_whitespace() || "\"'`".contains(c)
}

/// Returns true if a component of a word looks like a credential. Long random components of file paths do not count.
fn is_credential(word: &str) -> bool {
    let is_path = word.starts_with(['/', '.', '~']);
    let mut parts = word.split(|c: char| !(c.is_ascii_alphanumeric() || "-_+.=".contains(c)));
    has_token(word) || parts.any(|part| is_known(part) || (!is_path && looks_random(part)))
}

/// Returns true if the word is the scheme of an authorization header, `Bearer` or `Basic`; a credential follows it.
fn is_scheme(word: &str) -> bool {
    word.eq_ignore_ascii_case("bearer") || word.eq_ignore_ascii_case("basic")
}

fn is_known(word: &str) -> bool {
    let begins = |known: &str| {
        let rest = word.strip_prefix(known);
        rest.is_some_and(|rest| rest.len() >= KNOWN_REST_MIN)
    };
    KNOWN.iter().any(|known| begins(known))
}

/// Returns true if a text contains a token of a well-known service, or a private key. A word that only shares the prefix of a
/// token, such as `npm_config_registry`, does not count.
fn has_token(text: &str) -> bool {
    let is_end = |c: char| !(c.is_ascii_alphanumeric() || "-_+.=".contains(c));
    let mut words = text.split(is_end);
    text.contains(PRIVATE_KEY) || words.any(|word| has_token_in(word, &mut is_dense))
}

/// Returns true if a word contains a token. Each component of the word is checked once, even if a token's prefix occurs many
/// times in it, because a server's entry may consist of a single very long word.
fn has_token_in(word: &str, is_dense: &mut dyn FnMut(&str) -> bool) -> bool {
    /// Minimum number of characters of a token whose prefix also occurs in ordinary words.
    const UNCERTAIN_MIN: usize = 12;
    let is_end = |c: char| !c.is_ascii_alphanumeric();
    // Start of the last component of the word that looks random by itself; a token that starts before this component includes it.
    let mut last_dense: Option<Option<usize>> = None;
    let mut is_token = |known: &str, at: usize| {
        if word[..at].ends_with(|c: char| c.is_ascii_alphanumeric()) {
            return false;
        }
        let begin = at + known.len();
        let rest = &word[begin..];
        if CERTAIN.contains(&known) {
            return rest.len() >= KNOWN_REST_MIN;
        }
        if known.len() + rest.len() < UNCERTAIN_MIN {
            return false;
        }
        let last_dense = *last_dense.get_or_insert_with(|| {
            let mut parts = word.rsplit(is_end);
            let dense = parts.find(|part| is_dense(part));
            dense.map(|part| part.as_ptr().addr() - word.as_ptr().addr())
        });
        let first = &rest[..rest.find(is_end).unwrap_or(rest.len())];
        last_dense.is_some_and(|last| last >= begin) || is_dense(first)
    };
    let mut known = KNOWN.iter();
    known.any(|known| word.match_indices(known).any(|(at, _)| is_token(known, at)))
}

/// Returns true if a component of a word is longer than names are, or mixes letters and digits more than names do.
fn is_dense(word: &str) -> bool {
    const RUN_MIN: usize = 6;
    const DIGITS_MIN: usize = 8;
    const LONG: usize = 16;
    let mut runs = word.split(|c: char| !c.is_ascii_alphanumeric());
    runs.any(|run| {
        let has_digit = run.bytes().any(|byte| byte.is_ascii_digit());
        let has_letter = run.bytes().any(|byte| byte.is_ascii_alphabetic());
        run.len() >= LONG
            || (has_digit && run.len() >= if has_letter { RUN_MIN } else { DIGITS_MIN })
    })
}

/// Returns true if a word is long and mixes letters and digits, unlike any name.
fn looks_random(word: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_+=".contains(&byte);
    word.len() >= RANDOM_MIN
        && word.bytes().all(allowed)
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Returns true if a text that should be the name of an environment variable looks like the value of a secret: it begins with
/// the prefix of a well-known token, or a component is long and often changes between letters and digits, unlike any name.
pub fn looks_like_a_value(name: &str) -> bool {
    const PART_MIN: usize = 16;
    const CHANGES_MIN: usize = 3;
    let is_random = |part: &str| {
        let digits = || part.bytes().map(|byte| byte.is_ascii_digit());
        let changes = digits().zip(digits().skip(1)).filter(|(a, b)| a != b);
        part.len() >= PART_MIN && changes.count() >= CHANGES_MIN
    };
    let is_token = is_known(name) || name.starts_with("xox");
    is_token && name.len() >= PART_MIN || name.split(['_', '-', '.']).any(is_random)
}

/// Returns true if the name of a variable, header or option indicates that its value is a secret.
fn is_secret(name: &str) -> bool {
    const WORDS: [&str; 13] = [
        "password",
        "passwd",
        "passphrase",
        "passcode",
        "secret",
        "token",
        "apikey",
        "credential",
        "connectionstring",
        "authorization",
        "bearer",
        "cookie",
        "signature",
    ];
    const ENDS: [&str; 7] = ["key", "auth", "pwd", "pass", "pat", "dsn", "pin"];
    let letters: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|letter| letter.to_ascii_lowercase())
        .collect();
    let last = name.rsplit(|c: char| !c.is_ascii_alphanumeric()).next();
    let last = last.unwrap_or_default().to_ascii_lowercase();
    WORDS.iter().any(|word| letters.contains(word))
        || ENDS.contains(&last.as_str())
        || letters.ends_with("key")
        || name.ends_with("Auth")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CANARY: &str = "c4n4ry-9f3e";

    #[test]
    fn one_long_word_of_beginnings_is_read_a_bounded_number_of_times() {
        for (part, has) in [
            ("sk-", false),
            ("sk-sk_npm_td_", false),
            ("AKIA-eyJ.", false),
            ("pypi-a1b2c-", false),
            ("ghp_", true),
        ] {
            let word = part.repeat(10_000);
            let mut read = 0;
            let mut counted = |part: &str| {
                read += part.len();
                is_dense(part)
            };
            assert_eq!(has_token_in(&word, &mut counted), has, "{part}");
            assert!(read <= 2 * word.len(), "{part}: {read} of {}", word.len());
            let ends = format!("{word}=sk-a1b2c3d4e5f6");
            assert!(has_token(&ends), "{part}");
        }
        for (text, has) in [
            ("ask-a1b2c3d4e5f6", false),
            ("x=sk-a1b2c3d4e5f6", true),
            ("sk-learn-some-words-a1b2c3d4e5", true),
            ("a1b2c3d4e5f6-sk-learn-and-words", false),
            ("AKIAIOSFODNN7EXAMPLE", true),
            ("\u{e9}sk-a1b2c3d4e5f6", true),
        ] {
            assert_eq!(has_token(text), has, "{text}");
        }
    }

    #[test]
    fn what_looks_like_a_credential_in_arguments_is_masked_and_the_rest_is_shown() {
        for (args, shown) in [
            (
                &["-y", "@scope/pkg@1.2.3", "--port=1", "/data/dir"][..],
                None,
            ),
            (&["--token=c4n4ry-9f3e"], Some("--token=***MASKED***")),
            (
                &["--api-key", "c4n4ry-9f3e"],
                Some("--api-key ***MASKED***"),
            ),
            (&["--API_KEY=c4n4ry-9f3e"], Some("--API_KEY=***MASKED***")),
            (&["--pat", "c4n4ry-9f3e"], Some("--pat ***MASKED***")),
            (&["--auth=c4n4ry-9f3e"], Some("--auth=***MASKED***")),
            (
                &["GITHUB_TOKEN=c4n4ry-9f3e"],
                Some("GITHUB_TOKEN=***MASKED***"),
            ),
            (&["Bearer c4n4ry-9f3e"], Some("Bearer ***MASKED***")),
            (
                &["-H", "X-Any: c4n4ry-9f3e"],
                Some("-H X-Any: ***MASKED***"),
            ),
            (
                &["--header=X-Any: c4n4ry-9f3e"],
                Some("--header=X-Any: ***MASKED***"),
            ),
            (&["-e", "ANY=c4n4ry-9f3e"], Some("-e ANY=***MASKED***")),
            (
                &["Authorization: Bearer c4n4ry-9f3e"],
                Some("Authorization: Bearer ***MASKED***"),
            ),
            (
                &["--url=https://u:c4n4ry-9f3e@h/x?a=c4n4ry-9f3e"],
                Some("--url=https://[redacted]@h/x?a=***MASKED***"),
            ),
            (&["ghp_c4n4ry"], Some("***MASKED***")),
            (&["sk-c4n4ry"], Some("***MASKED***")),
            (&["--token=${TOKEN}"], Some("--token=${TOKEN}")),
            (
                &["-c", "curl -H 'Authorization: Bearer c4n4ry-9f3e' $URL"],
                Some("-c curl -H 'Authorization: Bearer ***MASKED***' $URL"),
            ),
            (
                &["{\"token\": \"c4n4ry-9f3e\", \"port\": 1}"],
                Some("{\"token\": \"***MASKED***\", \"port\": 1}"),
            ),
            (
                &["export API_KEY=c4n4ry-9f3e; run --token c4n4ry-9f3e"],
                Some("export API_KEY=***MASKED*** run --token ***MASKED***"),
            ),
        ] {
            let masked = arguments(args.iter().copied()).join(" ");
            let written = args.join(" ");
            match shown {
                Some(shown) => assert_eq!(masked, shown, "{written}"),
                None => assert_eq!(masked, written),
            }
            assert!(!masked.contains("c4n4ry"), "{masked}");
        }
    }

    #[test]
    fn passwords_of_short_options_and_of_users_are_masked_and_ports_and_names_are_shown() {
        for (written, shown) in [
            ("-pHUNT1", "-p***MASKED***"),
            ("-phunter", "-p***MASKED***"),
            ("-p=HUNT1", "-p=***MASKED***"),
            ("-p HUNT1", "-p ***MASKED***"),
            ("-p123456", "-p***MASKED***"),
            ("-p${DB_PASSWORD}", "-p${DB_PASSWORD}"),
            ("-u user:HUNT9", "-u user:***MASKED***"),
            ("-uuser:HUNT9", "-uuser:***MASKED***"),
            ("-U user%HUNT9", "-U user%***MASKED***"),
            ("--user user:HUNT9", "--user user:***MASKED***"),
            ("--user=user:HUNT9", "--user=user:***MASKED***"),
            ("--proxy-user user:HUNT9", "--proxy-user user:***MASKED***"),
            ("--proxy-user=user:HUNT9", "--proxy-user=user:***MASKED***"),
            ("-user=user:HUNT9", "-user=user:***MASKED***"),
            ("-u user:${PASSWORD}", "-u user:${PASSWORD}"),
            ("-HX-Any:HUNT9", "-HX-Any:***MASKED***"),
            ("-eANY=HUNT9", "-eANY=***MASKED***"),
            ("-p8080", "-p8080"),
            ("-p8080:80/tcp", "-p8080:80/tcp"),
            ("-p 127.0.0.1:8080:80", "-p 127.0.0.1:8080:80"),
            ("-python", "-python"),
            ("-port=8080", "-port=8080"),
            ("-path /srv/data", "-path /srv/data"),
            ("-y -p @scope/pkg@1.2.3 run", "-y -p @scope/pkg@1.2.3 run"),
            ("-p tsconfig.json", "-p tsconfig.json"),
            ("-p -v", "-p -v"),
            ("-u server.py", "-u server.py"),
            ("-u root -v", "-u root -v"),
            ("-u 1000:1000", "-u 1000:1000"),
        ] {
            let apart = arguments(written.split(' ')).join(" ");
            assert_eq!(apart, shown, "as arguments");
            assert_eq!(text(&format!("run {written}")), format!("run {shown}"));
        }
        assert_eq!(
            text("mysql -u root -pHUNT1 && curl -u 'me:HUNT9' http://h/"),
            "mysql -u root -p***MASKED*** && curl -u 'me:***MASKED***' http://h/"
        );
        let shown = server(&json!({"command": "mysql", "args": ["-uroot", "-pHUNT1"]}));
        assert_eq!(shown["args"], json!(["-uroot", "-p***MASKED***"]));
    }

    #[test]
    fn the_keys_of_a_server_are_shown_without_their_credentials() {
        let entry = json!({
            "command": "npx",
            "args": ["-y", "pkg", "--token", CANARY],
            "env": {"A": CANARY, "B": "${B}", "C": 12, "D": "x ${D}"},
            "headers": {"set": {"X-Any": CANARY}, "pass": ["x-tenant"]},
            "credentials": format!("Bearer {CANARY}"),
            "oauth": {"client_id": "me", "client_secret": CANARY},
            "url": format!("https://u:{CANARY}@h.example/mcp?key={CANARY}#{CANARY}"),
            "backends": [{"url": format!("https://h/{}?k={CANARY}", "a1".repeat(20))}],
            "personal": ["TOKEN"],
            "enabled": true,
        });
        let shown = server(&entry);
        assert!(!shown.to_string().contains("c4n4ry"), "{shown}");
        assert_eq!(
            shown["env"],
            json!({"A": MASK, "B": "${B}", "C": MASK, "D": MASK})
        );
        assert_eq!(shown["args"], json!(["-y", "pkg", "--token", MASK]));
        assert_eq!(shown["headers"]["pass"], json!(["x-tenant"]));
        assert_eq!(shown["oauth"]["client_id"], "me");
        assert_eq!(shown["personal"], json!(["TOKEN"]));
        assert_eq!(
            shown["url"],
            format!("https://[redacted]@h.example/mcp?key={MASK}#{MASK}")
        );
        assert_eq!(
            shown["backends"][0]["url"],
            format!("https://h/{MASK}?k={MASK}")
        );
        assert_eq!(
            (&shown["command"], &shown["enabled"]),
            (&json!("npx"), &json!(true))
        );
        let lists = server(&json!({"env": [format!("A={CANARY}"), "B"], "args": CANARY}));
        assert_eq!(lists["env"], json!([format!("A={MASK}"), "B"]));
    }
}
