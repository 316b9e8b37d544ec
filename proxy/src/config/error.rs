//! Errors about the configuration. Each message is one line that names the file, key or variable.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use tooldock_base::yaml;

use super::{LoadOptions, document};
use crate::nearest::nearest;

/// Reason in the error about a key whose feature this version does not have.
pub(crate) const NOT_SUPPORTED: &str = "not supported by this version";

/// The reason why a configuration cannot be used. The message is one line and contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// A configuration file cannot be read, or is not valid YAML.
    #[error("{}: {reason}", file.display())]
    File {
        /// Path of the file.
        file: PathBuf,
        /// Description of the fault.
        reason: String,
    },
    /// A key in a file is unknown, or its value cannot be used.
    #[error("{}: {key}: {reason}", file.display())]
    FileKey {
        /// Path of the file.
        file: PathBuf,
        /// Path of the key, such as `listeners[0].name`.
        key: String,
        /// Description of the fault.
        reason: String,
    },
    /// The value of a key cannot be used; its source is not known.
    #[error("{key}: {reason}")]
    Key {
        /// Path of the key, such as `listeners[0].name`.
        key: String,
        /// Description of the fault.
        reason: String,
    },
    /// The value of an environment variable cannot be used, or a required variable is not set.
    #[error("{name}: {reason}")]
    Variable {
        /// Name of the variable.
        name: Cow<'static, str>,
        /// Description of the fault.
        reason: String,
    },
    /// The operating system provides no random bytes, so that no token can be generated.
    #[error("cannot make a token: {0}")]
    Randomness(String),
}

impl ConfigError {
    /// Creates the error of a key whose value cannot be used.
    pub(crate) fn key(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Key {
            key: key.into(),
            reason: reason.into(),
        }
    }

    /// Creates the error of a key whose feature this version does not have.
    pub(crate) fn not_supported(key: impl Into<String>) -> Self {
        Self::key(key, NOT_SUPPORTED)
    }

    /// Creates the error of an environment variable that cannot be used.
    pub(crate) fn variable(name: impl Into<Cow<'static, str>>, reason: impl Into<String>) -> Self {
        Self::Variable {
            name: name.into(),
            reason: reason.into(),
        }
    }

    /// Returns the path of the key that the error concerns; `None` if it concerns no key.
    pub(super) fn path(&self) -> Option<&str> {
        match self {
            Self::FileKey { key, .. } | Self::Key { key, .. } => Some(key),
            Self::File { .. } | Self::Variable { .. } | Self::Randomness(_) => None,
        }
    }

    /// Returns the file that the error concerns; `None` if it concerns no file.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File { file, .. } | Self::FileKey { file, .. } => Some(file),
            Self::Key { .. } | Self::Variable { .. } | Self::Randomness(_) => None,
        }
    }

    /// Replaces the error's key by `path`, the path of the same key in the file.
    pub(super) fn at(mut self, path: &str) -> Self {
        if let Self::FileKey { key, .. } | Self::Key { key, .. } = &mut self {
            path.clone_into(key);
        }
        self
    }

    /// Removes the line and column from the message. They are meaningless if the parsed text was generated.
    pub(super) fn without_position(mut self) -> Self {
        if let Self::File { reason, .. } | Self::FileKey { reason, .. } = &mut self
            && let Some(end) = reason.rfind(" at line ")
        {
            reason.truncate(end);
        }
        self
    }

    /// Adds the line and column of the key to the message, if a configuration file sets the key.
    pub(crate) fn located(self, options: &LoadOptions) -> Self {
        const PLACE: &str = " at line ";
        let (file, key, reason) = match self {
            Self::FileKey { file, key, reason } => (Some(file), key, reason),
            Self::Key { key, reason } => (None, key, reason),
            other => return other,
        };
        let is_of_file = file.is_some();
        let source = file.or_else(|| options.source());
        let position = match &source {
            Some(file) if !reason.contains(PLACE) => document::position(file, &key),
            _ => None,
        };
        match (source, position) {
            (Some(file), Some(position)) => Self::FileKey {
                file,
                key,
                reason: format!("{reason} at {position}"),
            },
            (Some(file), None) if is_of_file => Self::FileKey { file, key, reason },
            _ => Self::Key { key, reason },
        }
    }

    /// Converts an error of a check of the complete configuration into an error about `file`, which contains the value.
    pub(super) fn of_file(file: &Path, error: Self) -> Self {
        match error {
            Self::File { .. } | Self::FileKey { .. } => error,
            Self::Key { key, reason } => Self::FileKey {
                file: file.to_owned(),
                key,
                reason,
            },
            Self::Variable { .. } | Self::Randomness(_) => Self::File {
                file: file.to_owned(),
                reason: error.to_string(),
            },
        }
    }

    /// Converts an error of the YAML parser into an error about the file and the key.
    pub(crate) fn in_file(file: &Path, error: serde_path_to_error::Error<yaml::Error>) -> Self {
        let key = error.path().to_string();
        let file = file.to_owned();
        let reason = plain_reason(&key, &error.into_inner().to_string());
        match key.as_str() {
            "." => Self::File { file, reason },
            _ => Self::FileKey { file, key, reason },
        }
    }
}

