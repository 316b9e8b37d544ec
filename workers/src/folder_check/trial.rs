//! Reads the Python of a folder once, in a process that serves nothing: imports it as a worker does, or only parses it.
//!
//! For commands that run outside a gateway, without an asynchronous runtime. The process has a time limit, and ends with its
//! process group.

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

/// Maximum length of a line that is read, in bytes.
const LINE_MAX: u64 = 16 * 1024 * 1024;
/// Time limit for parsing the files.
const PARSE_LIMIT: Duration = Duration::from_secs(30);

/// Time limit for the end of a process's standard error, after the process has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Maximum number of bytes that are kept of a line of standard error.
const LAST_LINE_MAX: u64 = 4096;

/// The first line that a worker writes: it is ready, or it does not start.
#[derive(Debug, Deserialize)]
pub(super) struct ImportReport {
    op: String,
    /// Reason why the worker does not start.
    #[serde(default)]
    message: String,
    #[serde(default)]
    issues: Vec<ImportIssue>,
}

/// A file or tool that a worker skipped.
#[derive(Debug, Deserialize)]
pub(super) struct ImportIssue {
    /// Name of the file.
    pub(super) subject: String,
    /// The error, with the line of the file if the error has a line.
    pub(super) message: String,
}

impl ImportReport {
    /// The files and tools that the worker skipped.
    ///
    /// # Errors
    ///
    /// The reason why the worker does not start.
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
/// The reason why the worker gave no answer.
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

/// Parses files, each a name and its source, with an interpreter. None of their code is run.
///
/// # Errors
///
/// The reason why the interpreter gave no answer.
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

/// A process, ended with its group when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// The first line of a program's output with the given prefix.
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
    // The threads end with the process.
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
            // A process that left the group may keep the stream open.
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

/// The last line that is not empty. Of a long line, the last part is returned.
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
