//! Lines over two pipes, with bounds on the lines that wait to be written, on the length of a line, and on the prefix that is
//! read of an unusable line.
//!
//! This module only knows that a line ends with a newline, and how to find the id in a line that is too long to keep.

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
    /// The end that writes to the server's standard input.
    pub(crate) stdin: OwnedFd,
    /// The end that reads from the server's standard output.
    pub(crate) stdout: OwnedFd,
}
