//! Matching URIs with templates (RFC 6570). The worker makes the final decision when the URI is read. So this module may accept
//! too many URIs, but must never refuse a URI that the worker would accept.

/// Maximum size of a URI that can match a template, in bytes. It is limited because the cost of matching is the product of both
/// lengths.
pub(in crate::upstream) const URI_MAX: usize = 8 * 1024;

/// Returns true if an expansion of the template could give the URI. The URI must contain the texts between the expressions in
/// their order, the first at its beginning and the last at its end, with enough bytes between them for every expression.
pub(in crate::upstream) fn could_match(template: &str, uri: &str) -> bool {
    if uri.len() > URI_MAX {
        return false;
    }
    let uri = uri.as_bytes();
    // `reached[i]` is true if the part of the template that was processed so far can match the first `i` bytes of the URI.
    let mut reached = vec![false; uri.len() + 1];
    reached[0] = true;
    let mut rest = template;
    loop {
        let (literal, expression, after) = split(rest);
        reached = after_literal(&reached, uri, literal.as_bytes());
        let Some(expression) = expression else {
            return reached[uri.len()];
        };
        reached = after_expression(&reached, uri, expression);
        if !reached.contains(&true) {
            return false;
        }
        rest = after;
    }
}

/// Returns true if the URI contains the template's literal texts, in their order, with any text in place of the expressions. Used
/// for templates of servers, whose values for the expressions are not known here.
pub(in crate::upstream) fn has_text_of(template: &str, uri: &str) -> bool {
    if uri.len() > URI_MAX {
        return false;
    }
    let (begin, mut expression, mut after) = split(template);
    let Some(mut rest) = uri.strip_prefix(begin) else {
        return false;
    };
    while expression.is_some() {
        let (literal, next, behind) = split(after);
        if next.is_none() {
            return rest.ends_with(literal);
        }
        // The first occurrence suffices, since a later one would leave less of the URI for the literals that follow.
        let Some(at) = rest.find(literal) else {
            return false;
        };
        rest = &rest[at + literal.len()..];
        (expression, after) = (next, behind);
    }
    rest.is_empty()
}

/// Splits a template into the text before the next expression, the expression, and the remaining template. An open brace without
/// a closing one counts as text.
fn split(template: &str) -> (&str, Option<&str>, &str) {
    let found = template.find('{').and_then(|open| {
        let length = template[open..].find('}')?;
        Some((open, open + length))
    });
    match found {
        Some((open, close)) => (
            &template[..open],
            Some(&template[open + 1..close]),
            &template[close + 1..],
        ),
        None => (template, None, ""),
    }
}

fn after_literal(reached: &[bool], uri: &[u8], literal: &[u8]) -> Vec<bool> {
    let mut next = vec![false; reached.len()];
    for (at, _) in reached.iter().enumerate().filter(|(_, here)| **here) {
        if uri[at..].starts_with(literal) {
            next[at + literal.len()] = true;
        }
    }
    next
}

/// Extends `reached` by an expression. A plain expression matches one or more bytes of one path segment; `{x*}`, `{+x}` and
/// `{/x}` may cross segments; query and fragment expressions may match nothing, since their variables need not be set.
fn after_expression(reached: &[bool], uri: &[u8], expression: &str) -> Vec<bool> {
    let operator = expression.bytes().next().unwrap_or_default();
    let optional = matches!(operator, b'?' | b'&' | b'#' | b'/' | b'.' | b';');
    let crosses = optional || operator == b'+' || expression.ends_with('*');
    let mut next = if optional {
        reached.to_vec()
    } else {
        vec![false; reached.len()]
    };
    // True if the expression has begun at an earlier byte and may also contain this one.
    let mut open = false;
    for at in 0..uri.len() {
        open = (open || reached[at]) && (crosses || uri[at] != b'/');
        if open {
            next[at + 1] = true;
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_of_a_template_are_told_from_others() {
        for (template, uri, fits) in [
            ("test://template/{id}/data", "test://template/7/data", true),
            ("test://template/{id}/data", "test://template//data", false),
            (
                "test://template/{id}/data",
                "test://template/a/b/data",
                false,
            ),
            (
                "test://template/{id}/data",
                "test://template/7/data/x",
                false,
            ),
            ("files://{path*}", "files://a/b/c.txt", true),
            ("files://{+path}", "files://a/b", true),
            ("files://{path*}", "files://", false),
            ("search://q{?a,b}", "search://q", true),
            ("search://q{?a,b}", "search://q?a=1&b=x/y", true),
            ("a://{x}-{y}", "a://1-2-3", true),
            ("a://{x}-{y}", "a://1", false),
            ("a://{x}{y}", "a://12", true),
            ("a://{x}{y}", "a://1", false),
            ("a://b", "a://b", true),
            ("a://b", "a://c", false),
            ("a://{open", "a://{open", true),
            ("{x}", "é", true),
            ("{}", "x", true),
        ] {
            assert_eq!(could_match(template, uri), fits, "{template} {uri}");
        }
    }

    #[test]
    fn a_uri_with_the_text_of_a_template_may_have_anything_between() {
        for (template, uri, fits) in [
            ("file:///{path}", "file:///src/main.rs", true),
            ("item://{id}", "item://4/5?x", true),
            ("item://{id}", "item://", true),
            ("item://{id}", "other://4", false),
            ("a://{x}/mid/{y}/end", "a://1/mid/2/mid/3/end", true),
            ("a://{x}/mid/{y}/end", "a://1/mid/end", false),
            ("a://{x}/mid/{y}/end", "a://1/mid/2/end/3", false),
            ("a://{x}-{y}", "a://1-2", true),
            ("a://{x}-{y}", "a://1", false),
            ("a://{x}{y}", "a://", true),
            ("a://b", "a://b", true),
            ("a://b", "a://bc", false),
            ("{+uri}", "anything:é", true),
        ] {
            assert_eq!(has_text_of(template, uri), fits, "{template} {uri}");
        }
    }

    #[test]
    fn a_hostile_uri_costs_no_more_than_its_length_times_the_template() {
        let template = "a{x}".repeat(50);
        let uri = "a".repeat(URI_MAX);
        assert!(could_match(&template, &uri));
        assert!(!could_match(&format!("{template}b"), &uri));
        assert!(!could_match("{x}", &"a".repeat(URI_MAX + 1)));
    }
}
