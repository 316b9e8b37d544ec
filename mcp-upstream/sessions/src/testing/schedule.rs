//! Runs concurrent code in every order of its steps.
//!
//! A step of a task lasts until the task waits. Tests with few steps try every order; larger tests try random orders. Code
//! between two waits is one step, so locks that are not held across a wait are not tested.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A task of a run.
pub type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Order of the steps of a run: a list of choices, each with the number of possibilities.
pub struct Schedule {
    choices: Vec<(usize, usize)>,
    at: usize,
    /// State of the random number generator; `None` if every schedule is tried.
    dice: Option<u64>,
}

impl Schedule {
    /// Returns the schedule's next choice, a number below `of`. `of` must not be 0.
    ///
    /// # Panics
    ///
    /// When a repeated run has another number of possibilities here, since it depends on more than its schedule.
    pub fn choose(&mut self, of: usize) -> usize {
        if self.at == self.choices.len() {
            let chosen = self.dice.as_mut().map_or(0, |dice| roll(dice) % of);
            self.choices.push((chosen, of));
        }
        let (chosen, known) = self.choices[self.at];
        assert_eq!(known, of, "a run depends on its schedule alone");
        self.at += 1;
        chosen
    }

    /// Prepares the next schedule. Returns true if there is one; false after the last schedule.
    fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((chosen, of)) = self.choices.pop() {
            if chosen + 1 < of {
                self.choices.push((chosen + 1, of));
                return true;
            }
        }
        false
    }

    /// Runs tasks to their ends, one step at a time. The schedule chooses among the tasks that can continue.
    ///
    /// # Panics
    ///
    /// When tasks remain and none of them can continue.
    pub fn run(&mut self, tasks: Vec<Task<'_>>) {
        let mut tasks: Vec<_> = tasks
            .into_iter()
            .map(|task| (task, Arc::new(Ready(AtomicBool::new(true)))))
            .collect();
        while !tasks.is_empty() {
            let ready: Vec<usize> = (0..tasks.len())
                .filter(|at| tasks[*at].1.0.load(Ordering::Relaxed))
                .collect();
            assert!(!ready.is_empty(), "no task can go on");
            let at = ready[self.choose(ready.len())];
            let (task, flag) = &mut tasks[at];
            flag.0.store(false, Ordering::Relaxed);
            let waker = Waker::from(Arc::clone(flag));
            if let Poll::Ready(()) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
                drop(tasks.remove(at));
            }
        }
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.choices[..self.at].iter().map(|(chosen, _)| chosen))
            .finish()
    }
}

/// Returns the next random number (SplitMix64).
fn roll(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as usize
}

/// Flag of a task: true if the task was woken and can continue; false while it waits.
struct Ready(AtomicBool);

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Prints the schedule when the run panics.
struct Shown<'a>(&'a mut Schedule);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the schedule that fails: {:?}", self.0);
        }
    }
}

/// Repeats a run with every schedule. Returns the number of schedules.
pub fn every(mut run: impl FnMut(&mut Schedule)) -> usize {
    let mut schedule = Schedule {
        choices: Vec::new(),
        at: 0,
        dice: None,
    };
    for count in 1.. {
        run(Shown(&mut schedule).0);
        if !schedule.advance() {
            return count;
        }
    }
    unreachable!("there are finitely many schedules")
}

/// Repeats a run with `count` random schedules, or with as many as the environment variable `TOOLDOCK_SCHEDULES` says.
pub fn some(count: usize, mut run: impl FnMut(&mut Schedule)) {
    let wanted = std::env::var("TOOLDOCK_SCHEDULES");
    let count = wanted.map_or(count, |it| it.parse().expect("a number of schedules"));
    for seed in 0..count {
        let mut schedule = Schedule {
            choices: Vec::new(),
            at: 0,
            dice: Some(seed as u64),
        };
        run(Shown(&mut schedule).0);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use tokio::task::yield_now;

    use super::*;

    /// Runs two tasks of two steps each. Returns the order of the steps.
    fn order(schedule: &mut Schedule) -> String {
        let told = RefCell::new(String::new());
        let told = &told;
        let task = |name: &'static str| -> Task<'_> {
            Box::pin(async move {
                told.borrow_mut().push_str(name);
                yield_now().await;
                told.borrow_mut().push_str(name);
            })
        };
        schedule.run(vec![task("a"), task("b")]);
        told.take()
    }

    #[test]
    fn every_order_of_two_tasks_is_tried_once() {
        let mut orders = Vec::new();
        let count = every(|schedule| orders.push(order(schedule)));
        let expected = ["aabb", "abab", "abba", "baab", "baba", "bbaa"];
        let different: BTreeSet<_> = orders.iter().map(String::as_str).collect();
        assert_eq!(different, expected.into());
        assert_eq!(count, 6);
    }

    #[test]
    fn chance_finds_different_orders() {
        let mut orders = BTreeSet::new();
        some(50, |schedule| {
            orders.insert(order(schedule));
        });
        assert!(orders.len() > 3, "{orders:?}");
    }
}
