//! Lines over two pipes. Three limits apply: to the size of the lines that wait to be written, to the length of a line, and to
//! the bytes that are read of a line that is too long.
//!
//! This module interprets no messages: it only detects newlines, and finds the id in a line that is too long to keep.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod outbox;
mod read;
mod scan;

use std::os::fd::OwnedFd;

pub(super) use outbox::{AppendRefusal, Batch, DirectWrite, Outbox, WriteTurn};
pub use read::{LinesEnd, ServerLine, ServerLines};
pub use scan::IdScan;

/// The gateway's ends of a server's pipes.
#[derive(Debug)]
pub struct Pipes {
    /// The gateway's end of the server's standard input, for writing.
    pub stdin: OwnedFd,
    /// The gateway's end of the server's standard output, for reading.
    pub stdout: OwnedFd,
}
