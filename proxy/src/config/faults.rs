//! Collects all faults of a configuration file, for `tooldock check`.
//!
//! Loading stops at the first fault. To find further ones, the faulty key is removed from the configuration in memory, and the
//! rest is loaded again, until no fault is left or a fault belongs to no key of the file.

use super::{ConfigError, LoadOptions};

/// Maximum number of faults in one report.
const FAULTS_MAX: usize = 100;

/// Keys of the configuration file that are ignored when it is loaded, by their paths, such as `listeners[0].name`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct IgnoredKeys(Vec<String>);

impl IgnoredKeys {
    /// Returns true if no key is ignored.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the key with this path is ignored.
    pub(super) fn has(&self, path: &str) -> bool {
        self.0.iter().any(|it| it == path)
    }

    /// Returns true if the key with this path, or a key below it, is ignored.
    fn touches(&self, path: &str) -> bool {
        let within = |it: &String| {
            it.strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.0.iter().any(within)
    }

    /// Returns the index of an entry in the list `list` of the file. `left` is the entry's index in the loaded configuration,
    /// which does not count the ignored entries.
    fn counted(&self, list: &str, left: usize) -> usize {
        let index = |path: &String| {
            let inside = path.strip_prefix(list)?.strip_prefix('[')?;
            inside.strip_suffix(']')?.parse::<usize>().ok()
        };
        let mut passed_over: Vec<_> = self.0.iter().filter_map(index).collect();
        passed_over.sort_unstable();
        let past = |at: usize, index: usize| {
            if index <= at {
                at.saturating_add(1)
            } else {
                at
            }
        };
        passed_over.into_iter().fold(left, past)
    }

    /// Returns the path that a key has in the file. `path` is its path in the loaded configuration, which does not count the
    /// ignored entries of lists.
    fn in_file(&self, path: &str) -> String {
        let mut original = String::with_capacity(path.len());
        let mut rest = path;
        while let Some(at) = rest.find('[') {
            original.push_str(&rest[..at]);
            let Some((index, further)) = rest[at + 1..].split_once(']') else {
                break;
            };
            let Ok(index) = index.parse() else {
                original.push('[');
                rest = &rest[at + 1..];
                continue;
            };
            let counted = self.counted(&original, index);
            original.push_str(&format!("[{counted}]"));
            rest = further;
        }
        original.push_str(rest);
        original
    }
}

/// Loads a configuration, or returns all its faults. `load` loads it without the keys that `LoadOptions` says to ignore.
///
/// # Errors
///
/// The faults, in the order in which they were found: first unknown keys and values of the wrong form, then values that
/// contradict each other.
pub(crate) fn all<T>(
    options: &LoadOptions,
    load: impl Fn(&LoadOptions) -> Result<T, ConfigError>,
) -> Result<T, Vec<ConfigError>> {
    let mut options = options.clone();
    let mut faults = Vec::new();
    loop {
        let error = match load(&options) {
            Ok(loaded) if faults.is_empty() => return Ok(loaded),
            Ok(_) => return Err(faults),
            Err(error) => error,
        };
        let Some(key) = error.path().map(|path| options.left_out.in_file(path)) else {
            // A fault without a key may be a consequence of the removed keys, and is only reported if no fault was found before
            // it. Faults of variables are always reported.
            if faults.is_empty() || matches!(error, ConfigError::Variable { .. }) {
                faults.push(error);
            }
            return Err(faults);
        };
        // If a key below the faulty key was removed before, the fault may only be a consequence, and is not reported.
        if !options.left_out.touches(&key) {
            faults.push(error.at(&key).located(&options));
        }
        let is_known = options.left_out.has(&key);
        options.left_out.0.push(key);
        // The content of a pipe cannot be read again.
        let is_kept = options.source().is_some_and(|file| file.is_file());
        if is_known || !is_kept || faults.len() == FAULTS_MAX {
            return Err(faults);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(paths: &[&str]) -> IgnoredKeys {
        IgnoredKeys(paths.iter().map(|&it| it.to_owned()).collect())
    }

    #[test]
    fn entries_of_lists_keep_the_numbers_that_they_have_in_the_file() {
        let left = left_out(&["a[0]", "a[2]", "b[1].c[0]"]);
        for (path, in_file) in [
            ("a[0].x", "a[1].x"),
            ("a[1]", "a[3]"),
            ("b[1].c[0]", "b[1].c[1]"),
            ("b[0].c[0]", "b[0].c[0]"),
            ("d", "d"),
            // A key whose name looks like an index.
            ("x[99999999999999].y", "x[99999999999999].y"),
        ] {
            assert_eq!(left.in_file(path), in_file);
        }
    }

    #[test]
    fn a_key_is_touched_by_what_stands_within_it_alone() {
        let left = left_out(&["a.b[0].c"]);
        for (path, touched) in [
            ("a", true),
            ("a.b", true),
            ("a.b[0].c", true),
            ("a.b[0].cd", false),
            ("a.b[0].c.d", false),
            ("ab", false),
        ] {
            assert_eq!(left.touches(path), touched, "{path}");
        }
    }
}
