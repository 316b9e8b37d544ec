//! Runs a Python script of the gateway with the interpreter `workers.python`: isolated, and with limits on input, output, time
//! and memory.
//!
//! The script is passed as an argument and its input on standard input, so the interpreter reads no files except its own library.
//! The script must treat its input as data.

use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::Sender;
use tokio::time::timeout;

use super::interpreter::find_program;
use super::{EnvironmentError, Environments};
use crate::child::{Child, Exit, Priority, ProcessSpec, Stdin};

/// Maximum duration of a script. The limit on its computing time is less than a third of that, since it runs at low priority.
const LIMIT: Duration = Duration::from_secs(90);
/// Maximum number of bytes of a script's output; a script with more output fails.
const OUTPUT_MAX: usize = 16 * 1024 * 1024;
/// Maximum number of characters of a failed script's last error line in the message.
const TOLD_MAX: usize = 500;
/// Python code that limits memory and computing time of its own interpreter. It runs before the script reads any input.
pub const BOUNDS: &str = "import resource as _r
for _n, _v in ((_r.RLIMIT_AS, 1 << 30), (_r.RLIMIT_CPU, 25), (_r.RLIMIT_CORE, 0), (_r.RLIMIT_FSIZE, 0)):
    try:
        _r.setrlimit(_n, (_v, _v))
    except (OSError, ValueError):
        pass
";

impl Environments {
    /// Runs a script and returns its standard output. Dropping the future ends the script.
    ///
    /// # Errors
    ///
    /// When there is no interpreter, or the script fails, writes too much or takes too long.
    pub async fn run_script(
        &self,
        script: &str,
        input: Vec<u8>,
    ) -> Result<Vec<u8>, EnvironmentError> {
        let _turn = super::turn(&self.scripts).await?;
        let python = &self.config.python;
        let program = find_program(python).ok_or_else(|| {
            EnvironmentError(format!(
                "workers.python: {python:?} was not found; install Python with venv"
            ))
        })?;
        let spec = ProcessSpec {
            program,
            args: ["-I", "-S", "-B", "-c"]
                .map(Into::into)
                .into_iter()
                .chain([format!("{BOUNDS}{script}").into()])
                .collect(),
            env: Vec::new(),
            cwd: Path::new("/").to_owned(),
            stdin: Stdin::Piped,
            priority: Priority::Low,
            sandbox: None,
        };
        let (guard, metrics) = self.installer.host();
        let failed = |what: String| EnvironmentError(format!("Python cannot be asked: {what}"));
        let mut child = Child::spawn(&spec, guard, metrics)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let stdin = child.take_stdin();
        let (stdout, stderr) = (child.take_stdout(), child.take_stderr());
        let write = async {
            if let Some(stdin) = stdin {
                // Errors are ignored: if the script ends without reading all input, its exit status and output describe the
                // reason.
                if let Ok(mut stdin) = Sender::from_owned_fd(stdin) {
                    let _ = stdin.write_all(&input).await;
                }
            }
        };
        let talk = async { tokio::join!(write, bounded(stdout), bounded(stderr), child.wait()) };
        let Ok(((), output, errors, exit)) = timeout(LIMIT, talk).await else {
            child.stop(Duration::ZERO).await;
            return Err(failed(format!("no answer after {LIMIT:?}")));
        };
        match exit {
            Exit::Code(0) if output.len() <= OUTPUT_MAX => Ok(output),
            Exit::Code(0) => Err(failed("the answer is too long".to_owned())),
            exit => {
                let errors = String::from_utf8_lossy(&errors);
                let last = errors.trim().lines().last().unwrap_or_default();
                let last: String = last.chars().take(TOLD_MAX).collect();
                Err(failed(format!("{exit}; it said last: {last}")))
            }
        }
    }
}

/// Reads a stream to its end. Keeps at most one byte more than [`OUTPUT_MAX`], by which a longer output is detected.
async fn bounded(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(stream) = stream else {
        return kept;
    };
    let mut stream = stream;
    let mut chunk = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = stream.read(&mut chunk).await {
        let room = (OUTPUT_MAX + 1).saturating_sub(kept.len());
        kept.extend_from_slice(&chunk[..read.min(room)]);
    }
    kept
}
