//! The name of a directive in the form for a report. If a line is broken or a quote is missing in the file, the parser may read a
//! secret as the name of a directive, so unknown names are not shown.

use std::collections::HashSet;

use super::{
    FINE, FINE_WITH, MAPPED, OF_POOLS, PLAIN, PLAIN_BEGINNINGS, SECURITY, SECURITY_BEGINNINGS,
};

/// Text that replaces unknown names of directives in reports.
const UNKNOWN: &str = "unknown directive";

/// Words that may occur in directive names with a listed prefix, in addition to the words of the listed names.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "block", "ldap", "pam", "digest", "gss", "sign", "request", "require", "claim", "set", "header", "type", "types", "static",
    "disable", "proxied", "param", "params", "split", "method", "methods", "write", "valid", "read", "force", "store", "format",
    "geoip2", "image", "jwt", "oidc", "allow", "deny", "country", "city", "org",
];

/// Returns the name if it is certainly the name of a directive: a listed name, or a listed prefix followed only by words of
/// nginx's names. Otherwise returns a replacement text.
pub(crate) fn shown(name: &str) -> &str {
    let begins = |list: &[(&str, &str)]| list.iter().any(|(known, _)| name.starts_with(known));
    let known = || {
        let words = known_words();
        name.split('_').all(|word| words.contains(word))
    };
    let of_a_group = begins(SECURITY_BEGINNINGS) || begins(PLAIN_BEGINNINGS);
    match is_listed(name) || of_a_group && known() {
        true => name,
        false => UNKNOWN,
    }
}

fn is_listed(name: &str) -> bool {
    names().any(|it| it == name)
}

/// All names of directives in the tables.
fn names() -> impl Iterator<Item = &'static str> {
    let fine_with = FINE_WITH.iter().map(|(name, _, _)| *name);
    let reported = SECURITY.iter().chain(PLAIN).map(|(name, _)| *name);
    let names = MAPPED.iter().chain(FINE).chain(OF_POOLS).copied();
    names.chain(fine_with).chain(reported)
}

fn known_words() -> HashSet<&'static str> {
    let beginnings = SECURITY_BEGINNINGS.iter().chain(PLAIN_BEGINNINGS);
    let names = names().chain(beginnings.map(|(name, _)| *name));
    let words = names.flat_map(|name| name.split('_'));
    words
        .chain(WORDS.iter().copied())
        .filter(|word| !word.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_may_be_a_secret_is_not_shown() {
        for name in [
            "http2_push",
            "proxy_pass",
            "access_by_lua_block",
            "auth_ldap",
            "gzip_types",
            "proxy_cache_key",
            "geoip2_proxy",
            "hash",
            "least_time",
        ] {
            assert_eq!(shown(name), name);
        }
        for name in [
            "Bearer x",
            "s3cret",
            "HUNTER",
            "a-b",
            "hunter",
            "hunter_two",
            "sk_live_abc",
            "auth_hunter",
            "buffer_key_size",
            "auth__",
            "gzip_sk_live",
            "",
            "_",
        ] {
            assert_eq!(shown(name), UNKNOWN, "{name}");
        }
    }
}
