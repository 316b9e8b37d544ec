//! The trace of one request: the span of the request and the spans of its steps, which are exported together when the request
//! has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::{
    Attribute, AttributeValue, PassedTrace, Span, SpanKind, TraceContext, TraceSink, passable,
    shortened,
};

/// Maximum number of spans of one request; further spans are not recorded. A batch has a few spans for each of its calls.
const PARTS_MAX: usize = 256;

/// Start time, trace headers and route of a request, as reported by its transport.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The time at which the request arrived.
    pub started: Instant,
    /// The client's `traceparent`, if it sent one.
    pub parent: Option<&'a str>,
    /// The client's `tracestate`, if it sent one.
    pub state: Option<&'a str>,
    /// Route of the request: a path that begins with `/` for HTTP, or a name such as `relay`. It names the request's span if the
    /// request has no MCP method.
    pub route: &'static str,
    /// True if the client is not admitted. Such a request is recorded at the configured rate only, regardless of the client's
    /// trace headers.
    pub is_refused: bool,
}

/// Data about a call that has ended.
#[derive(Debug)]
pub struct CallEnd<'a> {
    /// Label of the method, such as `tools/call`; `other` for methods that the protocol does not define.
    pub method: &'static str,
    /// Name of a span attribute, and the called tool's or prompt's name as its value; `None` if there is no such tool or prompt.
    pub target: Option<(&'static str, &'a Arc<str>)>,
    /// The `error.type` of the call; `None` if it succeeded.
    pub error: Option<&'static str>,
    /// Attributes of the request's span in addition to method, target, namespace and error.
    pub attributes: Vec<Attribute>,
}

/// The trace of a request that is being answered. Dropping the last reference ends the request's span and exports the spans.
pub struct RequestTrace {
    sink: Arc<dyn TraceSink>,
    started: Instant,
    state: Mutex<TraceState>,
}

struct TraceState {
    /// The client's span, which is the parent of the request's span.
    parent: Option<TraceContext>,
    /// The client's `traceparent`, as it sent it.
    sent: Option<Arc<str>>,
    state: Option<Arc<str>>,
    own: TraceContext,
    route: &'static str,
    method: &'static str,
    target: Option<(&'static str, Arc<str>)>,
    namespace: Option<Arc<str>>,
    error: Option<AttributeValue>,
    attributes: Vec<Attribute>,
    parts: Vec<Part>,
}

/// A finished step of a request.
struct Part {
    name: &'static str,
    kind: SpanKind,
    span_id: u64,
    started: Instant,
    ended: Instant,
    attributes: Vec<Attribute>,
    error: Option<AttributeValue>,
}

impl RequestTrace {
    /// Begins the trace of a request.
    pub fn begin(sink: &Arc<dyn TraceSink>, origin: Origin<'_>) -> Arc<Self> {
        let parent = origin.parent.and_then(TraceContext::parse);
        let mut state = TraceState {
            parent: None,
            sent: None,
            state: None,
            own: TraceContext {
                trace_id: u128::from(sink.new_id()) << 64 | u128::from(sink.new_id()),
                span_id: sink.new_id(),
                is_sampled: false,
            },
            route: origin.route,
            method: "",
            target: None,
            namespace: None,
            error: None,
            attributes: Vec::new(),
            parts: Vec::new(),
        };
        state.follow(
            &**sink,
            parent,
            origin.parent,
            origin.state,
            origin.is_refused,
        );
        Arc::new(Self {
            sink: Arc::clone(sink),
            started: origin.started,
            state: Mutex::new(state),
        })
    }

    /// Records the message of the request. `trace` is the `traceparent` and `tracestate` of the message's metadata; they take
    /// precedence over the HTTP headers.
    pub fn message(
        &self,
        method: &'static str,
        id: Option<&str>,
        trace: Option<(&str, Option<&str>)>,
    ) {
        let mut state = self.state();
        state.method = method;
        if let Some(id) = id {
            let id: Arc<str> = shortened(id.trim_matches('"')).into();
            state.attributes.push(("jsonrpc.request.id", id.into()));
        }
        // The trace id must not change after it was sent to an upstream.
        if let Some((parent, others)) = trace
            && let Some(context) = TraceContext::parse(parent)
            && state.parts.iter().all(|it| it.kind != SpanKind::Client)
        {
            state.follow(&*self.sink, Some(context), Some(parent), others, false);
        }
    }

    /// The route of the request.
    pub fn route(&self) -> &'static str {
        self.state().route
    }

    /// Sets an attribute of the request's span.
    pub fn attribute(&self, name: &'static str, value: impl Into<AttributeValue>) {
        self.state().set((name, value.into()));
    }

