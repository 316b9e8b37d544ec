//! Patterns that select operations, by the name of the tool, by method and path, or by tag.

use globset::{Glob, GlobSet, GlobSetBuilder};

/// The texts of an operation that patterns are compared with.
pub(crate) struct Candidate<'a> {
    /// Name of the tool.
    pub(crate) name: &'a str,
    /// Method in upper case. Patterns such as `GET /pets/*` are compared with the method and the path.
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) tags: Vec<&'a str>,
}

/// The settings `include` and `exclude`, compiled.
pub(crate) struct Selection<'a> {
    include: Patterns<'a>,
    exclude: Patterns<'a>,
}

/// The patterns of one setting. Counts which of them match an operation.
struct Patterns<'a> {
    texts: &'a [String],
    set: GlobSet,
    /// Whether a pattern has matched an operation, in the order of `texts`.
    used: Vec<bool>,
}

/// Checks that all patterns can be compiled.
///
/// # Errors
///
/// The first invalid pattern, and the reason.
pub fn check_patterns(patterns: &[String]) -> Result<(), String> {
    compiled(patterns).map(drop)
}

fn compiled(patterns: &[String]) -> Result<GlobSet, String> {
    let wrong = |pattern: &str, error: globset::Error| {
        format!("{pattern:?} is no pattern: {}", error.kind())
    };
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        // Braces enclose the parameters of a path. Without a backslash, they would list alternatives of the pattern.
        let literal = pattern.replace('{', "\\{").replace('}', "\\}");
        let glob = Glob::new(&literal).map_err(|error| wrong(pattern, error))?;
        set.add(glob);
    }
    set.build().map_err(|error| wrong("", error))
}

impl<'a> Patterns<'a> {
    fn new(texts: &'a [String]) -> Self {
        Self {
            texts,
            set: compiled(texts).unwrap_or_default(),
            used: vec![false; texts.len()],
        }
    }

    /// Returns true if a pattern matches the operation.
    fn matches(&mut self, operation: &Candidate<'_>) -> bool {
        let place = format!("{} {}", operation.method, operation.path);
        let tags = operation.tags.iter().map(|tag| format!("tag:{tag}"));
        let mut any = false;
        for text in [operation.name.to_owned(), place].into_iter().chain(tags) {
            for at in self.set.matches(text) {
                self.used[at] = true;
                any = true;
            }
        }
        any
    }

    fn unused(&self) -> impl Iterator<Item = &'a str> {
        let patterns = self.texts.iter().zip(&self.used);
        patterns.filter_map(|(text, used)| (!used).then_some(text.as_str()))
    }
}

impl<'a> Selection<'a> {
    /// Compiles the patterns of included and excluded operations. A list with an invalid pattern matches no operation: callers
    /// check the lists with [`check_patterns`].
    pub(crate) fn new(include: &'a [String], exclude: &'a [String]) -> Self {
        Self {
            include: Patterns::new(include),
            exclude: Patterns::new(exclude),
        }
    }

    /// Returns true if an operation is included and not excluded.
    pub(crate) fn has(&mut self, operation: &Candidate<'_>) -> bool {
        // Both are asked, so that each pattern that matches an operation counts as used.
        let (included, excluded) = (
            self.include.matches(operation),
            self.exclude.matches(operation),
        );
        included && !excluded
    }

    /// A sentence about each pattern that matched none of the operations so far.
    pub(crate) fn unused(&self) -> impl Iterator<Item = String> {
        let sentences = |key, patterns: &Patterns<'a>| {
            let unused: Vec<_> = patterns.unused().collect();
            unused.into_iter().map(move |pattern| {
                format!("{key}: {pattern:?} matches no operation; compare it with the document")
            })
        };
        sentences("include", &self.include).chain(sentences("exclude", &self.exclude))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate() -> Candidate<'static> {
        Candidate {
            name: "getPet",
            method: "GET",
            path: "/pets/{id}",
            tags: vec!["pets"],
        }
    }

    #[test]
    fn operations_are_selected_by_name_place_and_tag() {
        let has = |include: &[&str], exclude: &[&str]| {
            let owned = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
            Selection::new(&owned(include), &owned(exclude)).has(&candidate())
        };
        assert!(has(&["*"], &[]));
        assert!(has(&["GET /pets/*"], &[]));
        assert!(has(&["GET /pets/{id}"], &[]));
        assert!(has(&["tag:pets"], &["DELETE *"]));
        assert!(!has(&["tag:users", "list*"], &[]));
        assert!(!has(&["*"], &["get*"]));
        assert!(!has(&["*"], &["GET *"]));
    }

    #[test]
    fn a_pattern_that_matches_no_operation_is_named_with_its_setting() {
        let include = ["*", "getPest"].map(str::to_owned);
        let exclude = ["GET /pets/*", "DELETE /pets"].map(str::to_owned);
        let mut selection = Selection::new(&include, &exclude);
        assert!(!selection.has(&candidate()));
        let unused: Vec<_> = selection.unused().collect();
        assert_eq!(
            unused,
            [
                "include: \"getPest\" matches no operation; compare it with the document",
                "exclude: \"DELETE /pets\" matches no operation; compare it with the document",
            ]
        );
    }

    #[test]
    fn an_invalid_pattern_is_named() {
        let error = check_patterns(&["a[".to_owned()]).expect_err("no pattern");
        assert!(error.starts_with("\"a[\" is no pattern"), "{error}");
    }
}
