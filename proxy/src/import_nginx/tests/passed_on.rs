//! Headers that nginx sends to servers and the gateway does not, HTTP+SSE, web pages of single locations, and requests that
//! nginx passes on unread.

use super::*;

/// A condition that compares `Authorization` with tokens.
const TOKENS: &str = "map $http_authorization $client { default ''; 'Bearer 0d4b31aa-ci-77f0' ci; 'Bearer 77aa02c3d9' desk; }";
const ASKED: &str = "if ($client = '') { return 401; }";

#[test]
fn a_server_that_no_longer_gets_authorization_is_told_with_its_remedies() {
    let unchecked = [
        "nginx.conf:3: location: ",
        "without judging it",
        "upstreams.remote.search.credentials",
        "tooldock keys create",
        "credentials: pass",
    ];
    let checked = [
        "nginx.conf:3: location: ",
        "nginx judges Authorization and passes it on",
        "upstreams.remote.search.credentials",
    ];
    let any = "if ($http_authorization = '') { return 401; }";
    let key = "map $http_x_api_key $app { default ''; key-1 one; }";
    for (http, server, told) in [
        ("", "", &unchecked[..]),
        ("", any, &unchecked),
        (key, "if ($app = '') { return 403; }", &unchecked),
        (TOKENS, ASKED, &checked),
        ("", "auth_basic x;", &checked),
    ] {
        let outcome = front(http, server, "");
        assert!(
            outcome.differs(told),
            "{server}: {:#?}",
            outcome.differences
        );
        let both = [unchecked[1], checked[1]].map(|it| outcome.differs(&[it]));
        assert_ne!(both[0], both[1], "{server}: {:#?}", outcome.differences);
    }
    // The line alone is no lost directive.
    assert!(front("", "", "").lines.is_empty());
    for location in [
        "proxy_set_header Authorization '';",
        "proxy_set_header authorization 'Bearer x';",
        "proxy_pass_request_headers off;",
    ] {
        for (http, server) in [("", ""), (TOKENS, ASKED)] {
            let outcome = front(http, server, location);
            let told = outcome.differs(&["Authorization"]);
            assert!(!told, "{location}: {:#?}", outcome.differences);
        }
    }
    // Locations of one namespace are one server.
    let outcome = import(
        "server { listen 80; location /a/mcp { proxy_pass http://10.0.0.1/mcp; }
                  location /a/sse { proxy_pass http://10.0.0.1/sse; } location /b/ { proxy_pass http://10.0.0.2/; } }",
    );
    let lines = outcome.differences.iter();
    assert_eq!(
        lines.filter(|it| it.contains("without judging it")).count(),
        2
    );
}

#[test]
fn a_server_that_no_longer_gets_the_host_of_clients_is_told_once() {
    for value in ["$host", "$http_host", "$host:$server_port"] {
        let outcome = import(&format!(
            "server {{ listen 80; server_name a.example;\nproxy_set_header Host {value};
               location /a/ {{ proxy_pass http://10.0.0.1/; }} location /b/ {{ proxy_pass http://10.0.0.2/; }} }}"
        ));
        assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
        let told = [
            "nginx.conf:2: proxy_set_header: ",
            "as Host",
            "headers: { set: { Host: NAME } }",
        ];
        assert!(
            outcome.differs(&told),
            "{value}: {:#?}",
            outcome.differences
        );
        let lines = outcome.differences.iter();
        assert_eq!(lines.filter(|it| it.contains("as Host")).count(), 1);
    }
    let outcome = front("", "", "proxy_set_header Host gw.example.com;");
    let set = at(&outcome, "upstreams.remote.search.headers.set");
    assert_eq!(set, "{Host:gw.example.com}", "{}", outcome.yaml);
    for location in [
        "",
        "proxy_set_header Host gw.example.com;",
        "proxy_set_header Host $proxy_host;",
    ] {
        let outcome = front("", "", location);
        assert!(
            !outcome.differs(&["as Host"]),
            "{location}: {:#?}",
            outcome.differences
        );
    }
}

#[test]
fn no_header_that_nginx_sets_is_advised_to_be_taken_from_clients() {
    let chain = format!("{TOKENS} map $client $role {{ default ''; ci robot; }}");
    for (http, value, is_security, words) in [
        (
            TOKENS,
            "$client",
            true,
            &["personal", "tooldock secrets set"][..],
        ),
        (TOKENS, "team-$client", true, &["personal"]),
        (&chain, "$role", true, &["personal"]),
        (
            "map $http_x_api_key $app { default ''; k1 one; }",
            "$app",
            true,
            &["personal"],
        ),
        ("", "$remote_user", true, &["personal"]),
        ("", "$ssl_client_s_dn", true, &["personal"]),
        (
            "",
            "$remote_addr",
            false,
            &["admission.cidrs", "fixed values"],
        ),
        (
            "",
            "$proxy_add_x_forwarded_for",
            false,
            &["admission.cidrs"],
        ),
        ("", "$scheme", false, &["headers.set", "fixed values"]),
        ("", "$http_x_other", false, &["fixed values"]),
        (
            "map $http_upgrade $up { default a; '' b; }",
            "$up",
            true,
            &["personal"],
        ),
    ] {
        let outcome = front(http, "", &format!("proxy_set_header X-Told {value};"));
        let place = if is_security {
            "nginx.conf:3: proxy_set_header: security: "
        } else {
            "nginx.conf:3: proxy_set_header: "
        };
        assert_eq!(
            outcome.security, is_security,
            "{value}: {:#?}",
            outcome.lines
        );
        assert!(
            outcome.says(&[words, &[place]].concat()),
            "{value}: {:#?}",
            outcome.lines
        );
        let lines = outcome
            .lines
            .iter()
            .filter(|it| it.contains("headers.pass"));
        for line in lines {
            assert!(line.contains("Never name"), "{line}");
        }
        assert_eq!(
            at(&outcome, "upstreams.remote.search.headers"),
            "null",
            "{value}"
        );
    }
    // Clients may write this one in nginx, too.
    let outcome = front("", "", "proxy_set_header X-Tenant $http_x_tenant;");
    assert_eq!(
        at(&outcome, "upstreams.remote.search.headers"),
        "{pass:[X-Tenant]}"
    );
}

#[test]
fn a_path_of_messages_is_no_namespace_and_a_stream_keeps_its_url() {
    let outcome = import(
        "server { listen 80; server_name a.example;
           location /legacy/sse { proxy_pass http://10.0.0.1:9000/sse; }
           location /messages/ { proxy_pass http://10.0.0.1:9000; }
           location /files/ { proxy_pass http://10.0.0.2/; } }",
    );
    assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
    for (path, expected) in [
        ("upstreams.remote.default", "null"),
        ("upstreams.remote.legacy.transport", "sse"),
        (
            "upstreams.remote.legacy.backends",
            "[http://10.0.0.1:9000/sse]",
        ),
        ("namespaces.overrides.legacy.aliases", "[/legacy/sse]"),
        ("namespaces.overrides.files.aliases", "[/files/mcp]"),
    ] {
        assert_eq!(at(&outcome, path), expected, "{path}\n{}", outcome.yaml);
    }
    // The order of the locations plays no part, and other paths of messages are told.
    let outcome = import(
        "server { listen 80; server_name a.example;
           location /old/messages/ { proxy_pass http://10.0.0.1:9000/messages/; }
           location /legacy/sse { proxy_pass http://10.0.0.1:9000/sse; } }",
    );
    assert_eq!(
        at(&outcome, "upstreams.remote.old"),
        "null",
        "{}",
        outcome.yaml
    );
    assert!(
        outcome.differs(&[
            "nginx.conf:2: location: ",
            "the stream of legacy",
            "/messages"
        ]),
        "{:#?}",
        outcome.differences
    );
    // A stream of another server is no stream for these messages.
    let outcome = import(
        "server { listen 80; server_name a.example; location /sse { proxy_pass http://10.0.0.1; }
           location /messages/ { proxy_pass http://10.0.0.2; } }",
    );
    assert!(
        outcome.says(&["nginx.conf:2: location: ", "no location leads to a stream"]),
        "{:#?}",
        outcome.lines
    );
    // A stream and an endpoint of one server are one namespace, with both paths.
    let outcome = import(
        "server { listen 80; server_name a.example; location /a/mcp { proxy_pass http://10.0.0.1/mcp; }
           location /a/sse { proxy_pass http://10.0.0.1/sse; } location /a/messages { proxy_pass http://10.0.0.1/messages; } }",
    );
    assert_eq!(
        at(&outcome, "namespaces.overrides"),
        "{a:{aliases:[/a/mcp,/a/sse]}}"
    );
}

#[test]
fn a_stream_whose_clients_say_no_namespace_is_told_with_an_alias() {
    let outcome = import(
        "upstream old { server 10.0.0.1:9000; }
         server { listen 80; server_name a.example;
           location /sse { proxy_pass http://old; } location /messages/ { proxy_pass http://old; }
           location /files/ { proxy_pass http://10.0.0.2/; } }",
    );
    let told = [
        "nginx.conf:3: location: ",
        "namespace_required",
        "namespaces.overrides.old.aliases",
        "/old/sse",
    ];
    assert!(outcome.says(&told), "{:#?}", outcome.lines);
    assert!(!outcome.says(&["/mcp/old"]), "{:#?}", outcome.lines);
    assert_eq!(at(&outcome, "namespaces.overrides.old"), "null");
}

#[test]
fn endpoints_that_no_path_names_are_told_with_the_way_to_http_sse() {
    let outcome = import(
        "server { listen 80; server_name a.example; location /legacy/ { proxy_pass http://10.0.0.1/; }
           location /b/ { proxy_pass http://10.0.0.2/; } location /c/mcp { proxy_pass http://10.0.0.3/mcp; } }",
    );
    let told = [
        "upstreams.remote: the endpoint of legacy, b is taken to be /mcp",
        "transport: sse",
        "/sse",
    ];
    assert!(outcome.differs(&told), "{:#?}", outcome.differences);
    let named = import("server { listen 80; location /c/mcp { proxy_pass http://10.0.0.3/mcp; } }");
    assert!(
        !named.differs(&["is taken to be"]),
        "{:#?}",
        named.differences
    );
}

#[test]
fn pages_that_one_location_lets_in_alone_are_named_with_the_location_that_does_not() {
    let two = |a: &str, b: &str| {
        import(&format!(
            "server {{ listen 80; server_name a.example;\nlocation /files/ {{ proxy_pass http://10.0.0.1/; {a} }}\nlocation /search/ {{ proxy_pass http://10.0.0.2/; {b} }} }}"
        ))
    };
    let cors = "add_header Access-Control-Allow-Origin https://chat.example.test always;";
    let own = "[http://a.example]";
    for (a, b, named, other) in [(cors, "", 2, 3), ("", cors, 3, 2)] {
        let outcome = two(a, b);
        assert_eq!(at(&outcome, "admission.origins"), own);
        let place = format!("nginx.conf:{named}: add_header: ");
        let other = format!("nginx.conf:{other} does not let them in");
        let told = [
            &place,
            "pages of https://chat.example.test are refused from now on",
            &*other,
            "admission.origins",
        ];
        assert!(outcome.says(&told), "{:#?}", outcome.lines);
        assert_eq!(outcome.lines.len(), 1, "{:#?}", outcome.lines);
        assert!(!outcome.security);
        // No line of nginx names the pages that are left.
        assert!(
            outcome
                .yaml
                .contains("# pages of the servers themselves: list"),
            "{}",
            outcome.yaml
        );
    }
    // Pages that both let in stay, and the comment names a line that lets them in.
    let literal = "add_header Access-Control-Allow-Origin https://chat.example.test;";
    let outcome = two(cors, literal);
    assert_eq!(
        at(&outcome, "admission.origins"),
        "[http://a.example,https://chat.example.test]"
    );
    assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
    assert!(
        outcome.yaml.contains("  # nginx.conf:2\n  origins:"),
        "{}",
        outcome.yaml
    );
    // The pages behind a variable are not read.
    let outcome = two("add_header Access-Control-Allow-Origin $cors;", "");
    assert_eq!(at(&outcome, "admission.origins"), own);
    assert!(
        outcome.says(&["nginx.conf:2: add_header: ", "variable are not read"]),
        "{:#?}",
        outcome.lines
    );
    // A location that lets in every page.
    let outcome = two("add_header Access-Control-Allow-Origin *;", literal);
    assert_eq!(
        at(&outcome, "admission.origins"),
        "[http://a.example,https://chat.example.test]"
    );
    assert!(
        outcome.says(&[
            "nginx.conf:2: add_header: ",
            "all pages but those",
            "nginx.conf:3 does not"
        ]),
        "{:#?}",
        outcome.lines
    );
    assert!(
        outcome.yaml.contains("  # nginx.conf:3\n  origins:"),
        "{}",
        outcome.yaml
    );
    // Differences beside a condition that refuses pages are about security.
    let guard = "if ($http_origin != 'https://b.example') { return 403; }";
    let outcome = two(cors, guard);
    assert_eq!(at(&outcome, "admission.origins"), "[]");
    for words in [
        [
            "nginx.conf:2: add_header: security: ",
            "http://a.example, https://chat.example.test",
            "nginx.conf:3",
        ],
        [
            "nginx.conf:3: if: security: ",
            "https://b.example",
            "nginx.conf:2",
        ],
    ] {
        assert!(outcome.says(&words), "{words:?}: {:#?}", outcome.lines);
    }
}

#[test]
fn clients_without_sessions_or_with_another_accept_are_told_the_keys_of_the_listener() {
    let outcome = front("", "", "");
    for words in [
        ["listeners: ", "session_required", "session: optional"],
        ["listeners: ", "406", "accept: lenient"],
    ] {
        assert!(
            outcome.differs(&words),
            "{words:?}: {:#?}",
            outcome.differences
        );
    }
    let none = import("server { listen 80; }");
    assert!(
        !none.differs(&["session_required"]),
        "{:#?}",
        none.differences
    );
}

#[test]
fn variables_that_the_log_loses_are_named() {
    let outcome = front(
        "log_format mcp '$remote_addr ust=$upstream_status $upstream_addr $upstream_status ${gzip_ratio}x';",
        "access_log /dev/stdout mcp;",
        "",
    );
    let told = [
        "nginx.conf:1: log_format: $upstream_status, $gzip_ratio: ",
        "docs/operating.md",
    ];
    assert!(outcome.says(&told), "{:#?}", outcome.lines);
    assert_eq!(
        at(&outcome, "observability.access_log.format"),
        "$remote_addr ust=- $upstream_addr - -x"
    );
}
