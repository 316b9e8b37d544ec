//! Violations of the protocol by servers: text that is not a JSON-RPC message, or a message that belongs to no request.

/// A violation of the protocol by a server. The offending message is ignored and counted; no other call fails because of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProtocolViolation {
    /// The line is not JSON, such as a banner or a log line.
    NotJson,
    /// The line is JSON, but not a JSON-RPC message.
    NotAMessage,
    /// The line is an array of messages. Only one protocol revision has such batches, and there only clients may start them.
    Batch,
    /// The line is longer than the limit and was skipped.
    TooLong,
    /// A response with an id, or a notification with a token, that the gateway has never used.
    Unknown,
    /// A response or notification for a call that has ended: it was answered before, was cancelled, or timed out.
    Late,
    /// The server has exceeded the maximum number of its open requests.
    TooManyRequests,
    /// A result violates the `outputSchema` of its tool. Such a result is counted, but not ignored.
    OutputSchema,
}

impl ProtocolViolation {
    /// The violation's label in metrics.
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
