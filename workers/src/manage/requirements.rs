//! The packages of a namespace: reading `requirements.txt`, adding a line, and installing the packages.
//!
//! A new environment is built while the current one serves, and replaces it when it is complete. A new package is first
//! installed from a temporary list, which replaces `requirements.txt` only after success: a line that fails would make the
//! namespace's next reload fail.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::NamedTempFile;
use tooldock_base::data_dir::is_temporary;
use tooldock_base::fault;
use tooldock_base::logins::redact_credentials;
use tooldock_base::names::NamespaceName;
use tooldock_process::child::output::RecentLines;
use tooldock_process::environment::{LockOf, Packages};
use tooldock_process::requirements::{REQUIREMENTS_FILE, Requirements};

use super::folder::{Folder, sync_folder};
use super::package::{PackageSpec, normal_name};
use super::{NotDone, Workspace, blocking, leftovers};
use crate::scan::{self, NamespaceSource, read_requirements};

/// Maximum number of lines of a `requirements.txt` that a manager changes.
const LINES_MAX: usize = 500;

/// Suffix of the name of a lock file that is locked while a requirement is added.
pub(super) const ADDING_LOCK_END: &str = ".adding.lock";

/// Error of the installer when packages could not be installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotInstalled {
    /// Output of the installer, with credentials removed.
    pub details: String,
}

impl Workspace {
    /// Returns the lines of a namespace's `requirements.txt`, without comments; empty if the file does not exist.
    ///
    /// # Errors
    ///
    /// When the namespace does not exist, or the file cannot be read.
    pub async fn requirements(&self, namespace: &NamespaceName) -> Result<Vec<String>, NotDone> {
        let (tools, namespace) = (self.tools(), namespace.clone());
        blocking(move || {
            let folder = Folder::open(&tools, &namespace)?;
            Ok(lines(&text_of(&tools, &folder)?.unwrap_or_default()))
        })
        .await
    }

    /// Adds a requirement to `requirements.txt`, or replaces the line for the same package, and installs the packages of the
    /// file.
    ///
    /// # Errors
    ///
    /// When the namespace does not exist, or the file cannot be changed. Packages that cannot be installed are reported in the
    /// inner result. In both cases the file is unchanged.
    pub async fn add_requirement(
        &self,
        namespace: &NamespaceName,
        package: &PackageSpec,
    ) -> Result<Result<(), NotInstalled>, NotDone> {
        let adding = self.begin_adding(namespace, package).await?;
        if let Err(not_installed) = self.install_source(&adding.source).await? {
            return Ok(Err(not_installed));
        }
        self.finish_adding(namespace, adding).await?;
        Ok(Ok(()))
    }

    /// Writes the requirements with the added one to a temporary file next to `requirements.txt`.
    pub(super) async fn begin_adding(
        &self,
        namespace: &NamespaceName,
        package: &PackageSpec,
    ) -> Result<Adding, NotDone> {
        // Checked before the lock file is created, because the name may be any text.
        self.exists(namespace).await?;
        let (tools, name) = (self.tools(), namespace.clone());
        let turn = LockOf::take(
            self.adding_lock(namespace),
            tools.join(name.as_str()),
            self.environments.limit(),
        );
        let turn = turn.await.map_err(|error| NotDone(error.0))?;
        let added = package.clone();
        blocking(move || {
            let folder = Folder::open(&tools, &name)?;
            let before = text_of(&tools, &folder)?;
            let after = with(before.as_deref().unwrap_or_default(), &added)?;
            let candidate = Candidate::write(&folder, &after)?;
            let mut source = source_of(&tools, &name)?;
            source.requirements = Some(Requirements {
                path: candidate.0.path().to_owned(),
                text: after,
            });
            // An error in the old `requirements.txt` is ignored, since the new requirements may correct it.
            source.failure = None;
            Ok(Adding {
                source,
                before,
                candidate,
                _turn: turn,
            })
        })
        .await
    }

    /// Replaces `requirements.txt` by the temporary file. Fails if `requirements.txt` was changed meanwhile.
    pub(super) async fn finish_adding(
        &self,
        namespace: &NamespaceName,
        adding: Adding,
    ) -> Result<(), NotDone> {
        let lock = self.lock().await?;
        let (tools, name) = (self.tools(), namespace.clone());
        blocking(move || {
            let _lock = lock;
            let folder = Folder::open(&tools, &name)?;
            if text_of(&tools, &folder)? != adding.before {
                return Err(NotDone(format!(
                    "{REQUIREMENTS_FILE} was changed meanwhile by somebody else; nothing was added. Call add_requirement again"
                )));
            }
            adding.candidate.persist(&folder)
        })
        .await
    }

    /// Path of the lock file that is locked while a requirement is added to a namespace: from reading the requirements until they
    /// are replaced.
    pub(super) fn adding_lock(&self, namespace: &NamespaceName) -> PathBuf {
        let name = format!(".{namespace}{ADDING_LOCK_END}");
        self.data.venvs_dir().join(name)
    }

