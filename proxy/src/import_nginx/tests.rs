//! Whole configurations of nginx and what becomes of them.

mod credentials;
mod detours;
mod differences;
mod limits;
mod nearer;
mod operation;
mod page;
mod passed_on;
mod security;
mod transport;

use tooldock_base::yaml::{self, Value};

use super::*;

/// A configuration, the lines of the report, and whether one of them is about security.
struct Outcome {
    yaml: String,
    lines: Vec<String>,
    /// The lines about directives that are carried over and behave differently.
    differences: Vec<String>,
    security: bool,
}

impl Outcome {
    fn value(&self) -> Value {
        yaml::from_str(&self.yaml).expect("yaml")
    }

    /// Whether some line has all these words.
    fn says(&self, words: &[&str]) -> bool {
        self.lines
            .iter()
            .any(|line| words.iter().all(|word| line.contains(word)))
    }

    /// Whether some line about differences has all these words.
    fn differs(&self, words: &[&str]) -> bool {
        self.differences
            .iter()
            .any(|line| words.iter().all(|word| line.contains(word)))
    }
}

/// Imports a text as nginx.conf. Places name it without its folder.
fn read(text: &str) -> Result<Outcome, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("nginx.conf");
    fs::write(&file, text).expect("written");
    let prefix = format!("{}/", folder.path().display());
    let bare = |text: String| text.replace(&prefix, "");
    let import = tooldock_import_nginx::import(&file, &GATEWAY);
    let Import { yaml, report } = import.map_err(|error| bare(error.to_string()))?;
    Ok(Outcome {
        lines: report.lines().map(bare).collect(),
        differences: report.differences().map(bare).collect(),
        security: report.has_security(),
        yaml: bare(yaml),
    })
}

fn import(text: &str) -> Outcome {
    let outcome = read(text).expect(text);
    if let Err(error) = checked(&outcome.yaml) {
        panic!("{error}\n{}", outcome.yaml);
    }
    outcome
}

/// A server with a location that passes requests on, and further lines in each block.
fn front(http: &str, server: &str, location: &str) -> Outcome {
    import(&format!(
        "{http}\nserver {{ listen 127.0.0.1:8080; server_name gw.example.com; {server}\nlocation /search/ {{ proxy_pass http://10.0.0.1:9000/; {location} }} }}"
    ))
}

/// The value of a path of keys, as text of YAML in one line.
fn at(outcome: &Outcome, path: &str) -> String {
    let mut value = &outcome.value();
    for key in path.split('.') {
        value = match key.parse::<usize>() {
            Ok(index) => &value[index],
            Err(_) => &value[key],
        };
    }
    serde_json::to_string(value).expect("json").replace('"', "")
}

fn published() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/nginx/published.conf");
    fs::read_to_string(file).expect("the fixture")
}

#[test]
fn the_published_configuration_is_carried_over_whole() {
    let outcome = import(&published());
    assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
    for (path, expected) in [
        (
            "listeners",
            "[{name:core,address:0.0.0.0:443,profile:core,namespace:mcp,tls:{cert:gw.pem,key:gw.key}},{name:metrics,address:127.0.0.1:9090,profile:metrics}]",
        ),
        ("admission.hosts", "[gw.example.com]"),
        ("admission.origins", "[https://app.example.com]"),
        ("admission.cidrs", "{allow:[10.0.0.0/8]}"),
        ("admission.flood", "{rate:100,burst:20}"),
        ("admission.limits", "{body:10MiB}"),
        (
            "admission.tokens.0.sha256",
            "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0",
        ),
        ("admission.tokens.0.namespaces", "[mcp]"),
        (
            "upstreams.remote.mcp.backends",
            "[http://10.0.0.11:8080/mcp,http://10.0.0.12:8080/mcp]",
        ),
        ("upstreams.remote.mcp.balance", "hash"),
        ("upstreams.remote.mcp.keepalive", "32"),
        ("upstreams.remote.mcp.timeouts", "{head:1h,call:1h}"),
        ("upstreams.remote.mcp.limits", "{timeout:1h}"),
    ] {
        assert_eq!(at(&outcome, path), expected, "{path}\n{}", outcome.yaml);
    }
    assert!(outcome.yaml.contains("# nginx.conf:2"), "{}", outcome.yaml);
}

