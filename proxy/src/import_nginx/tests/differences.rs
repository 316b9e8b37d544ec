//! Differences in behaviour that the import mends or tells, beside rules that are lost.

use super::*;

#[test]
fn clients_keep_sessions_of_their_own_at_each_server() {
    let outcome = import(
        "upstream pool { server 10.0.0.1:80; server 10.0.0.2:80; }
         server { listen 80; server_name a.example; location /a/ { proxy_pass http://pool/; } location /b/ { proxy_pass http://10.0.0.3/; }
                  location /sse { proxy_pass http://10.0.0.4; } }",
    );
    let value = outcome.value();
    let Value::Mapping(servers) = &value["upstreams"]["remote"] else {
        panic!("{}", outcome.yaml);
    };
    assert_eq!(servers.len(), 3, "{}", outcome.yaml);
    assert!(
        servers.values().all(|it| it["isolation"] == "session"),
        "{}",
        outcome.yaml
    );
}

#[test]
fn pages_of_the_servers_themselves_may_call_and_others_are_told() {
    for (server, origins) in [
        ("listen 80; server_name a.example;", "[http://a.example]"),
        (
            "listen 443 ssl; listen [::]:443 ssl; server_name a.example;",
            "[https://a.example]",
        ),
        (
            "listen 8080; listen 8443 ssl; server_name a.example;",
            "[http://a.example:8080,https://a.example:8443]",
        ),
        (
            "listen 80; server_name .b.example *.c.example ~^d;",
            "[http://b.example]",
        ),
        ("listen 80; server_name _;", "[]"),
        ("listen unix:/run/x.sock; server_name a.example;", "[]"),
    ] {
        let outcome = import(&format!(
            "server {{ {server} ssl_certificate /a; ssl_certificate_key /b; location /mcp {{ proxy_pass http://10.0.0.1; }} }}"
        ));
        assert_eq!(at(&outcome, "admission.origins"), origins, "{server}");
        assert!(
            outcome.differs(&["admission: ", "origin_not_allowed", "add the pages"]),
            "{server}: {:#?}",
            outcome.differences
        );
    }
    // The origins of all servers are one list.
    let outcome = import(
        "server { listen 80; server_name a.example; location /a/ { proxy_pass http://10.0.0.1/; } }
         server { listen 80; server_name b.example; location /b/ { proxy_pass http://10.0.0.2/; } }",
    );
    assert_eq!(
        at(&outcome, "admission.origins"),
        "[http://a.example,http://b.example]"
    );
    assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
}

#[test]
fn a_condition_on_origins_lets_in_no_page_that_it_refused() {
    let guard = "if ($page = 0) { return 403; }";
    let map = "map $http_origin $page { default 0; '' 1; https://chat.example 1; }";
    let outcome = front(map, guard, "");
    assert_eq!(at(&outcome, "admission.origins"), "[https://chat.example]");
    assert!(
        !outcome.differs(&["origin_not_allowed"]),
        "{:#?}",
        outcome.differences
    );
    let outcome = front(
        map,
        "",
        &format!("{guard} location /b/ {{ proxy_pass http://10.0.0.2/; }}"),
    );
    assert!(!at(&outcome, "admission.origins").contains("gw.example.com"));
    // Every page may call.
    let outcome = front("", "", "add_header Access-Control-Allow-Origin *;");
    assert!(
        !outcome.differs(&["origin_not_allowed"]),
        "{:#?}",
        outcome.differences
    );
}

#[test]
fn a_limit_of_connections_tells_how_excess_connections_end() {
    let outcome = front(
        "limit_conn_zone $server_name zone=c:1m;",
        "limit_conn c 20;",
        "",
    );
    assert_eq!(at(&outcome, "admission.limits"), "{connections:20}");
    let told = [
        "limit_conn: ",
        "closed without an answer",
        "/health",
        "admission.limits.concurrency",
    ];
    assert!(
        outcome.says(&told) && !outcome.security,
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn client_certificates_of_version_1_are_told() {
    let verified = |verify: &str| {
        import(&format!(
            "server {{ listen 443 ssl; server_name a.example; ssl_certificate /a; ssl_certificate_key /b; ssl_client_certificate /c;
                       ssl_verify_client {verify}; location /mcp {{ proxy_pass http://127.0.0.1:9000; }} }}"
        ))
    };
    for verify in ["on", "optional"] {
        let outcome = verified(verify);
        assert!(
            outcome.differs(&["nginx.conf:2: ssl_verify_client: ", "version 1"]),
            "{verify}: {:#?}",
            outcome.differences
        );
    }
    assert!(!verified("off").differs(&["version 1"]));
}

#[test]
fn an_open_location_beside_one_with_tokens_is_told_with_its_remedy() {
    let token = "if ($http_authorization != 'Bearer t1') { return 401; }";
    let two = |b: &str| {
        import(&format!(
            "server {{ listen 80; server_name a.example;\nlocation /a/ {{ {token} proxy_pass http://10.0.0.1/; }}\nlocation /b/ {{ {b} proxy_pass http://10.0.0.2/; }} }}"
        ))
    };
    let outcome = two("");
    let told = [
        "nginx.conf:3: location: ",
        "401",
        "namespace: b",
        "auth: [bearer, none]",
    ];
    assert!(outcome.says(&told), "{:#?}", outcome.lines);
    assert!(!outcome.security && !outcome.says(&["nginx.conf:2: location: "]));
    for asking in [token, "auth_basic x;"] {
        let outcome = two(asking);
        assert!(!outcome.says(&["401"]), "{asking}: {:#?}", outcome.lines);
    }
    let outcome = import(
        "map $ssl_client_s_dn $client { default ''; 'CN=a,O=b' a; }
         server { listen 443 ssl; server_name a.example; ssl_certificate /a; ssl_certificate_key /b; ssl_client_certificate /c; ssl_verify_client optional;
           location /a/ { if ($client = '') { return 403; } proxy_pass http://10.0.0.1/; }\nlocation /b/ { proxy_pass http://10.0.0.2/; } }",
    );
    assert!(
        outcome.says(&["nginx.conf:4: location: ", "namespace: b"]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn each_written_time_of_a_silence_is_told_to_be_the_time_of_a_call() {
    for (read, most) in [("2h", "2h"), ("1h", "1h"), ("45s", "1h"), ("10s", "1h")] {
        let outcome = front("", "", &format!("proxy_read_timeout {read};"));
        let told = format!("a call takes at most {most} in all");
        assert!(
            outcome.differs(&["nginx.conf:3: proxy_read_timeout: ", &told, "progress"]),
            "{read}: {:#?}",
            outcome.differences
        );
        // Silences are bounded as in nginx, and no shorter time bounds a call with progress.
        let limits = at(&outcome, "upstreams.remote.search.limits");
        assert_eq!(limits, format!("{{timeout:{most}}}"), "{read}");
        let idle = at(&outcome, "upstreams.remote.search.timeouts.idle");
        let expected = if read == "1h" { "null" } else { read };
        assert_eq!(idle, expected, "{read}");
    }
    let outcome = front("", "", "");
    assert!(!outcome.differs(&["proxy_read_timeout"]));
    let outcome = front("", "\nproxy_send_timeout 5s;", "");
    assert!(
        outcome.differs(&[
            "nginx.conf:3: proxy_send_timeout: ",
            "between two writes",
            "timeouts.head"
        ]) && outcome.lines.is_empty(),
        "{:#?}",
        outcome.differences
    );
}

/// A server with a pool of these servers, and directives of its location.
fn pool(servers: &str, location: &str) -> Outcome {
    import(&format!(
        "upstream pool {{ {servers} }}\nserver {{ listen 80; server_name a.example; location /mcp {{ proxy_pass http://pool; {location} }} }}"
    ))
}

#[test]
fn a_request_goes_on_to_as_many_backends_as_with_nginx() {
    let many = |count: usize| -> String {
        (1..=count)
            .map(|n| format!("server 10.0.0.{n}:80; "))
            .collect()
    };
    for (count, location, max) in [
        (2, "", "null"),
        (4, "", "{max:3}"),
        (4, "proxy_next_upstream_tries 0;", "{max:3}"),
        (4, "proxy_next_upstream_tries 2;", "null"),
        (4, "proxy_next_upstream_tries 1;", "{max:0}"),
        (4, "proxy_next_upstream off;", "{max:0}"),
        (12, "", "{max:10}"),
    ] {
        let outcome = pool(&many(count), location);
        assert_eq!(
            at(&outcome, "upstreams.remote.pool.retry"),
            max,
            "{count} {location}"
        );
        assert_eq!(
            outcome.differs(&["retry.max"]),
            count == 12,
            "{:#?}",
            outcome.differences
        );
    }
}

#[test]
fn failures_that_a_server_does_not_count_like_the_others_are_told() {
    let outcome = pool("server 10.0.0.1:80 max_fails=5;\nserver 10.0.0.2:80;", "");
    assert_eq!(
        at(&outcome, "upstreams.remote.pool.health"),
        "{passive:{failures:5}}"
    );
    assert!(
        outcome.says(&["nginx.conf:2: server: ", "max_fails is 1", "nginx.conf:1"]),
        "{:#?}",
        outcome.lines
    );
    for servers in [
        "server 10.0.0.1:80; server 10.0.0.2:80;",
        "server 10.0.0.1:80 max_fails=1; server 10.0.0.2:80;",
        "server 10.0.0.1:80 max_fails=5; server 10.0.0.2:80 max_fails=5;",
    ] {
        let outcome = pool(servers, "");
        assert!(outcome.lines.is_empty(), "{servers}: {:#?}", outcome.lines);
    }
}

#[test]
fn a_hash_is_told_to_place_sessions_and_not_clients() {
    let servers = "server 10.0.0.1:80; server 10.0.0.2:80;";
    for (hash, name) in [
        ("hash $http_authorization consistent;", "hash"),
        ("hash $remote_addr;", "hash"),
        ("ip_hash;", "ip_hash"),
    ] {
        let outcome = pool(&format!("{hash} {servers}"), "");
        assert_eq!(at(&outcome, "upstreams.remote.pool.balance"), "hash");
        let told = format!("nginx.conf:1: {name}: ");
        assert!(
            outcome.differs(&[&told, "a session stays at one backend"]),
            "{hash}: {:#?}",
            outcome.differences
        );
    }
}

#[test]
fn headers_of_one_location_that_a_whole_listener_gets_are_told() {
    let two = |a: &str, b: &str| {
        import(&format!(
            "server {{ listen 80; server_name a.example;\nlocation /a/ {{ proxy_pass http://10.0.0.1/; {a} }}\nlocation /b/ {{ proxy_pass http://10.0.0.2/; {b} }} }}"
        ))
    };
    for (line, words) in [
        ("add_header X-Frame-Options DENY;", "have it, too"),
        ("proxy_hide_header X-Powered-By;", "lose it, too"),
    ] {
        let outcome = two(line, "");
        assert!(
            outcome.says(&["nginx.conf:2: ", "nginx.conf:3", words]) && outcome.lines.len() == 1,
            "{line}: {:#?}",
            outcome.lines
        );
        assert!(two(line, line).lines.is_empty());
    }
}

#[test]
fn paths_without_a_root_are_copied_and_told() {
    let outcome = import(
        "log_format mcp '$request';
         server { listen 443 ssl; server_name a.example;
           ssl_certificate certs/a.pem;
           ssl_certificate_key certs/a.key;
           ssl_client_certificate ca.pem; ssl_verify_client on;
           access_log logs/access.log mcp;
           location /mcp { proxy_pass https://10.0.0.1; proxy_ssl_verify on;
             proxy_ssl_trusted_certificate up.pem; } }",
    );
    assert_eq!(at(&outcome, "listeners.0.tls.cert"), "certs/a.pem");
    assert_eq!(
        at(&outcome, "observability.access_log.path"),
        "logs/access.log"
    );
    for place in [
        "nginx.conf:3: ssl_certificate: ",
        "nginx.conf:4: ssl_certificate_key: ",
        "nginx.conf:5: ssl_client_certificate: ",
        "nginx.conf:6: access_log: ",
        "nginx.conf:8: proxy_ssl_trusted_certificate: ",
    ] {
        assert!(
            outcome.differs(&[place, "Write the whole path"]),
            "{place}: {:#?}",
            outcome.differences
        );
    }
    let outcome = import(
        "server { listen 443 ssl; server_name a.example; ssl_certificate /a.pem; ssl_certificate_key /a.key; access_log /dev/stdout;
                  location /mcp { proxy_pass http://10.0.0.1; } }",
    );
    assert!(!outcome.differs(&["whole path"]));
}
