//! Selects the headers of a request that are sent to a backend, and the headers of a response that are sent to the client.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use tooldock_base::secret::Secret;
use tooldock_workers::remote::{HeaderRules, is_hop_by_hop};

use crate::request_id::X_REQUEST_ID;

/// Names of the client's headers that are sent to a backend in any case. Other headers are sent only if the configuration lists
/// them.
const OF_THE_MESSAGE: [&str; 6] = [
    "accept",
    "content-type",
    "last-event-id",
    "traceparent",
    "tracestate",
    "user-agent",
];

/// The `User-Agent` that is sent if neither the client nor the configuration sets one.
const USER_AGENT: &str = concat!("tooldock/", env!("CARGO_PKG_VERSION"));

/// The header rules of a server, converted once from its configuration.
pub(crate) struct Headers {
    set: Vec<(HeaderName, HeaderValue)>,
    remove: Vec<HeaderName>,
    pass: Vec<HeaderName>,
    /// True if the gateway's id of the request is sent to the backend.
    forward_id: bool,
    /// True for requests to an API, whose headers the gateway has chosen: all are sent except `Accept-Encoding`, hop-by-hop
    /// headers and, without `forward_id`, `X-Request-Id`. False for requests to an MCP server: headers of the message, those in
    /// `pass` and the id are sent.
    passes_all: bool,
    /// Names of headers whose values the gateway sets for each request, such as personal credentials. A client's header of that
    /// name is not sent.
    of_request: Vec<HeaderName>,
}

/// Headers with the credentials of one request: personal credentials or an access token.
pub(crate) type Own = [(HeaderName, HeaderValue)];

impl Headers {
    /// Converts the header rules of a checked configuration. Entries that are no valid headers are omitted. `of_request` contains
    /// the names of headers whose values are passed with each request.
    pub(crate) fn new(
        rules: &HeaderRules,
        credentials: Option<&Secret>,
        of_request: &[&str],
    ) -> Self {
        let name = |name: &String| name.parse().ok();
        let credentials = credentials.and_then(value);
        let authorization = credentials.map(|it| (header::AUTHORIZATION, it));
        let set = rules.set.iter();
        let set = set.filter_map(|(key, secret)| Some((name(key)?, value(secret)?)));
        let remove: Vec<_> = rules.remove.iter().filter_map(name).collect();
        let mut all = HeaderMap::new();
        for (name, value) in authorization.into_iter().chain(set) {
            if !remove.contains(&name) {
                all.insert(name, value);
            }
        }
        let all = all.iter();
        Self {
            set: all
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            remove,
            pass: rules.pass.iter().filter_map(name).collect(),
            forward_id: rules.forward_id,
            passes_all: false,
            of_request: of_request.iter().filter_map(|it| it.parse().ok()).collect(),
        }
    }

    /// Returns the rules for requests to an API, which may have any header: headers are parameters of operations.
    pub(crate) fn of_api(self) -> Self {
        Self {
            passes_all: true,
            ..self
        }
    }

    /// The configured value of `Host`. `None` if the backend's own host name is sent.
    pub(crate) fn host(&self) -> Option<&str> {
        let mut set = self.set.iter();
        let (_, host) = set.find(|(name, _)| *name == header::HOST)?;
        host.to_str().ok()
    }

    /// Calls `say` with each header to send to the backend. `host` is the backend's host name. `length` is the length of the
    /// body; `None` if no `Content-Length` is sent.
    pub(crate) fn up<'a>(
        &self,
        given: impl IntoIterator<Item = (&'a HeaderName, &'a HeaderValue)>,
        own: &Own,
        host: &str,
        length: Option<usize>,
        mut say: impl FnMut(&HeaderName, &[u8]),
    ) {
        let decided = |name| {
            let mut all = self.set.iter().chain(own);
            self.remove.contains(name)
                || self.of_request.contains(name)
                || all.any(|(set, _)| set == name)
        };
        if !decided(&header::HOST) {
            say(&header::HOST, host.as_bytes());
        }
        let mut names_itself = decided(&header::USER_AGENT);
        for (name, value) in given {
            let is_framing = *name == header::HOST || *name == header::CONTENT_LENGTH;
            if self.goes_up(name) && !is_framing && !decided(name) {
                names_itself |= *name == header::USER_AGENT;
                say(name, value.as_bytes());
            }
        }
        if !names_itself {
            say(&header::USER_AGENT, USER_AGENT.as_bytes());
        }
        let removed = |name| self.remove.contains(name);
        for (name, value) in self
            .set
            .iter()
            .chain(own.iter().filter(|(name, _)| !removed(name)))
        {
            say(name, value.as_bytes());
        }
        if let Some(length) = length {
            say(
                &header::CONTENT_LENGTH,
                HeaderValue::from(length).as_bytes(),
            );
        }
    }

    fn goes_up(&self, name: &HeaderName) -> bool {
        let text = name.as_str();
        if self.passes_all {
            let is_id = *name == X_REQUEST_ID;
            return !is_hop_by_hop(text)
                && text != "accept-encoding"
                && (!is_id || self.forward_id);
        }
        let of_the_message = OF_THE_MESSAGE.contains(&text) || text.starts_with("mcp-");
        of_the_message || self.pass.contains(name) || (self.forward_id && *name == X_REQUEST_ID)
    }
}

