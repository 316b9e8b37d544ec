//! Runs Python, pip and uv: under the guard, with a time limit and an environment from scratch. The end of the output is kept
//! for the message.
//!
//! The guard ends the whole tree when our end of its control socket closes, so a timeout, a dropped future and a killed
//! gateway leave nothing behind.

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

/// Maximum number of bytes that are kept of a stream: its end.
const TAIL_BYTES: usize = 64 * 1024;
/// Maximum number of bytes of a stream that go into a message.
const MESSAGE_BYTES: usize = 2000;
/// Maximum time for the pipes to stay open after all processes ended.
const AFTER_END: Duration = Duration::from_secs(5);

/// Runs installer commands.
#[derive(Debug, Clone)]
pub(super) struct Installer {
    guard: PathBuf,
    metrics: ProcessMetrics,
}

/// A command to run.
pub(super) struct Step<'a> {
    /// The action, for the message: "install requirements.txt".
    pub(super) doing: &'a str,
    pub(super) program: &'a Path,
    pub(super) arguments: Vec<OsString>,
    pub(super) directory: &'a Path,
    /// Variables in addition to those of every installer.
    pub(super) variables: Vec<(OsString, Secret)>,
    pub(super) limit: Duration,
    pub(super) priority: Priority,
    /// Receives each line as it is printed, without credentials.
    pub(super) lines: Option<Arc<RecentLines>>,
}

impl<'a> Step<'a> {
    /// A step without network, from the root directory.
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

    /// The guard's program, and the metrics of its children.
    pub(super) fn host(&self) -> (&Path, &ProcessMetrics) {
        (&self.guard, &self.metrics)
    }

    /// Runs a command to its end and returns its standard output. Dropping the future ends the command.
    ///
    /// # Errors
    ///
    /// When the command cannot be started, fails or exceeds its time limit. The error has its last output, without credentials.
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
            // Killed without a grace period: it has already taken too long.
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

/// The readers of a command's output; they end with the step that started them.
struct Output(JoinHandle<(Vec<u8>, Vec<u8>)>);

impl Output {
    /// Returns the bytes of standard output and standard error. Both are empty if a process still held the pipes open 5 s after
    /// the command ended.
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

/// Reads a stream to its end and keeps the last [`TAIL_BYTES`]. Each line is passed on as it comes.
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

/// Passes on complete lines, and leaves the beginning of the next one. A progress bar that is drawn anew ends a line, and so
/// does a line that grows too long.
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

/// The end of a command's output: its errors, or its standard output if it wrote no errors.
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
    // A cut text begins with a whole line.
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

    /// An installer with a guard that only starts the command and reports. The real one is exercised by the
    /// integration tests.
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
        // `CARGO` is set only by the test runner.
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
