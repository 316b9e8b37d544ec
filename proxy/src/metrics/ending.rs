//! Reasons for the end of a long stream, as metrics count them.

/// The reason why a stream is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// There are no more events, and the client has received a regular end.
    Complete,
    /// The client closed its writing half, or sent unexpected bytes.
    ClientLeft,
    /// The client read nothing for the time limit of a write.
    SlowReader,
    /// The server aborted the stream, and the gateway did so, too.
    ServerLeft,
}

impl Ending {
    /// Every ending.
    pub(crate) const ALL: [Self; 4] = [
        Self::Complete,
        Self::ClientLeft,
        Self::SlowReader,
        Self::ServerLeft,
    ];

    /// The ending's label in metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::ClientLeft => "client_left",
            Self::SlowReader => "slow_reader",
            Self::ServerLeft => "server_left",
        }
    }
}
