//! The packages of a namespace: what `requirements.txt` asks for, one more, and their installation.
//!
//! An environment is built beside the one that serves and switched to when it is complete. A package is first installed
//! by a list beside `requirements.txt`, which takes its place only then: a line that fails would keep the namespace from
//! its next reload.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::str::FromStr;

use serde::Deserialize;
use tempfile::NamedTempFile;

use super::folder::{Folder, sync_folder};
use super::{NotDone, Workspace, blocking};
use crate::environment::{FileLock, Packages, redact_credentials};
use crate::names::NamespaceName;
use crate::scan::{self, NamespaceSource, REQUIREMENTS_FILE, Requirements, read_requirements};

/// The most lines that a manager adds to.
const LINES_MAX: usize = 500;

/// One requirement as PEP 508 writes it, by name: no option, no URL, no path. What is installed comes from the index
/// alone, and nothing of the text can become an argument of the installer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageSpec(String);

/// Why a text is no requirement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid package: write a name with optional extras and versions, as in httpx, httpx>=0.28.0 or uvicorn[standard]==0.30.0; no options, URLs or paths"
)]
pub struct InvalidPackageSpec;

/// Packages could not be installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotInstalled {
    /// What the installer said, without credentials.
    pub details: String,
}

impl PackageSpec {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The package's name as indexes compare names.
    pub(crate) fn name(&self) -> String {
        normal_name(&self.0)
    }
}