/// Returns the YAML parser's message without the key's path, which the error contains already, and in the terms of the gateway's
/// configuration.
fn plain_reason(key: &str, message: &str) -> String {
    // The parser quotes the value, and the value may be a token that was written here by mistake.
    if key.ends_with(".sha256") && message.contains("invalid ") {
        return "invalid value".to_owned();
    }
    if key.starts_with("admission.tokens") && message.contains("invalid ") {
        return "invalid value: a token is written as { name: NAME, sha256: HEX, namespaces: [PATTERN] }"
            .to_owned();
    }
    let message = without_value(key, message);
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let parent = key.rsplit_once('.').map_or("", |(parent, _)| parent);
    let message = [key, parent]
        .iter()
        .find_map(|path| message.strip_prefix(path)?.strip_prefix(": "))
        .unwrap_or(&message);
    with_nearest(message)
        .replacen("invalid value: string ", "invalid value ", 1)
        .replacen(
            "expected parsable string",
            "expected a size such as 64KiB or 4MiB",
            1,
        )
        .replacen(
            "expected a duration",
            "expected a duration such as 250ms, 30s or 24h",
            1,
        )
}

/// Removes the value that the YAML parser quotes from a message, if it may be the login of a URL, a header or a token.
fn without_value<'a>(key: &str, message: &'a str) -> Cow<'a, str> {
    const QUOTED: &str = ": string \"";
    const PLACES: [&str; 4] = [
        "upstreams",
        "observability.otlp",
        "admission.oauth",
        "admission.tokens",
    ];
    let may_be_secret = PLACES.iter().any(|place| key.starts_with(place));
    let ends = (message.find(QUOTED), message.rfind("\", expected"));
    match ends {
        (Some(begin), Some(end)) if begin < end && may_be_secret => {
            let kind = &message[..begin + QUOTED.len() - 2];
            format!("{kind}{}", &message[end + 1..]).into()
        }
        _ => message.into(),
    }
}

/// Adds the most similar key to an error about an unknown key: "unknown field `adress`: did you mean `address`?".
fn with_nearest(message: &str) -> String {
    let Some((field, rest)) = message
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split_once('`'))
    else {
        return message.to_owned();
    };
    // The message lists the known keys in backticks, so that every second piece is a key.
    let known = rest.split('`').skip(1).step_by(2);
    match nearest(field, known) {
        Some(known) => {
            let rest = rest.replacen(", expected", " Expected", 1);
            format!("unknown field `{field}`: did you mean `{known}`?{rest}")
        }
        None => message.to_owned(),
    }
}
