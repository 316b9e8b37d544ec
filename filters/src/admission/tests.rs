//! Every refusal alone, every pair of faults for the order, and what admitted requests carry.

use std::time::Duration;

use governor::clock::FakeRelativeClock;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ALLOW, RETRY_AFTER,
};
use http::{HeaderMap, Method, StatusCode, Version};
use tooldock_base::route::RouteId;
use tooldock_base::yaml;

use super::*;
use crate::certificate::ClientCertificate;
use crate::config::CertificateName;
use crate::media::AcceptRule;
use crate::namespace::{Access, Directory, NamespaceRule};
use crate::principal::{ANONYMOUS, BEARER};
use crate::rejection::Reason;
use crate::request::ListenerRules;
use crate::route::{EndpointAliases, RouteGroup, RouteGroups};
use crate::token::TokenDigest;

mod cost;
mod failures;

/// Serves `github`, `shared` and, to no principal, `vault`; knows one session, of 2025-11-25.
struct Live;

impl Directory for Live {
    fn namespace(&self, name: &str, _principal: &str) -> Access {
        match name {
            "github" | "shared" => Access::Granted(name.parse().unwrap()),
            "vault" => Access::Forbidden,
            _ => Access::Unknown,
        }
    }

    fn has_folder(&self, _name: &NamespaceName) -> bool {
        false
    }

    fn session_version(&self, session_id: &str, _principal: &str) -> Option<&'static str> {
        (session_id == "live").then_some("2025-11-25")
    }

    fn session_namespace(&self, session_id: &str) -> Option<NamespaceName> {
        (session_id == "live").then(|| "github".parse().unwrap())
    }
}

const CORE: ListenerRules = ListenerRules {
    loopback: false,
    routes: route::ALL.without(RouteGroup::Metrics),
    namespace: NamespaceRule::Header,
    accept: AcceptRule::Auto,
    auth: Auth::Required,
    certificates: None,
    modern: true,
    basic: None,
    path_prefix: None,
    aliases: EndpointAliases::NONE,
    open_probes: false,
};

const METRICS: ListenerRules = ListenerRules {
    routes: RouteGroups::of(&[RouteGroup::Metrics, RouteGroup::Probes]),
    auth: Auth::None,
    open_probes: true,
    ..CORE
};

/// A request under construction; the default one is admitted.
#[derive(Clone)]
struct Case {
    method: &'static str,
    uri: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    peer: &'static str,
    header_bytes: usize,
    certificate: Option<ClientCertificate>,
    listener: ListenerRules,
    /// Requests that went before.
    before: Vec<Case>,
}

fn good() -> Case {
    Case {
        method: "POST",
        uri: "/mcp",
        headers: vec![
            ("host", "gw.example"),
            ("authorization", "Bearer change_me"),
            ("x-namespace", "github"),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", "2025-11-25"),
            ("content-length", "100"),
        ],
        peer: "192.0.2.1",
        header_bytes: 500,
        certificate: None,
        listener: CORE,
        before: Vec::new(),
    }
}

fn get(uri: &'static str, headers: &[(&'static str, &'static str)]) -> Case {
    let mut case = Case {
        method: "GET",
        uri,
        headers: headers.to_vec(),
        ..good()
    };
    case.headers.push(("host", "gw.example"));
    case
}

impl Case {
    fn set(&mut self, name: &'static str, value: &'static str) {
        self.remove(name);
        self.headers.push((name, value));
    }

    fn remove(&mut self, name: &'static str) {
        self.headers.retain(|(other, _)| *other != name);
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.set(name, value);
        self
    }

    fn without(mut self, name: &'static str) -> Self {
        self.remove(name);
        self
    }

    fn send(&self, admission: &Admission<FakeRelativeClock>) -> Verdict {
        for before in &self.before {
            before.send(admission);
        }
        self.admit(&self.parts(), admission)
    }