    /// Records the error of a request that is not a call.
    pub fn failed(&self, error: impl Into<AttributeValue>) {
        self.state().error = Some(error.into());
    }

    /// Ends the span `admission`, which began when the request arrived.
    pub fn admitted(&self, error: Option<AttributeValue>) {
        self.end(
            "admission",
            SpanKind::Internal,
            None,
            self.started,
            error,
            Vec::new(),
        );
    }

    /// Begins a span for a step of the gateway's work. The span ends when the returned value is dropped.
    pub fn part(self: &Arc<Self>, name: &'static str) -> Interval {
        Interval {
            trace: Arc::clone(self),
            name,
            started: Instant::now(),
        }
    }

    /// Begins the span of a call to an upstream.
    pub fn upstream(self: &Arc<Self>, namespace: &str, method: &'static str) -> UpstreamSpan {
        let state = self.state();
        let (passed, span_id, attributes) = match state.own.is_sampled {
            false => (state.sent_trace(), 0, Vec::new()),
            true => {
                let context = TraceContext {
                    span_id: self.sink.new_id(),
                    ..state.own
                };
                let passed = PassedTrace {
                    parent: context.to_string().into(),
                    state: state.state.clone(),
                    is_own: true,
                };
                let namespace: Arc<str> = namespace.into();
                let attributes = vec![
                    ("mcp.method.name", method.into()),
                    ("tooldock.namespace", namespace.into()),
                ];
                (Some(passed), context.span_id, attributes)
            }
        };
        drop(state);
        UpstreamSpan {
            trace: Arc::clone(self),
            started: Instant::now(),
            span_id,
            passed: passed.map(Arc::new),
            attributes,
            // Default for a span that is dropped without a result: its call was cancelled or timed out.
            error: Some("cancelled".into()),
        }
    }

    /// Records the end of a call. If a request contains several calls, its span is named after the call that ends last.
    pub fn call(&self, namespace: &Arc<str>, end: CallEnd<'_>) {
        let mut state = self.state();
        state.method = end.method;
        state.target = end.target.map(|(key, name)| (key, Arc::clone(name)));
        state.namespace = Some(Arc::clone(namespace));
        state.error = end.error.map(AttributeValue::Static);
        for attribute in end.attributes {
            state.set(attribute);
        }
    }

    fn end(
        &self,
        name: &'static str,
        kind: SpanKind,
        span_id: Option<u64>,
        started: Instant,
        error: Option<AttributeValue>,
        attributes: Vec<Attribute>,
    ) {
        let mut state = self.state();
        if !state.own.is_sampled || state.parts.len() >= PARTS_MAX {
            return;
        }
        let part = Part {
            name,
            kind,
            span_id: span_id.unwrap_or_else(|| self.sink.new_id()),
            started,
            ended: Instant::now(),
            attributes,
            error,
        };
        state.parts.push(part);
    }

    fn state(&self) -> MutexGuard<'_, TraceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TraceState {
    /// Joins the client's trace, and decides if the request is recorded. A refused request does not join it: a client without
    /// credentials could otherwise choose ids that are always recorded.
    fn follow(
        &mut self,
        sink: &dyn TraceSink,
        parent: Option<TraceContext>,
        sent: Option<&str>,
        state: Option<&str>,
        is_refused: bool,
    ) {
        let parent = parent.filter(|_| !is_refused);
        self.parent = parent;
        self.sent = parent.and(sent).map(Into::into);
        self.state = parent.and(state).and_then(passable);
        if let Some(parent) = parent {
            self.own.trace_id = parent.trace_id;
        }
        self.own.is_sampled = sink.is_sampled(parent.as_ref(), self.own.trace_id);
    }

    /// The client's own trace context, which is forwarded if the request is not recorded.
    fn sent_trace(&self) -> Option<PassedTrace> {
        let sent = self.sent.as_ref()?;
        Some(PassedTrace {
            parent: Arc::clone(sent),
            state: self.state.clone(),
            is_own: false,
        })
    }

