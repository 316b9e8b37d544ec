//! Rules that refuse requests by nginx's `if`, and their equivalents in the gateway.
//!
//! nginx has no directives for rules about tokens and origins, so configurations use `map` and `if … return`. The importer reads
//! an `if` that tests a header, the subject of a client certificate, or a `map` of one of them. Every other `if` is reported.

use tooldock_filters::token::config_digest;

use crate::conditions::{VariableTest, variable_test};
use crate::principals::cleaned;
use crate::report::Report;
use crate::tree::Directive;
use crate::values::{is_literal, only_variable};
use crate::variables::{Key, Map, Variables, is_mark};

/// The nginx variable for the header in which the gateway expects tokens.
pub(crate) const AUTHORIZATION: &str = "http_authorization";

/// The rule that an `if` of nginx expresses.
pub(crate) enum Rule<'a> {
    /// Only clients with these tokens are admitted. Also contains the nginx variable for the header that carries them.
    Tokens(Vec<Credential<'a>>, &'a str),
    /// Only certificates with these subjects are admitted.
    Subjects(Vec<Credential<'a>>),
    /// Only requests without an `Origin`, or from pages of these origins, are admitted.
    Origins(Vec<&'a str>),
    /// The rule asks for any credential, which the gateway always does, or it is reported as not imported.
    Other,
    /// The rule refuses no request that the gateway would admit.
    Nothing,
}

/// A token or the subject of a certificate that nginx admits.
pub(crate) struct Credential<'a> {
    pub(crate) name: ClientName<'a>,
    /// SHA-256 of the token, in hexadecimal digits; or the subject.
    pub(crate) id: String,
    pub(crate) at: &'a Directive,
}

/// The name that a `map` gives to a client.
#[derive(Clone, Copy)]
pub(crate) enum ClientName<'a> {
    None,
    /// The name must not be shown: it would reveal parts of a token, or is sent to servers as a secret may be.
    Hidden,
    Shown(&'a str),
}

/// The values of a header that pass an `if` which refuses requests.
struct AdmittedValues<'a> {
    /// Texts, each with its line.
    texts: Vec<(&'a str, &'a Directive)>,
    /// Lines of a `map` that admit further texts by a regular expression.
    patterns: Vec<&'a Directive>,
    /// True if requests without the header are admitted.
    empty: bool,
}

/// Directives that neither answer nor route requests. An `if` that contains only these does not refuse or admit requests.
#[rustfmt::skip]
const DECORATION: [&str; 7] = ["set", "break", "add_header", "expires", "access_log", "gzip", "limit_rate"];

const LOST: &str = "this condition has no counterpart: express it in admission, or keep it in front of the gateway";
const LISTED: &str = "what is refused is listed, not what is let in: list tokens in admission.tokens, and web pages in admission.origins";
const PATTERN: &str = "clients whose token matches this pattern are not let in, as tokens are compared whole: give each of these clients a \
     key by tooldock keys create, or list its token in admission.tokens";
const NO_TOKEN: &str = "this client is not let in, as it shows no Bearer token of at most 4096 visible characters (Basic and other schemes are \
     not taken): give it a key by tooldock keys create, or a token in admission.tokens";

/// Returns the rule that an `if` expresses for every request of its location, and reports the parts that are not imported.
pub(crate) fn rule<'a>(
    condition: &'a Directive,
    variables: &Variables<'a>,
    report: &mut Report,
) -> Rule<'a> {
    let body = condition.block();
    let only = |names: &[&str]| body.iter().all(|it| names.contains(&it.name()));
    let test = variable_test(condition);
    // Other methods than these are not served on the paths of MCP, whatever nginx does with them.
    if let Some(("request_method", VariableTest::Is(method))) = test
        && !["GET", "POST", "DELETE"].contains(&method)
    {
        return Rule::Nothing;
    }
    // A `set` has no effect by itself. It is reported where its variable is used.
    if only(&["set", "break"]) {
        return Rule::Nothing;
    }
    if only(&DECORATION) {
        report.plain(condition, "settings do not depend on conditions");
        return Rule::Nothing;
    }
    let refused = match test {
        Some(test) if body.iter().any(|it| it.is("return")) => {
            refusal(condition, test, variables, report)
        }
        // The `if` routes requests elsewhere, or decides about them in another way.
        _ => Err(LOST),
    };
    refused.unwrap_or_else(|why| {
        report.security(condition, why);
        Rule::Other
    })
}

