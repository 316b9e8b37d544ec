//! Faults that must never happen: a secret that gets out, a rule that is lost in silence.

use super::*;

#[test]
fn no_secret_of_the_file_gets_out() {
    let text = r#"
        map $http_authorization $client { default ""; "Bearer hunter2-a" client-name; "Basic hunter2-b" 1; "Bearer hunter2 c" 1; }
        map $http_x_api_key $key { default 0; hunter2-d hunter2-d; }
        map $http_x $other { "hunter2-e" "hunter2-f"; }
        upstream pool { server 10.0.0.1:80; hash "hunter2-g$uri"; hunter2g x; }
        server {
            listen 80;
            if ($client = "") { return 401 "hunter2-h"; }
            if ($key = 0) { return 401; }
            if ($arg_token != "hunter2-i") { return 403; }
            if ($http_authorization != "Bearer hunter2-j") { return 401; }
            set $upstream_token "Bearer hunter2-k";
            auth_basic "hunter2-l";
            hunter2m hunter2-n;
            HUNTER2 on;
            location /a/ {
                proxy_pass http://pool/?key=hunter2-o;
                proxy_set_header Authorization "Bearer hunter2-p";
                proxy_set_header X-Api-Key hunter2-q;
                proxy_set_header X-Tenant hunter2-r;
                proxy_set_header X-Other $other;
                proxy_set_header X-Client $client;
                proxy_set_header X-Up $upstream_token;
                proxy_set_header Cookie "id=hunter2-s";
                add_header Set-Cookie "id=hunter2-t";
                add_header X-Token "hunter2-u";
                access_by_lua_block { local x = "hunter2-v" }
                rewrite ^/hunter2-w(.*)$ /hunter2-x$1 break;
            }
            location /b/ { proxy_pass http://user:hunter2-y@10.0.0.2/; }
            location /c/ { proxy_pass http://$cookie_x; proxy_set_header Authorization "hunter2-z"; }
            location /d/ { proxy_pass https://pool; proxy_set_header Authorization "Basic hunter2"; proxy_ssl_certificate a.pem; proxy_ssl_certificate_key "data:hunter2"; }
        }"#;
    let outcome = import(text);
    let shown = format!("{}\n{}", outcome.yaml, outcome.lines.join("\n"));
    assert!(!shown.to_lowercase().contains("hunter2"), "{shown}");
    assert_eq!(
        at(&outcome, "upstreams.remote.a.credentials"),
        "Bearer ${A_TOKEN}"
    );
    assert_eq!(
        at(&outcome, "upstreams.remote.a.headers.set"),
        "{Cookie:${A_COOKIE},X-Api-Key:${A_X_API_KEY},X-Tenant:${A_X_TENANT}}"
    );
    assert!(
        outcome.says(&[
            "set the variable or the secret A_TOKEN to what stands here behind the first word"
        ]),
        "{shown}"
    );
}

#[test]
fn rules_that_cannot_be_carried_over_are_about_security_and_say_what_to_do() {
    for (http, server, location, words) in [
        (
            "",
            "auth_basic x; auth_basic_user_file f;",
            "",
            &[":2: auth_basic", "admission.tokens"][..],
        ),
        (
            "",
            "",
            "auth_request /auth;",
            &["auth_request", "docs/oauth.md"],
        ),
        ("", "", "auth_jwt x;", &["auth_jwt", "admission.oauth"]),
        (
            "",
            "",
            "access_by_lua_block { ngx.exit(403) }",
            &["access_by_lua", "scripts"],
        ),
        (
            "",
            "",
            "frobnicate on;",
            &["unknown directive", "does not know"],
        ),
        ("", "ssl_crl x.pem;", "", &["ssl_crl", "revocation"]),
        (
            "",
            "",
            "limit_except POST { deny all; }",
            &["limit_except", "by one rule"],
        ),
        (
            "",
            "",
            "if ($remote_addr = 10.0.0.1) { return 403; }",
            &["if", "no counterpart"],
        ),
        (
            "",
            "",
            "if ($request_method != POST) { return 405; }",
            &["if", "no counterpart"],
        ),
        (
            "map $http_origin $ok { default 0; https://a.example 1; }",
            "if ($ok = 0) { return 403; }",
            "",
            &["if", "without an Origin"],
        ),
        (
            "limit_req_zone $http_x_tenant zone=z:1m rate=1r/s;",
            "limit_req zone=z;",
            "",
            &["limit_req_zone", "counts by is none"],
        ),
        (
            "limit_req_zone $remote_addr zone=z:1m rate=30r/m;",
            "limit_req zone=z;",
            "",
            &["limit_req_zone", "smallest rate"],
        ),
        (
            "",
            "limit_req zone=elsewhere;",
            "",
            &["limit_req", "not in this file"],
        ),
        (
            "",
            "limit_conn elsewhere 5;",
            "",
            &["limit_conn", "counts by is none"],
        ),
        (
            "set_real_ip_from 10.0.0.0/8;",
            "",
            "",
            &["set_real_ip_from", "X-Forwarded-For"],
        ),
        (
            "set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For;",
            "",
            "",
            &["set_real_ip_from", "one by one"],
        ),
        (
            "",
            "satisfy any; allow 10.0.0.0/8; deny all; auth_basic x;",
            "",
            &["satisfy", "either is not enough"],
        ),
        ("", "listen 443 ssl;", "", &["listen", "no certificate"]),
        (
            "",
            "listen 81 proxy_protocol; allow 10.0.0.0/8; deny all;",
            "",
            &["deny", "those of load balancers"],
        ),
        (
            "",
            "ssl_verify_client on; listen 443 ssl; ssl_certificate a; ssl_certificate_key b;",
            "",
            &["ssl_verify_client", "tls.client_ca"],
        ),
    ] {
        let outcome = front(http, server, location);
        assert!(outcome.security, "{http} {server} {location}");
        assert!(
            outcome.says(&[words, &["security: "]].concat()),
            "{words:?}: {:#?}",
            outcome.lines
        );
    }
}

#[test]
fn locations_with_different_rules_are_never_wider_and_name_both_places() {
    let two = |http: &str, a: &str, b: &str| {
        import(&format!(
            "{http}\nserver {{ listen 80;\nlocation /a/ {{ proxy_pass http://10.0.0.1/; {a} }}\nlocation /b/ {{ proxy_pass http://10.0.0.2/; {b} }} }}"
        ))
    };
    let outcome = two(
        "",
        "allow 10.0.0.0/8; deny all;",
        "allow 10.1.0.0/16; allow 192.0.2.1; deny all;",
    );
    assert_eq!(at(&outcome, "admission.cidrs"), "{allow:[10.1.0.0/16]}");
    assert!(
        outcome.says(&["nginx.conf:4: allow: security: ", "nginx.conf:3"]),
        "{:#?}",
        outcome.lines
    );
    let outcome = two("", "allow 10.0.0.0/8; deny all;", "");
    assert_eq!(at(&outcome, "admission.cidrs"), "{allow:[10.0.0.0/8]}");
    assert!(outcome.security);
    // Tokens open the namespaces that ask for them, and those that ask for nothing.
    let outcome = two(
        "",
        "if ($http_authorization != 'Bearer t1') { return 401; }",
        "if ($http_authorization != 'Bearer t2') { return 401; }",
    );
    assert!(!outcome.security, "{:#?}", outcome.lines);
    assert_eq!(at(&outcome, "admission.tokens.0.namespaces"), "[a]");
    assert_eq!(at(&outcome, "admission.tokens.1.namespaces"), "[b]");
    let outcome = two(
        "",
        "if ($http_authorization != 'Bearer t1') { return 401; }",
        "",
    );
    assert_eq!(at(&outcome, "admission.tokens.0.namespaces"), "[a,b]");
    // A token of one does not open another that asks for something else.
    let outcome = two(
        "",
        "if ($http_authorization != 'Bearer t1') { return 401; }",
        "auth_basic x;",
    );
    assert_eq!(at(&outcome, "admission.tokens.0.namespaces"), "[a]");
    let outcome = two(
        "limit_req_zone $remote_addr zone=z:1m rate=5r/s;",
        "limit_req zone=z;",
        "",
    );
    assert_eq!(
        at(&outcome, "admission.rate_limits"),
        "[{key:address,rate:5,burst:1,namespace:a}]"
    );
    assert!(!outcome.security, "{:#?}", outcome.lines);
    let outcome = two("", "client_max_body_size 1m;", "client_max_body_size 8m;");
    assert_eq!(at(&outcome, "admission.limits.body"), "8MiB");
    assert!(
        !outcome.security && outcome.says(&["nginx.conf:3: client_max_body_size", "nginx.conf:4"]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn a_namespace_of_one_address_is_not_opened_on_another_in_silence() {
    let server =
        |port: &str, locations: &str| format!("server {{ listen {port};\n{locations}\n}}\n");
    let a = "location /a/ { proxy_pass http://10.0.0.1/; }";
    let b = "location /b/ { proxy_pass http://10.0.0.2/; }";
    let c = "location /c/ { proxy_pass http://10.0.0.3/; }";
    let outcome = import(&(server("127.0.0.1:81", a) + &server("80", b)));
    assert!(!outcome.security, "{:#?}", outcome.lines);
    assert_eq!(at(&outcome, "listeners.0.namespace"), "a");
    assert_eq!(at(&outcome, "listeners.1.namespace"), "b");
    let outcome =
        import(&(server("127.0.0.1:81", &format!("{a}{b}")) + &server("80", &format!("{b}{c}"))));
    assert!(
        outcome.says(&["listen: security: ", "nginx.conf:2"]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn conditions_beside_the_locations_of_a_snippet_count() {
    let outcome = import(
        "if ($http_authorization != 'Bearer t') { return 401; } location /mcp { proxy_pass http://10.0.0.1; }",
    );
    assert_eq!(at(&outcome, "admission.tokens.0.namespaces"), "[default]");
    let outcome = import("if ($bad) { return 401; } location /mcp { proxy_pass http://10.0.0.1; }");
    assert!(outcome.security);
}

#[test]
fn what_nginx_would_not_start_with_is_refused() {
    for text in [
        "http { } http { }",
        "http { } server { }",
        "http { } map $a $b { }",
    ] {
        assert!(read(text).is_err(), "{text}");
    }
}

#[test]
fn certificates_of_several_authorities_are_listed_and_let_nobody_in() {
    let server = |port: &str, authority: &str, name: &str| {
        format!(
            "server {{ listen {port} ssl; ssl_certificate a.pem; ssl_certificate_key a.key; ssl_verify_client on; ssl_client_certificate {authority};
             location /{name}/ {{ if (${name} = '') {{ return 403; }} proxy_pass http://10.0.0.1/{name}; }} }}
             map $ssl_client_s_dn ${name} {{ default ''; 'CN={name},O=Example' {name}; }}"
        )
    };
    let outcome = import(&(server("8441", "one.pem", "a") + &server("8442", "other.pem", "b")));
    assert_eq!(at(&outcome, "admission.certificates"), "null");
    assert!(
        outcome.says(&["if: ", "several authorities"]),
        "{:#?}",
        outcome.lines
    );
    let outcome = import(&(server("8441", "one.pem", "a") + &server("8442", "one.pem", "b")));
    assert_eq!(at(&outcome, "admission.certificates.1.namespaces"), "[b]");
}

#[test]
fn an_address_of_its_own_is_not_served_on_all_addresses_in_silence() {
    let outcome = import(
        "server { listen 127.0.0.1:8080; location /a/ { proxy_pass http://10.0.0.1/; } location /b/ { proxy_pass http://10.0.0.2/; } }
         server { listen 8080; location /b/ { proxy_pass http://10.0.0.2/; } location /c/ { proxy_pass http://10.0.0.3/; } }",
    );
    assert_eq!(at(&outcome, "listeners.0.address"), "0.0.0.0:8080");
    assert_eq!(at(&outcome, "listeners.1.name"), "metrics");
    assert!(
        outcome.says(&["nginx.conf:2: listen: security: ", "nginx.conf:1"]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn a_location_that_lets_nobody_in_closes_no_other() {
    let outcome = front(
        "",
        "location /closed/ { deny all; proxy_pass http://10.0.0.2/; }",
        "",
    );
    assert!(!outcome.security, "{:#?}", outcome.lines);
    assert_eq!(at(&outcome, "admission.cidrs"), "null");
    assert_eq!(at(&outcome, "upstreams.remote.closed"), "null");
}

#[test]
fn a_directive_that_every_location_switches_off_is_not_lost() {
    let outcome = front(
        "auth_basic x; gzip on;",
        "gzip on;",
        "auth_basic off; gzip off;",
    );
    assert!(outcome.lines.is_empty(), "{:#?}", outcome.lines);
}

#[test]
fn what_a_snippet_asks_of_tls_is_told() {
    let location = "location /mcp { proxy_pass http://10.0.0.1; }";
    for asked in [
        "if ($ssl_client_verify != SUCCESS) { return 403; }",
        "if ($scheme = http) { return 403; }",
        "ssl_client_certificate ca.pem; ssl_verify_client on;",
    ] {
        let outcome = import(&format!("{asked} {location}"));
        assert!(outcome.security, "{asked}: {:#?}", outcome.lines);
    }
    let outcome = import("ssl_client_certificate ca.pem; ssl_verify_client on;");
    assert!(outcome.security, "{:#?}", outcome.lines);
    let outcome = import(&format!(
        "listen 443 ssl; ssl_certificate a.pem; ssl_certificate_key a.key; server_name a.example; {location}"
    ));
    assert_eq!(at(&outcome, "listeners.0.tls"), "{cert:a.pem,key:a.key}");
    assert_eq!(at(&outcome, "admission.hosts"), "[a.example]");
    let outcome = front("", "if ($ssl_client_verify != SUCCESS) { return 403; }", "");
    assert!(outcome.security);
}

#[test]
fn conditions_that_are_not_read_are_listed_and_the_rest_is_imported() {
    let tokens = "map $http_authorization $who { default ''; 'Bearer 0d4b31aa77f0' ci; }";
    for (http, condition) in [
        ("", "if ($host != a.example) { return 444; }"),
        ("", "if ($scheme = http) { return 403; }"),
        ("", "if ($http_x) { return 403; }"),
        ("", "if ($http_user_agent ~* bot) { return 403; }"),
        ("", "if ($request_method !~ ^(GET|POST)$) { return 405; }"),
        ("", "set $deny 1; if ($deny = 1) { return 403; }"),
        (
            "geo $office { default 0; 10.0.0.0/8 1; }",
            "if ($office = 0) { return 403; }",
        ),
        (
            "map $who $allowed { default 0; ci 1; }",
            "if ($allowed = 0) { return 403; }",
        ),
        (
            "map $http_x_role$uri $allowed { default 0; a 1; }",
            "if ($allowed = 0) { return 403; }",
        ),
        (
            "map $http_x_auth $bad { default 0; a 1; }",
            "if ($bad) { return 403; }",
        ),
        ("", "satisfy any;"),
        ("", "limit_except GET { deny all; }"),
    ] {
        let outcome = front(
            &format!("{tokens} {http}"),
            "if ($who = '') { return 401; } allow 10.0.0.0/8; deny all;",
            &format!("\n{condition}"),
        );
        let lines = outcome.lines.iter();
        let security =
            lines.filter(|it| it.starts_with("nginx.conf:4: ") && it.contains("security: "));
        assert_eq!(security.count(), 1, "{condition}: {:#?}", outcome.lines);
        assert_eq!(at(&outcome, "admission.tokens.0.name"), "ci", "{condition}");
        assert_eq!(
            at(&outcome, "admission.cidrs"),
            "{allow:[10.0.0.0/8]}",
            "{condition}"
        );
    }
}

#[test]
fn outside_http_nothing_is_about_security() {
    let outcome = import(
        "frobnicate on; http { server { listen 80; location / { proxy_pass http://10.0.0.1; } } }",
    );
    assert!(
        !outcome.security && outcome.says(&["unknown directive"]),
        "{:#?}",
        outcome.lines
    );
}

/// A `map` of tokens, an `if` that asks for one of them, and what stands in a server beside them.
fn with_tokens(rest: &str) -> Outcome {
    import(&format!(
        r#"map $http_authorization $client {{ default ""; "Bearer aaaaaaaaaaaaaaaaaaaaaaaa" ci; }}
           server {{ listen 80; server_name a.example; if ($client = "") {{ return 401; }}
             {rest} }}"#
    ))
}

#[test]
fn a_condition_on_another_header_beside_the_token_is_told() {
    let outcome = with_tokens(
        r#"if ($http_x_csrf_token = "") { return 403; } location /mcp { proxy_pass http://10.0.0.1; }"#,
    );
    assert!(outcome.says(&["if: security"]), "{:#?}", outcome.lines);
}

#[test]
fn a_header_that_nginx_compares_is_not_left_to_clients() {
    let outcome = import(
        r#"map $http_x_auth_user $ok { default 0; ada-0123456789abcdef0123 1; }
           server { listen 80; server_name a.example; if ($ok = 0) { return 401; }
             location /mcp { proxy_set_header X-Auth-User $http_x_auth_user; proxy_pass http://10.0.0.1; } }"#,
    );
    assert!(!outcome.yaml.contains("pass:"), "{}", outcome.yaml);
    assert!(
        outcome.says(&[
            "proxy_set_header",
            "security",
            "clients could write any value"
        ]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn a_clients_name_in_any_header_to_a_server_is_told() {
    for header in [
        "X-Request-Id",
        "X-Forwarded-Host",
        "Proxy-Authorization",
        "Host",
    ] {
        let outcome = with_tokens(&format!(
            "location /mcp {{ proxy_set_header {header} $client; proxy_pass http://10.0.0.1; }}"
        ));
        assert!(outcome.security, "{header}: {:#?}", outcome.lines);
    }
}

#[test]
fn a_variable_of_the_file_that_is_named_like_a_header_is_no_header() {
    let outcome = import(
        r#"map $http_authorization $http_auth_client { default ""; "Bearer aaaaaaaaaaaaaaaaaaaaaaaa" ci; }
           map $http_auth_client $ok { default 0; ci 1; }
           server { listen 80; server_name a.example; if ($ok = 0) { return 401; }
             location /mcp { proxy_pass http://10.0.0.1; } }"#,
    );
    assert!(!outcome.yaml.contains("sha256"), "{}", outcome.yaml);
    assert!(outcome.security, "{:#?}", outcome.lines);
}

#[test]
fn a_path_of_a_regular_expression_that_another_location_closes_is_told() {
    let outcome = import(
        "server { listen 80; server_name a.example; location = /two/mcp { return 403; }
           location ~ ^/(one|two)/mcp$ { proxy_pass http://10.0.0.1; } }",
    );
    assert!(
        outcome.says(&["security", "takes the path of MCP"]),
        "{:#?}",
        outcome.lines
    );
}

#[test]
fn another_credential_for_a_server_that_has_a_namespace_is_told() {
    let server = |port: u16, token: &str| {
        format!(
            r#"server {{ listen {port}; server_name a.example; location /files/ {{
                 proxy_set_header Authorization "Bearer {token}"; proxy_pass http://10.0.0.1:9001/; }} }}"#
        )
    };
    let both = |other: &str| import(&(server(7103, "admin") + &server(7104, other)));
    assert!(!both("admin").security);
    let outcome = both("readonly");
    assert!(
        outcome.says(&["security", "with other headers"]),
        "{:#?}",
        outcome.lines
    );
}
