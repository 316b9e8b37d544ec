//! What a server sends that is no message of JSON-RPC, or belongs to nothing.

/// What a server sent that was ignored. Counted; never an error of anybody else's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ProtocolViolation {
    /// A line that is no JSON: a banner, a log line.
    NotJson,
    /// JSON that is no message.
    NotAMessage,
    /// An array of messages. They are of one revision, and only its clients begin with them.
    Batch,
    /// A line beyond the limit; it was skipped.
    TooLong,
    /// A response to an id, or a notification with a token, that was never given out.
    Unknown,
    /// The same for one whose call is over: answered twice, cancelled, or out of time.
    Late,
    /// More open requests than a server may have.
    TooManyRequests,
    /// A result that does not fit the `outputSchema` of its tool. Such a result is counted, but not ignored.
    OutputSchema,
}

impl ProtocolViolation {
    /// As metrics name it.
    pub(crate) fn as_str(self) -> &'static str {
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
