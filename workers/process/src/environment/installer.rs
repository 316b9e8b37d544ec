//! Runs Python, pip and uv under the guard, with a time limit and an environment that starts empty. The end of their output is
//! kept for error messages.
//!
//! The guard ends the whole process tree when the gateway's end of the control socket is closed, so a timeout, a dropped future
//! or a killed gateway leaves no processes.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tooldock_base::logins::redact_credentials;
use tooldock_base::secret::Secret;

use super::{EnvironmentError, LOCAL_STEP};
use crate::child::output::{RecentLines, Stream, printable_text};
use crate::child::variables::installer_variables;
use crate::child::{Child, Exit, Priority, ProcessSpec, Stdin};
use crate::metrics::ProcessMetrics;

/// Maximum number of bytes of an output stream that are kept, counted from its end.
const TAIL_BYTES: usize = 64 * 1024;
/// Maximum number of bytes of an output stream that an error message quotes.
const MESSAGE_BYTES: usize = 2000;
/// Maximum time for which the output is still read after the command has ended, while another process keeps the pipes open.
const AFTER_END: Duration = Duration::from_secs(5);

/// Runs the commands of installers.
#[derive(Debug, Clone)]
pub(super) struct Installer {
    guard: PathBuf,
    metrics: ProcessMetrics,
}

/// A command of an installer.
pub(super) struct Step<'a> {
    /// The purpose of the command as messages name it, such as "install requirements.txt".
    pub(super) doing: &'a str,
    pub(super) program: &'a Path,
    pub(super) arguments: Vec<OsString>,
    pub(super) directory: &'a Path,
    /// Environment variables in addition to those of every installer.
    pub(super) variables: Vec<(OsString, Secret)>,
    pub(super) limit: Duration,
    pub(super) priority: Priority,
    /// Store to which each line of output is added as it is printed, without credentials; `None` if the output is not shown.
    pub(super) lines: Option<Arc<RecentLines>>,
}

impl<'a> Step<'a> {
    /// Creates a step that needs no network and runs in the root directory.
    pub(super) fn local(
        doing: &'a str,
        program: &'a Path,
        arguments: &[&(dyn AsRef<OsStr> + Sync)],
    ) -> Self {
        Self {
            doing,
            program,
            arguments: arguments
                .iter()
                .map(|argument| AsRef::<OsStr>::as_ref(*argument).to_owned())
                .collect(),
            directory: Path::new("/"),
            variables: Vec::new(),
            limit: LOCAL_STEP,
            priority: Priority::Normal,
            lines: None,
        }
    }
}

impl Installer {
    pub(super) fn new(guard: PathBuf, metrics: ProcessMetrics) -> Self {
        Self { guard, metrics }
    }

    /// The guard's executable, and the metrics of its children.
    pub(super) fn host(&self) -> (&Path, &ProcessMetrics) {
        (&self.guard, &self.metrics)
    }

    /// Runs a command to its end and returns its standard output. Dropping the future ends the command.
    ///
    /// # Errors
    ///
    /// When the command cannot be started, fails or exceeds its time limit. The error contains its last output, without
    /// credentials.
    pub(super) async fn run(&self, step: Step<'_>) -> Result<String, EnvironmentError> {
        let doing = step.doing;
        let mut env = installer_variables();
        env.extend(step.variables);
        let spec = ProcessSpec {
            program: step.program.to_owned(),
            args: step.arguments,
            env,
            cwd: step.directory.to_owned(),
            stdin: Stdin::Null,
            priority: step.priority,
            sandbox: None,
        };
        let mut child = Child::spawn(&spec, &self.guard, &self.metrics)
            .await
            .map_err(|error| EnvironmentError(format!("cannot {doing}: {error}")))?;
        let (stdout, stderr) = (child.take_stdout(), child.take_stderr());
        let lines = step.lines;
        let output = Output(tokio::spawn(async move {
            tokio::join!(
                tail(stdout, lines.as_deref().map(|it| (it, Stream::Stdout))),
                tail(stderr, lines.as_deref().map(|it| (it, Stream::Stderr)))
            )
        }));

        let Ok(exit) = timeout(step.limit, child.wait()).await else {
            // The command is killed without a grace time, since it has already taken too long.
            child.stop(Duration::ZERO).await;
            let (stdout, stderr) = output.finish().await;
            return Err(EnvironmentError(format!(
                "cannot {doing}: not finished after {:?}.{}",
                step.limit,
                message(&stdout, &stderr)
            )));
        };
        let (stdout, stderr) = output.finish().await;
        if exit == Exit::Code(0) {
            Ok(String::from_utf8_lossy(&stdout).into_owned())
        } else {
            Err(EnvironmentError(format!(
                "cannot {doing}: {exit}.{}",
                message(&stdout, &stderr)
            )))
        }
    }
}

/// The tasks that read a command's output. They end when the step that started them ends.
struct Output(JoinHandle<(Vec<u8>, Vec<u8>)>);

impl Output {
    /// Returns the bytes of standard output and standard error. Both are empty if another process still has the pipes open 5 s
    /// after the command has ended.
    async fn finish(mut self) -> (Vec<u8>, Vec<u8>) {
        match timeout(AFTER_END, &mut self.0).await {
            Ok(Ok(output)) => output,
            _ => Default::default(),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reads a stream to its end and returns its last [`TAIL_BYTES`]. Each line is also passed on when it is read.
async fn tail(
    stream: Option<impl AsyncRead + Unpin>,
    told: Option<(&RecentLines, Stream)>,
) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut stream) = stream else {
        return kept;
    };
    let mut chunk = vec![0; 8192];
    let mut begun = Vec::new();
    while let Ok(read @ 1..) = stream.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..read]);
        if let Some((lines, stream)) = told {
            begun.extend_from_slice(&chunk[..read]);
            tell(&mut begun, lines, stream);
        }
        if kept.len() > 2 * TAIL_BYTES {
            kept.drain(..kept.len() - TAIL_BYTES);
        }
    }
    if let Some((lines, stream)) = told {
        begun.push(b'\n');
        tell(&mut begun, lines, stream);
    }
    kept.drain(..kept.len().saturating_sub(TAIL_BYTES));
    kept
}

