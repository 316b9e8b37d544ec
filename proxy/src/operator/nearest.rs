//! The name that a mistyped name probably stands for.

/// Maximum length of the names that are compared, in characters.
const LENGTH_MAX: usize = 128;

/// The one of `names` that differs least from `typed`, if it differs in at most two fifths of its characters.
pub(super) fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = names.filter(|name| name.chars().count() <= LENGTH_MAX);
    let scored = scored.map(|name| (distance(typed, name), name));
    let (differs, name) = scored.min()?;
    (differs * 5 <= 2 * typed.chars().count().max(name.chars().count())).then_some(name)
}

/// A clause that proposes the nearest name; empty without one.
pub(super) fn proposal<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> String {
    nearest(typed, names).map_or(String::new(), |name| format!("; did you mean {name}?"))
}

/// Number of characters to insert, remove or replace to turn one text into the other, ignoring case.
fn distance(one: &str, other: &str) -> usize {
    let one: Vec<_> = one.to_lowercase().chars().take(LENGTH_MAX).collect();
    let mut row: Vec<usize> = (0..=one.len()).collect();
    for (line, character) in other.to_lowercase().chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], line + 1);
        for (column, own) in one.iter().enumerate() {
            let replaced = diagonal + usize::from(*own != character);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[one.len()]
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
