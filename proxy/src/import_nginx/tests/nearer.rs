//! Locations that nginx chooses for the endpoint of another location, and rewrites that lead to them.

use super::*;

/// A server with these locations, where P passes requests on.
fn server(locations: &str) -> Outcome {
    let locations = locations.replace("P }", "proxy_pass http://127.0.0.1:9000; }");
    import(&format!(
        "server {{ listen 8080; server_name a.example;\n{locations} }}"
    ))
}

fn are_about_security(configurations: &[&str], told: bool) {
    for text in configurations {
        let outcome = server(text);
        assert_eq!(outcome.security, told, "{text}: {:#?}", outcome.lines);
    }
}

#[test]
fn a_location_that_refuses_the_endpoint_of_another_is_told() {
    are_about_security(
        &[
            "location / { P } location /mcp { return 403; }",
            "location / { P } location /mcp { deny all; }",
            "location / { P } location ^~ /mcp { deny all; return 404; }",
            "location / { P location /mcp { return 403; } }",
            "location / { P location ~ x { auth_basic x; } }",
            "location / { P } location /mcp/ { return 403; }",
            "location / { P } location /mcp { deny all; P }",
            "location / { P } location /mcp { internal; proxy_pass http://127.0.0.1:9001; }",
            "location / { P } location /mcp { root /srv; }",
            "location /a/ { P } location = /a/mcp { return 403; }",
            "location /a/ { P } location ~* ^/A { deny all; }",
            "location /a/ { P } location ~ (?!x)/ { return 404; }",
        ],
        true,
    );
}

#[test]
fn a_location_that_answers_the_endpoint_of_another_in_any_way_is_told() {
    are_about_security(
        &[
            "location /mcp { P } location = /mcp { return 503; }",
            "location /mcp { P } location = /mcp { return 302 /login; }",
            "location ~ ^/mcp { return 503; } location / { P }",
            "location ~ ^/(mcp|x) { fastcgi_pass 127.0.0.1:1; } location / { P }",
            "location ~ ^/mcp { stub_status; } location / { P }",
        ],
        true,
    );
}

#[test]
fn a_slash_at_the_end_hides_no_refusal() {
    are_about_security(
        &[
            "location /mcp/ { P } location = /mcp/ { return 403; }",
            "location /mcp/ { P } location = /mcp { return 403; }",
            "location /mcp/ { P location = /mcp/ { deny all; } }",
        ],
        true,
    );
}

#[test]
fn fronts_that_close_other_paths_need_no_word_about_security() {
    are_about_security(
        &[
            "location / { return 404; } location /mcp { P }",
            "location / { return 403; } location /mcp { P }",
            "location / { return 404; } location = /mcp { P }",
            "location / { return 404; } location /mcp/ { P }",
            "location / { deny all; } location /github/ { P }",
            "location / { return 404; } location ~ ^/(github|time)/ { P }",
            "location / { return 404; } location ~ ^/mcp { P }",
            "location ^~ / { return 404; } location /mcp { P }",
            "location / { root /srv; index index.html; } location /mcp { P }",
            "location /mcp/ { P } location = /mcp { return 301 /mcp/; }",
            "location / { P } location = /mcp/ { return 301 /mcp; }",
            "location / { P } location = /health { return 200 ok; }",
            "location / { P } location /nginx_status { stub_status; allow 127.0.0.1; deny all; }",
            "location / { P } location /.well-known/acme-challenge/ { root /srv; }",
            "location / { P } location = /favicon.ico { return 204; }",
            "location / { P } location ~* \\.(css|js|png)$ { root /srv; }",
            "location / { P } location ~ /\\.ht { deny all; }",
            "location /mcp { P } location ~ ^/MCP { deny all; }",
            "location ^~ /mcp { P } location ~ ^/mcp { return 503; }",
            "location /mcp { P } location /a/ { location ~ mcp { return 403; } }",
            "location / { P } location @off { return 503; }",
        ],
        false,
    );
}

