//! Names of principals, made from the names that a `map` of nginx gives to clients. A name that is invalid in the gateway is
//! changed, and each change is reported, since the names appear in logs.

use std::collections::BTreeMap;

use crate::guards::{ClientName, Credential};
use crate::report::Report;

/// Maximum length of a principal's name in bytes, not counting a number that may be appended.
const NAME_MAX: usize = 60;

/// The names given to clients so far, each with the client's name in nginx and its namespaces. Clients for which both are equal
/// become one principal.
#[derive(Default)]
pub(crate) struct Principals {
    given: BTreeMap<String, (Option<String>, Vec<String>)>,
    unnamed: usize,
}

/// Makes a valid principal's name of a client's name: characters that the gateway does not allow become `-`. Returns `None` if
/// the result is reserved by the gateway or does not begin with an ASCII letter.
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
    (begins && cleaned != "bearer" && cleaned != "anonymous").then_some(cleaned)
}

impl Principals {
    /// Chooses the principal's name of a client. A client without a usable name gets `kind` and a number.
    pub(crate) fn name(
        &mut self,
        client: &Credential<'_>,
        kind: &str,
        namespaces: &[String],
        report: &mut Report,
    ) -> String {
        let shown = match client.name {
            ClientName::Shown(name) => Some(name),
            ClientName::None | ClientName::Hidden => None,
        };
        let given = (shown.map(str::to_owned), namespaces.to_vec());
        let (wanted, from) = match shown.and_then(cleaned) {
            Some(wanted) => (wanted, 1),
            None => {
                self.unnamed += 1;
                (kind.to_owned(), self.unnamed)
            }
        };
        let is_unnamed = wanted == kind;
        let mut names = (from..).map(|number| match number {
            1 if !is_unnamed => wanted.clone(),
            number => format!("{wanted}-{number}"),
        });
        let is_free = |name: &String| match self.given.get(name) {
            None => true,
            Some(before) => !is_unnamed && *before == given,
        };
        let name = names.find(is_free).unwrap_or_else(|| wanted.clone());
        if shown.is_some_and(|it| it != name) || matches!(client.name, ClientName::Hidden) {
            let why = format!(
                "the name of a principal has at most {NAME_MAX} letters and digits of ASCII, '-', '_', '.' and '@', begins with a letter, is no secret and that of one client: the client is {name} here and in logs"
            );
            report.plain(client.at, why);
        }
        self.given.insert(name.clone(), given);
        name
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
