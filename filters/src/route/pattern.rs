//! A path with variables.

use std::borrow::Cow;

use crate::path;

/// A path in which `{namespace}` and `{name}` stand for one segment each, and `{rest}` for everything after.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pattern {
    /// What stands before the first variable.
    literal: &'static str,
    /// What follows, beginning with a variable; empty where there is none.
    variables: &'static str,
}

/// What a path has in the places of the variables, decoded.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Segments<'a> {
    pub(super) namespace: Option<Cow<'a, str>>,
    pub(super) name: Option<Cow<'a, str>>,
}

impl Pattern {
    pub(super) const fn new(pattern: &'static str) -> Self {
        let bytes = pattern.as_bytes();
        let mut at = 0;
        while at < bytes.len() && bytes[at] != b'{' {
            at += 1;
        }
        let (literal, variables) = pattern.split_at(at);
        Self { literal, variables }
    }

    /// Reads a path; `None` where it is another one.
    pub(super) fn read<'a>(&self, path: &'a str) -> Option<Segments<'a>> {
        let rest = path.strip_prefix(self.literal)?;
        if self.variables.is_empty() {
            return rest.is_empty().then(Segments::default);
        }
        let (mut variables, mut rest) = (self.variables, rest);
        let (mut namespace, mut name) = (None, None);
        while let Some((variable, after)) = split_variable(variables) {
            if variable == "rest" {
                return Some(Segments::default());
            }
            let (segment, tail) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            match variable {
                "namespace" => namespace = Some(segment),
                _ => name = Some(segment),
            }
            let (literal, next) = after.split_at(after.find('{').unwrap_or(after.len()));
            rest = tail.strip_prefix(literal)?;
            variables = next;
        }
        let whole = rest.is_empty();
        // Decoded only where all of the path fits.
        let decoded = |segment: Option<&'a str>| match segment {
            None => Some(None),
            Some("") => None,
            Some(segment) => path::decoded(segment).ok().map(Some),
        };
        whole.then_some(())?;
        Some(Segments {
            namespace: decoded(namespace)?,
            name: decoded(name)?,
        })
    }
}

/// `{variable}` at the beginning, and what follows.
fn split_variable(pattern: &str) -> Option<(&str, &str)> {
    pattern.strip_prefix('{')?.split_once('}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_stand_for_one_segment_that_is_not_empty() {
        let read = |pattern, path| {
            let read = Pattern::new(pattern).read(path)?;
            let text = |value: Option<Cow<'_, str>>| value.map(Cow::into_owned).unwrap_or_default();
            Some(format!("{}|{}", text(read.namespace), text(read.name)))
        };
        for (pattern, path, expected) in [
            ("/a", "/a", Some("|")),
            ("/a", "/a/", None),
            ("/a", "/", None),
            ("/a/{name}", "/a/b%20c", Some("|b c")),
            ("/a/{name}", "/a/", None),
            ("/a/{name}", "/a/b/", None),
            ("/a/{name}", "/a/%2F", None),
            ("/a/{name}/", "/a/b/", Some("|b")),
            ("/a/{name}/c", "/a/c/c", Some("|c")),
            ("/a/{name}/c", "/a//c", None),
            ("/a/{namespace}/b/{name}", "/a/x/b/y", Some("x|y")),
            ("/a/{namespace}/b/{name}", "/a/x/b", None),
            ("/a/{namespace}/b/{name}", "/a/x/c/y", None),
            ("/a/{rest}", "/a/", Some("|")),
            ("/a/{rest}", "/a/b//c%zz", Some("|")),
            ("/a/{rest}", "/a", None),
        ] {
            assert_eq!(read(pattern, path).as_deref(), expected, "{pattern} {path}");
        }
    }
}
