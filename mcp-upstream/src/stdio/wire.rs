//! Lines over two pipes, bounded both ways: what waits to be written, how long a line may be, and how much of a line
//! nobody can use is read at all.
//!
//! It knows that a line ends with a newline and where an id stands in one that is too long to keep. Nothing else.

mod outbox;
mod read;
mod scan;

use std::os::fd::OwnedFd;

pub(super) use outbox::{Batch, Outbox, OwnTurn, Turn, Unwritten};
pub(crate) use read::{End, Line, Lines};
pub(crate) use scan::IdScan;

/// The gateway's ends of a server's pipes.
#[derive(Debug)]
pub(crate) struct Pipes {
    /// Where the server reads.
    pub(crate) stdin: OwnedFd,
    /// Where it writes.
    pub(crate) stdout: OwnedFd,
}
