//! Reads the files of a repository's newest commit through git, without a checkout.
//!
//! In a checkout, a repository can run code: by hooks, filters of `.gitattributes`, links and submodules. So git only fetches
//! the objects of one commit into a bare repository, and the files are read with `ls-tree` and `cat-file`, which run none of
//! these. git's environment and configuration are created by this module; those of the user are not used.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, BufReader, BufWriter, Read, Write as _};
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tooldock_process::repositories::{BuilderConfig, BuilderError, GitScheme, Progress};

use crate::progress::{Show, step};
use crate::source::Repository;
use crate::tree::Tree;

/// Interval at which the size of the clone is measured.
const WATCH: Duration = Duration::from_millis(100);
/// Maximum number of bytes of git's output that an error quotes.
const SAID_MAX: usize = 600;
/// Maximum size of an entry of `git ls-tree`, in bytes. A longer entry has a path that is too long to be stored; the commit is
/// refused.
const ENTRY_MAX: u64 = 64 * 1024;
/// Maximum number of files in git's internal folders; a clone with more files is refused.
const OBJECTS_MAX: usize = 200_000;
/// Signal that the kernel sends to git when a file grows beyond the size limit of this process (SIGXFSZ).
const FILE_TOO_LARGE: i32 = 25;
/// Minimum version of git. It must support `http.curloptResolve`, which makes it connect to an address resolved earlier.
const GIT_NEEDED: (u32, u32) = (2, 37);

/// Fills a tree with the files of the newest commit and returns the commit's id. `folder` is for git's internal files.
pub(crate) fn read(
    repository: &Repository,
    addresses: &[IpAddr],
    folder: &Path,
    tree: &mut Tree,
    config: &BuilderConfig,
    show: Show<'_>,
) -> Result<String, BuilderError> {
    let git = Git::new(repository, addresses, folder)?;
    git.clone_into(repository, config, show)?;
    let revision = git.output(&["rev-parse", "--verify", "--quiet", "HEAD"])?;
    let revision = revision.trim().to_owned();
    if revision.is_empty() {
        return Err(BuilderError::not_found(
            "the repository is empty: it has no commit on its default branch.",
        ));
    }
    let blobs = git.list(&revision, tree)?;
    step(show, 70, format!("reading {} files", blobs.len()));
    git.take(&blobs, tree)?;
    // The files are now in the tree, so git's internal folders are removed.
    for folder in [&git.directory, &git.home] {
        let _ = fs::remove_dir_all(folder);
    }
    Ok(revision)
}

/// A file of the commit that is to be copied.
struct Blob {
    id: String,
    size: u64,
    path: String,
}

