//! Names of principals, made from the names that a `map` of nginx gives to clients. A name that is invalid in the gateway is
//! changed, and each change is reported, since the names appear in logs.

use std::collections::BTreeMap;

use crate::report::Report;
use crate::tree::Directive;

/// Maximum length of a principal's name in bytes, not counting a number that may be appended.
const NAME_MAX: usize = 60;

/// Names that the gateway uses for principals without a name of their own; no imported client gets one of them.
const RESERVED: [&str; 2] = ["bearer", "anonymous"];

/// A client for which a principal's name is chosen.
pub(crate) struct Client<'a> {
    /// The client's name in a `map`.
    pub(crate) name: Option<&'a str>,
    /// True if the client's name in the `map` may be a secret, and must not appear in the report or in logs.
    pub(crate) is_hidden: bool,
    pub(crate) at: &'a Directive,
}

/// The names given to clients so far. Clients with the same name and the same namespaces become one principal.
#[derive(Default)]
pub(crate) struct Principals {
    given: BTreeMap<String, NamedClient>,
    numbered: usize,
}

/// The name of a client in nginx and its namespaces. Clients for which both are equal are the same principal.
#[derive(PartialEq, Eq)]
struct NamedClient {
    /// The client's name in nginx; `None` for a client without a name.
    name: Option<String>,
    namespaces: Vec<String>,
}

/// Makes a valid principal's name of a client's name: characters that the gateway does not allow become `-`. Returns `None` if
/// the result is reserved or does not begin with an ASCII letter.
pub(crate) fn cleaned(name: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    let mut cleaned = String::new();
    for c in name.trim_end_matches(|c| !plain(c)).chars().take(NAME_MAX) {
        match plain(c) {
            true => cleaned.push(c),
            false if cleaned.ends_with('-') => {}
            false => cleaned.push('-'),
        }
    }
    let begins = cleaned.starts_with(|first: char| first.is_ascii_alphabetic());
    (begins && !RESERVED.contains(&&*cleaned)).then_some(cleaned)
}

impl Principals {
    /// Chooses the principal's name of a client. A client without a usable name gets `kind` and a number.
    pub(crate) fn name(
        &mut self,
        client: &Client<'_>,
        kind: &str,
        namespaces: &[String],
        report: &mut Report,
    ) -> String {
        let given = NamedClient {
            name: client.name.map(str::to_owned),
            namespaces: namespaces.to_vec(),
        };
        let Some(cleaned) = client.name.and_then(cleaned) else {
            let name = self.numbered(kind, given);
            let is_named = client
                .name
                .is_some_and(|it| it.contains(char::is_alphanumeric));
            if client.is_hidden {
                let why = "the client's name may be a secret: it says much of a credential, or goes to a server";
                report.plain(
                    client.at,
                    format!("{why}. The client is {name} here and in logs"),
                );
            } else if is_named {
                let why = "the name of a principal begins with a letter of ASCII, and is neither bearer nor anonymous";
                report.plain(
                    client.at,
                    format!("{why}: the client is {name} here and in logs"),
                );
            }
            return name;
        };
        let given_before = self.given.get(&cleaned);
        let is_free = given_before.is_none_or(|before| *before == given);
        let name = match is_free {
            true => cleaned.clone(),
            false => self.with_number(&cleaned, &given),
        };
        let mut why = Vec::new();
        if client.name != Some(&cleaned) {
            why.push(format!(
                "the name of a principal has at most {NAME_MAX} letters and digits of ASCII, '-', '_', '.' and '@', so other \
                 characters of the client's name are '-', and the rest is left out"
            ));
        }
        if !is_free {
            why.push(
                "another client of this name opens other namespaces or is called otherwise in nginx, so there is a number behind it"
                    .to_owned(),
            );
        }
        for why in why {
            report.plain(
                client.at,
                format!("{why}: the client is {name} here and in logs"),
            );
        }
        self.given.insert(name.clone(), given);
        name
    }

    /// Appends a number from 2 to the cleaned name: the first number whose name is free or already belongs to this client.
    fn with_number(&self, cleaned: &str, given: &NamedClient) -> String {
        let numbers = 2..;
        let mut names = numbers.map(|number: u32| format!("{cleaned}-{number}"));
        let free = |name: &String| self.given.get(name).is_none_or(|before| before == given);
        names.find(free).unwrap_or_else(|| cleaned.to_owned())
    }

    fn numbered(&mut self, kind: &str, given: NamedClient) -> String {
        loop {
            self.numbered += 1;
            let name = format!("{kind}-{}", self.numbered);
            if !self.given.contains_key(&name) {
                self.given.insert(name.clone(), given);
                return name;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::cleaned;

    #[test]
    fn a_name_is_kept_as_far_as_a_principal_may_be_called_so() {
        for (name, expected) in [
            ("ci", Some("ci")),
            ("build bot", Some("build-bot")),
            ("team:ada  (laptop)", Some("team-ada-laptop")),
            ("ada@example.com", Some("ada@example.com")),
            ("Jörg", Some("J-rg")),
            ("ends-", Some("ends-")),
            ("Яна", None),
            ("1", None),
            ("bearer", None),
        ] {
            assert_eq!(cleaned(name).as_deref(), expected, "{name}");
        }
    }
}