    fn set(&mut self, (name, value): Attribute) {
        match self.attributes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.attributes.push((name, value)),
        }
    }

    /// Attributes with few different values, for the request's span and for the metric of durations.
    fn common(&self) -> Vec<Attribute> {
        let mut common = Vec::with_capacity(6);
        if !self.method.is_empty() {
            common.push(("mcp.method.name", self.method.into()));
        }
        if let Some((key, name)) = &self.target {
            common.push((*key, Arc::clone(name).into()));
        }
        if let Some(namespace) = &self.namespace {
            common.push(("tooldock.namespace", Arc::clone(namespace).into()));
        }
        if let Some(error) = &self.error {
            common.push(("error.type", error.clone()));
        }
        common
    }

    fn name(&self) -> Arc<str> {
        match (&self.target, self.method) {
            (_, "") => self.route.into(),
            (Some((_, target)), method) => format!("{method} {target}").into(),
            (None, method) => method.into(),
        }
    }

    fn spans(self, clock: Clock, started: Instant) -> Vec<Span> {
        let mut attributes = self.common();
        let (name, own, parent) = (self.name(), self.own, self.parent);
        attributes.retain(|(name, _)| *name != "error.type");
        if self.route.starts_with('/') {
            attributes.push(("http.route", self.route.into()));
        }
        attributes.extend(self.attributes);
        let mut spans = Vec::with_capacity(self.parts.len() + 1);
        for part in self.parts {
            spans.push(Span {
                context: TraceContext {
                    span_id: part.span_id,
                    ..own
                },
                parent: Some(own.span_id),
                has_remote_parent: false,
                state: self.state.clone(),
                name: part.name.into(),
                kind: part.kind,
                start: clock.at(part.started),
                end: clock.at(part.ended),
                attributes: part.attributes,
                error: part.error,
            });
        }
        spans.push(Span {
            context: own,
            parent: parent.map(|it| it.span_id),
            has_remote_parent: parent.is_some(),
            state: self.state,
            name,
            kind: SpanKind::Server,
            start: clock.at(started),
            end: clock.wall,
            attributes,
            error: self.error,
        });
        spans
    }
}

/// The monotonic and the wall clock, read at the same moment. Converts the monotonic times of a request's spans to wall time.
#[derive(Clone, Copy)]
struct Clock {
    now: Instant,
    wall: SystemTime,
}

impl Clock {
    fn at(self, moment: Instant) -> SystemTime {
        self.wall - self.now.saturating_duration_since(moment)
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let clock = Clock {
            now: Instant::now(),
            wall: SystemTime::now(),
        };
        let time: Duration = clock.now.saturating_duration_since(self.started);
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let empty = TraceState {
            parent: None,
            sent: None,
            state: None,
            own: state.own,
            route: "",
            method: "",
            target: None,
            namespace: None,
            error: None,
            attributes: Vec::new(),
            parts: Vec::new(),
        };
        let state = std::mem::replace(state, empty);
        self.sink.operation(&state.common(), time);
        if state.own.is_sampled {
            self.sink.spans(state.spans(clock, self.started));
        }
    }
}

/// The running span of a step of the gateway's work. Dropping it ends the span.
pub struct Interval {
    trace: Arc<RequestTrace>,
    name: &'static str,
    started: Instant,
}

impl Drop for Interval {
    fn drop(&mut self) {
        let (name, started) = (self.name, self.started);
        self.trace
            .end(name, SpanKind::Internal, None, started, None, Vec::new());
    }
}

/// The running span of a call to an upstream. Dropping it ends the span.
pub struct UpstreamSpan {
    trace: Arc<RequestTrace>,
    started: Instant,
    span_id: u64,
    passed: Option<Arc<PassedTrace>>,
    attributes: Vec<Attribute>,
    error: Option<AttributeValue>,
}

impl UpstreamSpan {
    /// The trace context to send to the upstream; `None` if none is to be sent.
    pub fn passed(&self) -> Option<&Arc<PassedTrace>> {
        self.passed.as_ref()
    }

    /// Ends the span of the call. `error` is the `error.type` of a call that failed.
    pub fn ended(mut self, error: Option<&'static str>) {
        self.error = error.map(AttributeValue::Static);
    }
}

