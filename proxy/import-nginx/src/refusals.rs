//! Determines the location that nginx chooses for a path. Locations that refuse requests matter only if nginx chooses one of
//! them for the path of an MCP endpoint, since the gateway refuses every unknown path anyway.

use regex::{Regex, RegexBuilder};

use crate::scope::{Level, Paths};
use crate::tree::Directive;

/// Memory limit of one regular expression, in bytes. A larger expression is not evaluated and is assumed to match any path.
const REGEX_BYTES_MAX: usize = 256 * 1024;

/// Maximum number of regular expressions of locations that are compiled. Further ones are assumed to match any path.
pub(crate) const REGEXES_MAX: usize = 2_000;

/// A `location` of nginx. Locations inside it are reported elsewhere.
pub(crate) struct Location<'a> {
    pub(crate) at: &'a Directive,
    pub(crate) paths: Paths<'a>,
    /// The location's compiled regular expression. `None` if the location has none, or if the expression cannot be compiled
    /// here; in the second case it is assumed to match any path.
    regex: Option<Regex>,
}

impl<'a> Location<'a> {
    /// Reads the locations of a block. `left` is the number of regular expressions that may still be compiled.
    pub(crate) fn all(level: &Level<'a>, left: &mut usize) -> Vec<Self> {
        let locations = level.all("location").iter();
        let location = |at: &&'a Directive| {
            let paths = Paths::of(at);
            let regex = match paths {
                Paths::Matching(pattern) if *left > 0 => {
                    *left -= 1;
                    regex(pattern, at.first().starts_with("~*"))
                }
                _ => None,
            };
            Self { at, paths, regex }
        };
        locations.map(location).collect()
    }
}

/// Returns the locations that nginx may choose for a path; several if a regular expression among them cannot be evaluated
/// here. The location `own` is assumed to match the path if it has a regular expression.
///
/// nginx takes the exact path, or the first regular expression that matches, or the longest prefix. With `^~`, the longest prefix
/// comes before regular expressions.
pub(crate) fn chosen<'a>(
    locations: &[Location<'a>],
    path: &str,
    own: &Directive,
) -> Vec<&'a Directive> {
    if let Some(exact) = locations.iter().find(|it| it.paths == Paths::Exactly(path)) {
        return vec![exact.at];
    }
    let prefix = |it: &&Location<'a>| match it.paths {
        Paths::Below(prefix) if path.starts_with(prefix) => Some(prefix.len()),
        _ => None,
    };
    let longest = locations.iter().max_by_key(prefix);
    let longest = longest.filter(|it| prefix(it).is_some()).map(|it| it.at);
    let mut found = Vec::new();
    if longest.is_none_or(|it| !it.first().starts_with("^~")) {
        let is_regex = |it: &&Location<'a>| matches!(it.paths, Paths::Matching(_));
        for location in locations.iter().filter(is_regex) {
            let is_own = std::ptr::eq(location.at, own);
            let matches = location.regex.as_ref().map(|it| it.is_match(path));
            if is_own || matches == Some(true) {
                found.push(location.at);
                return found;
            }
            if matches.is_none() {
                found.push(location.at);
            }
        }
    }
    found.extend(longest);
    found
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