/// Passes on the complete lines in `begun`, and keeps the beginning of the next line in it. A line also ends when a progress bar
/// is drawn again, and when it grows too long.
fn tell(begun: &mut Vec<u8>, lines: &RecentLines, stream: Stream) {
    let whole = match memchr::memrchr2(b'\n', b'\r', begun) {
        Some(end) => end + 1,
        None if begun.len() > TAIL_BYTES => begun.len(),
        None => return,
    };
    let rest = begun.split_off(whole);
    for line in begun.split(|byte| matches!(byte, b'\n' | b'\r')) {
        let line = String::from_utf8_lossy(line);
        let line = redact_credentials(line.trim_end());
        if !line.trim().is_empty() {
            lines.keep(None, stream, &printable_text(&line));
        }
    }
    *begun = rest;
}

/// The end of a command's output for a message: its standard error, or its standard output if there are no errors.
fn message(stdout: &[u8], stderr: &[u8]) -> String {
    let said = if stderr.trim_ascii().is_empty() {
        stdout
    } else {
        stderr
    };
    let said = redact_credentials(&String::from_utf8_lossy(said));
    let said = said.trim();
    if said.is_empty() {
        return String::new();
    }
    let mut from = said.len().saturating_sub(MESSAGE_BYTES);
    while !said.is_char_boundary(from) {
        from += 1;
    }
    let last = &said[from..];
    // A text that is cut must begin with a complete line.
    let last = match last.find('\n') {
        Some(end) if from > 0 => &last[end + 1..],
        _ => last,
    };
    let lines: Vec<_> = last.lines().map(printable_text).collect();
    format!(" It said:\n{}", lines.join("\n"))
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Creates an installer whose guard is a script that only starts the command and reports. Integration tests use the real
    /// guard.
    pub(in crate::environment) fn unguarded(directory: &Path) -> Installer {
        let guard = directory.join("guard.sh");
        let script =
            "#!/bin/sh\nshift 2\necho \"pid $$\" >&0\n\"$@\" </dev/null\necho \"exit $?\" >&0\n";
        std::fs::write(&guard, script).unwrap();
        std::fs::set_permissions(&guard, std::fs::Permissions::from_mode(0o755)).unwrap();
        Installer::new(guard, metrics())
    }

    pub(in crate::environment) fn broken() -> Installer {
        Installer::new("/nonexistent/guard".into(), metrics())
    }

    fn metrics() -> ProcessMetrics {
        let registry = prometheus::Registry::new();
        crate::metrics::WorkerMetrics::new(&registry)
            .unwrap()
            .processes()
            .clone()
    }

    async fn shell(script: &str) -> Result<String, EnvironmentError> {
        told(script, None).await
    }

    async fn told(
        script: &str,
        lines: Option<Arc<RecentLines>>,
    ) -> Result<String, EnvironmentError> {
        let temp = tempfile::tempdir().unwrap();
        let step = Step::local("run a test", Path::new("/bin/sh"), &[&"-c", &script]);
        unguarded(temp.path()).run(Step { lines, ..step }).await
    }

    #[tokio::test]
    async fn each_line_is_told_as_it_comes_without_credentials() {
        let lines = Arc::new(RecentLines::default());
        let script = "printf 'one\\n\\n 10%%\\r 20%%\\rfrom https://me:pw@index/simple\\nend\\033'";
        let whole = told(script, Some(Arc::clone(&lines))).await.unwrap();
        assert!(whole.starts_with("one\n\n 10%\r"), "{whole}");
        let kept = lines.after(0);
        let texts: Vec<_> = kept.iter().map(|line| &*line.text).collect();
        let expected = [
            "one",
            " 10%",
            " 20%",
            "from https://[redacted]@index/simple",
            "end\\u{1b}",
        ];
        assert_eq!(texts, expected);
    }

    #[tokio::test]
    async fn gives_the_output_of_what_succeeds_and_the_last_words_of_what_fails() {
        assert_eq!(shell("echo fine; echo noise >&2").await.unwrap(), "fine\n");
        let error = shell("echo to https://me:pw@index/simple failed >&2; exit 3")
            .await
            .unwrap_err()
            .0;
        assert!(
            error.starts_with("cannot run a test: exit code 3."),
            "{error}"
        );
        assert!(
            error.ends_with("to https://[redacted]@index/simple failed"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn the_gateways_environment_does_not_reach_it() {
        // `CARGO` is set by the test runner, so it shows that the command does not inherit the environment.
        assert!(std::env::var_os("CARGO").is_some());
        assert_eq!(shell("echo \"[$CARGO]\"").await.unwrap(), "[]\n");
    }

    #[test]
    fn a_long_message_is_cut_at_a_line() {
        let text = format!("{}\nERROR: the end", "é".repeat(MESSAGE_BYTES));
        assert_eq!(
            message(b"out", text.as_bytes()),
            " It said:\nERROR: the end"
        );
        assert_eq!(message(b"out", b"  "), " It said:\nout");
        assert_eq!(
            message(
                b"",
                "one\r\n\u{1b}[31mtwo\rINFO three\u{2028}INFO four".as_bytes()
            ),
            " It said:\none\n\\u{1b}[31mtwo\\rINFO three\\u{2028}INFO four"
        );
        assert_eq!(message(b"", b""), "");
    }
}
