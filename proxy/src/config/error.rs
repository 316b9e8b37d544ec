//! Errors of a configuration: always one line that names the file, key or variable.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use tooldock_base::yaml;

use super::{LoadOptions, document};
use crate::nearest::nearest;

/// The reason in every refusal of a feature that this version lacks.
pub(crate) const NOT_SUPPORTED: &str = "not supported by this version";

/// A configuration that cannot be used. Its text is one line and holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// A file that cannot be read, or is no YAML.
    #[error("{}: {reason}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The fault.
        reason: String,
    },
    /// A key of a file that does not exist, or whose value cannot be used.
    #[error("{}: {key}: {reason}", file.display())]
    FileKey {
        /// The file.
        file: PathBuf,
        /// Path of the key.
        key: String,
        /// The fault.
        reason: String,
    },
    /// A key with an unusable value, from any source.
    #[error("{key}: {reason}")]
    Key {
        /// Path of the key.
        key: String,
        /// The fault.
        reason: String,
    },
    /// An environment variable with a value that cannot be used, or one that is needed and not set.
    #[error("{name}: {reason}")]
    Variable {
        /// Name of the variable.
        name: Cow<'static, str>,
        /// The fault.
        reason: String,
    },
    /// The operating system has no randomness to make a token from.
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

    /// Creates the error of a key whose feature is not built yet.
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

    /// The path of the key that the error is about, if it is about one.
    pub(super) fn path(&self) -> Option<&str> {
        match self {
            Self::FileKey { key, .. } | Self::Key { key, .. } => Some(key),
            Self::File { .. } | Self::Variable { .. } | Self::Randomness(_) => None,
        }
    }

    /// The file that the error is about, if it is about one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File { file, .. } | Self::FileKey { file, .. } => Some(file),
            Self::Key { .. } | Self::Variable { .. } | Self::Randomness(_) => None,
        }
    }

    /// Replaces the key by `path`, its path in the file.
    pub(super) fn at(mut self, path: &str) -> Self {
        if let Self::FileKey { key, .. } | Self::Key { key, .. } = &mut self {
            path.clone_into(key);
        }
        self
    }

    /// The fault without the position from the YAML parser, which is useless for a generated text.
    pub(super) fn without_position(mut self) -> Self {
        if let Self::File { reason, .. } | Self::FileKey { reason, .. } = &mut self
            && let Some(end) = reason.rfind(" at line ")
        {
            reason.truncate(end);
        }
        self
    }

    /// Adds the line and column of the key, if a file sets it.
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

    /// Creates an error about a value in `file` that does not pass the checks of the complete configuration.
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

    /// Converts the YAML parser's error about a file to one line that begins with the key.
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

/// The YAML parser's message without its own copy of the path, in the terms of this configuration.
fn plain_reason(key: &str, message: &str) -> String {
    // The value may be a token in the place of its digest or its entry; the parser would quote it.
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

/// Removes the text that the YAML parser quotes, if it may be the login of a URL, a header or a token.
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

/// Adds the nearest key to an error about a key that does not exist: "unknown field `adress`, expected one of `address`, …".
fn with_nearest(message: &str) -> String {
    let Some((field, rest)) = message
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split_once('`'))
    else {
        return message.to_owned();
    };
    // Every second part is between quotes.
    let known = rest.split('`').skip(1).step_by(2);
    match nearest(field, known) {
        Some(known) => {
            let rest = rest.replacen(", expected", " Expected", 1);
            format!("unknown field `{field}`: did you mean `{known}`?{rest}")
        }
        None => message.to_owned(),
    }
}
