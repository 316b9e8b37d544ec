//! The difference between two versions of a file, in the format of `diff -u`.

use std::time::{Duration, Instant};

use similar::TextDiff;

/// Time limit for an exact comparison of two texts. After it, the comparison continues with coarser results.
const EFFORT: Duration = Duration::from_millis(500);

/// The difference between two texts; empty if they are equal. Meant for texts of at most some MiB.
pub(super) fn unified(from: &str, to: &str, names: (&str, &str)) -> String {
    if from == to {
        return String::new();
    }
    let mut config = TextDiff::configure();
    config.deadline(Instant::now() + EFFORT);
    let diff = config.diff_lines(from, to);
    diff.unified_diff().header(names.0, names.1).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_line_is_shown_with_its_surroundings() {
        let diff = unified("a\nb\nc\n", "a\nB\nc\n", ("x.py 1", "x.py"));
        assert_eq!(
            diff,
            "--- x.py 1\n+++ x.py\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
        );
        assert_eq!(unified("a\n", "a\n", ("", "")), "");
    }
}
