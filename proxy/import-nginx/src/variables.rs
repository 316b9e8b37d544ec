//! The variables that an nginx configuration defines, and the ways in which they are used.

use std::collections::{HashMap, HashSet};

use crate::guards::may_be_secret;
use crate::report::Report;
use crate::tree::Directive;
use crate::values::{is_literal, only_variable, variables_in};

/// All variables of an nginx configuration.
///
/// Names are stored in lower case, as nginx does not distinguish `$Client` and `$client`.
#[derive(Default)]
pub(crate) struct Variables<'a> {
    maps: HashMap<String, &'a Directive>,
    /// Names of the variables that are defined by directives other than `map`, by scripts, or by named groups of regular
    /// expressions.
    others: HashSet<String>,
    /// Names of the variables that an `if` tests.
    tested: HashSet<String>,
    /// Names of the variables whose text may be a secret, since it is sent to servers or becomes another variable.
    sent: HashSet<String>,
}

/// The content of a `map`.
pub(crate) struct Map<'a> {
    /// The text that nginx looks up in the `map`, such as `$http_authorization`.
    pub(crate) source: &'a str,
    pub(crate) entries: Vec<MapEntry<'a>>,
    /// The value for texts that match no entry of the `map`.
    pub(crate) default: &'a str,
}

/// A line of a `map`.
pub(crate) struct MapEntry<'a> {
    pub(crate) key: Key<'a>,
    pub(crate) value: &'a str,
    pub(crate) at: &'a Directive,
}

/// The key of a line of a `map`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key<'a> {
    /// A key that matches exactly this text.
    Text(&'a str),
    /// A key that is a regular expression or a pattern of host names.
    Pattern,
}

/// Words in the name of a header that show that the header carries the client's name.
#[rustfmt::skip]
const NAMING: [&str; 8] = ["client", "user", "consumer", "principal", "tenant", "caller", "customer", "account"];

/// Prefixes of the names of directives, other than `map` and `set`, that define variables named by their arguments.
#[rustfmt::skip]
const MAKING: [&str; 8] = ["geo", "split_clients", "keyval", "auth_request_set", "auth_jwt_claim_set", "set_by_lua", "js_set", "perl_set"];

/// Returns true if the variables in a directive's arguments are only tested, counted, logged or looked up, or sent as a client's
/// name. A text that a pattern captures becomes another variable.
fn only_decides(directive: &Directive) -> bool {
    let is_pattern = |arg: &str| arg.starts_with('~') || arg.starts_with("!~");
    match directive.name() {
        "if" => !directive.args().any(is_pattern),
        "map" => !directive.block().iter().any(|it| is_pattern(it.name())),
        "limit_req_zone" | "limit_conn_zone" | "log_format" | "access_log" => true,
        "proxy_set_header" => {
            let header = directive.first().to_ascii_lowercase();
            NAMING.iter().any(|word| header.contains(word)) && !may_be_secret(&header)
        }
        _ => false,
    }
}

/// Iterates over the names of groups in a regular expression: `(?<name>…)`, `(?P<name>…)`, `(?'name'…)`.
fn named_groups(text: &str) -> impl Iterator<Item = &str> {
    let after = text.split("(?").skip(1);
    after.filter_map(|group| {
        let group = group.strip_prefix('P').unwrap_or(group);
        let name = group.strip_prefix(['<', '\''])?;
        let end = name.find(['>', '\''])?;
        Some(&name[..end])
    })
}

impl<'a> Variables<'a> {
    pub(crate) fn of(tree: &'a [Directive]) -> Self {
        let mut variables = Self::default();
        variables.read(tree);
        variables
    }

    /// Reads the variables of a block and of nested blocks. The recursion is bounded by the maximum depth of blocks.
    fn read(&mut self, block: &'a [Directive]) {
        for directive in block {
            let name = directive.name();
            let words = [name].into_iter().chain(directive.args());
            let groups = words.flat_map(named_groups);
            self.others.extend(groups.map(str::to_ascii_lowercase));
            let variable = |arg: &str| arg.strip_prefix('$').map(str::to_ascii_lowercase);
            let made = |index| directive.arg(index).and_then(variable);
            if name == "map" {
                self.maps.extend(made(1).map(|it| (it, directive)));
            } else if name == "set" {
                self.others.extend(made(0));
            } else if MAKING.iter().any(|it| name.starts_with(it)) {
                self.others.extend(directive.args().filter_map(variable));
            }
            // These arguments define a variable and do not use it.
            let defined = match name {
                "set" => Some(0),
                "map" => Some(1),
                _ => None,
            };
            let used = directive
                .args()
                .enumerate()
                .filter(|(index, _)| Some(*index) != defined);
            let names = used
                .flat_map(|(_, arg)| variables_in(arg))
                .map(str::to_ascii_lowercase);
            match only_decides(directive) {
                true if name == "if" => self.tested.extend(names),
                true => {}
                false => self.sent.extend(names),
            }
            self.read(directive.block());
        }
    }

