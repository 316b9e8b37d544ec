//! Rules that refuse requests by nginx's `if`, and their equivalents in the gateway.
//!
//! nginx has no directives for rules about tokens, origins and methods, so configurations use `map` and `if … return`. A
//! condition whose meaning is not certain is reported as a lost rule.

use tooldock_filters::token::config_digest;

use crate::conditions::{VariableTest, variable_test};
use crate::principals::cleaned;
use crate::tree::Directive;
use crate::values::{is_literal, only_variable};
use crate::variables::{Key, Map, Variables, is_name};

/// The nginx variable for the header in which the gateway expects tokens.
pub(crate) const AUTHORIZATION: &str = "http_authorization";

/// The rule that an `if` of nginx expresses.
pub(crate) enum Guard<'a> {
    /// Only these tokens are admitted.
    Tokens {
        tokens: Vec<Token<'a>>,
        /// The nginx variable for the header that contains the tokens.
        header: &'a str,
        /// Lines that admit further clients in nginx, whose tokens cannot be listed. Each line has advice for the operator.
        left_out: Vec<(&'a Directive, &'static str)>,
    },
    /// Any kind of credential is required.
    AnyCredential,
    /// Only requests from pages of these origins are admitted.
    Origins {
        origins: Vec<&'a str>,
        /// True if nginx admits further origins that cannot be listed; false if the list is complete.
        more: bool,
        /// True if requests without an `Origin` header are refused; false if they are admitted.
        needed: bool,
    },
    /// Only certificates with certain subjects are admitted. Each pair consists of the value in the `map` and the subject.
    Subjects(Vec<(&'a str, &'a str)>),
    /// A verified client certificate of any subject is required.
    Certificate,
    /// Only requests for this host are served.
    Host(&'a str),
    /// Only encrypted connections are served.
    Encrypted,
    /// The rule needs no import, since the gateway always applies it.
    Always,
    /// The gateway has no equivalent of the rule, and admits no further requests without it. Contains the text for the report.
    Harmless(&'static str),
    /// The gateway has no equivalent of the rule, and may admit further requests without it. Contains the text for the report.
    Lost(&'static str),
}

/// An admitted token. Only its digest is stored.
#[derive(Clone)]
pub(crate) struct Token<'a> {
    /// The value that a `map` assigns to the token, if it is a name.
    pub(crate) name: Option<&'a str>,
    /// True if the name that a `map` assigns to the token must not be shown, since the name would reveal parts of a token.
    pub(crate) is_hidden: bool,
    /// SHA-256 of the token, in hexadecimal digits.
    pub(crate) digest: String,
    pub(crate) at: &'a Directive,
}

/// The values of a variable that pass a condition whose `if` refuses requests.
#[derive(Default)]
struct PassingValues<'a> {
    /// The admitted texts, each with its value in the `map` and its line.
    texts: Vec<(&'a str, Option<&'a str>, &'a Directive)>,
    /// Regular expressions of a `map` that admit further texts.
    patterns: Vec<&'a Directive>,
    /// True if all texts that are not listed are admitted; false if they are refused.
    rest: bool,
    /// True if the empty text is admitted, that is, requests without the header.
    empty: bool,
    /// True if a listed text or pattern, other than the empty one, is refused.
    refuses: bool,
}

impl<'a> PassingValues<'a> {
    /// Takes the names of texts from another `map`, if their own `map` only marks them as admitted.
    fn named_by(mut self, name_of: impl Fn(&str) -> Option<&'a str>) -> Self {
        for (text, name, _) in &mut self.texts {
            if !name.is_some_and(is_name) {
                *name = name_of(text).or(*name);
            }
        }
        self
    }
}

/// Directives that neither answer nor route requests. An `if` that contains only these does not refuse or admit requests.
const DECORATION: [&str; 9] = [
    "set",
    "break",
    "add_header",
    "expires",
    "access_log",
    "limit_rate",
    "limit_rate_after",
    "gzip",
    "default_type",
];

const LOST: &str = "this condition has no counterpart: express it in admission, or keep it in front of the gateway";
const PATTERN: &str = "clients whose token matches this pattern are not let in, as tokens are compared whole: give each of these clients a \
     key by tooldock keys create, or list its token in admission.tokens";
const NO_TOKEN: &str = "this client is not let in, as it shows no Bearer token of at most 4096 visible characters (Basic and other schemes are \
     not taken): give it a key by tooldock keys create, or a token in admission.tokens";
const METHODS: &str =
    "GET, POST and DELETE are served on the paths of MCP; fewer methods cannot be had";

/// The rule that an `if` expresses for every request of its location.
pub(crate) fn guard<'a>(condition: &'a Directive, variables: &Variables<'a>) -> Guard<'a> {
    let body = condition.block();
    let has = |name: &str| body.iter().any(|it| it.is(name));
    let asked = variable_test(condition);
    if !has("return") {
        return match (&asked, has("rewrite")) {
            // A `set` has no effect by itself. It is reported where its variable is used.
            _ if body.iter().all(|it| it.is("set") || it.is("break")) => Guard::Always,
            (Some(("request_method", VariableTest::Is("OPTIONS"))), false) => Guard::Always,
            (_, false) if body.iter().all(|it| DECORATION.contains(&it.name())) => {
                Guard::Harmless("settings do not depend on conditions")
            }
            // The `if` routes requests elsewhere, or contains a directive that decides about them.
            _ => Guard::Lost(LOST),
        };
    }
    let Some((variable, test)) = asked else {
        return Guard::Lost(LOST);
    };
    match (variable, test) {
        ("request_method", test) => methods(test),
        ("scheme", VariableTest::Is("http") | VariableTest::IsNot("https"))
        | ("https", VariableTest::Is("") | VariableTest::IsNot("on")) => Guard::Encrypted,
        ("ssl_client_verify", VariableTest::IsNot("SUCCESS")) => Guard::Certificate,
        ("host" | "http_host", VariableTest::IsNot(host)) => Guard::Host(host),
        _ => of_values(condition, variable, test, variables),
    }
}

/// Reads a rule about tokens, origins or subjects, which tests the variable itself or a `map` of it.
fn of_values<'a>(
    condition: &'a Directive,
    variable: &'a str,
    test: VariableTest<'a>,
    variables: &Variables<'a>,
) -> Guard<'a> {
    if variables.is_made_without_map(variable) {
        // The variable is set by an earlier `set` or a regular expression, so its value is unknown.
        return Guard::Lost(LOST);
    }
    let (source, let_in) = match variables.map(variable) {
        Some(map) => {
            let names = variables.only_decides(variable);
            let Some(source) = only_variable(map.source) else {
                return Guard::Lost(LOST);
            };
            let Some(let_in) = of_map(&map, test, names) else {
                return Guard::Lost(LOST);
            };
            (source, let_in)
        }
        None => {
            let let_in = match test {
                VariableTest::IsNot(text) => PassingValues {
                    texts: vec![(text, None, condition)],
                    empty: text.is_empty(),
                    ..PassingValues::default()
                },
                VariableTest::Is("") => PassingValues {
                    rest: true,
                    ..PassingValues::default()
                },
                _ => return Guard::Lost(LOST),
            };
            (variable, let_in)
        }
    };
    let let_in = let_in.named_by(|text| variables.name_of(source, text));
    match source {
        AUTHORIZATION => tokens(let_in, source),
        "http_origin" => origins(&let_in),
        "ssl_client_s_dn" => subjects(let_in),
        _ if source.strip_prefix("http_").is_some_and(may_be_secret) => tokens(let_in, source),
        _ => Guard::Lost(LOST),
    }
}