    fn parts(&self) -> http::request::Parts {
        let mut request = http::Request::builder()
            .method(self.method)
            .uri(self.uri)
            .version(Version::HTTP_11);
        for (name, value) in &self.headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn admit<C: Clock + Clone>(
        &self,
        parts: &http::request::Parts,
        admission: &Admission<C>,
    ) -> Verdict {
        admission.admit(&AdmissionRequest {
            parts,
            fields: &Fields::of(&parts.headers),
            header_bytes: self.header_bytes,
            peer: self.peer.parse::<IpAddr>().unwrap().into(),
            certificate: self
                .certificate
                .as_ref()
                .map_or(PeerCertificate::Nothing, PeerCertificate::Certificate),
            listener: &self.listener,
            directory: &Live,
            asked: AdmissionAttempt::First,
            forwarded: false,
        })
    }

    fn refused(&self, admission: &Admission<FakeRelativeClock>) -> Rejection {
        match self.send(admission) {
            Verdict::Refused(rejection) => rejection,
            other => panic!("not refused: {other:?}"),
        }
    }

    fn admitted(&self, admission: &Admission<FakeRelativeClock>) -> AdmittedHead {
        match self.send(admission) {
            Verdict::Admitted(admitted) => admitted,
            other => panic!("not admitted: {other:?}"),
        }
    }

    fn answered(&self, admission: &Admission<FakeRelativeClock>) -> (StatusCode, HeaderMap) {
        match self.send(admission) {
            Verdict::Answered(answer) => (answer.status, answer.headers.into_iter().collect()),
            other => panic!("not answered: {other:?}"),
        }
    }
}

fn config(yaml: &str) -> AdmissionConfig {
    let mut config: AdmissionConfig = yaml::from_str(yaml).unwrap();
    let token = |name: &str, text: &str, namespaces: &[&str]| crate::config::TokenConfig {
        name: name.into(),
        sha256: TokenDigest::of(text.as_bytes()),
        namespaces: namespaces.iter().map(|&name| name.into()).collect(),
    };
    config.tokens = vec![
        token("ci", "ci-token", &["git*"]),
        token("ops", "ops-token", &["*"]),
    ];
    config
}

fn admission(yaml: &str) -> (FakeRelativeClock, Admission<FakeRelativeClock>) {
    let clock = FakeRelativeClock::default();
    let admission = Admission::with_clock(
        &config(yaml),
        Some(SecretToken::new("change_me").unwrap()),
        Some(SecretToken::new("change_me_internal").unwrap()),
        clock.clone(),
    )
    .unwrap();
    (clock, admission)
}

/// Everything on, with budgets for one request each.
const STRICT: &str = r#"
    hosts: [gw.example]
    origins: ["https://ok.example"]
    cidrs: { deny: [203.0.113.0/24] }
    trusted_proxies: [198.51.100.1]
    flood: { rate: 1, burst: 1 }
    rate_limits:
      - { key: principal, rate: 1, burst: 1 }
      - { key: namespace, rate: 1, burst: 1 }
"#;

/// As the configuration above, without budgets.
const OPEN: &str = r#"
    hosts: [gw.example]
    origins: ["https://ok.example"]
    trusted_proxies: [198.51.100.1]
"#;

struct Fault {
    name: &'static str,
    reason: Reason,
    cause: Option<&'static str>,
    /// Faults of one stage are alternatives of each other, not in an order.
    stage: u8,
    make: fn(&mut Case),
}

/// Every fault an MCP request can have, in the order of the list.
fn faults() -> Vec<Fault> {
    let fault = |stage, name, reason, make| Fault {
        name,
        reason,
        cause: None,
        stage,
        make,
    };
    let limit = |stage, name, cause, make| Fault {
        name,
        reason: Reason::RateLimited,
        cause: Some(cause),
        stage,
        make,
    };
    vec![
        fault(1, "head too large", Reason::HeadersTooLarge, |case| {
            case.header_bytes = 32 * 1024 + 1
        }),
        fault(2, "denied address", Reason::AddressNotAllowed, |case| {
            case.peer = "203.0.113.5"
        }),
        fault(3, "no host", Reason::BadRequest, |case| case.remove("host")),
        fault(3, "foreign host", Reason::HostNotAllowed, |case| {
            case.set("host", "evil.example")
        }),
        limit(4, "flooding address", "per client address", |case| {
            let peer = case.peer;
            case.before.push(Case {
                peer,
                ..good()
                    .with("authorization", "Bearer ops-token")
                    .with("x-namespace", "shared")
            });
        }),
        fault(5, "foreign origin", Reason::OriginNotAllowed, |case| {
            case.set("origin", "https://evil.example")
        }),
        fault(6, "no credentials", Reason::Unauthorized, |case| {
            case.remove("authorization")
        }),
        fault(6, "wrong token", Reason::Unauthorized, |case| {
            case.set("authorization", "Bearer nope")
        }),
        fault(7, "unknown path", Reason::NotFound, |case| {
            case.uri = "/mcp/a/b"
        }),
        fault(7, "wrong method", Reason::MethodNotAllowed, |case| {
            case.method = "PUT"
        }),
        limit(8, "busy principal", "per principal", |case| {
            case.before.push(Case {
                peer: "192.0.2.2",
                ..good().with("x-namespace", "shared")
            });
        }),
        fault(9, "no namespace", Reason::NamespaceRequired, |case| {
            case.remove("x-namespace")
        }),
        fault(9, "two namespaces", Reason::NamespaceAmbiguous, |case| {
            case.headers.push(("x-namespace", "shared"))
        }),
        fault(9, "unknown namespace", Reason::NamespaceNotFound, |case| {
            case.set("x-namespace", "nope")
        }),
        fault(9, "reserved namespace", Reason::NamespaceNotFound, |case| {
            case.set("x-namespace", "_system")
        }),
        fault(9, "closed namespace", Reason::NamespaceForbidden, |case| {
            case.set("x-namespace", "vault")
        }),
        limit(10, "busy namespace", "per namespace", |case| {
            case.before.push(Case {
                peer: "192.0.2.3",
                ..good().with("authorization", "Bearer ops-token")
            });
        }),
        fault(11, "plain text", Reason::UnsupportedMediaType, |case| {
            case.set("content-type", "text/plain")
        }),
        fault(11, "no type", Reason::UnsupportedMediaType, |case| {
            case.remove("content-type")
        }),
        fault(12, "json only", Reason::NotAcceptable, |case| {
            case.set("accept", "application/json")
        }),
        fault(12, "two sessions", Reason::DuplicateHeader, |case| {
            case.headers
                .extend([("mcp-session-id", "a"), ("mcp-session-id", "b")]);
        }),
        fault(13, "large body", Reason::BodyTooLarge, |case| {
            case.set("content-length", "1073741824")
        }),
    ]
}

fn name(admitted: &AdmittedHead) -> Option<&str> {
    admitted
        .principal
        .as_ref()
        .map(|principal| &**principal.name())
}

#[test]
fn each_fault_alone_is_refused_for_its_reason() {
    good().admitted(&admission(STRICT).1);
    for fault in faults() {
        let mut case = good();
        (fault.make)(&mut case);
        let rejection = case.refused(&admission(STRICT).1);
        assert_eq!(rejection.reason, fault.reason, "{}", fault.name);
        assert!(
            fault.cause.is_none() || rejection.cause == fault.cause,
            "{}",
            fault.name
        );
    }
}

#[test]
fn of_two_faults_the_earlier_in_the_list_answers() {
    let faults = faults();
    let mut pairs = 0;
    for earlier in &faults {
        for later in faults.iter().filter(|later| later.stage > earlier.stage) {
            let mut case = good();
            // The earlier fault last, so that the later one cannot undo it.
            (later.make)(&mut case);
            (earlier.make)(&mut case);
            let rejection = case.refused(&admission(STRICT).1);
            let pair = format!("{} before {}", earlier.name, later.name);
            assert_eq!(rejection.reason, earlier.reason, "{pair}");
            assert!(
                earlier.cause.is_none() || rejection.cause == earlier.cause,
                "{pair}"
            );
            pairs += 1;
        }
    }
    assert!(pairs > 200);
}

#[test]
fn a_refused_request_takes_nothing_from_later_limits() {
    let (_, admission) = admission(STRICT);
    // 404 at the namespace: the principal's budget is used, the namespace's is not.
    good().with("x-namespace", "nope").refused(&admission);
    let other = Case {
        peer: "192.0.2.9",
        ..good().with("authorization", "Bearer ops-token")
    };
    other.admitted(&admission);
}

#[test]
fn an_admitted_request_carries_who_where_and_for_what() {
    let (_, admission) = admission(OPEN);
    let admitted = good()
        .with("origin", "https://ok.example")
        .admitted(&admission);
    assert_eq!(admitted.route.id, RouteId::Mcp);
    assert_eq!(name(&admitted), Some(BEARER));
    assert_eq!(admitted.namespace.unwrap().as_str(), "github");
    assert_eq!(admitted.client.to_string(), "192.0.2.1");
    assert!(admitted.accept.names_both());
    assert!(!admitted.manager);
    assert!(admitted.cors.is_some());

    let admitted = good()
        .with("x-manager-token", "change_me_internal")
        .admitted(&admission);
    assert!(admitted.manager && admitted.cors.is_none());
    let admitted = good().with("x-manager-token", "wrong").admitted(&admission);
    assert!(!admitted.manager);
}

#[test]
fn a_named_token_is_its_principal_and_keeps_to_its_namespaces() {
    let (_, admission) = admission(OPEN);
    let ci = good().with("authorization", "bearer ci-token");
    assert_eq!(name(&ci.admitted(&admission)), Some("ci"));
    let rejection = ci.with("x-namespace", "shared").refused(&admission);
    assert_eq!(rejection.reason, Reason::NamespaceForbidden);
    assert_eq!(rejection.principal.as_deref(), Some("ci"));
}

#[test]
fn the_client_is_seen_through_trusted_proxies_only() {
    let (_, admission) = admission(OPEN);
    let forwarded = good().with("x-forwarded-for", "127.0.0.1");
    assert_eq!(
        forwarded.admitted(&admission).client.to_string(),
        "192.0.2.1"
    );
    let proxied = Case {
        peer: "198.51.100.1",
        ..forwarded
    };
    assert_eq!(proxied.admitted(&admission).client.to_string(), "127.0.0.1");
}

#[test]
fn public_paths_need_no_credentials_and_know_their_methods() {
    let (_, admission) = admission(OPEN);
    for uri in ["/health", "/ready", "/.well-known/oauth-protected-resource"] {
        let admitted = get(uri, &[]).admitted(&admission);
        assert!(admitted.principal.is_none());
        Case {
            method: "HEAD",
            ..get(uri, &[])
        }
        .admitted(&admission);
        let refused = Case {
            method: "POST",
            ..get(uri, &[])
        }
        .refused(&admission);
        assert_eq!(refused.reason, Reason::MethodNotAllowed, "{uri}");
    }
    for uri in [
        "/mcp",
        "/tools",
        "/tools/x/schema",
        "/namespaces",
        "/openapi.json",
        "/reload",
        "/sse",
        "/",
        "/metrics",
    ] {
        assert_eq!(
            get(uri, &[]).refused(&admission).reason,
            Reason::Unauthorized,
            "{uri}"
        );
    }
}

#[test]
fn probes_pass_while_the_rest_of_an_address_is_refused() {
    let (clock, admission) = admission("flood: { rate: 1, burst: 1 }");
    good().admitted(&admission);
    let refused = good().refused(&admission);
    assert_eq!(refused.reason, Reason::RateLimited);
    assert!(refused.headers.contains(&(RETRY_AFTER, 1_u64.into())));
    assert!((0..10).all(|_| get("/health", &[]).admitted(&admission).route.id == RouteId::Health));
    clock.advance(Duration::from_secs(1));
    good().admitted(&admission);
}

#[test]
fn a_health_check_is_known_by_its_token_and_a_wrong_one_is_a_strangers() {
    let (_, admission) = admission(OPEN);
    let asked = |headers: &[(&'static str, &'static str)]| {
        let admitted = get("/ready", headers).admitted(&admission);
        (name(&admitted).map(str::to_owned), admitted.manager)
    };
    let bearer = Some(BEARER.to_owned());
    let manager = ("x-manager-token", "change_me_internal");
    assert_eq!(asked(&[]), (None, false));
    assert_eq!(
        asked(&[("authorization", "Bearer change_me")]),
        (bearer, false)
    );
    assert_eq!(asked(&[manager]), (None, true));
    for wrong in ["Bearer wrong", "Basic change_me", "", "Bearer"] {
        assert_eq!(asked(&[("authorization", wrong)]), (None, false), "{wrong}");
    }
    let anonymous = Case {
        listener: ListenerRules {
            auth: Auth::None,
            ..CORE
        },
        ..get("/ready", &[])
    };
    assert_eq!(name(&anonymous.admitted(&admission)), Some(ANONYMOUS));
}

#[test]
fn tokens_at_a_health_check_count_against_the_flood_limit() {
    let (clock, admission) = admission("flood: { rate: 1, burst: 1 }");
    let known = |authorization| {
        let case = get("/health", &[("authorization", authorization)]);
        case.admitted(&admission).principal.is_some()
    };
    assert!(!known("Bearer guess"));
    assert!(
        !known("Bearer change_me"),
        "nobody is known beyond the limit"
    );
    clock.advance(Duration::from_secs(1));
    assert!(known("Bearer change_me"));
}

#[test]
fn a_health_check_for_a_strange_name_is_told_the_status_alone_unless_a_token_comes_with_it() {
    let (_, admission) = admission(OPEN);
    let open = ListenerRules {
        auth: Auth::None,
        ..CORE
    };
    let optional = ListenerRules {
        auth: Auth::Optional,
        ..CORE
    };
    let right = ("authorization", "Bearer change_me");
    let manager = ("x-manager-token", "change_me_internal");
    let strange = ("host", "rebound.example");
    let page = ("origin", "https://evil.example");
    for path in ["/health", "/ready"] {
        let told = |listener: &ListenerRules, headers: &[(&'static str, &'static str)]| {
            let mut case = get(path, &[]);
            case.listener = listener.clone();
            for &(name, value) in headers {
                case.set(name, value);
            }
            let admitted = case.admitted(&admission);
            let known = admitted.principal.is_some() || admitted.manager;
            assert!(!(known && admitted.status_only), "{headers:?}");
            !admitted.status_only
        };
        for listener in [METRICS, open.clone(), optional.clone()] {
            assert!(told(&listener, &[]), "{listener:?}");
            for by_a_page in [strange, page] {
                assert!(!told(&listener, &[by_a_page]), "{listener:?}");
                let wrong = ("authorization", "Bearer wrong");
                assert!(!told(&listener, &[by_a_page, wrong]), "{listener:?}");
                assert!(told(&listener, &[by_a_page, manager]), "{listener:?}");
            }
        }
        for listener in [CORE, optional.clone()] {
            for by_a_page in [strange, page] {
                assert!(told(&listener, &[by_a_page, right]), "{listener:?}");
            }
        }
        // Where no token counts, none makes a page's request another.
        assert!(!told(&METRICS, &[strange, right]));
    }
}

#[test]
fn a_health_check_is_answered_by_its_method_whatever_its_host() {
    let (_, admission) = admission(OPEN);
    for host in ["localhost", "rebound.example", "", "[fe80::1%eth0]:8000"] {
        let with = |method: &'static str| Case {
            method,
            ..get("/health", &[]).with("host", host)
        };
        for method in ["GET", "HEAD"] {
            with(method).admitted(&admission);
        }
        let refused = with("POST").refused(&admission);
        assert_eq!(refused.reason, Reason::MethodNotAllowed, "{host:?}");
        let (status, headers) = with("OPTIONS").answered(&admission);
        assert_eq!(
            (status, headers.contains_key("allow")),
            (StatusCode::NO_CONTENT, true)
        );
    }
    // Other paths are refused for a strange host first.
    let refused = get("/mcp", &[]).with("host", "").refused(&admission);
    assert_eq!(refused.reason, Reason::BadRequest);
    let refused = get("/mcp", &[]).with("host", "rebound.example");
    let refused = refused.refused(&admission);
    assert_eq!(refused.reason, Reason::HostNotAllowed);
}

