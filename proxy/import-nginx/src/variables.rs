//! The variables that an nginx configuration defines, each with the directives that use it.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::guards::may_be_secret;
use crate::scope::Scope;
use crate::tree::Directive;
use crate::values::{Piece, is_literal, only_variable, pieces};

/// All variables of an nginx configuration.
///
/// Names are stored in lower case, as nginx does not distinguish `$Client` and `$client`.
pub(crate) struct Variables<'a> {
    maps: HashMap<String, &'a Directive>,
    sets: HashSet<String>,
    /// Names of the variables that a `set` inside an `if` defines.
    conditional: HashSet<String>,
    /// Names of the variables that are defined by directives other than `map` and `set`, by scripts, or by named groups of
    /// regular expressions.
    others: HashSet<String>,
    /// For each variable, the directives whose arguments contain it.
    uses: HashMap<String, BTreeSet<&'a str>>,
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

/// Kind of use of a variable: in a request header that tells a server the client's name.
const SENT_NAME: &str = "a header that names the client";

/// Kind of use of a variable: as source of a `map` without patterns, whose values do not contain the variable's text.
const MAP_OF_TEXTS: &str = "a map of texts";

/// Kinds of use in which a variable's text is no secret: the variable is tested, counted or logged, or sent as a client's name. A
/// `map` or `if` with a pattern is not among them, since a captured text becomes another variable.
const DECIDING: [&str; 7] = [
    SENT_NAME,
    MAP_OF_TEXTS,
    "if",
    "limit_req_zone",
    "limit_conn_zone",
    "log_format",
    "access_log",
];

/// Words in the name of a header that show that the header carries the client's name.
const NAMING: [&str; 8] = [
    "client",
    "user",
    "consumer",
    "principal",
    "tenant",
    "caller",
    "customer",
    "account",
];

/// Returns true if a directive sends a client's name to a server in a header; the values of such a header are no secrets.
fn sends_name(directive: &Directive) -> bool {
    let header = directive.first().to_ascii_lowercase();
    let names = NAMING.iter().any(|word| header.contains(word));
    directive.is("proxy_set_header") && names && !may_be_secret(&header)
}

