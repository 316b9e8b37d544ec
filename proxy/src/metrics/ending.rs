//! Reasons for the end of a long stream, as metrics count them.

/// The reason why a long stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The stream had no more events, and the client has received its regular end.
    Complete,
    /// The client closed its sending direction, or sent unexpected bytes.
    ClientLeft,
    /// The client read nothing until the time limit for a write expired.
    SlowReader,
    /// The server aborted the stream. The gateway then aborted the client's connection, too.
    ServerLeft,
}

impl Ending {
    /// All reasons for the end of a long stream.
    pub(crate) const ALL: [Self; 4] = [
        Self::Complete,
        Self::ClientLeft,
        Self::SlowReader,
        Self::ServerLeft,
    ];

    /// The label that names the reason in metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::ClientLeft => "client_left",
            Self::SlowReader => "slow_reader",
            Self::ServerLeft => "server_left",
        }
    }
}
