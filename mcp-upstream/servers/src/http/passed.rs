//! The client's headers that are forwarded to the server, in client mode and in pass-through mode: those that the server's
//! `headers.pass` names, and the trace of the request. The gateway's id of the request is added.

use http::{HeaderMap, HeaderName, HeaderValue};
use tooldock_sessions::caller::Caller;
use tooldock_workers::remote::HeaderRules;

/// Header with the trace and span of the request (W3C Trace Context). It is always forwarded.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Header with additions of tracing systems to the trace (W3C Trace Context).
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Header for the gateway's id of the request, as in its logs.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Typical number of forwarded headers, including those that client mode or pass-through mode adds. Used as a capacity.
const USUAL: usize = 6;

/// The headers that are passed on with a caller's request, by the rules of a server.
pub fn of_caller(caller: &Caller, rules: &HeaderRules) -> HeaderMap {
    let mut passed = match &caller.headers {
        Some(own) => of_client(own, &rules.pass),
        None => HeaderMap::new(),
    };
    if rules.forward_id {
        add_request_id(&mut passed, caller);
    }
    passed
}

/// Adds the id of a caller's request, which replaces an id from the client.
#[inline]
pub fn add_request_id(headers: &mut HeaderMap, caller: &Caller) {
    if let Ok(id) = HeaderValue::from_str(&caller.request_id) {
        headers.insert(REQUEST_ID, id);
    }
}

/// The client's headers that are passed on. Their values are marked as sensitive, so that they are never printed.
pub fn of_client(client: &HeaderMap, pass: &[String]) -> HeaderMap {
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

/// Returns true if a header identifies the request and reveals nothing about its client.
#[inline]
pub fn names_the_request(name: &HeaderName) -> bool {
    is_trace(name) || *name == REQUEST_ID
}

/// Returns true if a header belongs to the trace.
pub(crate) fn is_trace(name: &HeaderName) -> bool {
    [TRACEPARENT, TRACESTATE].contains(name)
}

#[cfg(test)]
mod tests {
    use tooldock_sessions::testing::caller;

    use super::*;

    #[test]
    fn the_id_of_the_request_replaces_what_the_client_said() {
        let mut caller = caller();
        let rules = HeaderRules {
            pass: vec!["x-request-id".into()],
            forward_id: true,
            ..HeaderRules::default()
        };
        assert_eq!(of_caller(&caller, &rules)[REQUEST_ID], "r-1");
        let said = (REQUEST_ID, HeaderValue::from_static("theirs"));
        caller.headers = Some(std::sync::Arc::new([said].into_iter().collect()));
        assert_eq!(of_caller(&caller, &rules)[REQUEST_ID], "r-1");
        let rules = HeaderRules {
            forward_id: false,
            ..rules
        };
        assert_eq!(of_caller(&caller, &rules)[REQUEST_ID], "theirs");
    }

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
