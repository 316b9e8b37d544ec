//! Directives that need a word.

use super::*;

#[test]
fn a_directive_that_nobody_knows_may_refuse_requests() {
    assert!(matches!(
        treatment("frobnicate", "on"),
        Treatment::Security(_)
    ));
    assert!(matches!(
        treatment("auth_ldap", "x"),
        Treatment::Security(_)
    ));
    assert!(matches!(
        treatment("access_by_lua_block", ""),
        Treatment::Security(_)
    ));
    assert!(matches!(
        treatment("content_by_lua_block", ""),
        Treatment::Plain(_)
    ));
}

#[test]
fn what_the_gateway_always_does_needs_no_word() {
    for (name, value) in [
        ("proxy_buffering", "off"),
        ("gzip", "off"),
        ("proxy_http_version", "1.1"),
        ("tcp_nodelay", "on"),
        ("auth_basic", "off"),
        ("gzip_types", "x"),
    ] {
        assert_eq!(treatment(name, value), Treatment::Fine, "{name}");
    }
    assert!(matches!(treatment("gzip", "on"), Treatment::Plain(_)));
    assert!(matches!(
        treatment("auth_basic", "x"),
        Treatment::Security(_)
    ));
}

#[test]
fn each_name_stands_in_one_list() {
    let mut names: Vec<_> = MAPPED
        .iter()
        .chain(FINE)
        .chain(PLAIN.iter().flat_map(|(names, _)| *names))
        .collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
}
