//! Texts about a token that could not be fetched. The log contains the complete text for operators. The texts for clients contain
//! neither secrets nor addresses that are not public, whatever their source.

use std::net::{IpAddr, SocketAddr};

use tooldock_base::address::is_public;
use tooldock_base::secret::Secret;
use tooldock_workers::remote::RemoteServer;

/// Maximum length in characters of a text about a failed token request.
const REASON_MAX: usize = 300;

/// Text that replaces an address that is not public.
const PRIVATE: &str = "[private address]";

/// Endings of host names inside private networks.
const PRIVATE_ENDINGS: [&str; 11] = [
    ".localhost",
    ".localdomain",
    ".local",
    ".internal",
    ".intranet",
    ".private",
    ".corp",
    ".home",
    ".lan",
    ".svc",
    ".home.arpa",
];

/// The reason why no token could be fetched, as a text for the log and a text for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    /// The complete text, for the log.
    pub(crate) logged: String,
    /// The text for clients, without addresses that are not public.
    pub(crate) told: String,
}

impl Reason {
    /// Appends `more` to the text for the log and to the text for clients. It must not contain anything that clients may not
    /// read.
    pub(super) fn followed_by(self, more: &str) -> Self {
        Self {
            logged: format!("{}{more}", self.logged),
            told: format!("{}{more}", self.told),
        }
    }

    /// Applies a function to the text for the log and to the text for clients.
    pub(super) fn map(self, change: impl Fn(&str) -> String) -> Self {
        Self {
            logged: change(&self.logged),
            told: change(&self.told),
        }
    }
}

impl From<String> for Reason {
    fn from(logged: String) -> Self {
        Self {
            told: without_private_addresses(&logged),
            logged,
        }
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// Reduces a text from another server to one line of bounded length. The secrets of `server` and the values in `hidden` are
/// removed. This is done before the text is cut, so that no part of a secret remains.
pub(super) fn one_line(server: &RemoteServer, hidden: &[Secret], text: &str) -> String {
    let text = server.excerpt(text, hidden, REASON_MAX);
    text.replace(char::is_control, " ")
}

/// Replaces each address that is not public by a phrase, also inside URLs.
fn without_private_addresses(text: &str) -> String {
    let ends_word =
        |character: char| character.is_whitespace() || "\"'`<>(){},;=|".contains(character);
    let mut shown = String::with_capacity(text.len());
    for part in text.split_inclusive(ends_word) {
        let word = part.trim_end_matches(ends_word);
        let word = word.trim_end_matches(['.', ':', '!', '?']);
        match is_private(word) {
            true => {
                shown.push_str(PRIVATE);
                shown.push_str(&part[word.len()..]);
            }
            false => shown.push_str(part),
        }
    }
    shown
}

/// Returns true if a word is, or contains, an address that is not public.
fn is_private(word: &str) -> bool {
    let (is_url, rest) = match word.split_once("://") {
        Some((_, rest)) => (true, rest),
        None => (false, word),
    };
    let mut parts = rest.split(['/', '?', '#', '&', '@']);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    parts.any(is_private_literal) || is_private_name(host, is_url)
}

fn is_private_literal(text: &str) -> bool {
    let bare = text.trim_start_matches('[');
    let bare = bare.strip_suffix(']').unwrap_or(bare);
    let bare = bare.split('%').next().unwrap_or_default();
    let address = match (text.parse::<SocketAddr>(), bare.parse::<IpAddr>()) {
        (Ok(socket), _) => socket.ip(),
        (_, Ok(address)) => address,
        _ => return false,
    };
    // A word of colons only, such as `::`, parses as an address but is none.
    !is_public(address) && text.contains(|it: char| it.is_ascii_hexdigit())
}

/// Returns true if a host, with or without a port, is a name inside a private network. In a URL, names without a dot also count
/// as such.
fn is_private_name(host: &str, is_url: bool) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let is_name = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_' | b'.');
    if name.is_empty() || !name.bytes().all(is_name) {
        return false;
    }
    name == "localhost"
        || (is_url && !name.contains('.'))
        || PRIVATE_ENDINGS.iter().any(|it| name.ends_with(it))
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;
    use tooldock_credentials::secrets::Secrets;
    use tooldock_workers::remote::RemoteServerConfig;

    use super::*;

    #[test]
    fn no_part_of_a_secret_is_left_where_a_text_is_cut() {
        let text = "{ backends: ['https://a/mcp'], credentials: 'Bearer ${TOKEN}' }";
        let config: RemoteServerConfig = yaml::from_str(text).expect(text);
        let name = "ns".parse().expect("a name");
        let secrets = Secrets::global([("TOKEN", Secret::new("canary-configured-0123456789"))]);
        let server = RemoteServer::resolve(&name, &config, &secrets, &|_| None).expect(text);
        let hidden = [Secret::new("canary-of-the-authorization-9876543210")];
        for secret in ["canary-configured-0123456789", hidden[0].expose()] {
            for before in 0..=REASON_MAX {
                let text = format!("{}{secret} and more", "x".repeat(before));
                let shown = one_line(&server, &hidden, &text);
                assert!(!shown.contains("cana"), "{shown}");
                assert!(shown.chars().count() <= REASON_MAX + "[redacted]".len());
            }
            for cut in 4..secret.len() {
                for end in ["", "... is over", "… is over"] {
                    let text = format!("no token for {}{end}", &secret[..cut]);
                    let shown = one_line(&server, &hidden, &text);
                    assert_eq!(shown, format!("no token for [redacted]{end}"));
                }
            }
        }
    }

    #[test]
    fn addresses_that_are_not_public_are_not_told() {
        for (text, told) in [
            ("no such scope: read", "no such scope: read"),
            (
                "dial tcp 10.0.0.5:5432: refused",
                "dial tcp [private address]: refused",
            ),
            ("at 192.168.1.7.", "at [private address]."),
            ("host=10.1.2.3,port=1", "host=[private address],port=1"),
            (
                "see http://10.0.0.5/x?y (down)",
                "see [private address] (down)",
            ),
            ("(https://user@[fd00::1]:8443/token)", "([private address])"),
            (
                "fe80::1%eth0 or ::1",
                "[private address] or [private address]",
            ),
            ("tcp/127.0.0.1:80", "[private address]"),
            (
                "\"http://idp:8080/token\" failed",
                "\"[private address]\" failed",
            ),
            (
                "localhost:8080, db.prod.svc.cluster.local",
                "[private address], [private address]",
            ),
            (
                "ip-10-0-0-5.ec2.internal is away",
                "[private address] is away",
            ),
            (
                "https://login.example.com/a at 1.1.1.1",
                "https://login.example.com/a at 1.1.1.1",
            ),
            (
                "local, internal: std::io :: a=b",
                "local, internal: std::io :: a=b",
            ),
            (
                "AADSTS7000215: client 1.2 at 12:30",
                "AADSTS7000215: client 1.2 at 12:30",
            ),
        ] {
            let reason = Reason::from(text);
            assert_eq!((&*reason.logged, &*reason.told), (text, told));
        }
    }
}