impl Drop for UpstreamSpan {
    fn drop(&mut self) {
        let attributes = std::mem::take(&mut self.attributes);
        let error = self.error.take();
        let id = Some(self.span_id);
        self.trace.end(
            "upstream",
            SpanKind::Client,
            id,
            self.started,
            error,
            attributes,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[derive(Default)]
    struct Sink {
        unsampled: bool,
        ids: AtomicU64,
        spans: Mutex<Vec<Span>>,
        operations: Mutex<Vec<Vec<Attribute>>>,
    }

    impl TraceSink for Sink {
        fn is_sampled(&self, parent: Option<&TraceContext>, _: u128) -> bool {
            !self.unsampled && parent.is_none_or(|it| it.is_sampled)
        }

        fn spans(&self, spans: Vec<Span>) {
            self.spans.lock().expect("spans").extend(spans);
        }

        fn operation(&self, attributes: &[Attribute], _: Duration) {
            let mut operations = self.operations.lock().expect("operations");
            operations.push(attributes.to_vec());
        }

        fn new_id(&self) -> u64 {
            self.ids.fetch_add(1, Ordering::Relaxed) + 1
        }
    }

    fn begin(sink: &Arc<Sink>, parent: Option<&str>) -> Arc<RequestTrace> {
        let sink = Arc::clone(sink) as Arc<dyn TraceSink>;
        let origin = Origin {
            started: Instant::now(),
            parent,
            state: Some("v=1"),
            route: "/mcp",
            is_refused: false,
        };
        RequestTrace::begin(&sink, origin)
    }

    fn call(trace: &RequestTrace) {
        let name: Arc<str> = "add".into();
        let end = CallEnd {
            method: "tools/call",
            target: Some(("gen_ai.tool.name", &name)),
            error: Some("tool_error"),
            attributes: vec![("mcp.session.id", "digest".into())],
        };
        trace.call(&"calc".into(), end);
    }

    #[test]
    fn spans_of_a_request_follow_the_client_and_are_parents_of_the_upstream() {
        let sink = Arc::new(Sink::default());
        let trace = begin(&sink, Some(PARENT));
        trace.admitted(None);
        drop(trace.part("queue"));
        let upstream = trace.upstream("calc", "tools/call");
        let passed = upstream.passed().expect("a trace").clone();
        upstream.ended(None);
        call(&trace);
        assert!(sink.spans.lock().expect("spans").is_empty());
        drop(trace);
        let spans = sink.spans.lock().expect("spans").clone();
        let names: Vec<_> = spans.iter().map(|it| &*it.name).collect();
        assert_eq!(names, ["admission", "queue", "upstream", "tools/call add"]);
        let client = TraceContext::parse(PARENT).expect("valid");
        let root = &spans[3];
        assert_eq!(root.parent, Some(client.span_id));
        assert_eq!(root.error, Some("tool_error".into()));
        assert!(
            spans
                .iter()
                .all(|it| it.context.trace_id == client.trace_id)
        );
        assert!(
            spans[..3]
                .iter()
                .all(|it| it.parent == Some(root.context.span_id))
        );
        assert_eq!(*passed.parent, spans[2].context.to_string());
        assert_eq!(passed.state.as_deref(), Some("v=1"));
        assert!(passed.is_own);
        assert!(spans.iter().all(|it| it.start <= it.end));
        let operations = sink.operations.lock().expect("operations").clone();
        let expected: [Attribute; 4] = [
            ("mcp.method.name", "tools/call".into()),
            ("gen_ai.tool.name", Arc::<str>::from("add").into()),
            ("tooldock.namespace", Arc::<str>::from("calc").into()),
            ("error.type", "tool_error".into()),
        ];
        let texts = |all: &[Attribute]| -> Vec<_> {
            let text = |(name, value): &Attribute| (*name, value.as_str().to_owned());
            all.iter().map(text).collect()
        };
        assert_eq!(texts(&operations[0]), texts(&expected));
    }

    #[test]
    fn a_trace_in_the_metadata_counts_before_the_one_of_headers() {
        let sink = Arc::new(Sink::default());
        let other = PARENT.replace("0af7", "1af7");
        let trace = begin(&sink, Some(PARENT));
        trace.message("tools/call", Some("\"a\""), Some((&other, None)));
        trace.message("tools/call", None, Some(("no trace", None)));
        drop(trace);
        let spans = sink.spans.lock().expect("spans").clone();
        let expected = TraceContext::parse(&other).expect("valid");
        assert_eq!(spans[0].context.trace_id, expected.trace_id);
        assert_eq!(spans[0].state, None);
        assert_eq!(
            spans[0].attributes[2],
            ("jsonrpc.request.id", Arc::<str>::from("a").into())
        );
    }

    #[test]
    fn a_request_that_is_not_recorded_passes_the_clients_trace_and_is_counted() {
        for (unsampled, sent) in [
            (true, PARENT.to_owned()),
            (false, PARENT.replace("-01", "-00")),
        ] {
            let sink = Arc::new(Sink {
                unsampled,
                ..Sink::default()
            });
            let trace = begin(&sink, Some(&sent));
            let upstream = trace.upstream("calc", "tools/call");
            let passed = upstream.passed().expect("the client's").clone();
            assert_eq!((&*passed.parent, passed.is_own), (&*sent, false));
            drop((upstream, trace));
            assert!(sink.spans.lock().expect("spans").is_empty());
            assert_eq!(sink.operations.lock().expect("operations").len(), 1);
        }
        let sink = Arc::new(Sink {
            unsampled: true,
            ..Sink::default()
        });
        assert!(
            begin(&sink, None)
                .upstream("calc", "ping")
                .passed()
                .is_none()
        );
    }
}
