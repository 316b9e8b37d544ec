//! Names under which an aggregate publishes its members' entries.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};

use super::catalogue::EntryKind;

/// Maximum number of characters of a tool's or prompt's name that all clients accept.
const NAME_MAX: usize = 64;
/// Number of hex digits of the digest at the end of a name that was too long, or would equal another name.
const DIGITS: usize = 8;

/// Scheme of the pages of MCP Apps.
pub(super) const UI_SCHEME: &str = "ui://";

/// Schemes by which clients recognise resources, each with the character between a member's prefix and the rest of the URI. The
/// prefix stands after such a scheme. In the URI of a skill (SEP-2640), the prefix is a separate path segment, since the path
/// must end with the skill's name.
const KEPT_SCHEMES: [(&str, char); 2] = [(UI_SCHEME, '_'), ("skill://", '/')];

/// A name or URI of a member, with the member's prefix.
pub(super) fn prefixed(kind: EntryKind, prefix: &str, own: &str) -> String {
    let kept = match kind {
        EntryKind::Resource | EntryKind::Template => kept_scheme(own),
        EntryKind::Tool | EntryKind::Prompt => None,
    };
    match (prefix.is_empty(), kept) {
        (true, _) => own.to_owned(),
        (false, Some((scheme, sign))) => format!("{scheme}{prefix}{sign}{}", &own[scheme.len()..]),
        (false, None) => format!("{prefix}_{own}"),
    }
}

/// A prefixed name without its prefix; `None` if it does not have the prefix.
pub(super) fn own<'a>(prefix: &str, published: &'a str) -> Option<&'a str> {
    without_prefix(prefix, '_', published)
}

/// Returns a prefixed URI without its prefix; `None` if the URI does not have this prefix.
pub(super) fn own_uri<'a>(prefix: &str, published: &'a str) -> Option<Cow<'a, str>> {
    match kept_scheme(published) {
        Some((scheme, sign)) => {
            let rest = without_prefix(prefix, sign, &published[scheme.len()..])?;
            Some(format!("{scheme}{rest}").into())
        }
        None => own(prefix, published).map(Into::into),
    }
}

fn without_prefix<'a>(prefix: &str, sign: char, published: &'a str) -> Option<&'a str> {
    match prefix.is_empty() {
        true => Some(published),
        false => published.strip_prefix(prefix)?.strip_prefix(sign),
    }
}

/// Returns the scheme of a URI if it is one of [`KEPT_SCHEMES`], which stays before a member's prefix, and the character after
/// the prefix; `None` for other URIs.
pub(super) fn kept_scheme(uri: &str) -> Option<(&'static str, char)> {
    let mut schemes = KEPT_SCHEMES.into_iter();
    schemes.find(|(scheme, _)| uri.starts_with(scheme))
}

/// The prefixed name of a tool or prompt, if it is too long for some clients.
pub(super) fn prefixed_too_long(kind: EntryKind, prefix: &str, own: &str) -> Option<String> {
    let is_name = matches!(kind, EntryKind::Tool | EntryKind::Prompt);
    let published = prefixed(kind, prefix, own);
    (is_name && published.chars().count() > NAME_MAX).then_some(published)
}

/// A short form of a name that is too long for some clients; `None` if the name is short enough. The same name always has the
/// same short form, also after a restart.
pub(super) fn short(published: &str) -> Option<String> {
    let is_long = published.chars().count() > NAME_MAX;
    is_long.then(|| with_digest(published, published))
}

/// The name with `_` for every character that the APIs of models refuse in tool names; `None` if no character must be replaced.
pub(super) fn safe(published: &str) -> Option<String> {
    let fits = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '-');
    if published.chars().all(fits) {
        return None;
    }
    let each = published.chars().map(|it| if fits(it) { it } else { '_' });
    Some(each.collect())
}

/// A unique name of at most 64 characters: `safe`, shortened, with the beginning of a digest of the original name `published`.
/// Equal arguments always give the same name, also after a restart.
pub(super) fn with_digest(safe: &str, published: &str) -> String {
    let digest = hex::encode(Sha256::digest(published));
    let kept: String = safe.chars().take(NAME_MAX - DIGITS - 1).collect();
    format!("{kept}_{}", &digest[..DIGITS])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_stands_before_names_and_uris_and_an_empty_one_changes_nothing() {
        assert_eq!(
            prefixed(EntryKind::Resource, "pjpd", "projects://list"),
            "pjpd_projects://list"
        );
        assert_eq!(prefixed(EntryKind::Tool, "", "list"), "list");
        assert_eq!(own("a", "a_b_c"), Some("b_c"));
        assert_eq!(own("a_b", "a_b_c"), Some("c"));
        assert_eq!(own("b", "a_b_c"), None);
        assert_eq!(own("", "a_b"), Some("a_b"));
    }

    #[test]
    fn the_uri_of_a_page_or_skill_keeps_its_scheme() {
        for (prefix, name, published) in [
            (
                "team",
                "skill://git-flow/SKILL.md",
                "skill://team/git-flow/SKILL.md",
            ),
            ("sales", "ui://chart/a.html", "ui://sales_chart/a.html"),
            ("", "ui://chart/a.html", "ui://chart/a.html"),
        ] {
            assert_eq!(prefixed(EntryKind::Resource, prefix, name), published);
            assert_eq!(own_uri(prefix, published).as_deref(), Some(name));
        }
        assert_eq!(own_uri("sales", "ui://chart/a.html"), None);
        // The prefix of a tool always stands at the beginning, even if the name looks like a URI, since policies match by prefix.
        assert_eq!(
            prefixed(EntryKind::Tool, "github", "ui://x"),
            "github_ui://x"
        );
    }

    #[test]
    fn names_of_other_characters_get_a_form_that_model_apis_take() {
        for (name, expected) in [
            ("admin.tools.list", "admin_tools_list"),
            ("user-profile/update", "user-profile_update"),
            ("ctx:get with space", "ctx_get_with_space"),
            ("größe_abfragen", "gr__e_abfragen"),
        ] {
            assert_eq!(safe(name).as_deref(), Some(expected));
        }
        assert_eq!(safe("Plain_name-1"), None);
        let (one, other) = (with_digest("a_b", "a.b"), with_digest("a_b", "a:b"));
        assert!(one.starts_with("a_b_") && one != other, "{one} {other}");
        assert_eq!(with_digest(&"x".repeat(100), "x").chars().count(), 64);
    }

    #[test]
    fn a_long_name_gets_a_form_of_64_characters_that_tells_it_from_others() {
        let (one, other) = ("x".repeat(100) + "1", "x".repeat(100) + "2");
        let short_one = short(&one).unwrap();
        assert_eq!(short_one.chars().count(), 64);
        assert_eq!(short(&one), Some(short_one.clone()));
        assert_ne!(short(&other), Some(short_one));
        assert_eq!(short(&"x".repeat(64)), None);
        assert_eq!(short(&"ä".repeat(65)).unwrap().chars().count(), 64);
    }
}
