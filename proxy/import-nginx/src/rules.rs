//! The requests that the conditions (`if`, `map` and access directives) of a location in nginx admit together.

use crate::guards::{AUTHORIZATION, Credential, Rule, rule};
use crate::report::Report;
use crate::sites::ProxiedLocation;
use crate::tree::Directive;
use crate::variables::Variables;

/// The requests that a location of nginx admits.
#[derive(Default)]
pub(crate) struct Rules<'a> {
    /// The admitted tokens, and the directive that compares them; `None` if any token is admitted.
    pub(crate) tokens: Option<(Vec<Credential<'a>>, &'a Directive)>,
    /// The admitted origins, and the directive that compares them; `None` if pages of all origins are admitted.
    pub(crate) origins: Option<(Vec<&'a str>, &'a Directive)>,
    /// The subjects of the admitted client certificates, and the directive that compares them; `None` if all are admitted.
    pub(crate) subjects: Option<(Vec<Credential<'a>>, &'a Directive)>,
    /// True if nginx compares `Authorization` with tokens.
    pub(crate) compares_authorization: bool,
    /// True if nginx has a condition on requests that no field above describes.
    more: bool,
}

impl<'a> Rules<'a> {
    /// Reads the conditions of a location, and reports those that cannot be imported.
    pub(crate) fn of(
        location: &ProxiedLocation<'a>,
        variables: &Variables<'a>,
        report: &mut Report,
    ) -> Self {
        let mut rules = Self {
            more: location.scope.asks_for_credential(),
            ..Self::default()
        };
        for at in location.scope.of_server_and_own("if") {
            match rule(at, variables, report) {
                Rule::Tokens(tokens, header) => {
                    rules.compares_authorization |= header == AUTHORIZATION;
                    first(&mut rules.tokens, tokens, at, report);
                }
                Rule::Subjects(subjects) => first(&mut rules.subjects, subjects, at, report),
                Rule::Origins(origins) => first(&mut rules.origins, origins, at, report),
                Rule::Other => rules.more = true,
                Rule::Nothing => {}
            }
        }
        if let (Some(_), Some((_, at))) = (&rules.tokens, &rules.subjects) {
            let why = "here a token or a certificate lets a client in, not both together: tokens are asked for, and the subject is not";
            report.security(at, why);
            rules.subjects = None;
        }
        rules
    }

    /// Returns true if nginx admits requests without a credential.
    pub(crate) fn is_open(&self) -> bool {
        self.tokens.is_none() && self.subjects.is_none() && !self.more
    }
}

/// Stores the first condition of its kind, and reports a further one.
fn first<'a, T>(
    slot: &mut Option<(T, &'a Directive)>,
    value: T,
    at: &'a Directive,
    report: &mut Report,
) {
    match slot {
        None => *slot = Some((value, at)),
        Some((_, first)) => report.security(at, format!("clients show one credential and one origin here, which are judged once: the condition of {} is carried over, and this second one is not", first.place)),
    }
}