#[test]
fn details_without_a_credential_count_against_the_flood_limit() {
    let (clock, admission) = admission("flood: { rate: 1, burst: 1 }");
    let probe = || Case {
        listener: METRICS,
        ..get("/ready", &[])
    };
    let page = || probe().with("origin", "https://evil.example");
    let status_only = |case: Case| case.admitted(&admission).status_only;
    assert!((0..3).all(|_| status_only(page())), "the status costs none");
    assert!(!status_only(probe()));
    assert!(status_only(probe()));
    clock.advance(Duration::from_secs(1));
    assert!(!status_only(probe()));
}

#[test]
fn without_credentials_a_page_of_a_stranger_is_refused_whatever_the_list_says() {
    let (_, admission) = admission("origins: ['*']");
    for auth in [Auth::None, Auth::Optional] {
        let from = |origin: &'static str| Case {
            listener: ListenerRules { auth, ..CORE },
            ..good().without("authorization").with("origin", origin)
        };
        let refused = from("https://evil.example").refused(&admission);
        assert_eq!(refused.reason, Reason::OriginNotAllowed);
        from("http://localhost:6274").admitted(&admission);
    }
    good()
        .with("origin", "https://any.example")
        .admitted(&admission);
}

#[test]
fn unknown_paths_and_methods_are_told_apart() {
    let (_, admission) = admission(OPEN);
    for uri in ["/nope", "/sse/", "/messages/x"] {
        let mut case = good();
        case.uri = uri;
        assert_eq!(case.refused(&admission).reason, Reason::NotFound, "{uri}");
    }
    for method in ["PUT", "PATCH", "HEAD"] {
        let refused = Case { method, ..good() }.refused(&admission);
        assert_eq!(refused.reason, Reason::MethodNotAllowed);
        assert!(
            refused
                .headers
                .iter()
                .any(|(name, value)| name == ALLOW && value == "GET, POST, DELETE, OPTIONS")
        );
    }
    let delete = Case {
        method: "DELETE",
        ..good()
    }
    .without("content-type")
    .without("accept");
    assert_eq!(delete.admitted(&admission).route.id, RouteId::Mcp);
}

