//! Reads a secret value from a terminal or a pipe.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::sync::Arc;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::SIGINT;
use tooldock_base::secret::Secret;

use super::CommandFailure;

/// Maximum length in bytes of a secret value that is read from standard input.
const LINE_MAX: u64 = 1024 * 1024;

/// Returns true if standard input is a terminal.
pub(super) fn is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// First bytes of a key or certificate as PEM, which has several lines.
const PEM: &[u8] = b"-----BEGIN ";

/// Prompts for a value without echo. If standard input is no terminal, reads its first line instead, or all of it if it begins as
/// a PEM file does.
pub(super) fn secret(prompt: &str) -> Result<Secret, CommandFailure> {
    let unreadable =
        |error: io::Error| CommandFailure::Other(format!("the value cannot be read: {error}"));
    if is_terminal() {
        // Echo is turned off before the prompt appears. Otherwise the first characters could be visible if they are typed very
        // early.
        let quiet = EchoOff::new().map_err(unreadable)?;
        let typed = rpassword::prompt_password(prompt);
        drop(quiet);
        return typed.map(Secret::new).map_err(unreadable);
    }
    // The buffer is allocated once and becomes the secret. A growing buffer would leave copies of the value in freed memory.
    let mut line = Vec::with_capacity(64 * 1024);
    let mut stdin = io::stdin().lock().take(LINE_MAX);
    stdin.read_until(b'\n', &mut line).map_err(unreadable)?;
    if line.starts_with(PEM) {
        stdin.read_to_end(&mut line).map_err(unreadable)?;
    }
    while line
        .last()
        .is_some_and(|byte| matches!(byte, b'\n' | b'\r'))
    {
        line.pop();
    }
    match String::from_utf8(line) {
        Ok(text) if text.is_empty() => Err(CommandFailure::Usage(
            "standard input is empty, and the value is its first line".to_owned(),
        )),
        Ok(text) => Ok(Secret::new(text)),
        Err(_) => Err(CommandFailure::Usage("the value is not UTF-8".to_owned())),
    }
}

/// Turns the terminal's echo off until the value is dropped.
struct EchoOff {
    terminal: File,
    before: Termios,
}

impl EchoOff {
    fn new() -> io::Result<Self> {
        // With this handler, Ctrl-C ends the prompt with an error. Without it, the process would end and leave the echo off.
        signal_hook::flag::register(SIGINT, Arc::default())?;
        let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
        let before = tcgetattr(&terminal)?;
        let mut without = before.clone();
        without
            .local_modes
            .remove(LocalModes::ECHO | LocalModes::ECHONL);
        tcsetattr(&terminal, OptionalActions::Now, &without)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}
