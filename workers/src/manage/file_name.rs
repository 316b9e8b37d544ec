//! Names of Python files in a namespace's folder: tool files, helper modules, and earlier versions of both.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use super::history::{version_name, version_of};
use super::tool_file::HISTORY;

/// The name of a Python file in its namespace's folder: an ASCII identifier and `.py`.
///
/// Such a name is a single path segment, and other files of the namespace can import it. A file whose name begins with `_` is a
/// helper module: it is loaded only if another file imports it, so it declares no tools.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolFileName(String);

/// The error for a text that is not the name of a tool file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid filename: use 1 to 64 ASCII letters, digits or '_', beginning with a letter, and end with .py, as in issues.py; \
     a module of helpers without tools has one '_' before that, as in _helpers.py"
)]
pub struct InvalidToolFileName;

/// A tool file in its current version, or an earlier version. An earlier version is written as its path in the namespace's
/// folder: `.history/issues.py.3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolFileVersion {
    /// The name of the tool file.
    pub file: ToolFileName,
    /// The number of the earlier version; `None` for the current file.
    pub version: Option<u64>,
}

/// The error for a text that names neither a tool file nor a version of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "neither the name of a file, as issues.py, nor the path of an earlier version as previous_version shows it, as .history/issues.py.3"
)]
pub struct InvalidToolFileVersion;

impl ToolFileName {
    /// Maximum number of characters of a file name, without the ending `.py` and the leading `_` of a helper module.
    const STEM_MAX: usize = 64;

    /// The file name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the file is a helper module, which declares no tools.
    pub fn is_helper(&self) -> bool {
        self.0.starts_with('_')
    }
}

impl FromStr for ToolFileVersion {
    type Err = InvalidToolFileVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = match text
            .strip_prefix(HISTORY)
            .and_then(|it| it.strip_prefix('/'))
        {
            None => text.parse().ok().map(|file| (file, None)),
            Some(entry) => version_of(entry).map(|(file, number)| (file, Some(number))),
        };
        let (file, version) = read.ok_or(InvalidToolFileVersion)?;
        Ok(Self { file, version })
    }
}

impl fmt::Display for ToolFileVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version {
            None => self.file.fmt(f),
            Some(number) => write!(f, "{HISTORY}/{}", version_name(&self.file, number)),
        }
    }
}

impl<'de> Deserialize<'de> for ToolFileVersion {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl FromStr for ToolFileName {
    type Err = InvalidToolFileName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let stem = text.strip_suffix(".py").ok_or(InvalidToolFileName)?;
        let stem = stem.strip_prefix('_').unwrap_or(stem);
        let bytes = stem.as_bytes();
        let valid = bytes.len() <= Self::STEM_MAX
            && bytes.first().is_some_and(u8::is_ascii_alphabetic)
            && bytes
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || *b == b'_');
        match valid {
            true => Ok(Self(text.to_owned())),
            false => Err(InvalidToolFileName),
        }
    }
}

impl fmt::Display for ToolFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ToolFileName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_that_end_with_py_are_names() {
        for name in [
            "a.py",
            "math_tools.py",
            "V2.py",
            "_helpers.py",
            &format!("{}.py", "x".repeat(64)),
        ] {
            assert!(name.parse::<ToolFileName>().is_ok(), "{name}");
        }
    }

    #[test]
    fn what_leaves_the_folder_is_hidden_or_cannot_be_imported_is_no_name() {
        for name in [
            "",
            ".py",
            "x.txt",
            "x",
            "_.py",
            "__init__.py",
            "__x.py",
            "_1.py",
            ".x.py",
            "../x.py",
            "../../etc/passwd.py",
            "/etc/x.py",
            "a/b.py",
            "a\\b.py",
            "a\0.py",
            "a.b.py",
            "my-tool.py",
            "1.py",
            "ä.py",
            "а.py",
            "a.py\n",
            " a.py",
            &format!("{}.py", "x".repeat(65)),
        ] {
            assert!(name.parse::<ToolFileName>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_version_is_named_by_its_path_in_the_folder_and_nothing_else() {
        let now: ToolFileVersion = "_helpers.py".parse().expect("a file");
        assert_eq!((now.file.is_helper(), now.version), (true, None));
        for text in [
            "issues.py",
            ".history/issues.py.3",
            ".history/_helpers.py.12",
        ] {
            let read: ToolFileVersion = text.parse().expect("valid");
            assert_eq!(read.to_string(), text);
        }
        for text in [
            ".history/",
            ".history/issues.py",
            ".history/issues.py.",
            ".history/issues.py.03",
            ".history/issues.py.-1",
            ".history/../issues.py.1",
            ".history//issues.py.1",
            "issues.py.3",
            "history/issues.py.3",
            "/data/tools/x/.history/issues.py.3",
        ] {
            assert!(text.parse::<ToolFileVersion>().is_err(), "{text:?}");
        }
    }
}
