//! Loads the Python files of a folder once, in a process that serves no calls: imports them as a worker does, or only parses
//! them.
//!
//! For commands that run outside a gateway, without an asynchronous runtime. The process has a time limit, and its whole
//! process group is ended.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use tooldock_base::secret::Secret;
use tooldock_process::child::variables::installer_variables;
use tooldock_process::environment::{BOUNDS, find_program};

use crate::manage::{FileInspection, INSPECT_SCRIPT};
use crate::scan::NamespaceSource;

/// Maximum length of a line that is read from the process, in bytes.
const LINE_MAX: u64 = 16 * 1024 * 1024;
/// Time limit for parsing the files.
const PARSE_LIMIT: Duration = Duration::from_secs(30);

/// Maximum time to read the remaining standard error of a process after the process has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Maximum number of bytes that are kept of a line of standard error.
const LAST_LINE_MAX: u64 = 4096;

/// The first line that a worker writes: that it is ready, or that it cannot start.
#[derive(Debug, Deserialize)]
pub(super) struct ImportReport {
    op: String,
    /// Reason why the worker cannot start.
    #[serde(default)]
    message: String,
    #[serde(default)]
    issues: Vec<ImportIssue>,
}

/// A file or tool that a worker skipped.
#[derive(Debug, Deserialize)]
pub(super) struct ImportIssue {
    /// Name of the skipped file.
    pub(super) subject: String,
    /// The error, with the line number if there is one.
    pub(super) message: String,
}

impl ImportReport {
    /// Returns the files and tools that the worker skipped.
    ///
    /// # Errors
    ///
    /// The reason why the worker cannot start.
    pub(super) fn issues(self) -> Result<Vec<ImportIssue>, String> {
        match self.op.as_str() {
            "ready" => Ok(self.issues),
            _ => Err(self.message),
        }
    }
}

/// Imports the files of a namespace in an environment, as a worker does.
///
/// # Errors
///
/// The reason why the process wrote no result.
pub(super) fn import(
    source: &NamespaceSource,
    environment: &Path,
    variables: Vec<(OsString, Secret)>,
    limit: Duration,
) -> Result<ImportReport, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut command = Command::new(environment.join("bin/python"));
    command
        .args(["-m", "app.worker_main", "--addressed-log", "--namespace"])
        .arg(source.name.as_str())
        .arg("--socket")
        .arg(folder.path().join("s"))
        .arg("--venv")
        .arg(environment)
        .arg("--tools")
        .arg(&source.dir)
        .current_dir(&source.dir)
        .env_clear();
    if source.manifest.vault_style {
        command.args(["--style", "vault"]);
    }
    for (name, value) in &variables {
        command.env(name, value.expose());
    }
    let line = first_line(command, Vec::new(), b"{\"op\"", limit)?;
    serde_json::from_slice(&line).map_err(|error| error.to_string())
}

/// Parses files with an interpreter. Each file is a name and its source; none of their code is run.
///
/// # Errors
///
/// The reason why the interpreter wrote no result.
pub(super) fn parse(
    python: &str,
    files: &[(String, String)],
) -> Result<Vec<FileInspection>, String> {
    let program = find_program(python).ok_or_else(|| {
        format!("workers.python: {python:?} was not found; install Python, or name it there")
    })?;
    let mut command = Command::new(program);
    command
        .args(["-I", "-S", "-B", "-c"])
        .arg(format!("{BOUNDS}{INSPECT_SCRIPT}"))
        .current_dir("/")
        .env_clear();
    for (name, value) in installer_variables() {
        command.env(name, value.expose());
    }
    let input = json!({ "files": files }).to_string().into_bytes();
    let line = first_line(command, input, b"[", PARSE_LIMIT)?;
    serde_json::from_slice(&line).map_err(|error| error.to_string())
}

/// A child process. Dropping it kills its process group.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Runs a program and returns the first line of its output that begins with the given prefix.
fn first_line(
    mut command: Command,
    input: Vec<u8>,
    begins: &'static [u8],
    limit: Duration,
) -> Result<Vec<u8>, String> {
    command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| error.to_string())?;
    let mut process = Process(child);
    let Process(child) = &mut process;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // The threads end when the process closes its pipes.
    let _writer = stdin.map(|mut stdin| thread::spawn(move || stdin.write_all(&input)));
    let (told, last_words) = mpsc::sync_channel(1);
    let _errors = stderr.map(|stderr| thread::spawn(move || told.send(last_line(stderr))));
    let (found, line) = mpsc::sync_channel(1);
    let _reader = stdout.map(|stdout| thread::spawn(move || found.send(line_of(stdout, begins))));
    match line.recv_timeout(limit) {
        Ok(Some(line)) => Ok(line),
        Err(RecvTimeoutError::Timeout) => Err(format!("no answer after {} s", limit.as_secs())),
        Ok(None) | Err(RecvTimeoutError::Disconnected) => {
            drop(process);
            // The wait is bounded, because a descendant outside the process group may keep the pipe open.
            let last = last_words.recv_timeout(LAST_WORDS).ok();
            let last = last.filter(|last| !last.is_empty());
            Err(last.unwrap_or_else(|| "it ended without an answer".to_owned()))
        }
    }
}

fn line_of(output: impl Read, begins: &[u8]) -> Option<Vec<u8>> {
    let mut lines = BufReader::new(output.take(LINE_MAX));
    loop {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).ok()? == 0 {
            return None;
        }
        if line.starts_with(begins) {
            return Some(line);
        }
    }
}

/// Returns the last non-empty line; of a long line only the end.
fn last_line(output: impl Read) -> String {
    let mut last = String::new();
    let mut lines = BufReader::new(output);
    let mut part = Vec::new();
    loop {
        part.clear();
        let read = (&mut lines)
            .take(LAST_LINE_MAX)
            .read_until(b'\n', &mut part);
        if !read.is_ok_and(|read| read > 0) {
            return last;
        }
        let text = String::from_utf8_lossy(part.trim_ascii());
        if !text.is_empty() {
            last = text.into_owned();
        }
    }
}