/// The name at the beginning of a requirement, in lower case and with one kind of separator.
fn normal_name(requirement: &str) -> String {
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

impl Workspace {
    /// The lines of a namespace's `requirements.txt`, without comments; none where there is no such file.
    ///
    /// # Errors
    ///
    /// When there is no such namespace, or the file cannot be read.
    pub async fn requirements(&self, namespace: &NamespaceName) -> Result<Vec<String>, NotDone> {
        let (tools, namespace) = (self.data.tools_dir(), namespace.clone());
        blocking(move || {
            let folder = Folder::open(&tools, &namespace)?;
            Ok(lines(&text_of(&tools, &folder)?.unwrap_or_default()))
        })
        .await
    }

    /// Adds a requirement, or puts it in the place of the one for the same package, and installs what the file asks for.
    ///
    /// # Errors
    ///
    /// When there is no such namespace, or the file cannot be changed. What cannot be installed is an answer. In either
    /// case the file is as it was.
    pub async fn add_requirement(
        &self,
        namespace: &NamespaceName,
        package: &PackageSpec,
    ) -> Result<Result<(), NotInstalled>, NotDone> {
        // One at a time for each namespace, over reading, installing and replacing.
        let turn = format!(".{namespace}.adding.lock");
        let turn = FileLock::take(self.data.venvs_dir().join(turn), self.environments.limit());
        let _turn = turn.await.map_err(|error| NotDone(error.0))?;
        let (tools, name) = (self.data.tools_dir(), namespace.clone());
        let added = package.clone();
        let (before, candidate, mut source) = blocking(move || {
            let folder = Folder::open(&tools, &name)?;
            let before = text_of(&tools, &folder)?;
            let after = with(before.as_deref().unwrap_or_default(), &added)?;
            let candidate = Candidate::write(&folder, &after)?;
            let mut source = source_of(&tools, &name)?;
            source.requirements = Some(Requirements {
                path: candidate.0.path().to_owned(),
                text: after,
            });
            Ok((before, candidate, source))
        })
        .await?;
        // That the file before was wrong is mended by this one, perhaps.
        source.failure = None;
        if let Err(not_installed) = self.install_source(&source).await? {
            return Ok(Err(not_installed));
        }
        let lock = self.lock().await?;
        let (tools, name) = (self.data.tools_dir(), namespace.clone());
        blocking(move || {
            let _lock = lock;
            let folder = Folder::open(&tools, &name)?;
            if text_of(&tools, &folder)? != before {
                return Err(NotDone(format!(
                    "{REQUIREMENTS_FILE} was changed meanwhile by somebody else; nothing was added. Call add_requirement again"
                )));
            }
            candidate.persist(&folder)
        })
        .await?;
        Ok(Ok(()))
    }

    /// Installs what a namespace's `requirements.txt` asks for into an environment beside the one that serves, and
    /// switches to it. Dropping the future ends the installer.
    ///
    /// # Errors
    ///
    /// When there is no such namespace.
    pub async fn install(
        &self,
        namespace: &NamespaceName,
    ) -> Result<Result<(), NotInstalled>, NotDone> {
        let (tools, name) = (self.data.tools_dir(), namespace.clone());
        let source = blocking(move || {
            Folder::open(&tools, &name)?;
            source_of(&tools, &name)
        })
        .await?;
        self.install_source(&source).await
    }

    async fn install_source(
        &self,
        source: &NamespaceSource,
    ) -> Result<Result<(), NotInstalled>, NotDone> {
        if let Some(failure) = &source.failure {
            return Err(NotDone(failure.message.clone()));
        }
        let installed = async {
            let toolchain = {
                // Making the toolchain is for one at a time.
                let turn = self.toolchain_turn.acquire().await;
                let toolchain = self.environments.toolchain().await;
                drop(turn);
                toolchain?
            };
            let packages = Packages::Install;
            self.environments
                .prepare(source, &toolchain, packages)
                .await
        };
        Ok(match installed.await {
            Ok(_) => Ok(()),
            Err(error) => Err(NotInstalled { details: error.0 }),
        })
    }

    /// Installs packages into the manager's own environment, beside those that are there, and gives all of them.
    ///
    /// # Errors
    ///
    /// What the installer said.
    pub async fn install_own(&self, packages: &[PackageSpec]) -> Result<(), NotInstalled> {
        let installed = async {
            let turn = self.toolchain_turn.acquire().await;
            let toolchain = self.environments.toolchain().await;
            drop(turn);
            let toolchain = toolchain?;
            let wanted = packages.iter().map(|it| (it.name(), it.to_string()));
            self.environments
                .install_own(&toolchain, wanted.collect())
                .await
        };
        installed
            .await
            .map_err(|error| NotInstalled { details: error.0 })
    }
}

fn text_of(tools: &Path, folder: &Folder) -> Result<Option<String>, NotDone> {
    let tree = tools
        .canonicalize()
        .map_err(|error| NotDone::io("read", tools, &error))?;
    let found = read_requirements(&folder.path, &tree);
    let found = found.map_err(|error| NotDone(format!("{REQUIREMENTS_FILE}: {error}")))?;
    Ok(found.map(|it| it.text))
}

fn source_of(tools: &Path, name: &NamespaceName) -> Result<NamespaceSource, NotDone> {
    let source = scan::scan_one(tools, name).map_err(|error| NotDone::io("read", tools, &error))?;
    source.ok_or_else(|| NotDone(format!("namespace {name} is gone")))
}

/// How a list is called that is tried out before it takes the place of `requirements.txt`. The scan passes the name over.
const CANDIDATE: &str = ".requirements-";

/// Requirements that are tried out; dropping them removes their file.
struct Candidate(NamedTempFile);

impl Candidate {
    /// In the folder of the namespace, since relative lines are relative to it.
    fn write(folder: &Folder, text: &str) -> Result<Self, NotDone> {
        let failed = |error: io::Error| NotDone::io("write", &folder.shown(CANDIDATE), &error);
        // Left over by a crash; nobody else is at work here.
        for entry in fs::read_dir(&folder.path).into_iter().flatten().flatten() {
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(CANDIDATE.as_bytes())
            {
                let _ = fs::remove_file(entry.path());
            }
        }
        let tools = folder.path.parent().unwrap_or(&folder.path);
        let real = tools.canonicalize().map_err(failed)?;
        let real = real.join(folder.path.file_name().unwrap_or_default());
        let mut file = tempfile::Builder::new()
            .prefix(CANDIDATE)
            .suffix(".txt")
            .permissions(fs::Permissions::from_mode(0o644))
            .tempfile_in(real)
            .map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        Ok(Self(file))
    }

    fn persist(self, folder: &Folder) -> Result<(), NotDone> {
        let shown = folder.shown(REQUIREMENTS_FILE);
        let persisted = self.0.persist(folder.entry(REQUIREMENTS_FILE));
        persisted.map_err(|error| NotDone::io("write", &shown, &error.error))?;
        sync_folder(&folder.entry("."))
    }
}

/// The lines that ask for something.
fn lines(text: &str) -> Vec<String> {
    let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    // An option may hold the credentials of an index, and so may a URL.
    let asks = |line: &&str| line.starts_with(|c: char| c.is_ascii_alphanumeric());
    let bare = |line: &str| redact_credentials(line.split(" #").next().unwrap_or(line).trim_end());
    lines.filter(asks).map(bare).collect()
}

/// The text with a requirement in it once.
fn with(text: &str, package: &PackageSpec) -> Result<String, NotDone> {
    if text.lines().any(|line| line.trim_end().ends_with('\\')) {
        return Err(NotDone(format!(
            "{REQUIREMENTS_FILE} has lines that go on in the next one, and is not changed by a manager; edit the file"
        )));
    }
    let name = package.name();
    let mut found = false;
    let mut kept: Vec<&str> = Vec::new();
    for line in text.lines() {
        let trimmed = line.trim();
        let same = trimmed.starts_with(|c: char| c.is_ascii_alphanumeric())
            && normal_name(trimmed) == name;
        match (same, found) {
            (false, _) => kept.push(line),
            (true, false) => {
                found = true;
                kept.push(package.as_str());
            }
            (true, true) => {}
        }
    }
    if !found {
        kept.push(package.as_str());
    }
    if kept.len() > LINES_MAX {
        return Err(NotDone(format!(
            "{REQUIREMENTS_FILE} has {LINES_MAX} lines, the most that are managed"
        )));
    }
    Ok(kept.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> PackageSpec {
        text.parse().expect(text)
    }

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
            assert_eq!(spec(text).as_str(), text);
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

    #[test]
    fn a_package_is_asked_for_once_and_comments_and_other_lines_stay() {
        let text = "# mine\nHTTPX>=0.1\n-r base.txt\nbs4\n";
        let with = |text: &str, added: &str| with(text, &spec(added)).unwrap();
        assert_eq!(
            with(text, "httpx>=0.28.0"),
            "# mine\nhttpx>=0.28.0\n-r base.txt\nbs4\n"
        );
        assert_eq!(with("", "httpx"), "httpx\n");
        assert_eq!(with("a", "b"), "a\nb\n");
        assert_eq!(
            with("zope_interface\n", "Zope.Interface"),
            "Zope.Interface\n"
        );
        assert_eq!(
            lines("# c\n\n a \n-r b\n--extra-index-url https://u:p@h/\n"),
            ["a"]
        );
        assert_eq!(
            lines("x @ https://u:pa/ss@h/x.whl # mine\n"),
            ["x @ https://[redacted]@h/x.whl"]
        );
    }
}
