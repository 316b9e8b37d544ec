//! What goes up of a client's own headers, in either mode: those that the server's `headers.pass` names, and the trace that
//! the request belongs to.

use http::{HeaderMap, HeaderName};

/// The trace (W3C Trace Context), which always goes up.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What tracing systems add to it.
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Headers that usually go up, with those that either mode adds.
const USUAL: usize = 6;

/// The headers of a client that go up, none of which is ever printed.
pub(crate) fn of_client(client: &HeaderMap, pass: &[String]) -> HeaderMap {
    let mut passed = HeaderMap::with_capacity(USUAL);
    for (name, value) in client {
        if is_trace(name) || pass.iter().any(|it| it == name.as_str()) {
            let mut value = value.clone();
            value.set_sensitive(!is_trace(name));
            passed.append(name, value);
        }
    }
    passed
}

/// Whether a header says which trace a request belongs to.
pub(crate) fn is_trace(name: &HeaderName) -> bool {
    [TRACEPARENT, TRACESTATE].contains(name)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_trace_and_what_is_named_go_up_and_are_not_printed() {
        let client = [
            ("authorization", "Bearer hunter2"),
            ("cookie", "a=b"),
            ("traceparent", "00-1-2-01"),
            ("tracestate", "v=1"),
            ("x-tenant", "acme"),
        ];
        let client: HeaderMap = client
            .map(|(name, value)| {
                let value = HeaderValue::from_static(value);
                (HeaderName::from_static(name), value)
            })
            .into_iter()
            .collect();
        let names = |pass: &[&str]| {
            let pass: Vec<_> = pass.iter().map(ToString::to_string).collect();
            let passed = of_client(&client, &pass);
            assert!(!format!("{passed:?}").contains("hunter2"), "{passed:?}");
            let mut names: Vec<_> = passed.keys().map(ToString::to_string).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(&[]), ["traceparent", "tracestate"]);
        assert_eq!(
            names(&["authorization", "x-absent"]),
            ["authorization", "traceparent", "tracestate"]
        );
    }
}