#[test]
fn a_stream_needs_its_media_type_and_a_version_that_has_streams() {
    let (_, admission) = admission(OPEN);
    let stream = Case {
        method: "GET",
        ..good()
    }
    .without("content-type")
    .without("content-length")
    .with("accept", "text/event-stream");
    assert_eq!(stream.admitted(&admission).route.id, RouteId::Mcp);
    for accept in ["*/*", "application/json"] {
        let refused = stream.clone().with("accept", accept).refused(&admission);
        assert_eq!(refused.reason, Reason::NotAcceptable, "{accept}");
    }
    let mut modern = stream.with("mcp-protocol-version", "2026-07-28");
    let refused = modern.refused(&admission);
    assert_eq!(refused.reason, Reason::MethodNotAllowed);
    assert!(
        refused
            .headers
            .iter()
            .any(|(_, value)| value == "POST, OPTIONS")
    );
    modern.method = "DELETE";
    assert_eq!(modern.refused(&admission).reason, Reason::MethodNotAllowed);
    // Where that version is not served the service says so.
    modern.listener.modern = false;
    modern.admitted(&admission);
}

#[test]
fn http_with_sse_is_there_until_it_is_switched_off() {
    let (_, admission) = admission(OPEN);
    let bearer = [
        ("authorization", "Bearer change_me"),
        ("x-namespace", "github"),
    ];
    let open = get("/sse", &bearer);
    assert_eq!(open.admitted(&admission).route.id, RouteId::Sse);
    let message = Case {
        uri: "/messages?session_id=live",
        ..good()
    }
    .without("accept")
    .without("x-namespace");
    let admitted = message.admitted(&admission);
    assert_eq!(admitted.route.id, RouteId::Messages);
    assert_eq!(admitted.namespace.unwrap().as_str(), "github");
    let text = message.clone().with("content-type", "text/plain");
    assert_eq!(
        text.refused(&admission).reason,
        Reason::UnsupportedMediaType
    );
    for mut off in [open, message] {
        off.listener.routes = off.listener.routes.without(RouteGroup::Sse);
        let refused = off.refused(&admission);
        assert_eq!(refused.reason, Reason::NotFound, "{}", off.uri);
    }
}

