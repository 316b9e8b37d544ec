//! Conditions and the rules that are read from them.

use super::*;
use crate::tree::tests::parsed;

/// The rule behind the first `if`, in a word.
fn shown(text: &str) -> String {
    let tree = parsed(text).expect(text);
    let variables = Variables::of(&tree);
    let condition = tree.iter().find(|it| it.is("if")).expect("an if");
    match guard(condition, &variables) {
        Guard::Tokens {
            tokens,
            header,
            left_out,
        } => {
            let names: Vec<_> = tokens.iter().map(|it| it.name.unwrap_or("-")).collect();
            let elsewhere = header != AUTHORIZATION;
            let more = !left_out.is_empty();
            format!("tokens {} {elsewhere} {more}", names.join(","))
        }
        Guard::AnyCredential => "any credential".into(),
        Guard::Origins {
            origins,
            more,
            needed,
        } => format!("origins {} {more} {needed}", origins.join(",")),
        Guard::Subjects(subjects) => format!("subjects {subjects:?}"),
        Guard::Certificate => "certificate".into(),
        Guard::Host(host) => format!("host {host}"),
        Guard::Encrypted => "encrypted".into(),
        Guard::Always => "always".into(),
        Guard::Harmless(_) => "harmless".into(),
        Guard::Lost(_) => "lost".into(),
    }
}

const TOKENS: &str =
    "map $http_authorization $client { default ''; 'Bearer t1' ci; 'bearer t2' 'no name'; }";
const ORIGINS: &str = "map $http_origin $page { default 0; '' 1; https://a.example 1; ~evil 0; }";

#[test]
fn maps_and_comparisons_become_lists_of_what_is_let_in() {
    for (text, expected) in [
        (format!("{TOKENS} if ($client = '') {{ return 401; }}"), "tokens ci,no name false false"),
        (format!("{TOKENS} proxy_set_header X $client; if ($client = '') {{ return 401; }}"), "tokens -,- false false"),
        ("if ($http_authorization != 'Bearer t') { return 401; }".into(), "tokens - false false"),
        ("if ($http_x_api_key != t) { return 401; }".into(), "tokens - true false"),
        ("if ($http_authorization != 'Basic dTpw') { return 401; }".into(), "tokens  false true"),
        ("if ($http_authorization = '') { return 401; }".into(), "any credential"),
        (format!("{ORIGINS} if ($page = 0) {{ return 403; }}"), "origins https://a.example false false"),
        ("map $http_origin $page { https://a.example 1; ~x$ 1; } if ($page != 1) { return 403; }".into(), "origins https://a.example true true"),
        ("map $ssl_client_s_dn $c { default ''; 'CN=a,O=b' desk; } if ($c = '') { return 403; }".into(), "subjects [(\"desk\", \"CN=a,O=b\")]"),
        ("if ($ssl_client_verify != SUCCESS) { return 403; }".into(), "certificate"),
        ("if ($request_method = OPTIONS) { add_header A b; return 204; }".into(), "always"),
        ("if ($request_method !~ ^(GET|POST|DELETE|OPTIONS)$) { return 405; }".into(), "always"),
        ("if ($host != a.example) { return 444; }".into(), "host a.example"),
        ("if ($scheme = http) { return 301 https://$host; }".into(), "encrypted"),
        ("if ($x) { set $y 1; }".into(), "always"),
        ("if ($x) { access_log off; }".into(), "harmless"),
    ] {
        assert_eq!(shown(&text), expected, "{text}");
    }
}

#[test]
fn what_is_not_understood_for_certain_is_lost() {
    for text in [
        "if ($remote_addr = 10.0.0.1) { return 403; }",
        "if ($http_authorization !~ 'Bearer t') { return 401; }",
        "if ($request_method != POST) { return 405; }",
        "if ($request_method !~ ^(GET|POST)$) { return 405; }",
        "map $http_authorization $bad { default 0; 'Bearer t' 1; } if ($bad) { return 401; }",
        "map $http_origin $bad { default 0; https://evil.example 1; } if ($bad) { return 403; }",
        "map \"$http_authorization:$uri\" $ok { default 0; 'Bearer t:/x' 1; } if ($ok = 0) { return 401; }",
        "if ($http_authorization != $expected) { return 401; }",
        "map $http_authorization $ok { default 0; 'Bearer t' 1; } if ($ok = 0) { return 401; } server { if ($bad) { set $ok 0; } }",
        "if (-f /tmp/closed) { return 503; }",
        "if ($bad) { rewrite ^ /closed last; }",
        // Requests go elsewhere, or something else decides about them.
        "if ($http_authorization != 'Bearer t') { proxy_pass http://10.0.0.9; break; }",
        "if ($http_authorization != 'Bearer t') { fastcgi_pass unix:/deny.sock; }",
        "if ($http_authorization != 'Bearer t') { access_by_lua_file /x.lua; }",
        // The values of the variables are not known.
        "map $http_authorization $ok { default 0; 'Bearer t' $office; } if ($ok = 0) { return 401; }",
        "map $http_authorization $ok { default $office; '' 0; } if ($ok = 0) { return 401; }",
        "map $http_x_api_key $who { default ''; a $lan; } if ($who = '') { return 401; }",
        "map $http_origin $ok { default 0; https://a.example $x; } if ($ok = 0) { return 403; }",
        "map $ssl_client_s_dn $who { default ''; 'CN=a,O=b' $lan; } if ($who = '') { return 403; }",
        // Some credentials are refused by name.
        "map $http_authorization $ok { default 1; '' 0; 'Bearer revoked' 0; } if ($ok = 0) { return 401; }",
        "map $http_authorization $ok { default 1; '' 0; ~^Basic 0; } if ($ok = 0) { return 401; }",
    ] {
        assert_eq!(shown(text), "lost", "{text}");
    }
}

#[test]
fn a_name_that_tells_of_a_token_is_not_shown() {
    for (map, expected) in [
        ("default 0; 'Bearer tok1' desk;", "tokens desk false false"),
        // The whole token, and the token in another case.
        (
            "default 0; 'Bearer tok1' user_tok1;",
            "tokens - false false",
        ),
        ("default 0; 'Bearer TOK1' tok1;", "tokens - false false"),
    ] {
        let text = format!("map $http_authorization $c {{ {map} }} if ($c = 0) {{ return 401; }}");
        assert_eq!(shown(&text), expected, "{map}");
        // A text that a pattern captures, or a second map, goes on under another name.
        for by in [
            "if ($c ~ ^(.+)$) { set $up $1; }",
            "map $c $up { ~^(.+)$ $1; }",
        ] {
            let shown = shown(&format!("{text} {by}"));
            assert!(shown.starts_with("tokens - "), "{shown}");
        }
    }
}
