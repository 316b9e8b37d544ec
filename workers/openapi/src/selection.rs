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

/// Compiled patterns of the settings `include` and `exclude`.
pub(crate) struct Selection {
    include: GlobSet,
    exclude: GlobSet,
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

impl Selection {
    /// Compiles the patterns of included and excluded operations. A list with an invalid pattern matches no operation: callers
    /// check the lists with [`check_patterns`].
    pub(crate) fn new(include: &[String], exclude: &[String]) -> Self {
        Self {
            include: compiled(include).unwrap_or_default(),
            exclude: compiled(exclude).unwrap_or_default(),
        }
    }

    /// Returns true if an operation is included and not excluded.
    pub(crate) fn has(&self, operation: &Candidate<'_>) -> bool {
        let place = format!("{} {}", operation.method, operation.path);
        let matches = |set: &GlobSet| {
            let mut tags = operation.tags.iter();
            set.is_match(operation.name)
                || set.is_match(&place)
                || tags.any(|tag| set.is_match(format!("tag:{tag}")))
        };
        matches(&self.include) && !matches(&self.exclude)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_selected_by_name_place_and_tag() {
        let has = |include: &[&str], exclude: &[&str]| {
            let owned = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
            Selection::new(&owned(include), &owned(exclude)).has(&Candidate {
                name: "getPet",
                method: "GET",
                path: "/pets/{id}",
                tags: vec!["pets"],
            })
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
    fn an_invalid_pattern_is_named() {
        let error = check_patterns(&["a[".to_owned()]).expect_err("no pattern");
        assert!(error.starts_with("\"a[\" is no pattern"), "{error}");
    }
}