/// Prefixes of the names of directives, other than `map` and `set`, that define variables named by their arguments.
const MAKING: [&str; 8] = [
    "geo",
    "split_clients",
    "keyval",
    "auth_request_set",
    "auth_jwt_claim_set",
    "set_by_lua",
    "js_set",
    "perl_set",
];

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
        let mut variables = Self {
            maps: HashMap::new(),
            sets: HashSet::new(),
            conditional: HashSet::new(),
            others: HashSet::new(),
            uses: HashMap::new(),
        };
        variables.read(tree, false);
        variables
    }

    /// Reads the variables of a block and of nested blocks. The recursion is bounded by the maximum depth of blocks.
    fn read(&mut self, block: &'a [Directive], in_condition: bool) {
        for directive in block {
            let groups = directive.args().flat_map(named_groups);
            self.others.extend(groups.map(str::to_ascii_lowercase));
            let defined = |index| {
                directive
                    .arg(index)
                    .and_then(|arg: &str| arg.strip_prefix('$'))
                    .map(str::to_ascii_lowercase)
            };
            match directive.name() {
                "map" => {
                    self.maps.extend(defined(1).map(|name| (name, directive)));
                    let mut keys = directive.block().iter().map(Directive::name);
                    let by = match keys.any(|key| key.starts_with('~')) {
                        true => "map",
                        false => MAP_OF_TEXTS,
                    };
                    self.uses_of(directive.first(), by);
                    for entry in directive.block() {
                        self.uses_of(entry.first(), "a value of a map");
                        let groups = named_groups(entry.name());
                        self.others.extend(groups.map(str::to_ascii_lowercase));
                    }
                    continue;
                }
                "set" => {
                    if let Some(name) = defined(0) {
                        if in_condition {
                            self.conditional.insert(name.clone());
                        }
                        self.sets.insert(name);
                    }
                }
                name if MAKING.iter().any(|it| name.starts_with(it)) => {
                    let made = directive.args().filter_map(|arg| arg.strip_prefix('$'));
                    self.others.extend(made.map(str::to_ascii_lowercase));
                }
                _ => {}
            }
            // The first argument of `set` defines a variable and does not use it.
            let skipped = usize::from(directive.is("set"));
            let is_pattern = |arg: &str| arg.starts_with('~') || arg.starts_with("!~");
            let by = match directive.name() {
                "if" if directive.args().any(is_pattern) => "a pattern",
                _ if sends_name(directive) => SENT_NAME,
                name => name,
            };
            for arg in directive.args().skip(skipped) {
                self.uses_of(arg, by);
            }
            self.read(directive.block(), directive.is("if"));
        }
    }

    fn uses_of(&mut self, text: &'a str, by: &'a str) {
        for piece in pieces(text) {
            if let Piece::Variable(name) = piece {
                let name = name.to_ascii_lowercase();
                self.uses.entry(name).or_default().insert(by);
            }
        }
    }

    /// Returns the `map` that defines a variable; `None` if no `map` does.
    pub(crate) fn map(&self, name: &str) -> Option<Map<'a>> {
        self.maps
            .get(&name.to_ascii_lowercase())
            .map(|directive| Map::of(directive))
    }

    /// Returns the name that a `map` with this source variable gives to a text, if the result of the `map` is only tested or
    /// counted.
    pub(crate) fn name_of(&self, source: &str, text: &str) -> Option<&'a str> {
        let names = self.maps.iter().filter(|(name, _)| self.only_decides(name));
        let mut found: Vec<_> = names
            .filter_map(|(variable, directive)| {
                let map = Map::of(directive);
                let same =
                    only_variable(map.source).is_some_and(|it| it.eq_ignore_ascii_case(source));
                let mut entries = map
                    .entries
                    .iter()
                    .filter(|it| same && it.key == Key::Text(text));
                let value = entries.find(|it| is_name(it.value))?.value;
                Some((variable, value))
            })
            .collect();
        found.sort_unstable();
        found.first().map(|(_, value)| *value)
    }

    /// Returns true if a variable contains the name of the client that sent a credential: its `map` translates credentials to
    /// names.
    pub(crate) fn names_client(&self, name: &str) -> bool {
        let Some(map) = self.map(name).filter(|_| !self.is_made_without_map(name)) else {
            return false;
        };
        let of_credentials = only_variable(map.source).is_some_and(|source| {
            let source = source.to_ascii_lowercase();
            let header = source.strip_prefix("http_");
            source == "ssl_client_s_dn" || header.is_some_and(may_be_secret)
        });
        of_credentials && map.entries.iter().any(|it| is_name(it.value))
    }

    /// Returns the value of a variable if it is the same for all requests to a location: it is set outside conditions, in the
    /// location or its server, to a value without variables.
    pub(crate) fn constant(&self, name: &str, scope: &Scope<'a>) -> Option<&'a str> {
        let lower = name.to_ascii_lowercase();
        if self.conditional.contains(&lower) || self.others.contains(&lower) {
            return None;
        }
        let made = |set: &&&Directive| {
            let made = set.first().strip_prefix('$');
            made.is_some_and(|made| made.eq_ignore_ascii_case(name))
        };
        let set = scope.own_or_of_server("set", made)?;
        set.arg(1).filter(|text| is_literal(text))
    }

    /// Returns true if the configuration defines this variable.
    pub(crate) fn is_made(&self, name: &str) -> bool {
        self.maps.contains_key(&name.to_ascii_lowercase()) || self.is_made_without_map(name)
    }

    /// Returns true if a directive other than `map` defines this variable.
    pub(crate) fn is_made_without_map(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        self.sets.contains(&name) || self.others.contains(&name)
    }

    /// Returns true if a variable is only tested, counted or logged, or sent as a client's name. Then its values are names, and
    /// not secrets for servers.
    pub(crate) fn only_decides(&self, name: &str) -> bool {
        let uses = self.uses.get(&name.to_ascii_lowercase());
        uses.is_none_or(|uses| uses.iter().all(|by| DECIDING.contains(by)))
    }
}

/// Returns true if a value of a `map` is the name of a client, and not a word such as `yes` or `allowed`.
pub(crate) fn is_name(value: &str) -> bool {
    let begins = value.starts_with(|first: char| first.is_ascii_alphabetic());
    let yes = [
        "yes", "true", "on", "ok", "allow", "allowed", "valid", "pass", "granted",
    ];
    begins && is_literal(value) && !yes.iter().any(|it| value.eq_ignore_ascii_case(it))
}

impl<'a> Map<'a> {
    fn of(directive: &'a Directive) -> Self {
        let mut map = Self {
            source: directive.first(),
            entries: Vec::new(),
            default: "",
        };
        for entry in directive.block() {
            let value = entry.first();
            let key = match entry.name() {
                "default" => {
                    map.default = value;
                    continue;
                }
                "hostnames" | "volatile" if entry.arg(0).is_none() => continue,
                key if key.starts_with(['~', '*', '.']) => Key::Pattern,
                key => Key::Text(key.strip_prefix('\\').unwrap_or(key)),
            };
            map.entries.push(MapEntry {
                key,
                value,
                at: entry,
            });
        }
        map
    }
}
