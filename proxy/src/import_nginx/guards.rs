//! What an `if` refuses, as far as the gateway has a rule for it.
//!
//! nginx has no rule for tokens, origins and methods; configurations write `map` and `if … return`. Whatever is not
//! understood for certain is a lost rule.

use tooldock_filters::token::config_digest;

use super::conditions::{Test, asked};
use super::principals::cleaned;
use super::tree::Directive;
use super::values::{is_literal, only_variable};
use super::variables::{Key, Map, Variables, is_name};

/// The variable of the header in which tokens come to the gateway.
pub(super) const AUTHORIZATION: &str = "http_authorization";

/// The rule behind an `if`.
pub(super) enum Guard<'a> {
    /// Only these tokens are let in.
    Tokens {
        tokens: Vec<Token<'a>>,
        /// The variable of the header in which they come.
        header: &'a str,
        /// Whether more is let in that is no token.
        more: bool,
    },
    /// Some credential is needed, whichever.
    AnyCredential,
    /// Only pages of these origins are let in.
    Origins {
        origins: Vec<&'a str>,
        /// Whether more is let in than can be listed.
        more: bool,
        /// Whether requests without an Origin are refused.
        needed: bool,
    },
    /// Only certificates with these subjects are let in: the value of each in the map, and the subject.
    Subjects(Vec<(&'a str, &'a str)>),
    /// A verified certificate is needed.
    Certificate,
    /// Only this host is answered for.
    Host(&'a str),
    /// Only encrypted connections are served.
    Encrypted,
    /// The gateway does so anyway.
    Always,
    /// There is no such rule, and nothing is more open without.
    Harmless(&'static str),
    /// There is no such rule.
    Lost(&'static str),
}

/// A token that is let in: its digest alone is kept.
#[derive(Clone)]
pub(super) struct Token<'a> {
    /// What a map calls it, where that is a name.
    pub(super) name: Option<&'a str>,
    /// A map calls it something that must not be shown.
    pub(super) is_hidden: bool,
    /// SHA-256, in hex.
    pub(super) digest: String,
    pub(super) at: &'a Directive,
}

/// What a condition lets in, where its `if` refuses.
struct LetIn<'a> {
    /// These texts.
    texts: Vec<(&'a str, Option<&'a str>, &'a Directive)>,
    /// Texts that patterns match.
    patterns: bool,
    /// Everything that is not named.
    rest: bool,
    /// The empty text.
    empty: bool,
    /// Not some text or pattern that is named, beside the empty one.
    refuses: bool,
}

impl<'a> LetIn<'a> {
    /// Gives names to texts whose own map says no more than that they are let in.
    fn named_by(mut self, name_of: impl Fn(&str) -> Option<&'a str>) -> Self {
        for (text, name, _) in &mut self.texts {
            if !name.is_some_and(is_name) {
                *name = name_of(text).or(*name);
            }
        }
        self
    }
}

/// What an `if` may hold without a word about who is let in: directives that neither answer nor route.
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
const METHODS: &str =
    "GET, POST and DELETE are served on the paths of MCP; fewer methods cannot be had";

/// The rule behind an `if` that every request of an exposure passes.
pub(super) fn guard<'a>(condition: &'a Directive, variables: &Variables<'a>) -> Guard<'a> {
    let body = condition.block();
    let has = |name: &str| body.iter().any(|it| it.is(name));
    let asked = asked(condition);
    if !has("return") {
        return match (&asked, has("rewrite")) {
            // What a `set` leads to is listed where its variable is used.
            _ if body.iter().all(|it| it.is("set") || it.is("break")) => Guard::Always,
            (Some(("request_method", Test::Is("OPTIONS"))), false) => Guard::Always,
            (_, false) if body.iter().all(|it| DECORATION.contains(&it.name())) => {
                Guard::Harmless("settings do not depend on conditions")
            }
            // Requests go elsewhere, or something else decides about them.
            _ => Guard::Lost(LOST),
        };
    }
    let Some((variable, test)) = asked else {
        return Guard::Lost(LOST);
    };
    match (variable, test) {
        ("request_method", test) => methods(test),
        ("scheme", Test::Is("http") | Test::IsNot("https"))
        | ("https", Test::Is("") | Test::IsNot("on")) => Guard::Encrypted,
        ("ssl_client_verify", Test::IsNot("SUCCESS")) => Guard::Certificate,
        ("host" | "http_host", Test::IsNot(host)) => Guard::Host(host),
        _ => of_values(condition, variable, test, variables),
    }
}

/// Rules about tokens, origins and subjects, of the variable itself or by way of a map.
fn of_values<'a>(
    condition: &'a Directive,
    variable: &'a str,
    test: Test<'a>,
    variables: &Variables<'a>,
) -> Guard<'a> {
    if variables.is_made_without_map(variable) {
        // What a condition before has set, or a regular expression, is not known.
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
                Test::IsNot(text) => LetIn {
                    texts: vec![(text, None, condition)],
                    patterns: false,
                    rest: false,
                    empty: text.is_empty(),
                    refuses: false,
                },
                Test::Is("") => LetIn {
                    texts: Vec::new(),
                    patterns: false,
                    rest: true,
                    empty: false,
                    refuses: false,
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

fn of_map<'a>(map: &Map<'a>, test: Test<'_>, names: bool) -> Option<LetIn<'a>> {
    // What a variable holds is not known here.
    let passes = |value: &str| {
        let refused = is_literal(value).then(|| test.holds(value)).flatten();
        refused.map(|refused| !refused)
    };
    let mut let_in = LetIn {
        texts: Vec::new(),
        patterns: false,
        rest: passes(map.default)?,
        empty: passes(map.default)?,
        refuses: false,
    };
    for entry in &map.entries {
        let passes = passes(entry.value)?;
        match entry.key {
            Key::Text("") => let_in.empty = passes,
            Key::Text(text) if passes => {
                let name = names.then_some(entry.value);
                let_in.texts.push((text, name, entry.at));
            }
            Key::Pattern if passes => let_in.patterns = true,
            Key::Text(_) | Key::Pattern => let_in.refuses = true,
        }
    }
    Some(let_in)
}

fn tokens<'a>(let_in: LetIn<'a>, header: &'a str) -> Guard<'a> {
    if let_in.rest {
        // Whatever is there will do, or all but some: then there is no list of what is let in.
        let none_named = let_in.texts.is_empty() && !let_in.patterns && !let_in.refuses;
        return if none_named && !let_in.empty {
            Guard::AnyCredential
        } else {
            Guard::Lost(
                "what is refused is listed, not what is let in: list tokens in admission.tokens",
            )
        };
    }
    let mut more = let_in.patterns;
    let mut tokens = Vec::new();
    for (text, name, at) in &let_in.texts {
        let token = match header {
            AUTHORIZATION => bearer(text),
            _ => Some(*text),
        };
        match token.and_then(|token| config_digest(token).ok()) {
            Some(digest) => tokens.push(Token {
                name: *name,
                is_hidden: name.is_none() && !at.is("if") && is_name(at.first()),
                digest,
                at,
            }),
            None => more = true,
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
            token.is_hidden = is_name(name);
        }
    }
    Guard::Tokens {
        tokens,
        header,
        more,
    }
}

/// More tokens than a person gives names to, each of which would be compared with all texts.
const NAMED_MAX: usize = 1_000;

/// The characters of a token that a name within it has to leave secret.
const SECRET_MIN: usize = 6;

/// True if a name says nothing of these texts, which are tokens in lower case: keys of a `map` ignore case. People put the
/// name of a client into its token; then most of the token has to stand beside the name.
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

/// The token of `Bearer TOKEN`.
fn bearer(text: &str) -> Option<&str> {
    let (scheme, token) = text.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim_start_matches(' '))
}

fn origins<'a>(let_in: &LetIn<'a>) -> Guard<'a> {
    if let_in.rest {
        return Guard::Lost(
            "what is refused is listed, not what is let in: list web pages in admission.origins",
        );
    }
    Guard::Origins {
        origins: let_in.texts.iter().map(|(text, ..)| *text).collect(),
        more: let_in.patterns,
        needed: !let_in.empty,
    }
}

fn subjects(let_in: LetIn<'_>) -> Guard<'_> {
    if let_in.rest || let_in.empty || let_in.patterns {
        return Guard::Lost("write the subjects that are let in into admission.certificates");
    }
    let named = let_in
        .texts
        .into_iter()
        .map(|(subject, name, _)| (name.unwrap_or_default(), subject));
    Guard::Subjects(named.collect())
}

/// The methods that MCP has are served, and no others.
fn methods<'a>(test: Test<'_>) -> Guard<'a> {
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
        Test::Is(method) => !served(method),
        Test::Matches(pattern) => {
            listed(pattern).is_some_and(|refused| !refused.iter().any(|it| served(it)))
        }
        Test::MatchesNot(pattern) => listed(pattern).is_some_and(|let_in| {
            SERVED
                .iter()
                .all(|it| let_in.iter().any(|other| other == it))
        }),
        Test::IsNot(_) | Test::Set => false,
    };
    if fine {
        Guard::Always
    } else {
        Guard::Lost(METHODS)
    }
}

/// Whether a name says that what it names may be a secret. Case and the kind of dash do not matter.
pub(super) fn may_be_secret(name: &str) -> bool {
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
