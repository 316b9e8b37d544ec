//! The name of a directive in the form for a report. If a line is broken or a quote is missing in the file, the parser may read a
//! secret as the name of a directive, so unknown names are not shown.

use super::{
    FINE, FINE_WITH, MAPPED, OF_POOLS, PLAIN, PLAIN_BEGINNINGS, SECURITY, SECURITY_BEGINNINGS,
};

/// Returns the name if it is listed as the name of a directive, or the listed prefix with which it begins. Otherwise returns a
/// replacement text.
pub(crate) fn shown(name: &str) -> &str {
    let fine_with = FINE_WITH.iter().map(|(name, _, _)| *name);
    let reported = SECURITY
        .iter()
        .chain(PLAIN)
        .flat_map(|(names, _)| *names)
        .copied();
    let names = MAPPED.iter().chain(FINE).chain(OF_POOLS).copied();
    if names.chain(fine_with).chain(reported).any(|it| it == name) {
        return name;
    }
    let beginnings = SECURITY_BEGINNINGS.iter().chain(PLAIN_BEGINNINGS);
    let mut beginnings = beginnings.flat_map(|(names, _)| *names).copied();
    beginnings
        .find(|it| name.starts_with(it))
        .unwrap_or("unknown directive")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_may_be_a_secret_is_not_shown() {
        for (name, expected) in [
            ("http2_push", "http2_push"),
            ("proxy_pass", "proxy_pass"),
            ("least_time", "least_time"),
            ("access_by_lua_block", "access_by_lua"),
            ("auth_hunter", "auth_"),
            ("gzip_sk_live", "gzip_"),
        ] {
            assert_eq!(shown(name), expected);
        }
        for name in [
            "Bearer x",
            "s3cret",
            "HUNTER",
            "a-b",
            "hunter_two",
            "sk_live_abc",
            "",
            "_",
        ] {
            assert_eq!(shown(name), "unknown directive", "{name}");
        }
    }
}