#[test]
fn a_preflight_is_answered_without_credentials() {
    let (_, admission) = admission(OPEN);
    let preflight = Case {
        method: "OPTIONS",
        ..get("/mcp/github", &[])
    }
    .with("origin", "https://ok.example")
    .with("access-control-request-method", "POST");
    let (status, headers) = preflight.answered(&admission);
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(headers["access-control-allow-origin"], "https://ok.example");
    assert_eq!(headers["vary"], "Origin");
    assert_eq!(
        headers[ACCESS_CONTROL_ALLOW_METHODS],
        "GET, POST, DELETE, OPTIONS"
    );
    assert!(
        headers[ACCESS_CONTROL_ALLOW_HEADERS]
            .to_str()
            .unwrap()
            .contains("X-Namespace")
    );

    let foreign = preflight.clone().with("origin", "https://evil.example");
    assert_eq!(foreign.refused(&admission).reason, Reason::OriginNotAllowed);
    let unknown = Case {
        uri: "/nope",
        ..preflight.clone()
    };
    assert_eq!(unknown.refused(&admission).reason, Reason::Unauthorized);
    let plain = preflight.without("access-control-request-method");
    assert_eq!(plain.refused(&admission).reason, Reason::Unauthorized);
    let plain = plain.with("authorization", "Bearer change_me");
    assert_eq!(
        plain.answered(&admission).1[ALLOW],
        "GET, POST, DELETE, OPTIONS"
    );
}

#[test]
fn a_page_can_read_why_it_was_refused() {
    let (_, admission) = admission(OPEN);
    let refused = good()
        .with("origin", "https://ok.example")
        .without("authorization")
        .refused(&admission);
    let headers: HeaderMap = refused.headers.into_iter().collect();
    assert_eq!(headers["access-control-allow-origin"], "https://ok.example");
    assert_eq!(headers["www-authenticate"], "Bearer");
}

