//! Traces of requests: trace and span ids in the form of W3C Trace Context (`traceparent`), and finished spans.
//!
//! A request has a [`RequestTrace`] only if an exporter is configured. Otherwise tracing costs neither time nor memory.

mod request;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use request::{CallEnd, Interval, Origin, RequestTrace, UpstreamSpan};

/// Maximum length of a `tracestate` that is forwarded, in bytes; a longer one is dropped. The specification requires at least
/// 512.
const STATE_MAX: usize = 2048;
/// Maximum number of characters of a client's text in an attribute; longer texts are cut.
const TEXT_MAX: usize = 128;

/// Identification of a span and its trace, as in a `traceparent` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// Id of the trace; never 0.
    pub trace_id: u128,
    /// Id of the span; never 0.
    pub span_id: u64,
    /// True if the trace is recorded and exported.
    pub is_sampled: bool,
}

impl TraceContext {
    /// Parses the value of a `traceparent` header; returns `None` if it is not valid.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (head, rest) = text.split_at_checked(55)?;
        let mut parts = head.split('-');
        let (version, trace, span, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |part: &str, length: usize| {
            let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            (part.len() == length && part.bytes().all(is_hex)).then_some(())
        };
        hex(version, 2)?;
        hex(trace, 32)?;
        hex(span, 16)?;
        hex(flags, 2)?;
        // Later versions of the format may append further fields after a dash.
        let is_whole = rest.is_empty() || (version != "00" && rest.starts_with('-'));
        if parts.next().is_some() || !is_whole || version == "ff" {
            return None;
        }
        let context = Self {
            trace_id: u128::from_str_radix(trace, 16).ok()?,
            span_id: u64::from_str_radix(span, 16).ok()?,
            is_sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
        };
        (context.trace_id != 0 && context.span_id != 0).then_some(context)
    }
}

impl fmt::Display for TraceContext {
    /// Writes the value of a `traceparent` header.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.is_sampled);
        write!(
            f,
            "00-{:032x}-{:016x}-{flags:02x}",
            self.trace_id, self.span_id
        )
    }
}

/// Trace context that is sent with a request to an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedTrace {
    /// The value of `traceparent` in the request to the upstream.
    pub parent: Arc<str>,
    /// The value of `tracestate`, forwarded as the client sent it.
    pub state: Option<Arc<str>>,
    /// True if `parent` names a span of the gateway and replaces the client's value; false if the client's own trace context is
    /// forwarded unchanged.
    pub is_own: bool,
}

/// The role of a span in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// The span is a request that the gateway answers.
    Server,
    /// The span is a request of the gateway to an upstream.
    Client,
    /// A step of the gateway's own work.
    Internal,
}

/// Value of an attribute of a span.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    /// A text that was created at run time.
    Text(Arc<str>),
    /// A constant text of the program.
    Static(&'static str),
}

impl AttributeValue {
    /// The attribute's value as text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Static(text) => text,
        }
    }
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> Self {
        Self::Static(text)
    }
}

impl From<Arc<str>> for AttributeValue {
    fn from(text: Arc<str>) -> Self {
        Self::Text(text)
    }
}

/// Name and value of an attribute of a span.
pub type Attribute = (&'static str, AttributeValue);

/// A finished span.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Trace id and span id of the span.
    pub context: TraceContext,
    /// Span id of the parent; `None` for the first span of a trace.
    pub parent: Option<u64>,
    /// True if the parent is a span of another program, false if it is one of the gateway.
    pub has_remote_parent: bool,
    /// The `tracestate` that the client sent.
    pub state: Option<Arc<str>>,
    /// Name of the span. There are only a few different names, so that spans can be grouped by them.
    pub name: Arc<str>,
    /// Role of the span in the trace.
    pub kind: SpanKind,
    /// Time at which the span began.
    pub start: SystemTime,
    /// Time at which the span ended.
    pub end: SystemTime,
    /// Attributes of the span, with distinct names.
    pub attributes: Vec<Attribute>,
    /// The `error.type` of the span; `None` if the work succeeded.
    pub error: Option<AttributeValue>,
}

/// Receiver of the spans and durations of finished requests. Its functions never block.
pub trait TraceSink: Send + Sync {
    /// Returns true if the trace is to be recorded. `parent` is the client's span, if it sent one.
    fn is_sampled(&self, parent: Option<&TraceContext>, trace_id: u128) -> bool;

    /// Receives the spans of a finished request.
    fn spans(&self, spans: Vec<Span>);

    /// Counts a request with its duration. `attributes` must have few different values, since they are labels of a metric.
    fn operation(&self, attributes: &[Attribute], time: Duration);

    /// Creates a random id other than 0.
    fn new_id(&self) -> u64;
}

/// Cuts a client's text to the maximum length of an attribute.
fn shortened(text: &str) -> &str {
    let end = text.char_indices().nth(TEXT_MAX);
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

/// Returns the `tracestate` if it may be forwarded: printable ASCII that is not too long.
fn passable(state: &str) -> Option<Arc<str>> {
    let is_visible = |byte: u8| (b' '..=b'~').contains(&byte) || byte == b'\t';
    let is_usual = !state.is_empty() && state.len() <= STATE_MAX;
    (is_usual && state.bytes().all(is_visible)).then(|| state.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_read_and_written_alike() {
        let read = TraceContext::parse(PARENT).expect("valid");
        assert!(read.is_sampled);
        assert_eq!(read.span_id, 0xb7ad_6b71_6920_3331);
        assert_eq!(read.to_string(), PARENT);
        let unsampled = PARENT.replace("-01", "-00");
        let read = TraceContext::parse(&unsampled).expect("valid");
        assert!(!read.is_sampled);
        assert_eq!(read.to_string(), unsampled);
        // A later version, with a part that this one does not know.
        let later = format!("cc{}-x", &PARENT[2..]);
        assert!(TraceContext::parse(&later).is_some());
    }

    #[test]
    fn other_texts_are_no_traceparent() {
        for text in [
            "",
            "00-1-2-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0é",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
        ] {
            assert_eq!(TraceContext::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_tracestate_with_line_breaks_or_of_any_length_is_not_passed_on() {
        assert_eq!(passable("a=1,b=2").as_deref(), Some("a=1,b=2"));
        for state in ["", "a=1\r\nb: 2", &"a".repeat(STATE_MAX + 1)] {
            assert_eq!(passable(state), None);
        }
    }
}
