//! Output of servers that breaks the protocol: text that is not a JSON-RPC message, or a message that belongs to nothing.

/// A violation by a server. The message is ignored and counted; it never fails another client's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProtocolViolation {
    /// A line that is not JSON: a banner, a log line.
    NotJson,
    /// JSON that is not a message.
    NotAMessage,
    /// An array of messages. A single revision has batches, and there only clients start them.
    Batch,
    /// A line beyond the limit; it was skipped.
    TooLong,
    /// A response to an id, or a notification with a token, that the gateway never used.
    Unknown,
    /// A response or notification for a call that is over: answered twice, cancelled, or out of time.
    Late,
    /// The server has more open requests than it may have.
    TooManyRequests,
    /// A result that violates the `outputSchema` of its tool. Such a result is counted, but not ignored.
    OutputSchema,
}

impl ProtocolViolation {
    /// The label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotJson => "not_json",
            Self::NotAMessage => "not_a_message",
            Self::Batch => "batch",
            Self::TooLong => "too_long",
            Self::Unknown => "unknown",
            Self::Late => "late",
            Self::TooManyRequests => "too_many_requests",
            Self::OutputSchema => "output_schema",
        }
    }
}