#[test]
fn reload_needs_bearer_then_network_then_manager_token() {
    let (_, admission) = admission("internal_cidrs: [10.0.0.0/8]");
    let reload = |peer, bearer: bool, token: bool| {
        let mut case = Case {
            uri: "/reload",
            peer,
            ..good()
        };
        case.headers = vec![("host", "gw.example")];
        if bearer {
            case.set("authorization", "Bearer change_me");
        }
        if token {
            case.set("x-manager-token", "change_me_internal");
        }
        case
    };
    let admitted = reload("10.0.0.7", true, true).admitted(&admission);
    assert!(admitted.manager && admitted.namespace.is_none());
    assert_eq!(
        reload("192.0.2.1", false, false).refused(&admission).reason,
        Reason::Unauthorized
    );
    let outside = reload("192.0.2.1", true, true).refused(&admission);
    let both = reload("192.0.2.1", true, false).refused(&admission);
    let tokenless = reload("10.0.0.7", true, false).refused(&admission);
    for refused in [&outside, &both, &tokenless] {
        assert_eq!(refused.reason, Reason::Forbidden);
        assert_eq!(refused.message, outside.message);
    }
    assert_eq!(outside.cause, both.cause);
    assert_ne!(outside.cause, tokenless.cause);
    let spoofed = reload("192.0.2.1", true, true).with("x-forwarded-for", "10.0.0.7");
    assert_eq!(spoofed.refused(&admission).reason, Reason::Forbidden);
    let get = Case {
        method: "GET",
        ..reload("10.0.0.7", true, true)
    };
    assert_eq!(get.refused(&admission).reason, Reason::MethodNotAllowed);
}

#[test]
fn rest_paths_find_their_tool_and_namespace() {
    let (_, admission) = admission(OPEN);
    let bearer = [
        ("authorization", "Bearer change_me"),
        ("x-namespace", "shared"),
    ];
    for uri in ["/tools", "/tools/say_hello/schema", "/openapi.json"] {
        let admitted = get(uri, &bearer).admitted(&admission);
        assert_eq!(admitted.namespace.unwrap().as_str(), "shared", "{uri}");
        assert_eq!(
            get(uri, &bearer[..1]).refused(&admission).reason,
            Reason::NamespaceRequired
        );
    }
    assert_eq!(
        get("/namespaces", &bearer[..1])
            .admitted(&admission)
            .namespace,
        None
    );
    let call = Case {
        method: "POST",
        ..get("/tools/gr%C3%B6%C3%9Fe", &bearer)
    };
    assert_eq!(call.admitted(&admission).tool.as_deref(), Some("größe"));
}

#[test]
fn an_alias_that_ends_with_sse_is_http_sse_of_its_namespace() {
    let aliases = EndpointAliases::new([
        ("/legacy/sse", &"github".parse().unwrap()),
        ("/legacy/sses", &"github".parse().unwrap()),
    ]);
    let listener = ListenerRules { aliases, ..CORE };
    let (_, admission) = admission("{}");
    let to = |method, uri| Case {
        method,
        uri,
        listener: listener.clone(),
        ..good().without("x-namespace")
    };
    for uri in ["/legacy/sse", "/legacy/sse/"] {
        let stream = to("GET", uri)
            .without("content-type")
            .without("content-length");
        let admitted = stream.admitted(&admission);
        assert_eq!(admitted.route.id, RouteId::Sse, "{uri}");
        let namespace = admitted.namespace.as_ref().map(NamespaceName::as_str);
        assert_eq!(namespace, Some("github"), "{uri}");
        assert_eq!(
            to("POST", uri).refused(&admission).reason,
            Reason::MethodNotAllowed,
            "{uri}"
        );
    }
    let streamable = to("POST", "/legacy/sses").admitted(&admission);
    assert_eq!(streamable.route.id, RouteId::Mcp);
    // A listener without HTTP+SSE serves all aliases by Streamable HTTP.
    let newer = Case {
        listener: ListenerRules {
            routes: CORE.routes.without(RouteGroup::Sse),
            ..listener.clone()
        },
        ..to("POST", "/legacy/sse")
    };
    assert_eq!(newer.admitted(&admission).route.id, RouteId::Mcp);
    // A stranger is told the same of an alias and of a path that is none.
    for method in ["GET", "POST", "OPTIONS"] {
        let told = |uri| {
            let case = to(method, uri)
                .without("authorization")
                .with("origin", "https://ok.example")
                .with("access-control-request-method", "GET");
            match case.send(&admission) {
                Verdict::Refused(refused) => (
                    refused.reason.status(),
                    format!("{:?} {:?}", refused.shape, refused.headers),
                ),
                Verdict::Answered(answer) => (answer.status, format!("{:?}", answer.headers)),
                other => panic!("{uri}: {other:?}"),
            }
        };
        assert_eq!(told("/legacy/sse"), told("/other/sse"), "{method}");
    }
}

