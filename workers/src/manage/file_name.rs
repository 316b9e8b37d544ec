//! Names of tool files.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// The name of a tool file in its namespace's folder: an ASCII identifier and `.py`.
///
/// Such a name is one path segment, is loaded (files that begin with `_` or `.` are not), and can be imported by the other
/// files of its namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolFileName(String);

/// Why a text is no name of a tool file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid filename: use 1 to 64 ASCII letters, digits or '_', beginning with a letter, and end with .py, as in issues.py"
)]
pub struct InvalidToolFileName;

impl ToolFileName {
    /// What names look like, as a regular expression.
    pub const PATTERN: &str = "^[A-Za-z][A-Za-z0-9_]{0,63}\\.py$";

    /// The longest name without its ending.
    const STEM_MAX: usize = 64;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ToolFileName {
    type Err = InvalidToolFileName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let stem = text.strip_suffix(".py").ok_or(InvalidToolFileName)?;
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
            "_x.py",
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
}
