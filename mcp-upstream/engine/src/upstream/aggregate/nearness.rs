//! Finding the names nearest to an unknown name.
//!
//! Comparing two names costs the product of their lengths, and an aggregate may publish ten thousand names. So the names with
//! the most letters in common are selected first, by letter counts stored with each entry, and only those few are compared.

use super::catalogue::PublishedEntry;
use super::own::{ALIKE, COMPARED_MAX, likeness};

/// Maximum number of names that are suggested.
pub(super) const SUGGESTIONS: usize = 3;
/// Maximum number of names that are compared in full.
const COMPARED: usize = 24;
/// Number of classes of letters that are counted separately.
const LETTERS: usize = 32;

/// A name in lower case, with the number of occurrences of each letter.
#[derive(Debug)]
pub(super) struct NameShape {
    lower: Box<str>,
    counts: [u8; LETTERS],
}

impl NameShape {
    pub(super) fn of(name: &str) -> Self {
        let lower = name.to_lowercase();
        let mut counts = [0_u8; LETTERS];
        for byte in lower.bytes() {
            let count = &mut counts[usize::from(byte) % LETTERS];
            *count = count.saturating_add(1);
        }
        Self {
            lower: lower.into(),
            counts,
        }
    }

    /// Upper bound of the likeness of two names by their letter counts; larger is more alike.
    fn may_be_like(&self, other: &Self) -> u32 {
        let pairs = self.counts.iter().zip(&other.counts);
        let common: u32 = pairs.map(|(one, other)| u32::from(*one.min(other))).sum();
        let share =
            |length: usize| 1000 * common / u32::try_from(length.max(1)).unwrap_or(u32::MAX);
        share(self.lower.len()) + share(other.lower.len())
    }
}

/// The published names nearest to `name`, the nearest first. A published name that ends with `name`, as when only the prefix is
/// missing, ranks highest.
pub(super) fn nearest<'e>(
    name: &str,
    entries: impl Iterator<Item = &'e PublishedEntry>,
) -> Vec<&'e str> {
    if name.len() > COMPARED_MAX {
        return Vec::new();
    }
    let wanted = NameShape::of(name);
    let mut candidates: Vec<(bool, u32, &PublishedEntry)> = entries
        .filter(|entry| entry.published.len() <= COMPARED_MAX)
        .map(|entry| {
            let shape = entry.shape();
            let is_end = wanted.lower.len() > 2 && shape.lower.ends_with(&*wanted.lower);
            (is_end, wanted.may_be_like(shape), entry)
        })
        .collect();
    if candidates.len() > COMPARED {
        let by_letters = |it: &(bool, u32, &PublishedEntry)| std::cmp::Reverse((it.0, it.1));
        candidates.select_nth_unstable_by_key(COMPARED, by_letters);
        candidates.truncate(COMPARED);
        // The selected names are sorted in the order of the list again, so that of equally near names the first is suggested.
        candidates.sort_by_key(|(_, _, entry)| entry.at);
    }
    let mut near: Vec<_> = candidates
        .into_iter()
        .filter_map(|(is_end, _, entry)| {
            let alike = likeness(&wanted.lower, &entry.shape().lower);
            let rank = alike + f64::from(u8::from(is_end));
            (alike >= ALIKE || is_end).then_some((rank, &*entry.published))
        })
        .collect();
    near.sort_by(|one, other| other.0.total_cmp(&one.0));
    near.truncate(SUGGESTIONS);
    near.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_in_common_say_how_alike_names_can_be() {
        let shape = NameShape::of;
        let wanted = shape("Github_create_isue");
        let near = wanted.may_be_like(&shape("github_create_issue"));
        assert!(near > wanted.may_be_like(&shape("github_create_release")));
        assert!(near > wanted.may_be_like(&shape("weather")));
        assert_eq!(shape("").may_be_like(&shape("a")), 0);
    }
}
