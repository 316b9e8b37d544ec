//! The limits of `limit_req`, `limit_conn` and `client_max_body_size`.

use super::*;

#[test]
fn a_rate_by_the_names_that_a_map_gives_to_tokens_counts_by_principal() {
    let rate = |map: &str, condition: &str| {
        front(
            &format!("{map} limit_req_zone $client zone=z:1m rate=5r/s;"),
            &format!("{condition} limit_req zone=z;"),
            "",
        )
    };
    for (lines, condition) in [
        (
            "default ''; 'Bearer 0d4b31aa77f0' ci; 'Bearer 77aa02c3d9' desk;",
            "if ($client = '') { return 401; }",
        ),
        (
            "default ''; 'Bearer 0d4b31aa77f0' 1001; 'Bearer 77aa02c3d9' 'build bot';",
            "if ($ok = 0) { return 401; }",
        ),
    ] {
        let outcome = rate(
            &format!(
                "map $http_authorization $client {{ {lines} }} map $http_authorization $ok {{ default 0; 'Bearer 0d4b31aa77f0' 1; 'Bearer 77aa02c3d9' 1; }}"
            ),
            condition,
        );
        let limits = at(&outcome, "admission.rate_limits");
        assert_eq!(limits, "[{key:principal,rate:5,burst:1}]", "{lines}");
        assert!(!outcome.security, "{lines}: {:#?}", outcome.lines);
    }
}

#[test]
fn a_zone_that_counts_by_more_than_an_address_a_principal_or_a_namespace_is_listed() {
    for (map, key) in [
        ("", "$binary_remote_addr$server_name"),
        ("", "$http_x_tenant"),
        ("", "$server_name:$http_authorization"),
        // Some clients are exempt, or counted together.
        (
            "geo $near { default 0; 10.0.0.0/8 1; } map $near $key { 0 $binary_remote_addr; 1 ''; }",
            "$key",
        ),
        (
            "map $http_authorization $key { default $binary_remote_addr; 'Bearer vip' ''; }",
            "$key",
        ),
        (
            "map $http_x $key { default $http_authorization; vip ''; }",
            "$key",
        ),
        (
            "map $http_authorization $key { default ''; 'Bearer tok1' team; 'Bearer tok2' team; }",
            "$key",
        ),
        (
            "map $http_authorization $key { default ''; 'Bearer tok1' a; 'Bearer tok2' ''; }",
            "$key",
        ),
        (
            "map $http_authorization $key { default -; 'Bearer tok1' a; }",
            "$key",
        ),
        (
            "map $http_authorization $key { default ''; '' none; 'Bearer tok1' a; }",
            "$key",
        ),
        ("map $http_authorization $key { default all; }", "$key"),
        (
            "map $http_authorization $key { default ''; ~^Bearer team; }",
            "$key",
        ),
        (
            "map $http_authorization $key { default ''; '~^Bearer (?<who>.)' $who; }",
            "$key",
        ),
        (
            "map $http_authorization $key { default $binary_remote_addr; 'Bearer tok1' a; }",
            "$key",
        ),
        ("map $http_x_tenant $key { default ''; a a; }", "$key"),
        (
            "map $http_authorization$uri $key { default ''; a a; }",
            "$key",
        ),
        (
            "map $http_authorization $key { default ''; 'Bearer tok1' a; } server { listen 81; set $key ''; }",
            "$key",
        ),
    ] {
        for (zone, limit) in [
            (
                format!("limit_req_zone {key} zone=z:1m rate=5r/s;"),
                "limit_req zone=z;",
            ),
            (
                format!("limit_conn_zone {key} zone=z:1m;"),
                "limit_conn z 5;",
            ),
        ] {
            let outcome = front(&format!("{map} {zone}"), limit, "");
            assert!(
                outcome.says(&["security: ", "counts by is none"]),
                "{map} {zone}: {:#?}",
                outcome.lines
            );
            let admission = at(&outcome, "admission");
            assert!(
                !admission.contains("rate") && !admission.contains("limits"),
                "{admission}"
            );
        }
    }
}

#[test]
fn limits_that_refuse_nothing_in_nginx_are_in_force_and_listed() {
    let outcome = front(
        "limit_req_zone $remote_addr zone=z:1m rate=5r/s; limit_conn_zone $remote_addr zone=c:1m;",
        "limit_req zone=z; limit_req_dry_run on; limit_conn c 5; limit_conn_dry_run on;",
        "",
    );
    assert_eq!(at(&outcome, "admission.flood"), "{rate:5,burst:1}");
    let concurrency = at(&outcome, "admission.limits.concurrency");
    assert_eq!(concurrency, "{per_address:5}");
    for name in ["limit_req_dry_run: ", "limit_conn_dry_run: "] {
        assert!(outcome.says(&[name, "in force here"]), "{name}");
    }
}

