//! Masks passwords at any position of a mistyped address, before an error quotes the address.

use super::{MASK, text as masked_text, url};

/// Masks an address of any form, `HOST:PORT` or a URL: user, password and values of parameters are hidden. Text at the position
/// of a URL's port is masked unless it is a number: it may be a password whose `@HOST` is missing.
pub fn address(text: &str) -> String {
    let (scheme, rest) = match text.find("://") {
        Some(at) => text.split_at(at + 3),
        None => ("", text),
    };
    // A password may contain a slash, a question mark or an `@` that is not percent-encoded, so the last `@` ends the login.
    let (login, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) => (MASK, rest),
        None => ("", rest),
    };
    let at = if login.is_empty() { "" } else { "@" };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (hosts, path) = rest.split_at(end);
    let hosts: Vec<_> = hosts.split(',').map(host).collect();
    format!("{scheme}{login}{at}{}{}", hosts.join(","), url(path))
}

/// Masks a host with or without port, `HOST:PORT` or `[IPv6]:PORT`. Text at the position of the port is masked unless it is a
/// number.
fn host(text: &str) -> String {
    let port_from = text.rfind(']').unwrap_or(0);
    let port = text[port_from..].find(':').map(|at| port_from + at + 1);
    match port.map(|at| text.split_at(at)) {
        Some((before, port)) if !port.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{before}{MASK}")
        }
        _ => masked_text(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_secret_is_repeated_as_it_is() {
        for text in [
            "",
            "floppy",
            "host",
            "host:0",
            "host:99999",
            "[::1]:7100",
            "http://cache.example:6379/0",
            "redis+sentinel://a:1,b/main/x",
            "redis+cluster://a,,b",
            "redis+unix:///run/redis.sock",
        ] {
            assert_eq!(address(text), text);
        }
    }

    #[test]
    fn a_password_is_masked_wherever_a_slip_has_put_it() {
        for (text, shown) in [
            ("redis://user:hunter2@h:1/x", "redis://***MASKED***@h:1/x"),
            ("rediss:///:hunter2@h", "rediss://***MASKED***@h"),
            ("redis://:hun/ter2@h", "redis://***MASKED***@h"),
            ("redis://:12/hunter2@h", "redis://***MASKED***@h"),
            ("redis://:hun@ter2@h", "redis://***MASKED***@h"),
            ("redis://:hun?ter2@h", "redis://***MASKED***@h"),
            ("user:hunter2@h:1", "***MASKED***@h:1"),
            ("redis://:hunter2", "redis://:***MASKED***"),
            ("redis://user:hunter2", "redis://user:***MASKED***"),
            ("redis:hunter2", "redis:***MASKED***"),
            (
                "redis://h?password=hunter2",
                "redis://h?password=***MASKED***",
            ),
            ("redis://h?hunter2", "redis://h?***MASKED***"),
        ] {
            assert_eq!(address(text), shown);
        }
    }
}
