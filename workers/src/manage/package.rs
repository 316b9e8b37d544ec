//! Requirements of Python packages, as callers write them.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// A requirement in the syntax of PEP 508 that names a package: no option, no URL, no path. The package comes from the package
/// index only, and no part of the text can become an option of the installer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageSpec(String);

/// Error for a text that is not a requirement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid package: write a name with optional extras and versions, as in httpx, httpx>=0.28.0 or uvicorn[standard]==0.30.0; no options, URLs or paths"
)]
pub struct InvalidPackageSpec;

impl PackageSpec {
    /// The requirement as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The package's name in the normalized form by which indexes compare names.
    pub(crate) fn name(&self) -> String {
        normal_name(&self.0)
    }
}

/// Returns the package name at the beginning of a requirement, in lower case and with a single kind of separator.
pub(super) fn normal_name(requirement: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let end = requirement
        .find(|c| !is_name(c))
        .unwrap_or(requirement.len());
    let mut name = requirement[..end]
        .to_ascii_lowercase()
        .replace(['.', '_'], "-");
    while name.contains("--") {
        name = name.replace("--", "-");
    }
    name
}

impl FromStr for PackageSpec {
    type Err = InvalidPackageSpec;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const ARCHIVES: [&str; 11] = [
            ".whl", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".tlz", ".lzma",
        ];
        let text = text.trim_matches(' ');
        let allowed = |c: char| {
            c.is_ascii_alphanumeric()
                || matches!(
                    c,
                    '.' | '_'
                        | '-'
                        | '['
                        | ']'
                        | ','
                        | '<'
                        | '>'
                        | '='
                        | '!'
                        | '~'
                        | '*'
                        | '+'
                        | '('
                        | ')'
                        | ';'
                        | ' '
                        | '\''
                        | '"'
                )
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let valid = text.len() <= 256
            && text.chars().all(allowed)
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.ends_with(|c: char| c.is_ascii_alphanumeric())
            && !ARCHIVES
                .iter()
                .any(|ending| name.to_ascii_lowercase().ends_with(ending))
            && !rest.contains(" -")
            && rest
                .trim_start()
                .chars()
                .next()
                .is_none_or(|c| "[<>=!~;(".contains(c));
        match valid {
            true => Ok(Self(text.to_owned())),
            false => Err(InvalidPackageSpec),
        }
    }
}

impl fmt::Display for PackageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PackageSpec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_versions_extras_and_markers_are_requirements() {
        for text in [
            "httpx",
            "httpx>=0.28.0",
            "beautifulsoup4==4.12.0",
            "uvicorn[standard] >=0.30, <1",
            "tomli; python_version < '3.11'",
            "zope.interface~=6.0",
        ] {
            assert_eq!(text.parse::<PackageSpec>().expect(text).as_str(), text);
        }
    }

    #[test]
    fn what_could_be_an_option_a_file_or_a_second_line_is_no_requirement() {
        for text in [
            "",
            "-r other.txt",
            "--index-url=https://evil/",
            "httpx --index-url https://evil/",
            "httpx\n-r /etc/passwd",
            "httpx\r--pre",
            "git+https://host/x.git",
            "x @ file:///tmp/x",
            "./local",
            "/abs",
            "../up",
            "x-1.0-py3-none-any.whl",
            "x.tar.gz",
            "X.TAR.GZ",
            "x.tar",
            "httpx # comment",
            "${HOME}",
            "httpx other",
            "а",
            "x\0",
            &"x".repeat(300),
        ] {
            assert!(text.parse::<PackageSpec>().is_err(), "{text:?}");
        }
    }
}
