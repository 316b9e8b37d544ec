//! Limit on concurrent starts of servers, over all pools of the gateway.
//!
//! Every start acquires a permit and returns it when its process accepts requests or has failed. While no permit is free, starts
//! wait in order. A start that a request waits for has priority over others (first processes of new servers, spares). Priority
//! is decided when a permit becomes free, so a queued start gains it as soon as a request needs its process.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

use tokio::sync::oneshot;

/// Number of concurrent starts per processor core. More would only make all of them slower.
const PER_CORE: usize = 2;

/// A fixed number of permits for starts or for installations, and the queue of starts that wait for a permit.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Queue of the waiting starts. The lock is never held across an await, and no permit is dropped while it is held.
    queue: Mutex<TurnQueue>,
}

#[derive(Debug)]
struct TurnQueue {
    free: usize,
    waiting: VecDeque<WaitingStart>,
}

#[derive(Debug)]
struct WaitingStart {
    requests: Option<Requests>,
    give: oneshot::Sender<StartTurn>,
}

/// Counter of the requests that wait for a process of a server.
pub(crate) type Requests = Arc<AtomicUsize>;

/// Permit to start a process or to install a package. Dropping it passes the permit to the next waiting start.
#[derive(Debug)]
pub(crate) struct StartTurn {
    turns: Arc<Turns>,
}

/// The start permits of the gateway. Starts and installations have separate permits.
#[derive(Debug, Clone)]
pub(crate) struct StartTurns {
    /// Permits to start a process.
    pub(crate) starting: Arc<Turns>,
    /// Permits to install a package. They are separate, so that a long installation delays only other installations.
    pub(crate) installing: Arc<Turns>,
}

impl StartTurns {
    /// Creates as many permits as suit the machine's number of cores.
    pub(crate) fn of_machine() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self {
            starting: Turns::new(cores * PER_CORE),
            installing: Turns::new(cores * PER_CORE),
        }
    }
}

impl Turns {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(TurnQueue {
                free: count,
                waiting: VecDeque::new(),
            }),
        })
    }

    /// Waits for a permit. `requests`: counter of the requests that wait for this start; `None` for a start without requests.
    pub(crate) async fn take(self: &Arc<Self>, requests: Option<Requests>) -> StartTurn {
        loop {
            let given = {
                let mut queue = self.lock();
                if queue.free > 0 {
                    queue.free -= 1;
                    break;
                }
                let (give, given) = oneshot::channel();
                let requests = requests.clone();
                queue.waiting.push_back(WaitingStart { requests, give });
                given
            };
            // The sender is in the queue of `self`, so a permit always arrives.
            if let Ok(turn) = given.await {
                return turn;
            }
        }
        StartTurn {
            turns: Arc::clone(self),
        }
    }

    fn pass_on(self: &Arc<Self>) {
        let next = {
            let mut queue = self.lock();
            queue.waiting.retain(|it| !it.give.is_closed());
            let wanted = queue.waiting.iter().position(WaitingStart::is_wanted);
            let next = queue.waiting.remove(wanted.unwrap_or(0));
            if next.is_none() {
                queue.free += 1;
            }
            next
        };
        if let Some(next) = next {
            let turn = StartTurn {
                turns: Arc::clone(self),
            };
            // If this start was just dropped, its permit is dropped, too, and so passed to the next start.
            let _ = next.give.send(turn);
        }
    }

    fn lock(&self) -> MutexGuard<'_, TurnQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingStart {
    fn is_wanted(&self) -> bool {
        let requests = self.requests.as_ref();
        requests.is_some_and(|it| it.load(Ordering::Relaxed) > 0)
    }
}

impl Drop for StartTurn {
    fn drop(&mut self) {
        self.turns.pass_on();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn requests(count: usize) -> Requests {
        Arc::new(AtomicUsize::new(count))
    }

    #[tokio::test]
    async fn no_more_than_so_many_have_a_turn_and_the_others_wait_in_order() {
        let turns = Turns::new(2);
        let (one, two) = (turns.take(None).await, turns.take(None).await);
        let mut third = Box::pin(turns.take(None));
        let mut fourth = Box::pin(turns.take(None));
        assert!((&mut third).now_or_never().is_none());
        assert!((&mut fourth).now_or_never().is_none());
        drop(one);
        assert!((&mut fourth).now_or_never().is_none());
        let third = (&mut third).now_or_never().expect("its turn");
        drop((two, third));
        assert!((&mut fourth).now_or_never().is_some());
    }

    #[tokio::test]
    async fn what_a_request_waits_for_goes_first_even_if_that_came_later() {
        let turns = Turns::new(1);
        let first = turns.take(None).await;
        let (nobody, somebody) = (requests(0), requests(0));
        let mut spare = Box::pin(turns.take(None));
        let mut unwanted = Box::pin(turns.take(Some(nobody)));
        let mut wanted = Box::pin(turns.take(Some(Arc::clone(&somebody))));
        for waiting in [&mut spare, &mut unwanted, &mut wanted] {
            assert!(waiting.now_or_never().is_none());
        }
        somebody.fetch_add(1, Ordering::Relaxed);
        drop(first);
        let turn = (&mut wanted).now_or_never().expect("its turn");
        drop(turn);
        let turn = (&mut spare).now_or_never().expect("the next");
        assert!((&mut unwanted).now_or_never().is_none());
        drop(turn);
        assert!((&mut unwanted).now_or_never().is_some());
    }

    #[tokio::test]
    async fn one_who_leaves_the_queue_or_does_not_take_its_turn_keeps_nobody_waiting() {
        let turns = Turns::new(1);
        let first = turns.take(None).await;
        let mut left = Box::pin(turns.take(None));
        let mut given = Box::pin(turns.take(None));
        let mut last = Box::pin(turns.take(None));
        for waiting in [&mut left, &mut given, &mut last] {
            assert!(waiting.now_or_never().is_none());
        }
        drop(left);
        drop(first);
        // The turn was given, but its task has not run yet.
        drop(given);
        assert!((&mut last).now_or_never().is_some());
        assert_eq!(turns.lock().free, 1);
    }
}
