//! Ports, paths, probes and log lines of an operator, which go on after the import.

use super::*;

#[test]
fn metrics_stay_on_a_port_of_this_machine_that_the_file_does_not_name() {
    for (text, expected) in [
        ("server { listen 80; location /mcp { proxy_pass http://10.0.0.1; } }", "127.0.0.1:9090"),
        ("server { listen 9090; location /mcp { proxy_pass http://10.0.0.1; } }", "127.0.0.1:9091"),
        ("server { listen [::]:9090; location /mcp { proxy_pass http://127.0.0.1:9091/; } }", "127.0.0.1:9092"),
        (
            "upstream u { server localhost:9090; } server { listen 80; location /mcp { proxy_pass http://u; } }
             server { listen 127.0.0.1:9091; return 301 https://x; }",
            "127.0.0.1:9092",
        ),
        (
            "server { listen 80; location /mcp { proxy_pass http://10.0.0.1; } location = /nginx { stub_status; } }",
            "127.0.0.1:9090",
        ),
    ] {
        let outcome = import(text);
        let listeners = at(&outcome, "listeners");
        let metrics = format!("{{name:metrics,address:{expected},profile:metrics}}]");
        assert!(listeners.ends_with(&metrics), "{text}: {listeners}");
    }
    // The gateway's own listeners have metrics.
    let outcome = import("location /mcp { proxy_pass http://10.0.0.1; }");
    assert_eq!(at(&outcome, "listeners.0.profile"), "core");
    assert_eq!(at(&outcome, "listeners.1.profile"), "metrics");
    let outcome = import("location /x/ { proxy_pass http://10.0.0.1/; }");
    assert_eq!(at(&outcome, "listeners"), "null");
}

#[test]
fn a_location_that_only_answers_is_listed() {
    for (location, words) in [
        (
            "location = /healthz { return 200 ok; }",
            &["return", "/healthz", "/health", "/ready"][..],
        ),
        ("location /healthz { return 204; }", &["/healthz", "/ready"]),
        (
            "location = /ping { default_type text/plain; return 200 'pong'; }",
            &["/ping", "/ready"],
        ),
        (
            "location = /health { return 200; }",
            &["answers /health itself"],
        ),
        (
            "location = /robots.txt { return 200 'User-agent: *'; }",
            &["no texts or redirects"],
        ),
        (
            "location = / { return 302 /docs; }",
            &["no texts or redirects"],
        ),
    ] {
        let outcome = front("", &format!("\n{location}"), "");
        assert!(
            outcome.lines.len() == 1 && outcome.says(words) && !outcome.security,
            "{location}: {:#?}",
            outcome.lines
        );
        assert!(
            outcome.lines[0].starts_with("nginx.conf:3: "),
            "{:#?}",
            outcome.lines
        );
    }
    let outcome = front(
        "",
        "location = /healthz { access_log off; return 200; }",
        "",
    );
    assert!(
        outcome.lines.len() == 2 && outcome.says(&["access_log", "every request"]),
        "{:#?}",
        outcome.lines
    );
    // The gateway answers unknown paths the same way.
    let outcome = front("", "location / { return 404; }", "");
    assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
}

#[test]
fn paths_of_clients_are_aliases_unless_they_lead_elsewhere_here() {
    let outcome = import(
        "server { listen 80; server_name a.example b.example;
           location /files/ { proxy_pass http://10.0.0.1/; }
           location /search { proxy_pass http://10.0.0.2/mcp; }
           location = /v1/search-mcp { proxy_pass http://10.0.0.2/mcp; }
           location /mcp/time { proxy_pass http://10.0.0.3/mcp; }
           location /mcp/old-clock { proxy_pass http://10.0.0.4/mcp; }
           location /tools/ { proxy_pass http://10.0.0.5/; }
           location /sse { proxy_pass http://10.0.0.6; }
           location = /what%20ever { proxy_pass http://10.0.0.7/mcp; } }",
    );
    assert_eq!(
        at(&outcome, "namespaces.overrides"),
        "{files:{aliases:[/files/mcp]},search:{aliases:[/search]},v1-search-mcp:{aliases:[/v1/search-mcp]}}",
        "{}",
        outcome.yaml
    );
    assert!(
        outcome.says(&["nginx.conf:7: location: ", "cannot be an alias"]),
        "{:#?}",
        outcome.lines
    );
    assert!(
        outcome.says(&["nginx.conf:9: location: ", "cannot be an alias"]),
        "{:#?}",
        outcome.lines
    );
    // By the host's name, nginx leads the path to different servers.
    let outcome = import(
        "server { listen 80; server_name a.example; location /x/mcp { proxy_pass http://10.0.0.1/mcp; } }
         server { listen 80; server_name b.example; location /x/mcp { proxy_pass http://10.0.0.2/mcp; } }",
    );
    assert_eq!(at(&outcome, "namespaces.overrides"), "null");
    assert!(
        outcome.says(&["nginx.conf:2: location: ", "nginx.conf:1", "no alias"]),
        "{:#?}",
        outcome.lines
    );
}

const TOKENS: &str = "'Bearer 0d4b31aa-ci-77f0' ci; 'Bearer 77aa02c3d9' desk;";

#[test]
fn the_names_of_tokens_go_on_in_the_log() {
    for (maps, condition) in [(
        format!("map $http_authorization $client {{ default ''; {TOKENS} }}"),
        "if ($client = '') { return 401; }",
    )] {
        for sent in ["", "proxy_set_header X-Client-Name $client;"] {
            let outcome = front(
                &format!("{maps} log_format mcp '$remote_addr $client ${{client}}x \"$request\"';"),
                &format!("{condition} access_log /dev/stdout mcp;"),
                sent,
            );
            let names = [0, 1].map(|index| at(&outcome, &format!("admission.tokens.{index}.name")));
            assert_eq!(names, ["ci", "desk"], "{maps} {sent}\n{}", outcome.yaml);
            let format = at(&outcome, "observability.access_log.format");
            assert_eq!(
                format, "$remote_addr $remote_user ${remote_user}x \\$request\\",
                "{maps}"
            );
            assert!(!outcome.yaml.contains("0d4b31aa") && !outcome.yaml.contains("77aa02c3d9"));
        }
    }
    // The names of a map that no `if` tests are not read.
    let outcome = front(
        &format!(
            "map $http_authorization $ok {{ default 0; 'Bearer 0d4b31aa-ci-77f0' 1; 'Bearer 77aa02c3d9' 1; }}
             map $http_authorization $client {{ default -; {TOKENS} }}
             log_format mcp '$client $request';"
        ),
        "if ($ok = 0) { return 401; } access_log /dev/stdout mcp;",
        "",
    );
    assert_eq!(at(&outcome, "admission.tokens.0.name"), "token-1");
    assert_eq!(
        at(&outcome, "observability.access_log.format"),
        "- $request"
    );
    for words in [
        ["nginx.conf:2: map: ", "no if tests this variable"],
        ["nginx.conf:3: log_format: ", "$client"],
    ] {
        assert!(outcome.says(&words), "{words:?}: {:#?}", outcome.lines);
    }
    // Values that go to servers may be credentials of theirs.
    let outcome = front(
        &format!("map $http_authorization $client {{ default ''; {TOKENS} }}"),
        "if ($client = '') { return 401; }",
        "proxy_set_header X-Upstream $client;",
    );
    assert_eq!(at(&outcome, "admission.tokens.0.name"), "token-1");
    assert!(
        outcome.says(&["token-1", "is no secret"]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn a_name_with_other_characters_is_cleaned_and_listed() {
    let outcome = front(
        "map $http_authorization $client { default '';
           'Bearer 0d4b31aa77f0' 'build bot'; 'Bearer 77aa02c3d9' team:desk; 'Bearer 91cc55d0e2' build-bot;
           'Bearer 5e884898da' ops-5e884898da; 'Bearer 3c9909afec' anonymous; }",
        "if ($client = '') { return 401; }",
        "",
    );
    let names =
        [0, 1, 2, 3, 4].map(|index| at(&outcome, &format!("admission.tokens.{index}.name")));
    assert_eq!(
        names,
        [
            "build-bot",
            "team-desk",
            "build-bot-2",
            "token-1",
            "token-2"
        ],
        "{}",
        outcome.yaml
    );
    for (line, name) in [
        (2, "build-bot"),
        (2, "team-desk"),
        (2, "build-bot-2"),
        (3, "token-1"),
        (3, "token-2"),
    ] {
        let words = [
            &format!("nginx.conf:{line}: line of map: "),
            "the name of a principal",
            &format!("the client is {name} here"),
        ];
        assert!(outcome.says(&words), "{words:?}: {:#?}", outcome.lines);
    }
    assert!(!outcome.security, "{:#?}", outcome.lines);
    // The name says of the token what its own spelling does not.
    let outcome = front(
        "map $http_authorization $client { default ''; 'Bearer build-bot-77' 'build bot'; }",
        "if ($client = '') { return 401; }",
        "",
    );
    assert_eq!(at(&outcome, "admission.tokens.0.name"), "token-1");
}

#[test]
fn a_client_whose_name_is_a_number_is_listed_with_its_new_name() {
    let clients = |values: [&str; 2]| {
        let outcome = front(
            &format!(
                "map $http_authorization $client {{ default '';
                   'Bearer 0d4b31aa77f0' {}; 'Bearer 77aa02c3d9' {}; }}",
                values[0], values[1]
            ),
            "if ($client = '') { return 401; }",
            "",
        );
        let names = [0, 1].map(|index| at(&outcome, &format!("admission.tokens.{index}.name")));
        assert_eq!(names, ["token-1", "token-2"], "{}", outcome.yaml);
        outcome.lines
    };
    {
        let lines = clients(["1001", "1002"]);
        assert_eq!(lines.len(), 2, "{lines:#?}");
        for (line, name) in lines.iter().zip(["token-1", "token-2"]) {
            let end = format!("the client is {name} here and in logs");
            assert!(line.starts_with("nginx.conf:2: line of map: "), "{line}");
            assert!(line.ends_with(&end), "{line}");
        }
    }
    // These values name no client.
    assert_eq!(clients(["1", "1"]), [""; 0]);
    // A number that is a part of its token stays secret, and its client is listed all the same.
    let outcome = front(
        "map $http_authorization $client { default ''; 'Bearer 4711' 4711; }",
        "if ($client = '') { return 401; }",
        "",
    );
    assert!(
        outcome.says(&["is no secret", "token-1"]),
        "{:#?}",
        outcome.lines
    );
    assert!(!outcome.says(&["4711"]), "{:#?}", outcome.lines);
}

#[test]
fn clients_that_are_not_let_in_any_more_are_listed_at_their_own_lines() {
    let outcome = front(
        "map $http_authorization $client { default '';
           'Bearer 0d4b31aa77f0' ci;
           '~^Bearer svc-[a-z]+$' service;
           'Basic dXNlcjpwdw==' desk; }",
        "if ($client = '') { return 401; }",
        "",
    );
    assert!(!outcome.security, "{:#?}", outcome.lines);
    let key = "tooldock keys create";
    for words in [
        ["nginx.conf:3: line of map: ", "this pattern", key],
        ["nginx.conf:4: line of map: ", "Basic", key],
    ] {
        assert!(outcome.says(&words), "{words:?}: {:#?}", outcome.lines);
    }
    assert_eq!(outcome.lines.len(), 2, "{:#?}", outcome.lines);
}

#[test]
fn an_import_brings_up_no_example_beside_the_servers_of_nginx() {
    assert_eq!(at(&front("", "", ""), "namespaces.starter"), "false");
    // A file that passes nothing on describes no whole gateway.
    assert_eq!(at(&import("server { listen 80; }"), "namespaces"), "null");
}

#[test]
fn a_name_that_a_second_map_only_looks_up_is_kept() {
    let client = format!("map $http_authorization $client {{ default ''; {TOKENS} }}");
    for second in [
        "map $client $limited { default ''; ci $binary_remote_addr; }
         limit_req_zone $limited zone=ci:1m rate=1r/s;",
        "map $client $limited { hostnames; default 0; .ci 1; }",
    ] {
        let outcome = front(
            &format!("{client} {second}"),
            "if ($client = '') { return 401; }",
            "",
        );
        let names = [0, 1].map(|index| at(&outcome, &format!("admission.tokens.{index}.name")));
        assert_eq!(names, ["ci", "desk"], "{second}\n{}", outcome.yaml);
    }
}

#[test]
fn the_id_of_a_request_goes_up_by_itself_unless_the_file_takes_it_away() {
    let search = "upstreams.remote.search.headers";
    for value in ["$request_id", "$http_x_request_id"] {
        let outcome = front("", "", &format!("proxy_set_header X-Request-ID {value};"));
        assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
        assert_eq!(at(&outcome, search), "null", "{}", outcome.yaml);
    }
    let outcome = front("", "", "proxy_set_header X-Request-Id '';");
    assert_eq!(
        at(&outcome, search),
        "{forward_id:false}",
        "{}",
        outcome.yaml
    );
    for line in ["X-Request-Id $connection", "X-Correlation-Id $request_id"] {
        let outcome = front("", "", &format!("proxy_set_header {line};"));
        let says = outcome.says(&["X-Request-Id", "headers.forward_id"]);
        assert!(
            says && outcome.lines.len() == 1,
            "{line}: {:#?}",
            outcome.lines
        );
    }
}

#[test]
fn pages_with_counters_of_nginx_are_listed_with_the_metrics_listener() {
    for status in [
        "server { listen 127.0.0.1:8081; location /nginx_status { stub_status; } }",
        "server { listen 127.0.0.1:8081; location = /basic { stub_status on; allow 127.0.0.1; deny all; } }",
        "server { listen 127.0.0.1:8081; stub_status; }",
    ] {
        let outcome = front(status, "", "");
        let says = outcome.says(&["nginx.conf:1: stub_status: ", "/metrics", "127.0.0.1:9090"]);
        assert!(
            says && outcome.lines.len() == 1,
            "{status}: {:#?}",
            outcome.lines
        );
    }
}

#[test]
fn a_stop_waits_for_a_day_at_most_and_the_report_says_so() {
    let outcome = front("worker_shutdown_timeout 7d;", "", "");
    assert_eq!(at(&outcome, "replicas.grace"), "24h");
    assert!(
        outcome.says(&["worker_shutdown_timeout", "replicas.grace is at most 24h"]),
        "{:#?}",
        outcome.lines
    );
    let outcome = front("worker_shutdown_timeout 24h;", "", "");
    assert_eq!(at(&outcome, "replicas.grace"), "24h");
    assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
}

#[test]
fn all_paths_of_a_regular_expression_are_aliases_where_they_can_be_counted() {
    let outcome = import(
        "server { listen 80; server_name a.example;
           location ~ ^/(one|two)/mcp/?$ { proxy_pass http://10.0.0.1; } }",
    );
    assert_eq!(
        at(&outcome, "namespaces.overrides"),
        "{one:{aliases:[/one/mcp,/two/mcp]}}",
        "{}",
        outcome.yaml
    );
    assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
    let outcome = import(
        "server { listen 80; server_name a.example;
           location ~ ^/v\\d+/mcp$ { proxy_pass http://10.0.0.1; } }",
    );
    assert!(
        outcome.says(&["nginx.conf:2: location: ", "clients get 404 at the paths"]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn a_header_of_websockets_is_told() {
    let told = |header: &str| {
        let outcome = front("", "", header);
        outcome.differs(&["proxy_set_header: ", "WebSockets are not carried over"])
    };
    assert!(told("proxy_set_header Upgrade $http_upgrade;"));
    assert!(!told("proxy_set_header Connection '';"));
}