#[test]
fn what_the_gateway_does_anyway_is_not_mentioned() {
    let outcome = front(
        "map $http_upgrade $connection_upgrade { default upgrade; '' close; }",
        "server_tokens off; tcp_nodelay on; keepalive_timeout 75s; access_log off;",
        "proxy_http_version 1.1; proxy_set_header Connection $connection_upgrade; proxy_set_header Upgrade $http_upgrade; \
         proxy_set_header Host $host; proxy_buffering off; proxy_cache off; gzip off; chunked_transfer_encoding off; \
         add_header X-Accel-Buffering no; add_header Access-Control-Allow-Origin *; proxy_request_buffering off; \
         if ($request_method = OPTIONS) { add_header Access-Control-Allow-Origin *; return 204; } auth_basic off; satisfy all;",
    );
    assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
    assert_eq!(at(&outcome, "admission"), "{hosts:[gw.example.com]}");
}

#[test]
fn directives_are_inherited_as_nginx_inherits_them() {
    let outcome = import(
        "proxy_read_timeout 2m; proxy_set_header X-Outer 1; add_header X-Outer a; limit_req_zone $remote_addr zone=z:1m rate=5r/s;
         server { listen 80; limit_req zone=z burst=9 nodelay; proxy_set_header X-Debug true; add_header X-Server b;
           location /a/ { proxy_pass http://10.0.0.1/; }
           location /b/ { proxy_pass http://10.0.0.2/; proxy_set_header X-Own 0; proxy_read_timeout 3m;
             proxy_connect_timeout 1s; } }",
    );
    for (path, expected) in [
        ("upstreams.remote.a.headers.set", "{X-Debug:true}"),
        ("upstreams.remote.b.headers.set", "{X-Own:0}"),
        ("upstreams.remote.a.timeouts.head", "2m"),
        ("upstreams.remote.b.timeouts.head", "3m"),
        ("upstreams.remote.b.timeouts.connect", "1s"),
        ("listeners.0.headers.response.set", "{X-Server:b}"),
        ("admission.flood", "{rate:5,burst:9}"),
    ] {
        assert_eq!(at(&outcome, path), expected, "{path}\n{}", outcome.yaml);
    }
}

#[test]
fn tls_and_redirects_are_carried_over() {
    let outcome = import(
        "server { listen 80 default_server; server_name gw.example.com; return 301 https://$host$request_uri; }
         server { listen 443 ssl; listen [::]:443 ssl; server_name gw.example.com; ssl_certificate a.pem; ssl_certificate_key a.key; ssl_protocols TLSv1.3;
           ssl_client_certificate ca.pem; ssl_verify_client optional; location /mcp { proxy_pass http://127.0.0.1:9000; } }",
    );
    assert!(
        !outcome.security && outcome.says(&["nginx.conf:1: return: ", "https"]),
        "{:#?}",
        outcome.lines
    );
    assert_eq!(at(&outcome, "listeners.0.address"), "[::]:443");
    assert_eq!(at(&outcome, "listeners.1.name"), "metrics");
    assert_eq!(
        at(&outcome, "listeners.0.tls"),
        "{cert:a.pem,key:a.key,min_version:1.3,client_ca:ca.pem,client_auth:optional}"
    );
    let outcome = import(
        "server { listen 80; listen 443 ssl; ssl_certificate a; ssl_certificate_key b; if ($scheme = http) { return 301 https://x; } location /mcp { proxy_pass http://127.0.0.1:9000; } }",
    );
    // The listener without TLS is for the operator to take out.
    assert!(outcome.says(&["if: security: "]), "{:#?}", outcome.lines);
    assert_eq!(at(&outcome, "listeners.0.address"), "0.0.0.0:80");
    assert_eq!(at(&outcome, "listeners.1.address"), "0.0.0.0:443");
}

#[test]
fn an_address_that_the_gateway_would_refuse_is_reported_and_not_written() {
    let outcome = import(
        "server { listen unix:x.sock; listen unix:/run/x.sock; location /mcp { proxy_pass http://127.0.0.1:9000; } }",
    );
    assert_eq!(at(&outcome, "listeners.0.address"), "unix:/run/x.sock");
    assert_eq!(at(&outcome, "listeners.1.name"), "metrics");
    assert!(
        outcome.says(&["listen: ", "the gateway listens on addresses"]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn namespaces_are_named_by_their_paths_and_collisions_are_told() {
    let outcome = import(
        "upstream files { server unix:/run/files.sock; server 10.0.0.9:80 down; }
         server { listen 80; server_name a.example.com;
           location /mcp { proxy_pass http://files; }
           location /sse { proxy_pass http://files; }
           location /messages/ { proxy_pass http://files; }
           location ^~ /GitHub/mcp { proxy_pass https://api.example.com/mcp/; }
           location ~ ^/tools/(.*)$ { proxy_pass http://127.0.0.1:9003; }
           location /old/ { proxy_pass http://127.0.0.1:9004; rewrite ^/old/(.*)$ /$1 break; }
           location = /health { proxy_pass http://files; }
           location /.well-known/ { proxy_pass http://files; }
           location @fallback { proxy_pass http://files; } }
         server { listen 80; server_name b.example.com; location /GitHub/mcp { proxy_pass http://127.0.0.1:9005; } }",
    );
    for (path, expected) in [
        (
            "upstreams.remote.files.backends",
            "[unix:/run/files.sock:/mcp,{url:http://10.0.0.9:80/mcp,weight:0}]",
        ),
        (
            "upstreams.remote.github.backends",
            "[https://api.example.com/mcp/]",
        ),
        (
            "upstreams.remote.tools.backends",
            "[http://127.0.0.1:9003/tools/mcp]",
        ),
        (
            "upstreams.remote.old.backends",
            "[http://127.0.0.1:9004/mcp]",
        ),
        (
            "upstreams.remote.github-2.backends",
            "[http://127.0.0.1:9005/GitHub/mcp]",
        ),
    ] {
        assert_eq!(at(&outcome, path), expected, "{path}\n{}", outcome.yaml);
    }
    assert!(
        outcome.says(&["location", "github-2"]),
        "{:#?}",
        outcome.lines
    );
    assert!(!outcome.security, "{:#?}", outcome.lines);
}

#[test]
fn a_location_beside_the_endpoint_is_no_namespace() {
    let outcome = import(
        "server { listen 80; server_name a.example;
           location / { proxy_pass http://10.0.0.1; }
           location = /mcp { if ($http_authorization != 'Bearer t') { return 401; } allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.2; }
           location /mcp/ { proxy_pass http://10.0.0.2; } }",
    );
    assert_eq!(
        at(&outcome, "upstreams.remote.default.backends"),
        "[http://10.0.0.2/mcp]"
    );
    assert_eq!(at(&outcome, "upstreams.remote.default-2"), "null");
    assert_eq!(at(&outcome, "admission.cidrs"), "{allow:[10.0.0.0/8]}");
    assert!(!outcome.security, "{:#?}", outcome.lines);
    assert!(
        outcome.lines.len() == 1 && outcome.says(&["nginx.conf:2: location", "nginx.conf:3"]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn an_endpoint_whose_clients_say_no_namespace_is_listed_where_its_address_serves_several() {
    let listed = |locations: &str| {
        let outcome = import(&format!(
            "server {{ listen 80; server_name a.example; {locations} }}"
        ));
        outcome.says(&["namespace_required", "/mcp/default", "X-Namespace: default"])
    };
    for path in ["/mcp", "= /mcp", "/mcp/", "/"] {
        let root = format!("location {path} {{ proxy_pass http://10.0.0.1; }}");
        assert!(!listed(&root), "{path}");
        let both = format!("{root} location /files/ {{ proxy_pass http://10.0.0.2/; }}");
        assert!(listed(&both), "{path}");
    }
}

#[test]
fn two_endpoints_of_one_server_are_two_namespaces() {
    let outcome = import(
        "server { listen 80; server_name a.example; location /mcp { proxy_pass http://10.0.0.1/one; } }
         server { listen 80; server_name b.example; location /mcp { proxy_pass http://10.0.0.1/other; } }
         server { listen 80; server_name c.example; location /mcp/ { proxy_pass http://10.0.0.1/other/; } }",
    );
    assert_eq!(
        at(&outcome, "upstreams.remote.default.backends"),
        "[http://10.0.0.1/one]"
    );
    assert_eq!(
        at(&outcome, "upstreams.remote.default-2.backends"),
        "[http://10.0.0.1/other]"
    );
    assert_eq!(at(&outcome, "upstreams.remote.default-3"), "null");
}

#[test]
fn what_is_written_is_told_from_its_place_and_holds_no_default() {
    let outcome = front(
        "",
        "client_header_timeout 15s; keepalive_timeout 75s; large_client_header_buffers 4 8k; proxy_read_timeout 30s;",
        "",
    );
    let expected = "# Imported from nginx. Check it with `tooldock check -c FILE`; docs/from-nginx.md says what is different.
# Every client needs a token here: set BEARER_TOKEN, or list tokens in admission.tokens.
listeners:
  # nginx.conf:2
  - name: core
    address: 127.0.0.1:8080
    profile: core
  # /metrics in the format of Prometheus, /health and /ready, for this machine
  - name: metrics
    address: 127.0.0.1:9090
    profile: metrics
admission:
  # nginx.conf:2
  hosts:
    - gw.example.com
  # pages of the servers themselves: list the pages that may call, as https://chat.example.com
  origins:
    - http://gw.example.com:8080
namespaces:
  # the servers of nginx alone are served, and no example
  starter: false
  overrides:
    search:
      # nginx.conf:3: the paths that clients have, which go on
      aliases:
        - /search/mcp
upstreams:
  remote:
    # nginx.conf:3: /search/mcp in nginx, /mcp/search here
    search:
      backends:
        - http://10.0.0.1:9000/mcp
      # each client has a session of its own at the server, as with nginx: take this out only if the server keeps nothing in its sessions
      isolation: session
      timeouts:
        # nginx.conf:2
        idle: 30s
      limits:
        # nginx.conf:2: here the time of a whole call, where nginx has none
        timeout: 1h
";
    assert_eq!(outcome.yaml, expected);
}

#[test]
fn odd_files_are_imported_or_refused_and_never_panic() {
    for text in [
        "",
        "http { }",
        "server { }",
        "server { listen; server_name; location { } }",
        "location { proxy_pass; }",
        "location / { proxy_pass http://; }",
        "location / { proxy_pass http://[::1; allow; deny; limit_req; limit_conn; if; if (); if ( ) { return; } }",
        "upstream x { } server { location / { proxy_pass http://x; } }",
        "upstream x { server; server y backup; } server { location / { proxy_pass http://x; } }",
        "map; map $a; map $a $b { default; } limit_req_zone; limit_conn_zone $x; log_format; access_log; server { access_log x y; location / { proxy_pass http://x$1; } }",
        "server { listen 443 ssl; ssl_certificate a; location ~ { proxy_pass http://é/é; proxy_set_header; add_header; add_header é é; } }",
        "server { listen 80; client_max_body_size 99999999999g; keepalive_timeout 0; large_client_header_buffers 0 0; location / { proxy_pass http://x; proxy_read_timeout 9999999y; } }",
        "worker_processes 99999; events { worker_connections 0; } worker_shutdown_timeout 0;",
        "server { listen 80; location / { proxy_pass http://x; add_header X-A \"a\nb\"; proxy_set_header X-B \"a\nb\"; } }",
    ] {
        import(text);
    }
    let many: String = (0..1_001)
        .map(|n| format!("location /{n}/ {{ proxy_pass http://x; }}"))
        .collect();
    let error = read(&many).map(drop).expect_err("too many");
    assert!(error.contains("more than 1000"), "{error}");
}

#[test]
fn thousands_of_directives_are_read() {
    let many = |line: &dyn Fn(usize) -> String| (0..5_000).map(line).collect::<String>();
    let networks = many(&|n| format!("deny 10.{}.{}.{};", n >> 16, (n >> 8) & 255, n & 255));
    let locations: String = (0..50)
        .map(|n| format!("location /{n}/ {{ proxy_pass http://10.0.0.1/{n}; }}"))
        .collect();
    let outcome = import(&format!(
        "{} upstream x {{ {} }} server {{ listen 80; server_name {}; {networks} {locations} }}",
        many(&|_| "frobnicate on;".to_owned()),
        many(&|n| format!("server 10.1.0.1:{};", n + 1)),
        many(&|n| format!("h{n} ")),
    ));
    // A single file and line.
    assert!(outcome.says(&["unknown directive"]));
}