#[test]
fn a_location_inside_another_is_listed_and_not_read() {
    let outcome = server(
        "location /a/ { proxy_pass http://10.0.0.1/;\nlocation /a/b/ { auth_basic x; P } }\nlocation /c/ {\nlocation /c/d/ { P } }",
    );
    let why = "locations inside locations are not read";
    for words in [
        ["nginx.conf:3: location: security: ", why],
        ["nginx.conf:5: location: locations ", why],
    ] {
        assert!(outcome.says(&words), "{words:?}: {:#?}", outcome.lines);
    }
    for (name, expected) in [
        ("a", "[http://10.0.0.1/mcp]"),
        ("a-b", "null"),
        ("c-d", "null"),
    ] {
        let backends = at(&outcome, &format!("upstreams.remote.{name}.backends"));
        assert_eq!(backends, expected, "{}", outcome.yaml);
    }
}

#[test]
fn what_a_location_asks_is_not_lost_to_one_that_nginx_never_chooses() {
    let guards =
        "allow 10.0.0.0/8; deny all; if ($http_authorization != 'Bearer tok1') { return 401; }";
    for text in [
        format!("location ^~ /mcp {{ {guards} P }} location ~ /mcp {{ P }}"),
        format!("location /mcp {{ {guards} P }} location ~ ^/MCP$ {{ P }}"),
    ] {
        let outcome = server(&text);
        assert!(outcome.security, "{text}: {:#?}", outcome.lines);
        assert_eq!(
            at(&outcome, "admission.cidrs"),
            "{allow:[10.0.0.0/8]}",
            "{text}"
        );
        let yaml = &outcome.yaml;
        assert!(yaml.contains("sha256"), "{text}: {yaml}");
    }
}

#[test]
fn what_a_location_asks_is_told_where_it_is_left_out_for_a_nearer_one() {
    for asked in [
        "allow 10.0.0.0/8; deny all;",
        "if ($http_authorization != 'Bearer tok1') { return 401; }",
        "if ($http_origin != 'https://a.example') { return 403; }",
        "auth_basic x;",
        "limit_except POST { deny all; }",
        "frobnicate on;",
    ] {
        for text in [
            format!("location / {{ {asked} P }}\nlocation /mcp {{ P }}"),
            format!("location /mcp {{ {asked} P }}\nlocation ~ ^/mcp {{ P }}"),
            format!("location /a/ {{ {asked} P }}\nlocation = /a/mcp {{ P }}"),
        ] {
            let outcome = server(&text);
            assert!(
                outcome.says(&["location: security: ", "is nearer"]),
                "{text}: {:#?}",
                outcome.lines
            );
        }
    }
    // The requirements of their server hold for both.
    let outcome = server(
        "if ($http_authorization != 'Bearer tok1') { return 401; } location / { if ($request_method = OPTIONS) { return 204; } P } location /mcp { P }",
    );
    assert!(!outcome.security, "{:#?}", outcome.lines);
}

#[test]
fn a_rewrite_that_may_lead_to_other_rules_is_told() {
    are_about_security(
        &[
            "rewrite ^/mcp /denied last; location /denied { return 403; } location /mcp { P }",
            "location /mcp { rewrite ^ /denied last; P } location /denied { deny all; }",
            "rewrite ^/mcp$ /secure/mcp last; location /mcp { P } location /secure/ { auth_basic x; internal; P }",
            "location /mcp { rewrite ^/mcp /denied; P }",
            "location /mcp { rewrite ^/mcp /login redirect; P }",
            "location /mcp { rewrite ^/mcp /$arg_x break; P }",
            "location /mcp { rewrite (?!x)m /denied last; P }",
            "location ~ ^/(mcp|x)$ { rewrite ^/x /denied last; P }",
            "rewrite ^/mcp /denied break; location /mcp { P }",
        ],
        true,
    );
    are_about_security(
        &[
            "location /a/ { rewrite ^/a/(.*)$ /$1 break; P }",
            "location /a { rewrite ^/a/?(.*)$ /$1 break; P }",
            "location /a/ { rewrite /a/(.*) /$1 break; P }",
            "rewrite ^/old/(.*)$ /new/$1 last; location /mcp { P }",
            "location /mcp { rewrite ^/MCP /denied last; P }",
        ],
        false,
    );
    let outcome = server("location /a/ { rewrite ^/(a)(/|$)(.*) /$1-b/$3 break; P }");
    assert_eq!(
        at(&outcome, "upstreams.remote.a.backends"),
        "[http://127.0.0.1:9000/a-b/mcp]"
    );
}
