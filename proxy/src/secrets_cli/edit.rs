//! `tooldock secrets edit`: shows all values in an editor, and stores the values that are saved there.
//!
//! Meanwhile the store is locked: other writers get an error that reports the edit. The text is in a file that only this user can
//! read. The file is wiped when the editor ends, when a signal ends this process, and after each error.

use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use tooldock_credentials::secrets::{Scratch, SecretStore, Transaction};
use tooldock_workers::scan;

use super::{CommandFailure, TAKES_EFFECT};

/// The editor that is used if `EDITOR` is not set.
const EDITOR: &str = "vi";

/// Interval at which this process checks whether the editor has ended.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Time limit for an editor to end after SIGTERM. After that it is killed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Environment variables with credentials of the gateway. They are removed from the environment of the editor and its plugins.
const KEPT_BACK: [&str; 5] = [
    "SECRETS_KEY",
    "SECRETS_KEY_NEW",
    "BEARER_TOKEN",
    "MANAGER_INTERNAL_TOKEN",
    "SESSION_KEY",
];

/// Opens all secrets in an editor and stores the result. Returns a message about the outcome.
pub(super) fn edit(store: &SecretStore, data: &Path) -> Result<String, CommandFailure> {
    let signals = Signals::catch()?;
    let mut transaction = store.begin("secrets edit")?;
    let document = transaction.document()?;
    let scratch = Scratch::new(data, document.as_bytes()).map_err(|error| {
        CommandFailure::Other(format!("no place for the text to edit: {error}"))
    })?;
    let status = signals.run(&scratch.path())?;
    if !status.success() {
        let message = format!("the editor ended with {status}; the secrets are unchanged");
        return Err(CommandFailure::Other(message));
    }
    let edited = scratch.read().map_err(|error| {
        CommandFailure::Other(format!(
            "the edited text cannot be read: {error}; the secrets are unchanged"
        ))
    })?;
    drop(scratch);
    let changed = transaction.replace(&edited).map_err(|error| {
        CommandFailure::Usage(format!(
            "the edited text cannot be used: {error}; the secrets are unchanged"
        ))
    })?;
    let lacking = lacking(&transaction, data);
    let mut text = match changed {
        false => "Nothing is changed.\n".to_owned(),
        true => {
            transaction.commit()?;
            format!("The secrets are changed. {TAKES_EFFECT}\n")
        }
    };
    text.extend(lacking);
    Ok(text)
}

/// A line for each namespace with declared secrets that still have no value after the edit.
fn lacking(transaction: &Transaction<'_>, data: &Path) -> Vec<String> {
    let sources = scan::scan(&data.join("tools")).unwrap_or_default();
    let lines = sources.iter().filter_map(|source| {
        let declared = source.manifest.declared_secrets();
        let keys = transaction.lacking(&source.name, &declared);
        (!keys.is_empty()).then(|| {
            let (name, keys) = (&source.name, keys.join(", "));
            format!("The namespace {name} still lacks {keys}.\n")
        })
    });
    lines.collect()
}

/// Handlers for signals that would otherwise end this process and leave the file with the secrets behind.
struct Signals {
    /// True after SIGTERM or SIGHUP, which end the edit. SIGINT and SIGQUIT are ignored here: the terminal sends them to the
    /// editor, too, and the editor handles them.
    ended: Arc<AtomicBool>,
}

impl Signals {
    fn catch() -> Result<Self, CommandFailure> {
        let ended = Arc::new(AtomicBool::new(false));
        let told = |error| CommandFailure::Other(format!("signal handlers: {error}"));
        for signal in [SIGINT, SIGQUIT] {
            signal_hook::flag::register(signal, Arc::default()).map_err(told)?;
        }
        for signal in [SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(told)?;
        }
        Ok(Self { ended })
    }

    /// Runs the editor on a file. Returns when the editor has ended; a signal to this process ends the editor.
    fn run(&self, file: &Path) -> Result<ExitStatus, CommandFailure> {
        let editor = std::env::var("EDITOR")
            .ok()
            .filter(|it| !it.trim().is_empty());
        let editor = editor.as_deref().unwrap_or(EDITOR);
        let mut command = Command::new("/bin/sh");
        // The editor is started by the shell, because EDITOR may be a command with options, such as `code --wait`.
        command
            .args(["-c", &format!("exec {editor} \"$1\""), "editor"])
            .arg(file);
        for name in KEPT_BACK {
            command.env_remove(name);
        }
        let mut child = command.spawn().map_err(|error| {
            CommandFailure::Other(format!("the editor {editor:?} cannot be run: {error}"))
        })?;
        let failed =
            |error| CommandFailure::Other(format!("the editor {editor:?} is lost: {error}"));
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(status);
            }
            if self.ended.load(Ordering::Relaxed) {
                end(&mut child);
                return Err(CommandFailure::Other(
                    "ended by a signal; the secrets are unchanged".to_owned(),
                ));
            }
            sleep(LOOK_EVERY);
        }
    }
}

/// Ends the editor. Otherwise it would continue although its file has been removed.
fn end(child: &mut Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = kill_process(pid, Signal::TERM);
    }
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        sleep(LOOK_EVERY);
    }
    let _ = child.kill();
    let _ = child.wait();
}
