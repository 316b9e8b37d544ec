//! Configurations that ask a client for more than one thing, and credentials that depend on the request.

use super::*;

const AUTHORIZATION: &str = "if ($http_authorization != 'Bearer tok1') { return 401; }";
const KEY: &str = "if ($http_x_api_key != 'key1') { return 401; }";

#[test]
fn two_credentials_that_are_both_asked_for_are_told() {
    let key_map = "map $http_x_api_key $app { default ''; key1 one; key2 two; }";
    for (http, server, location) in [
        ("", AUTHORIZATION, KEY),
        ("", KEY, AUTHORIZATION),
        ("", "", &format!("{AUTHORIZATION} {KEY}")),
        (key_map, AUTHORIZATION, "if ($app = '') { return 403; }"),
        ("", KEY, "if ($http_x_auth_token != 'key1') { return 401; }"),
    ] {
        let outcome = front(http, server, location);
        assert!(
            outcome.says(&[
                "if: security: ",
                "clients show one credential",
                "this second one is not"
            ]),
            "{http} {server} {location}: {:#?}",
            outcome.lines
        );
    }
    // The tokens of the first condition are kept, for whoever completes the configuration.
    let outcome = front("", AUTHORIZATION, KEY);
    assert_eq!(at(&outcome, "admission.tokens.1"), "null");
    assert!(outcome.yaml.contains("the token of this line"));
}

#[test]
fn a_second_condition_on_the_same_header_is_listed() {
    let map =
        "map $http_authorization $client { default ''; 'Bearer tok1' desk; 'Bearer tok2' lab; }";
    let outcome = front(map, "if ($client = '') { return 401; }", AUTHORIZATION);
    let told = [
        "nginx.conf:3: if: security: ",
        "the condition of nginx.conf:2",
    ];
    assert!(outcome.says(&told), "{:#?}", outcome.lines);
    assert_eq!(at(&outcome, "admission.tokens.1.name"), "lab");
}

#[test]
fn locations_that_ask_in_different_headers_need_no_word_about_security() {
    let outcome = import(&format!(
        "server {{ listen 80; location /a/ {{ proxy_pass http://10.0.0.1/; {AUTHORIZATION} }} location /b/ {{ proxy_pass http://10.0.0.2/; {KEY} }} }}"
    ));
    assert!(!outcome.security, "{:#?}", outcome.lines);
    assert_eq!(at(&outcome, "admission.tokens.0.namespaces"), "[a]");
    assert_eq!(at(&outcome, "admission.tokens.1.namespaces"), "[b]");
}

#[test]
fn what_is_sent_for_some_clients_is_not_sent_for_all() {
    for (http, server, location) in [
        (
            "",
            "if ($http_x_api_key = 'key1') { set $up 'Bearer real'; }",
            "",
        ),
        (
            "",
            "set $up ''; if ($http_x_api_key = 'key1') { set $up 'Bearer real'; }",
            "",
        ),
        ("geo $up { default ''; 10.0.0.0/8 'Bearer real'; }", "", ""),
        (
            "map $http_x_api_key $up { default ''; key1 'Bearer real'; }",
            "",
            "",
        ),
        ("", "rewrite ^/(?<up>[^/]+)/x$ /y break;", ""),
        ("", "", "location /other/ { set $up 'Bearer real'; }"),
    ] {
        let location = format!("proxy_set_header Authorization $up; {location}");
        let outcome = front(http, server, &location);
        assert_eq!(
            at(&outcome, "upstreams.remote.search.credentials"),
            "null",
            "{http} {server}: {}",
            outcome.yaml
        );
        assert!(outcome.says(&["proxy_set_header"]), "{http} {server}");
    }
    // nginx takes one name for the other.
    let outcome = front(
        "map $http_x_api_key $up { default ''; key1 'Bearer real'; }",
        "",
        "proxy_set_header Authorization $Up;",
    );
    assert!(!outcome.yaml.contains("credentials"), "{}", outcome.yaml);
    // The value of a variable that the file sets is not read.
    let outcome = front(
        "",
        "set $up_token 'Bearer real';",
        "proxy_set_header Authorization $up_token;",
    );
    assert!(
        outcome.says(&["proxy_set_header: security: "]),
        "{:#?}",
        outcome.lines
    );
    assert!(!outcome.yaml.contains("credentials"), "{}", outcome.yaml);
}

#[test]
fn a_server_that_some_clients_alone_reach_is_none_for_all() {
    let server = |condition: &str| {
        import(&format!(
            "server {{ listen 80; server_name a.example; {condition} location /mcp {{ proxy_pass http://$up; }} }}"
        ))
    };
    for condition in [
        "set $up 10.0.0.1;",
        "if ($http_authorization = 'Bearer tok1') { set $up 10.0.0.1; }",
        "set $up 10.0.0.2; if ($http_authorization = 'Bearer tok1') { set $up 10.0.0.1; }",
        "location /other { set $up 10.0.0.1; return 403; }",
    ] {
        let outcome = server(condition);
        assert_eq!(at(&outcome, "upstreams.remote"), "null", "{condition}");
        assert!(
            outcome.says(&["proxy_pass", "depends on the request"]),
            "{condition}: {:#?}",
            outcome.lines
        );
    }
}

#[test]
fn pages_that_a_condition_answers_are_not_all_pages() {
    let cors = "add_header Access-Control-Allow-Origin $http_origin always;";
    let preflight =
        "if ($request_method = OPTIONS) { add_header Access-Control-Allow-Origin *; return 204; }";
    for (location, origins) in [
        (
            format!("if ($http_origin ~* '^https://(app|www)[.]example[.]com$') {{ {cors} }}"),
            "[http://gw.example.com:8080]",
        ),
        (
            format!("{preflight} if ($http_origin ~ example) {{ {cors} }}"),
            "[http://gw.example.com:8080]",
        ),
        (
            format!("if ($page) {{ {cors} }}"),
            "[http://gw.example.com:8080]",
        ),
        (
            format!(
                "if ($http_origin = https://a.example) {{ {cors} }} if ($http_origin = https://b.example) {{ {cors} }}"
            ),
            "[http://gw.example.com:8080]",
        ),
        (preflight.to_owned(), "[http://gw.example.com:8080]"),
        (cors.to_owned(), "null"),
    ] {
        let outcome = front("", "", &location);
        assert_eq!(at(&outcome, "admission.origins"), origins, "{location}");
        assert!(!outcome.security, "{:#?}", outcome.lines);
        let is_listed = outcome.says(&["add_header: ", "this condition lets in are not read"]);
        assert_eq!(is_listed, origins != "null", "{:#?}", outcome.lines);
    }
}

#[test]
fn credentials_of_clients_are_passed_to_no_server() {
    let outcome = front(
        "",
        "",
        "proxy_set_header authorization $http_authorization; proxy_set_header X-Manager-Token $http_x_manager_token; \
         proxy_set_header X-Tenant $http_x_tenant;",
    );
    let pass = at(&outcome, "upstreams.remote.search.headers.pass");
    assert_eq!(pass, "[X-Tenant]", "{}", outcome.yaml);
    let credentials = at(&outcome, "upstreams.remote.search.credentials");
    assert_eq!(credentials, "null", "{}", outcome.yaml);
    assert!(
        outcome.says(&["proxy_set_header", "credentials: pass"]),
        "{:#?}",
        outcome.lines
    );
}
