//! The requests that the conditions (`if`, `map` and access directives) of a location in nginx admit together.

use crate::guards::{AUTHORIZATION, Guard, Token, guard};
use crate::report::Report;
use crate::sites::ProxiedLocation;
use crate::tree::Directive;
use crate::variables::Variables;

/// The requests that a location of nginx admits.
#[derive(Default)]
pub(crate) struct Rules<'a> {
    /// The admitted tokens, and the directive that compares them; `None` if any token is admitted.
    pub(crate) tokens: Option<(Vec<Token<'a>>, &'a Directive)>,
    /// The nginx variable of the request header that carries the tokens.
    header: &'a str,
    /// The admitted origins, and the directive that compares them; `None` if pages of all origins are admitted.
    pub(crate) origins: Option<(Vec<&'a str>, &'a Directive)>,
    /// The subjects of the admitted client certificates, each as it is compared and as it stands in the file, and the directive
    /// that compares them; `None` if all subjects are admitted.
    pub(crate) subjects: Option<(Vec<(&'a str, &'a str)>, &'a Directive)>,
    /// The directive that requires a verified client certificate; `None` if none is required.
    pub(crate) certificate: Option<&'a Directive>,
    /// The only `Host` that requests may name, and the directive that requires it; `None` if any host is admitted.
    pub(crate) host: Option<(&'a str, &'a Directive)>,
    /// The directive that refuses unencrypted connections; `None` if they are admitted.
    pub(crate) encrypted: Option<&'a Directive>,
    /// True if nginx has a condition on requests that no field above describes and that cannot be imported.
    more: bool,
}

impl<'a> Rules<'a> {
    /// Reads the conditions of a location, and reports those that cannot be imported.
    pub(crate) fn of(
        proxied_location: &ProxiedLocation<'a>,
        variables: &Variables<'a>,
        report: &mut Report,
    ) -> Self {
        let mut rules = Self::default();
        for condition in proxied_location.scope.conditions() {
            rules.add(condition, guard(condition, variables), report);
        }
        rules.more |= proxied_location.scope.asks_for_credential();
        if let (Some(_), Some((_, at))) = (&rules.tokens, &rules.subjects) {
            report.security(
                at,
                "here a token or a certificate lets a client in, not both together: tokens are asked for, and the subject is not",
            );
            rules.subjects = None;
        }
        rules
    }

    fn add(&mut self, at: &'a Directive, guard: Guard<'a>, report: &mut Report) {
        match guard {
            Guard::Tokens {
                tokens,
                header,
                left_out,
            } => {
                if let Some((_, first)) = &self.tokens
                    && self.header != header
                {
                    let place = &first.place;
                    report.security(at, format!("clients give one token here: one of {place} is asked for, and this second credential in another header is not"));
                    return;
                }
                self.header = header;
                if header != AUTHORIZATION {
                    report.plain(at, "tokens come in Authorization: Bearer; tell the clients, which send another header now");
                }
                for (line, why) in left_out {
                    report.plain(line, why);
                }
                self.tokens = Some(match self.tokens.take() {
                    None => (tokens, at),
                    Some((mut before, first)) => {
                        before.retain(|it| tokens.iter().any(|other| other.digest == it.digest));
                        (before, first)
                    }
                });
            }
            Guard::Origins {
                origins,
                more,
                needed,
            } => {
                if needed {
                    report.security(at, "requests without an Origin are let in, as they come from no web page: they still need a token");
                }
                if more {
                    report.plain(at, "origins are listed one by one in admission.origins: pages that a pattern lets in are refused");
                }
                self.origins = Some(match self.origins.take() {
                    None => (origins, at),
                    Some((mut before, first)) => {
                        before.retain(|it| origins.contains(it));
                        (before, first)
                    }
                });
            }
            Guard::Subjects(subjects) => match &self.subjects {
                None => self.subjects = Some((subjects, at)),
                Some(_) => {
                    report.security(at, "a second condition on the subject has no counterpart")
                }
            },
            Guard::Host(host) => match &self.host {
                None => self.host = Some((host, at)),
                Some(_) => report.security(at, "a second condition on the host has no counterpart"),
            },
            Guard::Certificate => self.certificate = Some(at),
            Guard::Encrypted => self.encrypted = Some(at),
            // A condition that any credential passes has no equivalent, but the gateway always requires a credential.
            Guard::AnyCredential => self.more = true,
            Guard::Always => {}
            Guard::Harmless(why) => report.plain(at, why),
            Guard::Lost(why) => {
                self.more = true;
                report.security(at, why);
            }
        }
    }

    /// Returns true if nginx compares `Authorization` with tokens.
    pub(crate) fn compares_authorization(&self) -> bool {
        self.tokens.is_some() && self.header == AUTHORIZATION
    }

    /// Returns true if nginx admits requests without a credential.
    pub(crate) fn is_open(&self) -> bool {
        self.tokens.is_none() && self.subjects.is_none() && self.certificate.is_none() && !self.more
    }
}