#[test]
fn one_rate_for_all_is_not_one_for_each_namespace_in_silence() {
    let outcome = import(
        "limit_req_zone all zone=z:1m rate=5r/s;
         server { listen 80; server_name a.example;
           location /a/mcp { limit_req zone=z; proxy_pass http://10.0.0.1/mcp; }
           location /a/sse { proxy_pass http://10.0.0.1/sse; }
           location /b/ { limit_req zone=z; proxy_pass http://10.0.0.2/; } }",
    );
    assert!(
        outcome.says(&["limit_req_zone: security: ", "budget of its own"]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn long_streams_that_limit_conn_counts_are_limited_and_told() {
    for (key, limits) in [
        (
            "$binary_remote_addr",
            "{concurrency:{per_address:20},streams_per_principal:20}",
        ),
        (
            "$http_authorization",
            "{concurrency:{per_principal:20},streams_per_principal:20}",
        ),
    ] {
        let outcome = front(
            &format!("limit_conn_zone {key} zone=c:1m;"),
            "limit_conn c 20;",
            "",
        );
        assert_eq!(at(&outcome, "admission.limits"), limits, "{key}");
        assert!(
            outcome.says(&["limit_conn: security: ", "long streams are counted apart"]),
            "{key}: {:#?}",
            outcome.lines
        );
        // A principal has the streams of all its addresses.
        assert_eq!(
            outcome.says(&[
                "tighter for a token",
                "several machines",
                "streams_per_principal"
            ]),
            key == "$binary_remote_addr",
            "{key}: {:#?}",
            outcome.lines
        );
    }
    let both = front(
        "limit_conn_zone $binary_remote_addr zone=a:1m; limit_conn_zone $http_authorization zone=p:1m;",
        "limit_conn a 20; limit_conn p 5;",
        "",
    );
    assert_eq!(at(&both, "admission.limits.streams_per_principal"), "5");
}

#[test]
fn connections_that_carry_many_requests_are_told() {
    let limited = |listen: &str| {
        import(&format!(
            "limit_conn_zone $server_name zone=c:1m;
             server {{ listen {listen}; server_name a.example; ssl_certificate a; ssl_certificate_key b; limit_conn c 20;
                       location /mcp {{ proxy_pass http://10.0.0.1; }} }}"
        ))
    };
    let outcome = limited("80");
    assert!(!outcome.security, "{:#?}", outcome.lines);
    assert_eq!(at(&outcome, "admission.limits"), "{connections:20}");
    let outcome = limited("443 ssl");
    assert!(
        outcome.says(&["limit_conn: security: ", "HTTP/2"]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn no_location_refuses_bodies_that_nginx_takes_and_larger_ones_are_told() {
    let two = |a: &str, b: &str| {
        import(&format!(
            "server {{ listen 80;\nlocation /a/ {{ proxy_pass http://10.0.0.1/; {a} }}\nlocation /b/ {{ proxy_pass http://10.0.0.2/; {b} }} }}"
        ))
    };
    let outcome = two("client_max_body_size 8m;", "");
    assert_eq!(at(&outcome, "admission.limits.body"), "8MiB");
    let told = [
        "nginx.conf:3: location: ",
        "larger than before",
        "8MiB of nginx.conf:2",
        "1MiB, the default of nginx",
    ];
    assert!(outcome.says(&told), "{:#?}", outcome.lines);
    for (a, b, body, words) in [
        (
            "256k",
            "2m",
            "2MiB",
            &[
                "nginx.conf:2: client_max_body_size",
                "2MiB of nginx.conf:3",
                "256KiB here",
            ][..],
        ),
        (
            "8m",
            "2m",
            "8MiB",
            &[
                "nginx.conf:3: client_max_body_size",
                "8MiB of nginx.conf:2",
                "2MiB here",
            ],
        ),
        // Bodies without a bound are not held in memory.
        (
            "0",
            "2m",
            "null",
            &[
                "nginx.conf:3: client_max_body_size",
                "its default, 4MiB",
                "2MiB here",
            ],
        ),
        (
            "0",
            "8m",
            "8MiB",
            &["nginx.conf:2: client_max_body_size", "at most 1 GiB"],
        ),
        (
            "2g",
            "1m",
            "null",
            &["nginx.conf:2: client_max_body_size", "at most 1 GiB"],
        ),
    ] {
        let outcome = two(
            &format!("client_max_body_size {a};"),
            &format!("client_max_body_size {b};"),
        );
        let limits = at(&outcome, "admission.limits");
        let written = if body == "null" {
            body.to_owned()
        } else {
            format!("{{body:{body}}}")
        };
        assert_eq!(limits, written, "{a} {b}");
        assert!(outcome.says(words), "{a} {b}: {:#?}", outcome.lines);
        assert!(!outcome.security, "{a} {b}: {:#?}", outcome.lines);
    }
    let alike = two("client_max_body_size 2m;", "client_max_body_size 2m;");
    assert!(alike.lines.is_empty(), "{:#?}", alike.lines);
}
