//! Rules that need TLS, and listeners without.

use super::*;

#[test]
fn conditions_that_need_tls_are_listed() {
    for condition in [
        "if ($ssl_client_verify != SUCCESS) { return 403; }",
        "if ($https = '') { return 403; }",
        "if ($scheme = http) { return 301 https://$host$request_uri; }",
    ] {
        for listen in ["listen 443 ssl; listen 80;", "listen 127.0.0.1:8080;"] {
            let outcome = import(&format!(
                "server {{ {listen} server_name a.example; ssl_certificate a; ssl_certificate_key b;
                           ssl_client_certificate c; ssl_verify_client optional;\n{condition}
                           location /mcp {{ proxy_pass http://127.0.0.1:9000; }} }}"
            ));
            let told = ["nginx.conf:3: if: security: "];
            assert!(outcome.says(&told), "{condition}: {:#?}", outcome.lines);
        }
    }
}

#[test]
fn chains_of_certificates_that_nginx_would_refuse_are_told() {
    let verified = |verify: &str| {
        import(&format!(
            "server {{ listen 443 ssl; server_name a.example; ssl_certificate a; ssl_certificate_key b; ssl_client_certificate c;
                       {verify} location /mcp {{ proxy_pass http://127.0.0.1:9000; }} }}"
        ))
    };
    for depth in ["0", "1", "5", "$depth"] {
        let outcome = verified(&format!("ssl_verify_client on; ssl_verify_depth {depth};"));
        assert!(
            outcome.says(&["ssl_verify_depth: security: ", "up to 6 certificates"]),
            "{depth}: {:#?}",
            outcome.lines
        );
    }
    let outcome = verified("ssl_verify_client optional; ssl_verify_depth 2;");
    assert!(outcome.security, "{:#?}", outcome.lines);
    for verify in [
        "ssl_verify_client on; ssl_verify_depth 6;",
        "ssl_verify_depth 1;",
        "ssl_verify_client off; ssl_verify_depth 1;",
    ] {
        let outcome = verified(verify);
        assert!(
            !outcome.security && !outcome.says(&["certificates may stand"]),
            "{verify}: {:#?}",
            outcome.lines
        );
    }
    // The default of nginx.
    let outcome = verified("ssl_verify_client on;");
    assert!(
        !outcome.security && outcome.says(&["ssl_verify_client: ", "up to 6"]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn a_server_that_refuses_all_handshakes_is_told() {
    let server = "ssl_certificate a; ssl_certificate_key b; server_name a.example; location /mcp { proxy_pass http://127.0.0.1:9000; }";
    let outcome = import(&format!(
        "server {{ listen 443 ssl; ssl_reject_handshake on; {server} }}"
    ));
    assert!(outcome.security, "{:#?}", outcome.lines);
    let outcome = import(&format!(
        "server {{ listen 443 ssl default_server; ssl_reject_handshake on; }} server {{ listen 443 ssl; {server} }}"
    ));
    assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
}

#[test]
fn all_addresses_of_a_port_are_one_listener_by_ipv4_and_ipv6() {
    let server = |name: &str, listens: &str| {
        format!(
            "server {{ {listens} server_name {name}.example; location /{name}/ {{ proxy_pass http://10.0.0.1/{name}; }} }}\n"
        )
    };
    for listens in [
        "listen 8080; listen [::]:8080;",
        "listen [::]:8080; listen 0.0.0.0:8080;",
        "listen [::]:8080 ipv6only=off;",
        "listen 8080; listen [::]:8080; listen 10.0.0.9:8080;",
    ] {
        let outcome = import(&server("a", listens));
        assert!(!outcome.security, "{listens}: {:#?}", outcome.lines);
        assert_eq!(
            at(&outcome, "listeners.0.address"),
            "[::]:8080",
            "{listens}"
        );
        assert_eq!(at(&outcome, "listeners.1.name"), "metrics", "{listens}");
    }
    for servers in [
        server("a", "listen [::]:8080;"),
        server("a", "listen 8080;") + &server("b", "listen [::]:8080;"),
        server("a", "listen 8080; listen [::]:8080;") + &server("b", "listen [::]:8080;"),
    ] {
        let outcome = import(&servers);
        assert!(
            outcome.says(&["listen: security: ", "IPv4 and IPv6"]),
            "{servers}: {:#?}",
            outcome.lines
        );
        assert_eq!(
            outcome.yaml.matches("profile: core").count(),
            1,
            "{servers}"
        );
    }
}

#[test]
fn a_rewritten_accept_becomes_a_listener_that_takes_every_accept() {
    for header in [
        "proxy_set_header Accept \"application/json, text/event-stream\";",
        "proxy_set_header accept \"*/*\";",
        "proxy_set_header Accept $accept;",
        "proxy_set_header Accept \"\";",
    ] {
        let outcome = front("map $http_accept $accept { default '*/*'; }", "", header);
        assert_eq!(at(&outcome, "listeners.0.accept"), "lenient", "{header}");
        assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
    }
    let outcome = import(
        "server { listen 80; location ~ ^/mcp/ { proxy_pass http://127.0.0.1:5678; proxy_buffering off; \
         proxy_set_header Accept \"application/json, text/event-stream\"; proxy_read_timeout 86400s; } }",
    );
    assert_eq!(at(&outcome, "listeners.0.accept"), "lenient");
    for header in [
        "",
        "proxy_set_header Accept $http_accept;",
        "proxy_set_header Accept-Encoding \"\";",
    ] {
        let outcome = front("", "", header);
        assert_eq!(at(&outcome, "listeners.0.accept"), "null", "{header}");
    }
    // Only the listener whose server sets the header takes every `Accept`.
    let outcome = import(
        "server { listen 127.0.0.1:8080; location /a/ { proxy_pass http://10.0.0.1/; } }
         server { listen 127.0.0.1:8081; proxy_set_header Accept '*/*'; location /b/ { proxy_pass http://10.0.0.2/; } }",
    );
    assert_eq!(at(&outcome, "listeners.0.accept"), "null");
    assert_eq!(at(&outcome, "listeners.1.accept"), "lenient");
    let outcome = import(
        "server { location /a/ { proxy_pass http://10.0.0.1/; proxy_set_header Accept '*/*'; } }",
    );
    assert_eq!(at(&outcome, "listeners.0.accept"), "lenient");
}

#[test]
fn directives_of_a_pool_are_reported_by_their_names() {
    for (line, name) in [
        ("hash $sid consistent;", "hash"),
        ("hash $http_x_tenant;", "hash"),
        ("queue 100 timeout=70;", "queue"),
        ("least_time header;", "least_time"),
        ("fair;", "fair"),
    ] {
        let outcome = import(&format!(
            "map $http_mcp_session_id $sid {{ default $http_mcp_session_id; \"\" $request_id; }}
             upstream m {{ {line} server 10.0.0.1:1; server 10.0.0.2:1; }}
             server {{ listen 127.0.0.1:8080; location /mcp {{ proxy_pass http://m; }} }}"
        ));
        let named = format!("{name}: ");
        assert!(outcome.says(&[&named]), "{line}: {:#?}", outcome.lines);
        assert!(
            !outcome.says(&["unknown directive"]),
            "{:#?}",
            outcome.lines
        );
    }
}