/// Converts a credential to the value of a header. `None` if it contains bytes that are not allowed there.
pub(crate) fn value(secret: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_bytes(secret.expose().as_bytes()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Removes the headers that concern only the connection (hop-by-hop headers) from a response's headers.
pub(crate) fn down(mut headers: HeaderMap) -> HeaderMap {
    let nominated: SmallVec<[HeaderName; 2]> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect();
    let hop_by_hop = headers.keys().filter(|name| is_hop_by_hop(name.as_str()));
    let hop_by_hop: SmallVec<[HeaderName; 4]> = hop_by_hop.cloned().collect();
    for name in hop_by_hop.iter().chain(&nominated) {
        headers.remove(name);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = headers.iter();
        pairs
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    #[test]
    fn parameters_of_an_api_are_sent_but_not_headers_of_a_connection() {
        let rules = HeaderRules::default();
        let given = map(&[
            ("x-page", "1"),
            ("cookie", "a=b"),
            ("connection", "close"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("host", "b"),
            ("x-request-id", "c"),
        ]);
        let mut names = Vec::new();
        let headers = Headers::new(&rules, None, &[]).of_api();
        headers.up(&given, &[], "a", None, |name, _| {
            names.push(name.to_string())
        });
        names.sort();
        assert_eq!(names, ["cookie", "host", "user-agent", "x-page"]);
    }

    fn up(headers: &Headers, host: &str, length: Option<usize>) -> HeaderMap {
        let mut up = HeaderMap::new();
        headers.up(&map(&OF_A_CLIENT), &[], host, length, |name, value| {
            up.append(name, HeaderValue::from_bytes(value).expect("a value"));
        });
        up
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    const OF_A_CLIENT: [(&str, &str); 12] = [
        ("accept", "application/json"),
        ("authorization", "Bearer the-clients"),
        ("connection", "x-hop"),
        ("content-length", "99"),
        ("cookie", "a=b"),
        ("host", "gateway"),
        ("mcp-session-id", "s"),
        ("traceparent", "00-1-2-01"),
        ("transfer-encoding", "chunked"),
        ("x-forwarded-for", "1.2.3.4"),
        ("x-namespace", "ns"),
        ("x-wanted", "yes"),
    ];

    #[test]
    fn headers_of_the_client_stay_here_unless_they_are_passed() {
        let rules = HeaderRules {
            pass: vec!["x-wanted".into()],
            ..HeaderRules::default()
        };
        let headers = Headers::new(&rules, None, &[]);
        let up = up(&headers, "a:80", Some(3));
        let expected = [
            "accept",
            "content-length",
            "host",
            "mcp-session-id",
            "traceparent",
            "user-agent",
            "x-wanted",
        ];
        assert_eq!(names(&up), expected);
        assert_eq!(up["host"], "a:80");
        assert_eq!(up["content-length"], "3");
    }

    #[test]
    fn the_id_of_the_request_goes_up_where_the_rules_say_so() {
        let said = |forward_id: bool, remove: &[&str]| {
            let rules = HeaderRules {
                remove: remove.iter().map(ToString::to_string).collect(),
                forward_id,
                ..HeaderRules::default()
            };
            let mut up = HeaderMap::new();
            let given = map(&[("x-request-id", "r-1")]);
            Headers::new(&rules, None, &[]).up(&given, &[], "a", None, |name, value| {
                up.append(name, HeaderValue::from_bytes(value).expect("a value"));
            });
            up.get("x-request-id").cloned()
        };
        assert_eq!(said(true, &[]), Some(HeaderValue::from_static("r-1")));
        assert_eq!(said(true, &["x-request-id"]), None);
        assert_eq!(said(false, &[]), None);
    }

    #[test]
    fn credentials_replace_what_the_client_showed_and_removing_comes_last() {
        let rules = HeaderRules {
            set: vec![
                ("x-key".into(), Secret::new("hunter2")),
                ("host".into(), Secret::new("virtual")),
            ],
            remove: vec!["user-agent".into()],
            pass: Vec::new(),
            forward_id: false,
        };
        let credentials = Secret::new("Bearer ours");
        let headers = Headers::new(&rules, Some(&credentials), &[]);
        let up = up(&headers, "a", None);
        assert_eq!(up["authorization"], "Bearer ours");
        assert_eq!(up["x-key"], "hunter2");
        assert_eq!(up["host"], "virtual");
        assert!(!up.contains_key("user-agent") && !up.contains_key("content-length"));
        assert!(headers.set.iter().all(|(_, value)| value.is_sensitive()));
    }

    #[test]
    fn the_clients_own_token_goes_up_only_where_the_configuration_names_it() {
        let rules = HeaderRules {
            pass: vec!["authorization".into()],
            ..HeaderRules::default()
        };
        let up = up(&Headers::new(&rules, None, &[]), "a", None);
        assert_eq!(up["authorization"], "Bearer the-clients");
    }

    #[test]
    fn headers_about_the_connection_do_not_come_down() {
        let given = map(&[
            ("connection", "keep-alive, X-Hop"),
            ("keep-alive", "timeout=5"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("mcp-session-id", "s"),
            ("retry-after", "3"),
        ]);
        assert_eq!(names(&down(given)), ["mcp-session-id", "retry-after"]);
    }
}
