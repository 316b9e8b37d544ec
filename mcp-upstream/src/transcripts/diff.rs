//! The line-by-line difference of two texts, for failed comparisons of transcripts.

use std::fmt::Write as _;

/// Returns the lines that only one of the texts contains. Each change is listed below the heading of its scene.
pub(super) fn lines(before: &str, after: &str) -> String {
    let before: Vec<_> = before.lines().collect();
    let after: Vec<_> = after.lines().collect();
    // `common[i][j]`: maximum number of lines that `before[i..]` and `after[j..]` have in common.
    let mut common = vec![vec![0_u32; after.len() + 1]; before.len() + 1];
    for i in (0..before.len()).rev() {
        for j in (0..after.len()).rev() {
            common[i][j] = match before[i] == after[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut text, mut scene) = (0, 0, String::new(), "");
    while i < before.len() || j < after.len() {
        if i < before.len() && j < after.len() && before[i] == after[j] {
            if before[i].starts_with("== ") {
                scene = before[i];
            }
            (i, j) = (i + 1, j + 1);
            continue;
        }
        if !scene.is_empty() {
            writeln!(text, "{}", std::mem::take(&mut scene)).expect("into memory");
        }
        let goes = j == after.len() || (i < before.len() && common[i + 1][j] >= common[i][j + 1]);
        if goes {
            writeln!(text, "- {}", before[i]).expect("into memory");
            i += 1;
        } else {
            writeln!(text, "+ {}", after[j]).expect("into memory");
            j += 1;
        }
    }
    text
}

#[test]
fn a_difference_names_its_scene_and_nothing_else() {
    let before = "== a\n1\n2\n== b\n3\n4\n";
    let after = "== a\n1\n2\n== b\n3\n5\n4\n";
    assert_eq!(lines(before, after), "== b\n+ 5\n");
    assert_eq!(lines(after, before), "== b\n- 5\n");
    assert_eq!(lines(before, before), "");
}
