//! Choice of the process that runs the next call, as a pure function.

/// Returns the index of the process with the fewest calls. `calls` has one number per process; `None` is a process that accepts
/// no calls. Among equally busy processes the first one from index `turn` on is chosen, so a caller that increments `turn`
/// distributes its calls evenly.
pub(super) fn find(
    calls: impl ExactSizeIterator<Item = Option<usize>>,
    turn: usize,
) -> Option<usize> {
    let count = calls.len();
    calls
        .enumerate()
        .filter_map(|(place, calls)| {
            let distance = (place + count - turn % count) % count;
            Some((calls?, distance, place))
        })
        .min()
        .map(|(.., place)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_with_the_fewest_calls_is_taken_whoever_has_the_turn() {
        for turn in 0..10 {
            let calls = [Some(3), Some(1), Some(2)];
            assert_eq!(find(calls.into_iter(), turn), Some(1), "{turn}");
        }
    }

    #[test]
    fn equally_busy_ones_take_turns() {
        let find = |turn| find([Some(1), Some(0), Some(0), Some(0)].into_iter(), turn);
        let turns = [1, 2, 3, 5, 6, 7].map(find);
        assert_eq!(turns, [1, 2, 3, 1, 2, 3].map(Some));
        // No process is skipped for ever: from a busy one on, the next one is chosen.
        assert_eq!(find(4), Some(1));
        assert!(find(usize::MAX).is_some());
    }

    #[test]
    fn one_that_takes_no_calls_is_left_out_and_its_turn_goes_to_the_next() {
        let calls = [Some(0), None, Some(0)];
        let turns = [0, 1, 2, 3, 4].map(|turn| find(calls.into_iter(), turn));
        assert_eq!(turns, [0, 2, 2, 0, 2].map(Some));
        assert_eq!(find([None, Some(9)].into_iter(), 0), Some(1));
        assert_eq!(find([None, None].into_iter(), 1), None);
    }
}
