//! Patterns of request paths, with variables.

/// A pattern in which `{namespace}` and `{name}` match one segment of a path each, and `{rest}` the remainder.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pattern {
    /// The pattern up to its first variable.
    literal: &'static str,
    /// The pattern from its first variable on; empty for a pattern without variables.
    variables: &'static str,
}

/// The segments of a path that the variables of a pattern matched, not decoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Segments<'a> {
    pub(super) namespace: Option<&'a str>,
    pub(super) name: Option<&'a str>,
    /// The remainder of the path that `{rest}` matched; it may contain several segments.
    pub(super) rest: Option<&'a str>,
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

    /// Matches a path against the pattern. Returns `None` if the path does not match.
    pub(super) fn read<'a>(&self, path: &'a str) -> Option<Segments<'a>> {
        let rest = path.strip_prefix(self.literal)?;
        if self.variables.is_empty() {
            return rest.is_empty().then(Segments::default);
        }
        let (mut variables, mut rest) = (self.variables, rest);
        let mut segments = Segments::default();
        while let Some((variable, after)) = split_variable(variables) {
            if variable == "rest" {
                segments.rest = Some(rest);
                return Some(segments);
            }
            let (segment, tail) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            if segment.is_empty() {
                return None;
            }
            match variable {
                "namespace" => segments.namespace = Some(segment),
                _ => segments.name = Some(segment),
            }
            let (literal, next) = after.split_at(after.find('{').unwrap_or(after.len()));
            rest = tail.strip_prefix(literal)?;
            variables = next;
        }
        rest.is_empty().then_some(segments)
    }
}

/// Splits a pattern that begins with `{variable}` into the variable's name and the following text.
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
            let text = Option::unwrap_or_default;
            Some(format!("{}|{}", text(read.namespace), text(read.name)))
        };
        for (pattern, path, expected) in [
            ("/a", "/a", Some("|")),
            ("/a", "/a/", None),
            ("/a", "/", None),
            ("/a/{name}", "/a/b%20c", Some("|b%20c")),
            ("/a/{name}", "/a/", None),
            ("/a/{name}", "/a/b/", None),
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
