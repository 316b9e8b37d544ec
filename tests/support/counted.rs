//! Counts the cost of a piece of code, in allocations and in instructions. Times mean nothing on a shared machine; these do.
//!
//! Unit tests of the crates include this file and assert allocations, in any build. Instructions are counted by `make cost`,
//! which runs the same tests optimised and under callgrind, and collects inside [`counted`] only.

use std::hint::black_box;

/// Runs until caches are filled and buffers have grown.
const WARM_UP: usize = 10;
/// Runs while instructions are counted; `.ci/cost` divides by it.
const RUNS: usize = 100;

/// The allocations of one run on this thread. Its input is made outside of it.
pub(crate) fn allocations<T>(mut given: impl FnMut() -> T, mut run: impl FnMut(T)) -> u64 {
    for _ in 0..WARM_UP {
        run(given());
    }
    for _ in 0..RUNS {
        let mut input = Some(given());
        counted(&mut || input.take().into_iter().for_each(&mut run));
    }
    let input = given();
    allocation_counter::measure(|| run(input)).count_total
}

/// The function in which callgrind collects; it is found by its name.
#[inline(never)]
fn counted(run: &mut dyn FnMut()) {
    run();
    // Code after the call, or this would be a jump to it and never left.
    black_box(());
}