    /// Returns the `map` that defines a variable; `None` if no `map` does.
    pub(crate) fn map(&self, name: &str) -> Option<Map<'a>> {
        let directive = self.maps.get(&name.to_ascii_lowercase())?;
        Some(Map::of(directive))
    }

    /// Returns true if a variable contains the name of the client that sent a credential: an `if` tests it, and its `map`
    /// translates credentials to names.
    pub(crate) fn names_client(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        self.tested.contains(&name) && self.translates_credentials(&name)
    }

    fn translates_credentials(&self, name: &str) -> bool {
        let Some(map) = self.map(name).filter(|_| !self.is_made_without_map(name)) else {
            return false;
        };
        let of_credentials = only_variable(map.source).is_some_and(|source| {
            let header = source.strip_prefix("http_");
            source == "ssl_client_s_dn" || header.is_some_and(may_be_secret)
        });
        let is_name = |value: &str| is_literal(value) && !is_mark(value);
        of_credentials && map.entries.iter().any(|it| is_name(it.value))
    }

    /// Reports each `map` that gives names to clients and that no `if` tests: its names are not read.
    pub(crate) fn list_unread_names(&self, report: &mut Report) {
        for (name, at) in &self.maps {
            if !self.tested.contains(name) && self.translates_credentials(name) {
                report.plain(at, "no if tests this variable, so that its names are not read: write them into admission.tokens, or test this variable");
            }
        }
    }

    /// Returns true if the configuration defines this variable.
    pub(crate) fn is_made(&self, name: &str) -> bool {
        self.maps.contains_key(&name.to_ascii_lowercase()) || self.is_made_without_map(name)
    }

    /// Returns true if an `if` tests this variable of the request, or a `map` looks it up.
    pub(crate) fn is_judged(&self, name: &str) -> bool {
        let mut sources = self.maps.values().map(|map| only_variable(map.first()));
        self.tested.contains(&name.to_ascii_lowercase())
            || sources.any(|it| it.is_some_and(|it| it.eq_ignore_ascii_case(name)))
    }

    /// Returns true if a directive other than `map` defines this variable.
    pub(crate) fn is_made_without_map(&self, name: &str) -> bool {
        self.others.contains(&name.to_ascii_lowercase())
    }

    /// Returns true if a variable is only tested, counted or logged, or sent as a client's name. Then its values are names, and
    /// not secrets for servers.
    pub(crate) fn only_decides(&self, name: &str) -> bool {
        !self.sent.contains(&name.to_ascii_lowercase())
    }
}

/// Returns true if a value of a `map` only marks clients as admitted, such as `1` or `yes`, and is not the name of a client.
pub(crate) fn is_mark(value: &str) -> bool {
    #[rustfmt::skip]
    let marks = ["0", "1", "yes", "true", "on", "ok", "allow", "allowed", "valid", "pass", "granted"];
    let is_mark = marks.iter().any(|it| value.eq_ignore_ascii_case(it));
    is_mark || !value.contains(char::is_alphanumeric)
}

impl<'a> Map<'a> {
    fn of(directive: &'a Directive) -> Self {
        let mut map = Self {
            source: directive.first(),
            entries: Vec::new(),
            default: "",
        };
        for at in directive.block() {
            let value = at.first();
            let key = match at.name() {
                "default" => {
                    map.default = value;
                    continue;
                }
                "hostnames" | "volatile" if at.arg(0).is_none() => continue,
                key if key.starts_with(['~', '*', '.']) => Key::Pattern,
                key => Key::Text(key.strip_prefix('\\').unwrap_or(key)),
            };
            map.entries.push(MapEntry { key, value, at });
        }
        map
    }
}
