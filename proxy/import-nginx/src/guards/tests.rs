//! Conditions, the rules that are read from them, and those that are listed.

use super::*;
use crate::tree::tests::parsed;

/// The rule of the first `if` in a word, and the number of report lines, with `!` if one is about security.
fn shown(text: &str) -> String {
    let tree = parsed(text).expect(text);
    let variables = Variables::of(&tree);
    let condition = tree.iter().find(|it| it.is("if")).expect("an if");
    let mut report = Report::default();
    let names = |credentials: Vec<Credential<'_>>| {
        let names = credentials.iter().map(|it| match it.name {
            ClientName::None => "-",
            ClientName::Hidden => "*",
            ClientName::Shown(name) => name,
        });
        names.collect::<Vec<_>>().join(",")
    };
    let rule = match rule(condition, &variables, &mut report) {
        Rule::Tokens(tokens, _) => format!("tokens {}", names(tokens)),
        Rule::Origins(origins) => format!("origins {}", origins.join(",")),
        Rule::Subjects(subjects) => format!("subjects {}", names(subjects)),
        Rule::Other => "other".into(),
        Rule::Nothing => "nothing".into(),
    };
    let weight = if report.has_security() { "!" } else { "" };
    format!("{rule} {}{weight}", report.lines().count())
}

const TOKENS: &str =
    "map $http_authorization $client { default ''; 'Bearer t1' ci; 'bearer t2' 'no name'; }";
const ORIGINS: &str = "map $http_origin $page { default 0; '' 1; https://a.example 1; ~evil 0; }";

#[test]
fn maps_and_comparisons_become_lists_of_what_is_let_in() {
    for (text, expected) in [
        (format!("{TOKENS} if ($client = '') {{ return 401; }}"), "tokens ci,no name 0"),
        (format!("{TOKENS} proxy_set_header X $client; if ($client = '') {{ return 401; }}"), "tokens *,* 0"),
        ("if ($http_authorization != 'Bearer t') { return 401; }".into(), "tokens - 0"),
        ("if ($http_x_api_key != t) { return 401; }".into(), "tokens - 1"),
        ("if ($http_authorization != 'Basic dTpw') { return 401; }".into(), "tokens  1"),
        ("if ($http_authorization = '') { return 401; }".into(), "other 0"),
        (format!("{ORIGINS} if ($page = 0) {{ return 403; }}"), "origins https://a.example 0"),
        (
            "map $http_origin $page { https://a.example 1; ~x$ 1; } if ($page != 1) { return 403; }".into(),
            "origins https://a.example 2!",
        ),
        ("map $ssl_client_s_dn $c { default ''; 'CN=a,O=b' desk; } if ($c = '') { return 403; }".into(), "subjects desk 0"),
        ("if ($request_method = OPTIONS) { add_header A b; return 204; }".into(), "nothing 0"),
        ("if ($x) { set $y 1; }".into(), "nothing 0"),
        ("if ($x) { access_log off; }".into(), "nothing 1"),
    ] {
        assert_eq!(shown(&text), expected, "{text}");
    }
}

#[test]
fn conditions_that_are_not_read_are_listed_as_security() {
    for text in [
        "if ($remote_addr = 10.0.0.1) { return 403; }",
        "if ($http_authorization !~ 'Bearer t') { return 401; }",
        "if ($http_authorization !~* 'Bearer t') { return 401; }",
        "if ($request_method != POST) { return 405; }",
        "if ($request_method !~ ^(GET|POST|DELETE)$) { return 405; }",
        "if ($ssl_client_verify != SUCCESS) { return 403; }",
        "if ($host != a.example) { return 444; }",
        "if ($scheme = http) { return 301 https://$host; }",
        "if ($https = '') { return 403; }",
        "map $http_authorization $bad { default 0; 'Bearer t' 1; } if ($bad) { return 401; }",
        "map $http_origin $bad { default 0; https://evil.example 1; } if ($bad) { return 403; }",
        "map \"$http_authorization:$uri\" $ok { default 0; 'Bearer t:/x' 1; } if ($ok = 0) { return 401; }",
        "map $a $ok { default 0; b 1; } map $http_authorization $a { 'Bearer t' b; } if ($ok = 0) { return 401; }",
        "geo $ok { default 0; 10.0.0.0/8 1; } if ($ok = 0) { return 401; }",
        "if ($http_authorization != $expected) { return 401; }",
        "if ($http_authorization != '') { return 401; }",
        "set $ok 1; map $http_authorization $ok { default 0; 'Bearer t' 1; } if ($ok = 0) { return 401; }",
        "if (-f /tmp/closed) { return 503; }",
        "if ($bad) { rewrite ^ /closed last; }",
        // Requests go elsewhere, or something else decides about them.
        "if ($http_authorization != 'Bearer t') { proxy_pass http://10.0.0.9; break; }",
        "if ($http_authorization != 'Bearer t') { fastcgi_pass unix:/deny.sock; }",
        "if ($http_authorization != 'Bearer t') { access_by_lua_file /x.lua; }",
        "if ($http_authorization != 'Bearer t') { auth_request /x; }",
        // The values of the variables are not known.
        "map $http_authorization $ok { default 0; 'Bearer t' $office; } if ($ok = 0) { return 401; }",
        "map $http_authorization $ok { default $office; '' 0; } if ($ok = 0) { return 401; }",
        "map $http_x_api_key $who { default ''; a $lan; } if ($who = '') { return 401; }",
        "map $http_origin $ok { default 0; https://a.example $x; } if ($ok = 0) { return 403; }",
        "map $ssl_client_s_dn $who { default ''; 'CN=a,O=b' $lan; } if ($who = '') { return 403; }",
        "map $ssl_client_s_dn $who { default ''; ~a desk; } if ($who = '') { return 403; }",
        // Some credentials are refused by name.
        "map $http_authorization $ok { default 1; '' 0; 'Bearer revoked' 0; } if ($ok = 0) { return 401; }",
        "map $http_authorization $ok { default 1; '' 0; ~^Basic 0; } if ($ok = 0) { return 401; }",
        "map $http_authorization $ok { default 1; '' 0; } if ($ok = 0) { return 401; }",
    ] {
        assert_eq!(shown(text), "other 1!", "{text}");
    }
}

#[test]
fn a_name_that_tells_of_a_token_is_not_shown() {
    for (map, expected) in [
        ("default 0; 'Bearer tok1' desk;", "tokens desk 0"),
        // The whole token, and the token in another case.
        ("default 0; 'Bearer tok1' user_tok1;", "tokens * 0"),
        ("default 0; 'Bearer TOK1' tok1;", "tokens * 0"),
        // Values that name no client.
        ("default 0; 'Bearer tok1' 1;", "tokens - 0"),
        ("default no; 'Bearer tok1' yes;", "other 1!"),
    ] {
        let text = format!("map $http_authorization $c {{ {map} }} if ($c = 0) {{ return 401; }}");
        assert_eq!(shown(&text), expected, "{map}");
    }
    // A text that a pattern captures, or a second map, goes on under another name.
    let text = "map $http_authorization $c { 'Bearer tok1' desk; } if ($c = '') { return 401; }";
    for by in [
        "if ($c ~ ^(.+)$) { set $up $1; }",
        "map $c $up { ~^(.+)$ $1; }",
    ] {
        assert_eq!(shown(&format!("{text} {by}")), "tokens * 0");
    }
}