#[test]
fn an_alias_is_the_endpoint_of_its_namespace() {
    let aliases = EndpointAliases::new([
        ("/files/mcp", &"github".parse().unwrap()),
        ("/old", &"vault".parse().unwrap()),
        ("/gone", &"gone".parse().unwrap()),
    ]);
    let listener = ListenerRules { aliases, ..CORE };
    let (_, admission) = admission("{}");
    let to = |uri| Case {
        uri,
        listener: listener.clone(),
        ..good().without("x-namespace")
    };
    for uri in ["/files/mcp", "/files/mcp/", "/files/mcp?toolset=x"] {
        let admitted = to(uri).admitted(&admission);
        assert_eq!(admitted.route.id, RouteId::Mcp);
        let namespace = admitted.namespace.as_ref().map(NamespaceName::as_str);
        assert_eq!(namespace, Some("github"), "{uri}");
    }
    let ambiguous = to("/files/mcp").with("x-namespace", "shared");
    for (case, status) in [
        (ambiguous, 400),
        (to("/old"), 403),
        (to("/gone"), 404),
        (to("/files"), 404),
        (to("/files/mcp").without("authorization"), 401),
        (to("/files/mcp").with("content-type", "text/plain"), 415),
        (to("/files/mcp").with("cookie", "x").without("host"), 400),
    ] {
        let refused = case.refused(&admission);
        let has_shape_of_mcp = refused.shape == ErrorShape::Mcp;
        assert_eq!(
            (refused.reason.status().as_u16(), has_shape_of_mcp),
            (status, case.uri != "/files"),
            "{}",
            case.uri
        );
    }
    let with_method = |method| Case {
        method,
        ..to("/files/mcp")
    };
    assert_eq!(
        with_method("PUT").refused(&admission).reason,
        Reason::MethodNotAllowed
    );
    let page = with_method("OPTIONS")
        .with("origin", "https://ok.example")
        .with("access-control-request-method", "POST");
    assert_eq!(page.answered(&admission).0, StatusCode::NO_CONTENT);
    // A stranger is told the same of an alias and of a path that is none.
    for method in ["GET", "POST", "OPTIONS", "PUT"] {
        for headers in [
            &[][..],
            &[("authorization", "Bearer wrong")],
            &[
                ("origin", "https://ok.example"),
                ("access-control-request-method", "POST"),
            ],
            &[("origin", "https://other.example")],
            &[("cookie", "x"), ("host", "")],
        ] {
            let told = |uri| {
                let mut case = Case {
                    method,
                    ..to(uri).without("authorization")
                };
                headers
                    .iter()
                    .for_each(|(name, value)| case.set(name, value));
                match case.send(&admission) {
                    Verdict::Refused(refused) => (
                        refused.reason.status(),
                        format!("{:?} {:?}", refused.shape, refused.headers),
                    ),
                    Verdict::Answered(answer) => (answer.status, format!("{:?}", answer.headers)),
                    other => panic!("{uri}: {other:?}"),
                }
            };
            assert_eq!(
                told("/files/mcp"),
                told("/files/other"),
                "{method} {headers:?}"
            );
        }
    }
    // Another listener has no aliases.
    let elsewhere = Case {
        listener: CORE,
        ..to("/files/mcp")
    };
    assert_eq!(elsewhere.refused(&admission).reason, Reason::NotFound);
}

#[test]
fn the_metrics_listener_serves_metrics_to_everyone_and_nothing_else() {
    let (_, admission) = admission(OPEN);
    let on_metrics = |uri| Case {
        listener: METRICS,
        ..get(uri, &[])
    };
    assert_eq!(
        on_metrics("/metrics").admitted(&admission).route.id,
        RouteId::Metrics
    );
    for uri in ["/mcp", "/tools", "/reload"] {
        assert_eq!(
            on_metrics(uri).refused(&admission).reason,
            Reason::NotFound,
            "{uri}"
        );
    }
}

#[test]
fn a_listener_without_credentials_serves_the_anonymous_principal() {
    let (_, admission) = admission(OPEN);
    let listener = ListenerRules {
        auth: Auth::None,
        ..CORE
    };
    let admitted = Case {
        listener,
        ..good().without("authorization")
    }
    .admitted(&admission);
    assert_eq!(name(&admitted), Some(ANONYMOUS));
}

#[test]
fn where_a_token_is_optional_a_wrong_one_is_still_refused() {
    let (_, admission) = admission(OPEN);
    let listener = ListenerRules {
        auth: Auth::Optional,
        ..CORE
    };
    let case = |case: Case| Case {
        listener: listener.clone(),
        ..case
    };
    let anonymous = case(good().without("authorization")).admitted(&admission);
    assert_eq!(name(&anonymous), Some(ANONYMOUS));
    assert_eq!(name(&case(good()).admitted(&admission)), Some(BEARER));
    let wrong = case(good().with("authorization", "Bearer wrong"));
    assert_eq!(wrong.refused(&admission).reason, Reason::Unauthorized);
}

/// On a listener that asks for certificates, with one for this host name.
fn certified(host: &str, auth: Auth, case: Case) -> Case {
    Case {
        certificate: Some(ClientCertificate {
            names: vec![CertificateName::host(host)],
        }),
        listener: ListenerRules {
            auth,
            certificates: Some("core".into()),
            ..CORE
        },
        ..case
    }
}

const CERTIFICATES: &str =
    "certificates: [ { name: build, san: build.example, namespaces: ['git*'] } ]";

#[test]
fn a_certificate_stands_for_its_principal_where_no_token_is_sent() {
    let (_, admission) = admission(CERTIFICATES);
    for auth in [Auth::Required, Auth::Optional, Auth::None] {
        let case = certified("build.example", auth, good().without("authorization"));
        assert_eq!(name(&case.admitted(&admission)), Some("build"), "{auth:?}");
        let elsewhere = case.clone().with("x-namespace", "shared");
        assert_eq!(
            elsewhere.refused(&admission).reason,
            Reason::NamespaceForbidden
        );
    }
    let case = |case| certified("build.example", Auth::Required, case);
    assert_eq!(name(&case(good()).admitted(&admission)), Some(BEARER));
    let wrong = case(good().with("authorization", "Bearer wrong"));
    assert_eq!(wrong.refused(&admission).reason, Reason::Unauthorized);
}