/// Reads a rule that refuses requests by a variable: a header or a subject, or a `map` of one of them.
///
/// # Errors
///
/// The reason why the rule is not imported, for the report.
fn refusal<'a>(
    condition: &'a Directive,
    (variable, test): (&'a str, VariableTest<'a>),
    variables: &Variables<'a>,
    report: &mut Report,
) -> Result<Rule<'a>, &'static str> {
    if variables.is_made_without_map(variable) {
        // The variable is set by an earlier `set` or a regular expression, so its value is unknown.
        return Err(LOST);
    }
    let carries_token = |name: &str| name.strip_prefix("http_").is_some_and(may_be_secret);
    let (source, admitted) = match (variables.map(variable), test) {
        (Some(map), _) => {
            // nginx takes `$http_x` from the request only if FILE defines no such variable.
            let source = only_variable(map.source).filter(|it| !variables.is_made(it));
            (source.ok_or(LOST)?, of_map(&map, test)?)
        }
        (None, VariableTest::Is("")) if variable == AUTHORIZATION => return Ok(Rule::Other),
        (None, VariableTest::IsNot(text)) if !text.is_empty() => {
            let texts = vec![(text, condition)];
            let (patterns, empty) = (Vec::new(), false);
            (
                variable,
                AdmittedValues {
                    texts,
                    patterns,
                    empty,
                },
            )
        }
        (None, _) => return Err(LOST),
    };
    match source {
        "http_origin" => {
            if !admitted.empty {
                report.security(condition, "requests without an Origin are let in, as they come from no web page: they still need a token");
            }
            if !admitted.patterns.is_empty() {
                report.plain(condition, "origins are listed one by one in admission.origins: pages that a pattern lets in are refused");
            }
            Ok(Rule::Origins(
                admitted.texts.iter().map(|(text, _)| *text).collect(),
            ))
        }
        "ssl_client_s_dn" if !admitted.empty && admitted.patterns.is_empty() => {
            let subjects = admitted.texts.into_iter().map(|(subject, at)| {
                let is_named = !at.is("if") && !is_mark(at.first());
                let name = if is_named {
                    ClientName::Shown(at.first())
                } else {
                    ClientName::None
                };
                let id = subject.to_owned();
                Credential { name, id, at }
            });
            Ok(Rule::Subjects(subjects.collect()))
        }
        _ if carries_token(source) => {
            if source != AUTHORIZATION {
                report.plain(condition, "tokens come in Authorization: Bearer; tell the clients, which send another header now");
            }
            let only_decides = variables.only_decides(variable);
            Ok(Rule::Tokens(
                tokens(&admitted, source, only_decides, report),
                source,
            ))
        }
        _ => Err(LOST),
    }
}

/// Reads the texts of a `map` that pass a test.
fn of_map<'a>(map: &Map<'a>, test: VariableTest<'_>) -> Result<AdmittedValues<'a>, &'static str> {
    let mut values = map.entries.iter().map(|it| it.value).chain([map.default]);
    if !values.all(is_literal) {
        return Err(LOST);
    }
    if !test.holds(map.default) {
        return Err(LISTED);
    }
    let mut admitted = AdmittedValues {
        texts: Vec::new(),
        patterns: Vec::new(),
        empty: false,
    };
    for entry in map.entries.iter().filter(|it| !test.holds(it.value)) {
        match entry.key {
            Key::Text("") => admitted.empty = true,
            Key::Text(text) => admitted.texts.push((text, entry.at)),
            Key::Pattern => admitted.patterns.push(entry.at),
        }
    }
    Ok(admitted)
}

/// Returns the admitted tokens, and reports the lines whose clients are not admitted. `only_decides` is false if the values of
/// the `map` are sent to servers.
fn tokens<'a>(
    admitted: &AdmittedValues<'a>,
    header: &str,
    only_decides: bool,
    report: &mut Report,
) -> Vec<Credential<'a>> {
    for at in &admitted.patterns {
        report.plain(at, PATTERN);
    }
    let texts = admitted.texts.iter();
    let texts: Vec<_> = texts.map(|(text, _)| text.to_ascii_lowercase()).collect();
    let mut tokens = Vec::new();
    for (text, at) in &admitted.texts {
        let Some(id) = token_digest(text, header) else {
            report.plain(at, NO_TOKEN);
            continue;
        };
        let value = at.first();
        let is_shown = || {
            let shown = |name: &str| may_be_shown(name, &texts);
            only_decides && shown(value) && cleaned(value).is_none_or(|it| shown(&it))
        };
        let name = match at.is("if") || is_mark(value) {
            true => ClientName::None,
            false if is_shown() => ClientName::Shown(value),
            false => ClientName::Hidden,
        };
        tokens.push(Credential { name, id, at });
    }
    tokens
}

/// Maximum number of tokens of a `map` whose names are shown, since each name is compared with all tokens.
const NAMED_MAX: usize = 1_000;

/// Minimum number of a token's characters that must remain secret if a client's name occurs in the token.
const SECRET_MIN: usize = 6;

/// Returns true if a name reveals nothing of `texts`, which are tokens in lower case, since keys of a `map` ignore case. Some
/// operators put a client's name into its token. Then enough of the token must be outside the name.
fn may_be_shown(name: &str, texts: &[String]) -> bool {
    let name = name.to_ascii_lowercase();
    let tells = |text: &String| {
        let token = text.rsplit(' ').next().unwrap_or(text);
        let beside = token.len().saturating_sub(name.len());
        text.contains(&name) && (beside < SECRET_MIN || beside <= name.len())
            || name.contains(token)
    };
    name.len() <= 32 && texts.len() <= NAMED_MAX && !texts.iter().any(tells)
}

/// The digest of the token in a value of the header `header`; `None` if the value has no token that the gateway accepts.
fn token_digest(text: &str, header: &str) -> Option<String> {
    let token = match header {
        AUTHORIZATION => bearer(text)?,
        _ => text,
    };
    config_digest(token).ok()
}

/// The token in `Bearer TOKEN`, with the scheme in any case; `None` for other values.
fn bearer(text: &str) -> Option<&str> {
    let (scheme, token) = text.split_once(' ')?;
    let is_bearer = scheme.eq_ignore_ascii_case("bearer");
    is_bearer.then_some(token.trim_start_matches(' '))
}

/// Words in names of headers and variables whose values may be secrets.
#[rustfmt::skip]
const SECRET_WORDS: [&str; 10] = ["auth", "token", "key", "secret", "password", "passwd", "credential", "cookie", "signature", "session"];

/// Returns true if a name suggests that its value is a secret. Case and the kind of dash are ignored.
pub(crate) fn may_be_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests;
