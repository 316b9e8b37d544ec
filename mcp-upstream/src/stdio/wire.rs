//! Lines over two pipes, bounded both ways: the lines that wait to be written, the length of a line, and the part that is read of
//! an unusable line.
//!
//! This module knows that a line ends with a newline, and where the id is in a line that is too long to keep; nothing else of a
//! message.

mod outbox;
mod read;
mod scan;

use std::os::fd::OwnedFd;

pub(super) use outbox::{Batch, Outbox, OwnTurn, Unwritten, WriteTurn};
pub(crate) use read::{LinesEnd, ServerLine, ServerLines};
pub(crate) use scan::IdScan;

/// The gateway's ends of a server's pipes.
#[derive(Debug)]
pub(crate) struct Pipes {
    /// The server's standard input.
    pub(crate) stdin: OwnedFd,
    /// The server's standard output.
    pub(crate) stdout: OwnedFd,
}