    /// Installs the packages of a namespace's `requirements.txt` into a new environment, then switches the namespace to it.
    /// Dropping the future ends the installer.
    ///
    /// # Errors
    ///
    /// When the namespace does not exist.
    pub async fn install(
        &self,
        namespace: &NamespaceName,
    ) -> Result<Result<(), NotInstalled>, NotDone> {
        let (tools, name) = (self.tools(), namespace.clone());
        let source = blocking(move || {
            Folder::open(&tools, &name)?;
            source_of(&tools, &name)
        })
        .await?;
        self.install_source(&source).await
    }

    /// The last lines that the installers of a namespace printed, including installers that a reload ran. The returned value also
    /// receives the lines that are printed later.
    pub fn installer_output(&self, namespace: &NamespaceName) -> Arc<RecentLines> {
        self.environments.output(namespace)
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
                // The permit is held so that two tasks do not create the toolchain at the same time.
                let turn = self.toolchain_turn.acquire().await;
                let toolchain = self.environments.toolchain().await;
                drop(turn);
                toolchain?
            };
            let packages = Packages::Install;
            self.environments
                .prepare(source.packages(), &toolchain, packages)
                .await
        };
        Ok(match installed.await {
            Ok(_) => Ok(()),
            Err(error) => Err(NotInstalled { details: error.0 }),
        })
    }

    /// Installs packages into the environment of the manager itself, in addition to the packages that are installed there.
    ///
    /// # Errors
    ///
    /// The output of the installer.
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

/// Prefix of the name of the temporary file with new requirements. The scan ignores files with this prefix.
pub(super) const CANDIDATE: &str = ".requirements-";
/// Suffix of the name of the temporary file with new requirements.
pub(super) const CANDIDATE_END: &str = ".txt";

/// A requirement that is being added to `requirements.txt`. Dropping this value leaves that file unchanged.
pub(super) struct Adding {
    /// The namespace with the new requirements.
    source: NamespaceSource,
    before: Option<String>,
    candidate: Candidate,
    /// Lock that allows only one change of a namespace's requirements at a time.
    _turn: LockOf,
}

/// Temporary file with new requirements. Dropping this value removes the file.
struct Candidate(NamedTempFile);

impl Candidate {
    /// Writes the file into the folder of the namespace, because paths in requirements are relative to the file.
    fn write(folder: &Folder, text: &str) -> Result<Self, NotDone> {
        let failed = |error: io::Error| NotDone::io("write", &folder.shown(CANDIDATE), &error);
        // Temporary files that exist now were left by a crash: the caller holds the lock, so no other requirement is being added.
        leftovers::remove_files(&folder.entry("."), |name| {
            is_temporary(name, CANDIDATE, CANDIDATE_END)
        });
        let tools = folder.path.parent().unwrap_or(&folder.path);
        let real = tools.canonicalize().map_err(failed)?;
        let real = real.join(folder.path.file_name().unwrap_or_default());
        let mut file = tempfile::Builder::new()
            .prefix(CANDIDATE)
            .suffix(CANDIDATE_END)
            .permissions(fs::Permissions::from_mode(0o644))
            .tempfile_in(real)
            .map_err(failed)?;
        fault::point();
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        fault::point();
        Ok(Self(file))
    }

    fn persist(self, folder: &Folder) -> Result<(), NotDone> {
        let shown = folder.shown(REQUIREMENTS_FILE);
        fault::point();
        let persisted = self.0.persist(folder.entry(REQUIREMENTS_FILE));
        persisted.map_err(|error| NotDone::io("write", &shown, &error.error))?;
        fault::point();
        sync_folder(&folder.entry("."))
    }
}

/// The lines of a `requirements.txt` that name a package, without comments and credentials.
fn lines(text: &str) -> Vec<String> {
    // A line that ends with a backslash continues in the next one.
    let text = text.replace("\\\r\n", " ").replace("\\\n", " ");
    let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    // Lines with options are omitted, and credentials in URLs are removed: both may contain credentials of a package index.
    let asks = |line: &&str| line.starts_with(|c: char| c.is_ascii_alphanumeric());
    let bare = |line: &str| {
        let words = line.split(" #").next().unwrap_or(line).split_whitespace();
        redact_credentials(&words.collect::<Vec<_>>().join(" "))
    };
    lines.filter(asks).map(bare).collect()
}

/// Returns the text of a `requirements.txt` with the line `package`, and without other lines for the same package.
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
            lines("beta_pkg \\\n    >=1\nc \\\r\n  ==2 # why\n-r \\\nbase.txt\n"),
            ["beta_pkg >=1", "c ==2"]
        );
        assert_eq!(
            lines("x @ https://u:pa/ss@h/x.whl # mine\n"),
            ["x @ https://[redacted]@h/x.whl"]
        );
    }
}