struct Git {
    directory: PathBuf,
    home: PathBuf,
    environment: Vec<(&'static str, OsString)>,
    /// Command-line options of git that precede the subcommand.
    options: Vec<String>,
}

impl Git {
    fn new(
        repository: &Repository,
        addresses: &[IpAddr],
        folder: &Path,
    ) -> Result<Self, BuilderError> {
        let home = folder.join("home");
        fs::create_dir(&home).map_err(|error| {
            BuilderError::failed(format!("cannot make a folder for git: {error}."))
        })?;
        let git = Self {
            directory: folder.join("git"),
            environment: environment(&home, repository, addresses),
            options: options(repository, addresses),
            home,
        };
        git.check_version()?;
        Ok(git)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("git");
        command
            .args(&self.options)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Creates a git command for the cloned repository.
    fn inside(&self, arguments: &[&str]) -> Command {
        let mut command = self.command();
        command
            .arg("--git-dir")
            .arg(&self.directory)
            .args(arguments);
        command
    }

    fn check_version(&self) -> Result<(), BuilderError> {
        let mut command = self.command();
        let output = command.arg("--version").output().map_err(not_started)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut numbers = text
            .split(|it: char| !it.is_ascii_digit())
            .filter_map(|it| it.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version < GIT_NEEDED {
            return Err(BuilderError::failed(format!(
                "git {}.{} is too old: {}.{} or newer is needed where the gateway runs.",
                version.0, version.1, GIT_NEEDED.0, GIT_NEEDED.1
            )));
        }
        Ok(())
    }

    /// Fetches the newest commit, and stops git if the clone gets too large.
    fn clone_into(
        &self,
        repository: &Repository,
        config: &BuilderConfig,
        show: Show<'_>,
    ) -> Result<(), BuilderError> {
        step(show, 1, "cloning");
        let mut command = self.command();
        command
            .args([
                "clone",
                "--bare",
                "--depth=1",
                "--single-branch",
                "--no-tags",
            ])
            .args(["--no-recurse-submodules", "--template=", "--progress", "--"])
            .arg(repository.url())
            .arg(&self.directory)
            .stdout(Stdio::null());
        let mut child = ChildGuard(command.spawn().map_err(not_started)?);
        let stderr = child.0.stderr.take();
        let bytes_max = config.max_size.as_u64();
        let too_large = || {
            BuilderError::too_large(format!(
                "the repository is larger than {} MiB. The operator can raise the limit with the key builder.max_size.",
                bytes_max / (1024 * 1024)
            ))
        };
        let (status, said) = thread::scope(|scope| {
            let (news, heard) = sync_channel(16);
            let reader =
                scope.spawn(move || stderr.map(|it| follow(it, &news)).unwrap_or_default());
            let status = loop {
                heard.try_iter().for_each(show);
                match child.0.try_wait() {
                    Ok(Some(status)) => break Ok(status),
                    Ok(None) => {}
                    Err(error) => break Err(BuilderError::failed(format!("git: {error}."))),
                }
                if !fits(&self.directory, bytes_max) {
                    child.end();
                    break Err(too_large());
                }
                thread::sleep(WATCH);
            };
            (status, reader.join().unwrap_or_default())
        });
        let status = status?;
        if status.success() {
            // The size is checked once more: the clone may have grown since the last check.
            return fits(&self.directory, bytes_max)
                .then_some(())
                .ok_or_else(too_large);
        }
        if ended_by_size(status, &said) {
            return Err(too_large());
        }
        Err(explain(repository, status, &said))
    }

    fn output(&self, arguments: &[&str]) -> Result<String, BuilderError> {
        let output = self.inside(arguments).output().map_err(not_started)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Lists the files of a commit that are to be copied. git's listing is read as a stream: a commit may name more files than
    /// fit in memory.
    fn list(&self, revision: &str, tree: &mut Tree) -> Result<Vec<Blob>, BuilderError> {
        let mut command = self.inside(&["ls-tree", "-r", "-l", "-z", "--full-tree", revision]);
        let mut child = ChildGuard(command.stderr(Stdio::null()).spawn().map_err(not_started)?);
        let Some(stdout) = child.0.stdout.take() else {
            return Err(unreadable());
        };
        let mut stdout = BufReader::new(stdout);
        let mut blobs = Vec::new();
        let mut entry = Vec::new();
        loop {
            entry.clear();
            let read = (&mut stdout).take(ENTRY_MAX).read_until(0, &mut entry);
            if read.map_err(|_| unreadable())? == 0 {
                break;
            }
            if entry.pop() != Some(0) {
                return Err(unreadable());
            }
            let parsed = parse_entry(&entry).ok_or_else(unreadable)?;
            let path = match String::from_utf8(parsed.path.to_vec()) {
                Ok(path) => path,
                Err(error) => {
                    let shown = String::from_utf8_lossy(error.as_bytes()).into_owned();
                    tree.leave_out(&shown, "has a name that is not UTF-8")?;
                    continue;
                }
            };
            let Some(size) = parsed.size else {
                tree.leave_out(&path, parsed.reason)?;
                continue;
            };
            // Each file is counted here and not when it is written: many files may refer to the same small object.
            if tree.admits(&path, size)? {
                blobs.push(Blob {
                    id: parsed.id.to_owned(),
                    size,
                    path,
                });
            }
        }
        let status = child.0.wait().map_err(|_| unreadable())?;
        status.success().then_some(blobs).ok_or_else(unreadable)
    }

    /// Copies the files' contents from the clone into the tree.
    fn take(&self, blobs: &[Blob], tree: &mut Tree) -> Result<(), BuilderError> {
        let mut command = self.inside(&["cat-file", "--batch"]);
        let command = command.stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = ChildGuard(command.spawn().map_err(not_started)?);
        let (Some(stdin), Some(stdout)) = (child.0.stdin.take(), child.0.stdout.take()) else {
            return Err(unreadable());
        };
        thread::scope(|scope| {
            // Requests are written by a separate thread. git sends responses before all requests are written, and since both
            // pipes have limited buffers, a single thread could block for ever.
            scope.spawn(move || {
                let mut stdin = BufWriter::new(stdin);
                for blob in blobs {
                    if writeln!(stdin, "{}", blob.id).is_err() {
                        break;
                    }
                }
            });
            let mut stdout = BufReader::new(stdout);
            let result = blobs
                .iter()
                .try_for_each(|blob| take_one(blob, &mut stdout, tree));
            if result.is_err() {
                // git is killed, so that the writing thread does not wait for ever until git reads more.
                child.end();
            }
            result
        })
    }
}

fn take_one(
    blob: &Blob,
    stdout: &mut impl io::BufRead,
    tree: &mut Tree,
) -> Result<(), BuilderError> {
    let mut head = String::new();
    let mut content = Vec::new();
    let read = (&mut *stdout)
        .take(256)
        .read_line(&mut head)
        .and_then(|_| (&mut *stdout).take(blob.size).read_to_end(&mut content))
        .and_then(|_| stdout.read_exact(&mut [0]));
    let expected = format!("{} blob {}\n", blob.id, blob.size);
    if read.is_err() || head != expected || content.len() as u64 != blob.size {
        return Err(unreadable());
    }
    tree.write(&blob.path, &content)
}

/// An entry of `git ls-tree -l`. If it is not copied, its size is `None` and `reason` describes why.
struct TreeEntry<'a> {
    id: &'a str,
    size: Option<u64>,
    reason: &'static str,
    path: &'a [u8],
}

/// Parses an entry of `git ls-tree -l`: `MODE SP TYPE SP ID SP+ SIZE TAB PATH`.
fn parse_entry(entry: &[u8]) -> Option<TreeEntry<'_>> {
    let tab = memchr::memchr(b'\t', entry)?;
    let head = std::str::from_utf8(&entry[..tab]).ok()?;
    let mut words = head.split_ascii_whitespace();
    let (mode, kind, id, size) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let (size, reason) = match (mode, kind) {
        ("120000", _) => (None, "is a symbolic link"),
        (_, "commit") => (None, "is a submodule"),
        (_, "blob") => (Some(size.parse().ok()?), ""),
        _ => (None, "is no file"),
    };
    Some(TreeEntry {
        id,
        size,
        reason,
        path: &entry[tab + 1..],
    })
}

/// A child process that is killed when this value is dropped. Processes that the child started are ended by the guard
/// process, which is the parent of this process.
struct ChildGuard(Child);

impl ChildGuard {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        self.end();
    }
}

/// The environment variables that git needs; no others are passed to it.
fn environment(
    home: &Path,
    repository: &Repository,
    addresses: &[IpAddr],
) -> Vec<(&'static str, OsString)> {
    let mut variables: Vec<(&'static str, OsString)> = vec![
        ("HOME", home.into()),
        ("XDG_CONFIG_HOME", home.into()),
        ("LC_ALL", "C".into()),
        ("GIT_CONFIG_NOSYSTEM", "1".into()),
        ("GIT_CONFIG_SYSTEM", "/dev/null".into()),
        ("GIT_CONFIG_GLOBAL", "/dev/null".into()),
        ("GIT_ATTR_NOSYSTEM", "1".into()),
        ("GIT_TERMINAL_PROMPT", "0".into()),
        ("GIT_ASKPASS", "true".into()),
        ("GIT_ALLOW_PROTOCOL", repository.scheme.as_str().into()),
        ("GIT_PROTOCOL_FROM_USER", "0".into()),
        ("GIT_LFS_SKIP_SMUDGE", "1".into()),
        ("GIT_NO_LAZY_FETCH", "1".into()),
    ];
    if repository.scheme == GitScheme::Ssh {
        // ssh must not prompt, must refuse the key of an unknown host, and must not resolve the host's name again.
        let mut ssh =
            "ssh -F /dev/null -oBatchMode=yes -oStrictHostKeyChecking=yes -oConnectTimeout=30"
                .to_owned();
        if let (Some((host, _)), Some(address)) = (repository.host_and_port(), addresses.first()) {
            ssh += &format!(" -oHostKeyAlias={host} -oHostName={address}");
        }
        variables.push(("GIT_SSH_COMMAND", ssh.into()));
        variables.push(("GIT_SSH_VARIANT", "ssh".into()));
    }
    for name in [
        "PATH",
        "TMPDIR",
        "http_proxy",
        "https_proxy",
        "HTTPS_PROXY",
        "no_proxy",
        "NO_PROXY",
    ] {
        if let Some(value) = std::env::var_os(name) {
            variables.push((name, value));
        }
    }
    // git reads the path of a certificate bundle from a separate variable.
    let bundle = ["SSL_CERT_FILE", "CURL_CA_BUNDLE"]
        .into_iter()
        .find_map(std::env::var_os);
    if let Some(bundle) = bundle {
        variables.push(("GIT_SSL_CAINFO", bundle));
    }
    variables
}

fn options(repository: &Repository, addresses: &[IpAddr]) -> Vec<String> {
    let mut settings: Vec<String> = [
        "core.hooksPath=/dev/null",
        "core.fsmonitor=false",
        "core.symlinks=false",
        "core.bigFileThreshold=4m",
        "core.packedGitLimit=256m",
        "credential.helper=",
        "fetch.recurseSubmodules=false",
        "submodule.recurse=false",
        // Redirections are refused: they could lead to a host whose addresses were not checked.
        "http.followRedirects=false",
        "http.lowSpeedLimit=1000",
        "http.lowSpeedTime=30",
        "gc.auto=0",
        "maintenance.auto=false",
        "pack.threads=1",
        "protocol.allow=never",
    ]
    .map(str::to_owned)
    .into();
    settings.push(format!("protocol.{}.allow=always", repository.scheme));
    if let Some((host, port)) = repository.host_and_port()
        && !addresses.is_empty()
        && !repository.is_by_address()
    {
        let addresses: Vec<_> = addresses
            .iter()
            .map(|it| match it {
                IpAddr::V4(it) => it.to_string(),
                IpAddr::V6(it) => format!("[{it}]"),
            })
            .collect();
        settings.push(format!(
            "http.curloptResolve={host}:{port}:{}",
            addresses.join(",")
        ));
    }
    settings
        .into_iter()
        .flat_map(|setting| ["-c".to_owned(), setting])
        .collect()
}

/// Returns true if the size and number of git's internal files are within the limits. Files that are removed during the count
/// are ignored.
fn fits(directory: &Path, bytes_max: u64) -> bool {
    let (mut bytes, mut files) = (0, 0);
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(about) if about.is_dir() => folders.push(entry.path()),
                Ok(about) => bytes += about.len(),
                Err(_) => {}
            }
            files += 1;
            if bytes > bytes_max || files > OBJECTS_MAX {
                return false;
            }
        }
    }
    true
}

