//! Under which names an aggregate publishes what its members offer.

use sha2::{Digest as _, Sha256};

use super::catalogue::Kind;

/// The longest name of a tool or prompt that all clients take.
const NAME_MAX: usize = 64;
/// Digits of the digest at the end of a name that was too long.
const DIGITS: usize = 8;

/// A name, or a URI, behind a prefix.
pub(super) fn prefixed(prefix: &str, own: &str) -> String {
    match prefix.is_empty() {
        true => own.to_owned(),
        false => format!("{prefix}_{own}"),
    }
}

/// A prefixed name without its prefix.
pub(super) fn own<'a>(prefix: &str, published: &'a str) -> Option<&'a str> {
    match prefix.is_empty() {
        true => Some(published),
        false => published.strip_prefix(prefix)?.strip_prefix('_'),
    }
}

/// The name of a tool or prompt behind its prefix, where that is too long for some clients.
pub(super) fn prefixed_too_long(kind: Kind, prefix: &str, own: &str) -> Option<String> {
    let is_name = matches!(kind, Kind::Tool | Kind::Prompt);
    let published = prefixed(prefix, own);
    (is_name && published.chars().count() > NAME_MAX).then_some(published)
}

/// A short form of a name that is too long for some clients, the same at every start; `None` where the name is short.
pub(super) fn short(published: &str) -> Option<String> {
    if published.chars().count() <= NAME_MAX {
        return None;
    }
    let digest = hex::encode(Sha256::digest(published));
    let kept: String = published.chars().take(NAME_MAX - DIGITS - 1).collect();
    Some(format!("{kept}_{}", &digest[..DIGITS]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_stands_before_names_and_uris_and_an_empty_one_changes_nothing() {
        assert_eq!(prefixed("pjpd", "projects://list"), "pjpd_projects://list");
        assert_eq!(prefixed("", "list"), "list");
        assert_eq!(own("a", "a_b_c"), Some("b_c"));
        assert_eq!(own("a_b", "a_b_c"), Some("c"));
        assert_eq!(own("b", "a_b_c"), None);
        assert_eq!(own("", "a_b"), Some("a_b"));
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
