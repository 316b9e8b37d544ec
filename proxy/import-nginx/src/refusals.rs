//! Determines the location that nginx chooses for a path. Locations that refuse requests matter only if nginx chooses one of
//! them for the path of an MCP endpoint, since the gateway refuses every unknown path anyway.

use regex::{Regex, RegexBuilder};

use crate::scope::{Level, Paths};
use crate::tree::Directive;

/// Memory limit of one regular expression, in bytes. A larger expression is not evaluated and is assumed to match any path.
const REGEX_BYTES_MAX: usize = 256 * 1024;

/// Maximum number of regular expressions of locations that are compiled. Further ones are assumed to match any path.
pub(crate) const REGEXES_MAX: usize = 2_000;

/// A `location` of nginx, with its nested locations.
pub(crate) struct Location<'a> {
    at: &'a Directive,
    paths: Paths<'a>,
    /// The location's compiled regular expression. `None` if the location has none, or if the expression cannot be compiled
    /// here; in the second case it is assumed to match any path.
    regex: Option<Regex>,
    inside: Vec<Location<'a>>,
}

/// The result of a search for the location of a path in one block.
enum Search<'a> {
    /// A location was found and nothing can override it.
    Over,
    /// The location with the longest matching prefix was found. Regular expressions of the enclosing blocks may still override
    /// it.
    Prefix(&'a Directive),
    Nothing,
}

impl<'a> Location<'a> {
    /// Reads the locations of a block, each with its nested locations. `left` is the number of regular expressions that may
    /// still be compiled.
    pub(crate) fn all(level: &Level<'a>, left: &mut usize) -> Vec<Self> {
        let locations = level.all("location").iter();
        locations
            .map(|at| {
                let paths = Paths::of(at);
                let regex = match paths {
                    Paths::Matching(pattern) if *left > 0 => {
                        *left -= 1;
                        regex(pattern, at.first().starts_with("~*"))
                    }
                    _ => None,
                };
                Self {
                    at,
                    paths,
                    regex,
                    inside: Self::all(&Level::of(at.block()), left),
                }
            })
            .collect()
    }

    /// Returns true if `at` is the directive of this location or of a nested one.
    fn holds(&self, at: &Directive) -> bool {
        std::ptr::eq(self.at, at) || self.inside.iter().any(|it| it.holds(at))
    }
}

/// Returns the locations that nginx may choose for a path; several if a regular expression among them cannot be evaluated
/// here. The location `own` is assumed to match the path if it has a regular expression.
pub(crate) fn chosen<'a>(
    locations: &[Location<'a>],
    path: &str,
    own: &Directive,
) -> Vec<&'a Directive> {
    let mut found = Vec::new();
    if let Search::Prefix(at) = search(locations, path, own, &mut found) {
        found.push(at);
    }
    found
}

/// Returns the `location = PATH` of exactly this path.
pub(crate) fn exactly<'a>(locations: &[Location<'a>], path: &str) -> Option<&'a Directive> {
    locations.iter().find_map(|it| match it.paths {
        Paths::Exactly(exact) if exact == path => Some(it.at),
        Paths::Below(prefix) if path.starts_with(prefix) => exactly(&it.inside, path),
        _ => None,
    })
}

/// Searches in nginx's order: the exact path; the longest prefix, with its nested locations; then the regular expressions in
/// the order of the file, unless the longest prefix has `^~`.
fn search<'a>(
    locations: &[Location<'a>],
    path: &str,
    own: &Directive,
    found: &mut Vec<&'a Directive>,
) -> Search<'a> {
    if let Some(exact) = locations.iter().find(|it| it.paths == Paths::Exactly(path)) {
        found.push(exact.at);
        return Search::Over;
    }
    let prefixes = locations.iter().filter_map(|it| match it.paths {
        Paths::Below(prefix) if path.starts_with(prefix) => Some((prefix.len(), it)),
        _ => None,
    });
    let longest = prefixes.max_by_key(|(length, _)| *length).map(|(_, it)| it);
    let mut prefix = Search::Nothing;
    if let Some(longest) = longest {
        prefix = match search(&longest.inside, path, own, found) {
            Search::Over => return Search::Over,
            Search::Prefix(inside) => Search::Prefix(inside),
            Search::Nothing => Search::Prefix(longest.at),
        };
        if longest.at.first().starts_with("^~") {
            return prefix;
        }
    }
    for location in locations {
        if !matches!(location.paths, Paths::Matching(_)) {
            continue;
        }
        let matches = match &location.regex {
            _ if location.holds(own) => Some(true),
            Some(regex) => Some(regex.is_match(path)),
            None => None,
        };
        if matches == Some(false) {
            continue;
        }
        match search(&location.inside, path, own, found) {
            Search::Over => {}
            Search::Prefix(inside) => found.push(inside),
            Search::Nothing => found.push(location.at),
        }
        if matches == Some(true) {
            return Search::Over;
        }
    }
    prefix
}

/// Compiles a regular expression of nginx; `None` if it is invalid in Rust's syntax or too large.
pub(crate) fn regex(pattern: &str, any_case: bool) -> Option<Regex> {
    let mut builder = RegexBuilder::new(pattern);
    builder
        .case_insensitive(any_case)
        .size_limit(REGEX_BYTES_MAX)
        .build()
        .ok()
}

/// Returns true if a block of nginx denies all clients and allows none.
pub(crate) fn denies_everyone(level: &Level<'_>) -> bool {
    let denies = level.all("deny").iter().any(|it| it.first() == "all");
    denies && level.all("allow").is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::parsed;

    #[test]
    fn locations_are_chosen_as_nginx_chooses_them() {
        for (locations, line) in [
            ("location / { }\nlocation /mcp { }", &[2][..]),
            ("location /mcp { }\nlocation = /mcp { }", &[2]),
            ("location /mcp { }\nlocation ~ cp { }", &[2]),
            ("location ^~ /mcp { }\nlocation ~ cp { }", &[1]),
            ("location /mcp { }\nlocation ~ ^/MCP { }", &[1]),
            ("location /mcp { }\nlocation ~* ^/MCP { }", &[2]),
            ("location ~ m { }\nlocation ~ c { }", &[1]),
            ("location /mcp { }\nlocation /a/ { location ~ m { } }", &[1]),
            ("location / {\nlocation /mcp { } }\nlocation ~ x { }", &[2]),
            ("location / {\nlocation /mcp { } }\nlocation ~ m { }", &[3]),
            ("location / {\nlocation ~ m { } }\nlocation ~ c { }", &[2]),
            ("location /mcp { }\nlocation ~ (?!x)m { }", &[2, 1]),
            ("location /mcp/ { }", &[]),
        ] {
            let tree = parsed(locations).expect(locations);
            let mut left = REGEXES_MAX;
            let all = Location::all(&Level::of(&tree), &mut left);
            let other = parsed("location /x { }").expect("valid");
            let found: Vec<_> = chosen(&all, "/mcp", &other[0])
                .iter()
                .map(|it| it.place.line)
                .collect();
            assert_eq!(found, line, "{locations}");
        }
    }
}