#[test]
fn a_certificate_that_nobody_named_is_no_principal() {
    let (_, admission) = admission(CERTIFICATES);
    let case = |auth| certified("other.example", auth, good().without("authorization"));
    let refused = case(Auth::Required).refused(&admission);
    assert_eq!(refused.reason, Reason::Unauthorized);
    assert_eq!(
        refused.cause,
        Some("admission.certificates has no such certificate")
    );
    for auth in [Auth::Optional, Auth::None] {
        assert_eq!(name(&case(auth).admitted(&admission)), Some(ANONYMOUS));
    }
    let token = certified("other.example", Auth::Required, good());
    assert_eq!(name(&token.admitted(&admission)), Some(BEARER));
}

#[test]
fn a_page_of_a_stranger_cannot_use_the_certificate_of_a_browser() {
    let (_, admission) = admission(CERTIFICATES);
    let case = certified("build.example", Auth::Required, good());
    let page = case
        .without("authorization")
        .with("origin", "https://any.example");
    assert_eq!(page.refused(&admission).reason, Reason::OriginNotAllowed);
}

#[test]
fn tool_calls_have_their_own_budget() {
    let (clock, admission) = admission(
        "rate_limits: [ { key: principal, rate: 1, burst: 2, unit: tool_call, namespace: github } ]",
    );
    let (github, shared) = ("github".parse().unwrap(), "shared".parse().unwrap());
    let call = |namespace| {
        let subject = Subject {
            principal: "ci",
            client: "192.0.2.1".parse().unwrap(),
            namespace: Some(namespace),
            tool: Some("echo"),
            own: &[],
            key: None,
        };
        admission.check_tool_call(subject, CountedBy::All)
    };
    assert!(call(&github).is_ok() && call(&github).is_ok());
    assert_eq!(call(&github).unwrap_err().wait.seconds(), 1);
    assert!(call(&shared).is_ok());
    assert!((0..10).all(|_| matches!(good().send(&admission), Verdict::Admitted(_))));
    clock.advance(Duration::from_secs(1));
    assert!(call(&github).is_ok());
}

#[test]
fn refusals_carry_a_bounded_label_and_no_credentials() {
    let (_, admission) = admission(OPEN);
    assert_eq!(
        good().with("x-namespace", "nope").refused(&admission).route,
        "/mcp"
    );
    let unknown = Case {
        uri: "/some/made/up/path",
        ..good()
    };
    assert_eq!(unknown.refused(&admission).route, "unknown");
    for fault in faults() {
        let mut case = good().with("x-manager-token", "change_me_internal");
        (fault.make)(&mut case);
        let shown = format!("{:?}", case.send(&admission));
        assert!(
            !shown.contains("change_me") && !shown.contains("Bearer nope"),
            "{shown}"
        );
    }
    assert!(!format!("{admission:?}").contains("change_me"));
}

#[test]
fn a_bad_configuration_names_its_key() {
    let mut bad = config(OPEN);
    bad.tokens[0].namespaces.clear();
    let error = Admission::new(&bad, None, None).unwrap_err();
    assert_eq!(error.key, "admission.tokens[0].namespaces");
}

#[test]
fn no_request_makes_admission_panic() {
    let (_, admission) = admission(STRICT);
    let names = [
        "host",
        "origin",
        "authorization",
        "x-namespace",
        "x-forwarded-for",
        "accept",
        "content-type",
        "content-length",
        "transfer-encoding",
        "mcp-protocol-version",
        "mcp-session-id",
        "x-manager-token",
        "access-control-request-method",
    ];
    let values: [&[u8]; 20] = [
        b"",
        b" ",
        b",",
        b";",
        b"\"",
        b"\\",
        b"[",
        b"]:",
        b"gw.example",
        b"https://ok.example",
        b"https://[",
        b"://",
        b"Bearer",
        b"Bearer change_me",
        b"github",
        b"*/*;q=",
        b"application/json;q=\"\\",
        b"18446744073709551616",
        b"\xff\xfe",
        b"198.51.100.1",
    ];
    let uris = [
        "/",
        "*",
        "/mcp",
        "/mcp/",
        "/mcp/%",
        "/mcp/github?namespace=%",
        "/sse",
        "/messages?session_id=%",
        "/messages?session_id=live",
        "/tools/%C3%B6/schema",
        "/openapi.json?namespace",
        "/openapi.json?namespace=%ff",
        "/.well-known/",
        "http://gw.example/mcp",
        "gw.example:443",
        "/health?",
    ];
    // A fixed sequence, so that a failure repeats.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut pick = |among: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % among as u64) as usize
    };
    let mut admitted = 0;
    for _ in 0..50_000 {
        let method = [Method::GET, Method::POST, Method::OPTIONS, Method::CONNECT][pick(4)].clone();
        let mut request = http::Request::builder()
            .method(method)
            .uri(uris[pick(uris.len())]);
        for _ in 0..pick(8) {
            request = request.header(names[pick(names.len())], values[pick(values.len())]);
        }
        let parts = request.body(()).unwrap().into_parts().0;
        let verdict = admission.admit(&AdmissionRequest {
            parts: &parts,
            fields: &Fields::of(&parts.headers),
            header_bytes: crate::head::header_bytes(&parts),
            peer: "198.51.100.1".parse::<IpAddr>().unwrap().into(),
            certificate: PeerCertificate::Nothing,
            listener: &CORE,
            directory: &Live,
            asked: AdmissionAttempt::First,
            forwarded: false,
        });
        admitted += usize::from(matches!(verdict, Verdict::Admitted(_)));
    }
    assert!(admitted > 0);
}