fn of_map<'a>(map: &Map<'a>, test: VariableTest<'_>, names: bool) -> Option<PassingValues<'a>> {
    // A value that contains variables is unknown when the configuration is imported.
    let passes = |value: &str| {
        let refused = is_literal(value).then(|| test.holds(value)).flatten();
        refused.map(|refused| !refused)
    };
    let mut let_in = PassingValues {
        rest: passes(map.default)?,
        empty: passes(map.default)?,
        ..PassingValues::default()
    };
    for entry in &map.entries {
        let passes = passes(entry.value)?;
        match entry.key {
            Key::Text("") => let_in.empty = passes,
            Key::Text(text) if passes => {
                let name = names.then_some(entry.value);
                let_in.texts.push((text, name, entry.at));
            }
            Key::Pattern if passes => let_in.patterns.push(entry.at),
            Key::Text(_) | Key::Pattern => let_in.refuses = true,
        }
    }
    Some(let_in)
}

fn tokens<'a>(let_in: PassingValues<'a>, header: &'a str) -> Guard<'a> {
    if let_in.rest {
        // Any text is admitted, or all texts with exceptions. In both cases there is no list of admitted tokens.
        let none_named = let_in.texts.is_empty() && let_in.patterns.is_empty() && !let_in.refuses;
        return if none_named && !let_in.empty {
            Guard::AnyCredential
        } else {
            Guard::Lost(
                "what is refused is listed, not what is let in: list tokens in admission.tokens",
            )
        };
    }
    let patterns = let_in.patterns.iter().map(|at| (*at, PATTERN));
    let mut left_out: Vec<_> = patterns.collect();
    let mut tokens = Vec::new();
    let is_flag = |value: &str| {
        let values = let_in.texts.iter();
        is_flag(
            value,
            values.map(|(_, name, at)| name.unwrap_or(at.first())),
        )
    };
    for (text, name, at) in &let_in.texts {
        match token_digest(text, header) {
            Some(digest) => {
                let value = at.first();
                let names = (is_name(value) || is_number(value)) && !is_flag(value);
                tokens.push(Token {
                    name: name.filter(|name| !is_flag(name)),
                    is_hidden: name.is_none() && !at.is("if") && names,
                    digest,
                    at,
                });
            }
            None => left_out.push((at, NO_TOKEN)),
        }
    }
    let texts: Vec<_> = let_in
        .texts
        .iter()
        .map(|(text, ..)| text.to_ascii_lowercase())
        .collect();
    for token in &mut tokens {
        let Some(name) = token.name else { continue };
        let shown = |name: &str| may_be_shown(name, &texts);
        if !shown(name) || cleaned(name).is_some_and(|it| !shown(&it)) {
            token.name = None;
            token.is_hidden = is_name(name) || is_number(name);
        }
    }
    Guard::Tokens {
        tokens,
        header,
        left_out,
    }
}