/// Reads git's standard error to its end, reports progress, and returns the last lines of the output.
fn follow(mut stderr: impl Read, news: &SyncSender<Progress>) -> String {
    let mut kept = Vec::new();
    let mut chunk = [0; 4096];
    let mut last = None;
    while let Ok(read @ 1..) = stderr.read(&mut chunk) {
        kept.extend_from_slice(&chunk[..read]);
        let said = String::from_utf8_lossy(&chunk[..read]);
        let progress = said.split(['\r', '\n']).rev().find_map(progress);
        if let Some(progress) = progress
            && last.as_ref() != Some(&progress)
        {
            // If the queue is full, this report is dropped; a later one follows.
            let _ = news.try_send(progress.clone());
            last = Some(progress);
        }
        let surplus = kept.len().saturating_sub(8 * 1024);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Parses a line of git's progress such as `Receiving objects:  45% (9/20), 1.2 MiB`, in steps of ten percent.
fn progress(line: &str) -> Option<Progress> {
    let (phase, rest) = line.trim_start_matches("remote: ").split_once(':')?;
    let percent: u8 = rest.split_once('%')?.0.trim().parse().ok()?;
    // Percentage of the job at which a phase begins, and the phase's share of the job.
    let (from, share) = match phase {
        "Counting objects" => (2, 8),
        "Compressing objects" => (10, 10),
        "Receiving objects" => (20, 40),
        "Resolving deltas" => (60, 9),
        _ => return None,
    };
    let done = u16::from(percent.min(100)) / 10 * 10 * share / 100;
    Some(Progress {
        message: format!("cloning: {}", phase.to_lowercase()),
        percent: from + u8::try_from(done).unwrap_or(0),
    })
}

/// Returns true if a git process was killed because a file exceeded the size limit. git then reports the signal, or only that
/// its unpacking process ended, without an error message of that process; after any other failure there is such a message.
fn ended_by_size(status: ExitStatus, said: &str) -> bool {
    let silently = said.contains("invalid index-pack output")
        && said.matches("fatal:").count() == 1
        && !said.contains("error:");
    silently
        || status.signal() == Some(FILE_TOO_LARGE)
        || status.code() == Some(128 + FILE_TOO_LARGE)
        || said.contains(&format!("died of signal {FILE_TOO_LARGE}"))
        || said.contains("File too large")
}

/// Creates the error for a failed clone, with a remedy for well-known causes.
fn explain(repository: &Repository, status: ExitStatus, said: &str) -> BuilderError {
    let lines: Vec<_> = said
        .split(['\n', '\r'])
        .map(str::trim)
        .filter(|line| {
            ["fatal:", "error:", "remote: ", "ERROR"]
                .iter()
                .any(|it| line.starts_with(it))
                && !line.contains('%')
                && !line.contains("done.")
        })
        .collect();
    let mut reason = lines.join(" ");
    if reason.len() > SAID_MAX {
        let end = (0..=SAID_MAX).rev().find(|it| reason.is_char_boundary(*it));
        reason.truncate(end.unwrap_or(0));
    }
    if reason.is_empty() {
        reason = format!("git ended with {status}");
    }
    let host = repository.host_and_port().map_or("this machine", |it| it.0);
    let has = |text: &str| reason.contains(text);
    if has("terminal prompts disabled")
        || has("could not read Username")
        || has("Authentication failed")
    {
        return BuilderError::not_found(format!(
            "{host} has no such repository that everybody may read: check the URL. Repositories that need a login cannot be \
             read here."
        ));
    }
    if has("not found") || has("does not exist") || has("does not appear to be a git repository") {
        return BuilderError::not_found(format!("there is no repository at this URL: {reason}"));
    }
    if has("redirect")
        || has("error: 301")
        || has("error: 302")
        || has("error: 307")
        || has("error: 308")
    {
        return BuilderError::failed(format!(
            "{host} redirects to another address, which is not followed. Open the URL and give the address that it ends at. \
             git said: {reason}"
        ));
    }
    if has("unable to access")
        || has("Could not resolve")
        || has("Connection")
        || has("timed out")
        || has("Operation too slow")
    {
        return BuilderError::unavailable(format!(
            "{host} cannot be reached, or does not answer as a git server. git said: {reason}"
        ));
    }
    BuilderError::failed(format!(
        "the repository cannot be cloned. git said: {reason}"
    ))
}

fn not_started(error: io::Error) -> BuilderError {
    BuilderError::failed(if error.kind() == io::ErrorKind::NotFound {
        "git is not installed where the gateway runs (it is not on its PATH). Install it, for example with: apt-get install git"
            .to_owned()
    } else {
        format!("cannot start git: {error}.")
    })
}

fn unreadable() -> BuilderError {
    BuilderError::failed(
        "git could not read the repository that it has just cloned; the repository may be damaged.",
    )
}

#[cfg(test)]
mod tests;
