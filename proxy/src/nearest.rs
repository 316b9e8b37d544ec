//! Proposals for mistyped names: "did you mean …?"

/// Maximum length in characters of the names that are compared. Longer names are never proposed.
const LENGTH_MAX: usize = 128;

/// The name in `names` that differs least from `typed`. `None` if more than two fifths of its characters differ.
pub(crate) fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = names.filter(|name| name.chars().count() <= LENGTH_MAX);
    let scored = scored.map(|name| (distance(typed, name), name));
    let (differs, name) = scored.min()?;
    (differs * 5 <= 2 * typed.chars().count().max(name.chars().count())).then_some(name)
}

/// A clause that proposes the nearest name. Empty if no name is near enough.
pub(crate) fn proposal<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> String {
    nearest(typed, names).map_or(String::new(), |name| format!("; did you mean {name}?"))
}

/// Number of characters to insert, remove, replace or swap to change one text into the other. Case is ignored.
fn distance(typed: &str, name: &str) -> usize {
    let typed: String = typed.chars().take(LENGTH_MAX).collect();
    strsim::damerau_levenshtein(&typed.to_lowercase(), &name.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_leads_to_the_name_and_another_word_to_none() {
        let names = ["say_hello", "add", "list_files"];
        let near = |typed: &str| nearest(typed, names.into_iter());
        assert_eq!(near("say_helo"), Some("say_hello"));
        assert_eq!(near("Say-Hello"), Some("say_hello"));
        assert_eq!(near("ad"), Some("add"));
        assert_eq!(near("list_flies"), Some("list_files"));
        for other in ["", "zzz", "remove_everything"] {
            assert_eq!(near(other), None, "{other}");
        }
        assert_eq!(nearest("a", [].into_iter()), None);
    }
}