/// Returns true if a value of a `map` is a number, which may be a client's name.
fn is_number(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns true if a `map` only marks clients as admitted instead of naming them: the value is 0 or 1, and equal for all clients.
fn is_flag<'v>(value: &str, mut of_all: impl Iterator<Item = &'v str>) -> bool {
    matches!(value, "0" | "1") && of_all.all(|other| other == value)
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
pub(crate) fn token_digest(text: &str, header: &str) -> Option<String> {
    let token = match header {
        AUTHORIZATION => bearer(text)?,
        _ => text,
    };
    config_digest(token).ok()
}

/// The token in `Bearer TOKEN`, with the scheme in any case; `None` for other values.
fn bearer(text: &str) -> Option<&str> {
    let (scheme, token) = text.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim_start_matches(' '))
}

fn origins<'a>(let_in: &PassingValues<'a>) -> Guard<'a> {
    if let_in.rest {
        return Guard::Lost(
            "what is refused is listed, not what is let in: list web pages in admission.origins",
        );
    }
    Guard::Origins {
        origins: let_in.texts.iter().map(|(text, ..)| *text).collect(),
        more: !let_in.patterns.is_empty(),
        needed: !let_in.empty,
    }
}

fn subjects(let_in: PassingValues<'_>) -> Guard<'_> {
    if let_in.rest || let_in.empty || !let_in.patterns.is_empty() {
        return Guard::Lost("write the subjects that are let in into admission.certificates");
    }
    let names = || {
        let_in
            .texts
            .iter()
            .map(|(_, name, _)| name.unwrap_or_default())
    };
    let shown = |name: &&str| !is_flag(name, names());
    let named = let_in
        .texts
        .iter()
        .map(|(subject, name, _)| (name.filter(shown).unwrap_or_default(), *subject));
    Guard::Subjects(named.collect())
}

/// Reads a rule about HTTP methods. The gateway serves only the methods of MCP.
fn methods<'a>(test: VariableTest<'_>) -> Guard<'a> {
    const SERVED: [&str; 3] = ["GET", "POST", "DELETE"];
    let listed = |pattern: &str| {
        let inner = pattern.strip_prefix('^')?.strip_suffix('$')?;
        let inner = inner
            .strip_prefix('(')
            .and_then(|it| it.strip_suffix(')'))
            .unwrap_or(inner);
        let inner = inner.strip_prefix("?:").unwrap_or(inner);
        let plain = inner
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte == b'|');
        plain.then(|| inner.split('|').map(str::to_owned).collect::<Vec<_>>())
    };
    let served = |method: &str| SERVED.contains(&method);
    let fine = match test {
        VariableTest::Is(method) => !served(method),
        VariableTest::Matches(pattern) => {
            listed(pattern).is_some_and(|refused| !refused.iter().any(|it| served(it)))
        }
        VariableTest::MatchesNot(pattern) => listed(pattern).is_some_and(|let_in| {
            SERVED
                .iter()
                .all(|it| let_in.iter().any(|other| other == it))
        }),
        VariableTest::IsNot(_) | VariableTest::Set => false,
    };
    if fine {
        Guard::Always
    } else {
        Guard::Lost(METHODS)
    }
}

/// Returns true if a name suggests that its value is a secret. Case and the kind of dash are ignored.
pub(crate) fn may_be_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [
        "auth",
        "token",
        "key",
        "secret",
        "password",
        "passwd",
        "credential",
        "cookie",
        "signature",
        "session",
    ]
    .iter()
    .any(|word| name.contains(word))
}

#[cfg(test)]
mod tests;
