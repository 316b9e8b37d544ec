//! Answers on their way to callers in other runtimes than the link's.
//!
//! Waking a task of another runtime is a system call each time. So the answers that one read brought for a runtime go
//! there together: they wake one task there, the lane's, which wakes the callers beside it. Callers in the link's own
//! runtime are woken at once; where all calls come from another one, the link moves there (see `follow`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::{self, Handle};
use tokio::sync::{Notify, oneshot};
use tooldock_workers::error::CallError;

use crate::jsonrpc::Response;

/// What a call ends with.
pub(super) type Outcome = Result<Response, CallError>;

type Answers = Vec<(oneshot::Sender<Outcome>, Outcome)>;

/// Runtimes that have a lane. Callers in others are woken one by one.
const LANES_MAX: usize = 64;

/// Who waits for an answer, and where.
pub(super) struct Waiting {
    reply: oneshot::Sender<Outcome>,
    /// To its runtime, if that is not the link's.
    lane: Option<Arc<Lane>>,
}

impl Waiting {
    pub(super) fn new(reply: oneshot::Sender<Outcome>, lane: Option<Arc<Lane>>) -> Self {
        Self { reply, lane }
    }

    /// Ends the call now.
    pub(super) fn end(self, outcome: Outcome) {
        // A caller that left meanwhile does not need it.
        let _ = self.reply.send(outcome);
    }
}

/// The lanes of a link.
pub(super) struct Lanes(Mutex<Open>);

struct Open {
    /// Where the link is read.
    own: runtime::Id,
    lanes: Vec<Arc<Lane>>,
    /// There will be no more.
    over: bool,
}

impl Lanes {
    pub(super) fn new(own: runtime::Id) -> Self {
        Self(Mutex::new(Open {
            own,
            lanes: Vec::new(),
            over: false,
        }))
    }

    /// The link is read in that runtime from now on. Answers to calls that began before still arrive by their lanes.
    pub(super) fn read_in(&self, own: runtime::Id) {
        lock(&self.0).own = own;
    }

    /// Where the link is read.
    #[cfg(test)]
    pub(super) fn read_where(&self) -> runtime::Id {
        lock(&self.0).own
    }

    /// The lane to the runtime this is called in, if that is another than the link's.
    pub(super) fn here(&self) -> Option<Arc<Lane>> {
        let runtime = Handle::try_current().ok()?;
        let id = runtime.id();
        let mut open = lock(&self.0);
        if id == open.own {
            return None;
        }
        if let Some(lane) = open.lanes.iter().find(|lane| lane.runtime.id() == id) {
            return Some(Arc::clone(lane));
        }
        if open.over || open.lanes.len() == LANES_MAX {
            return None;
        }
        let lane = Arc::new(Lane::to(runtime.clone()));
        open.lanes.push(Arc::clone(&lane));
        drop(open);
        // Ends with the link, or with its runtime.
        runtime.spawn(carry(LeavesNothing(Arc::clone(&lane))));
        Some(lane)
    }

    /// The link is over. What is on its way still arrives.
    pub(super) fn end(&self) {
        let lanes = {
            let mut open = lock(&self.0);
            open.over = true;
            std::mem::take(&mut open.lanes)
        };
        for lane in lanes {
            lock(&lane.due).over = true;
            lane.filled.notify_one();
        }
    }
}

/// The way to one runtime.
pub(super) struct Lane {
    runtime: Handle,
    due: Mutex<Due>,
    filled: Notify,
}

#[derive(Default)]
struct Due {
    /// As many as calls were pending at most.
    answers: Answers,
    /// Nobody carries any more.
    over: bool,
}

/// The lane's task.
async fn carry(lane: LeavesNothing) {
    // Its memory and the lane's take turns.
    let mut answers = Vec::new();
    loop {
        lane.0.filled.notified().await;
        if lane.0.deliver(&mut answers) {
            return;
        }
    }
}

impl Lane {
    fn to(runtime: Handle) -> Self {
        Self {
            runtime,
            due: Mutex::default(),
            filled: Notify::new(),
        }
    }

    /// Where the lane leads.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Ends the calls whose answers are here. Says whether nobody else will.
    fn deliver(&self, answers: &mut Answers) -> bool {
        let over = {
            let mut due = lock(&self.due);
            std::mem::swap(&mut due.answers, answers);
            due.over
        };
        for (reply, outcome) in answers.drain(..) {
            let _ = reply.send(outcome);
        }
        over
    }
}

/// Whatever ends the task, be it a runtime that ends before its first turn.
struct LeavesNothing(Arc<Lane>);

impl Drop for LeavesNothing {
    fn drop(&mut self) {
        lock(&self.0.due).over = true;
        self.0.deliver(&mut Vec::new());
    }
}

/// The answers of one read, sorted by where they go.
#[derive(Default)]
pub(super) struct Batch {
    lanes: Vec<(Arc<Lane>, Answers)>,
    /// Answers that were given at once.
    at_once: usize,
}

/// Where the answers of one read go.
pub(super) enum Whereto<'a> {
    /// There is none.
    Nowhere,
    /// There is one, for another runtime.
    Lane(&'a Arc<Lane>),
    /// To callers beside the reader, or to several.
    Here,
}

impl Batch {
    /// Ends a call, at once or with the others of its runtime.
    pub(super) fn add(&mut self, to: Waiting, outcome: Outcome) {
        let Some(lane) = to.lane else {
            self.at_once += 1;
            let _ = to.reply.send(outcome);
            return;
        };
        let answer = (to.reply, outcome);
        match self
            .lanes
            .iter_mut()
            .find(|(known, _)| Arc::ptr_eq(known, &lane))
        {
            Some((_, answers)) => answers.push(answer),
            None => self.lanes.push((lane, vec![answer])),
        }
    }

    /// Where the answers go that came since the last sending.
    pub(super) fn whereto(&self) -> Whereto<'_> {
        if self.at_once > 0 {
            return Whereto::Here;
        }
        let mut lanes = self.lanes.iter().filter(|(_, answers)| !answers.is_empty());
        match (lanes.next(), lanes.next()) {
            (None, _) => Whereto::Nowhere,
            (Some((lane, answers)), None) if answers.len() == 1 => Whereto::Lane(lane),
            (Some(_), _) => Whereto::Here,
        }
    }

    /// Sends them on their way.
    pub(super) fn send(&mut self) {
        self.at_once = 0;
        let lanes = self.lanes.iter_mut();
        for (lane, answers) in lanes.filter(|(_, answers)| !answers.is_empty()) {
            let over = {
                let mut due = lock(&lane.due);
                due.answers.append(answers);
                due.over
            };
            if over {
                lane.deliver(&mut Vec::new());
            } else {
                lane.filled.notify_one();
            }
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.send();
    }
}

/// For a few instructions; nothing awaits or calls out under it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::jsonrpc::ResponseOutcome;

    fn runtime() -> Runtime {
        Builder::new_current_thread()
            .build()
            .expect("a runtime can be built")
    }

    fn answer(number: usize) -> Outcome {
        Ok(Response::from_outcome(ResponseOutcome::Result(
            Bytes::from(number.to_string()),
        )))
    }

    /// Calls of the runtime this is in, and who waits for them.
    fn calls(lanes: &Lanes, count: usize) -> (Vec<Waiting>, Vec<oneshot::Receiver<Outcome>>) {
        let call = |_| {
            let (reply, receiver) = oneshot::channel();
            (Waiting::new(reply, lanes.here()), receiver)
        };
        (0..count).map(call).unzip()
    }

    fn send(calls: Vec<Waiting>) {
        let mut batch = Batch::default();
        for (number, call) in calls.into_iter().enumerate() {
            batch.add(call, answer(number));
        }
        batch.send();
    }

    fn arrived(receivers: &mut [oneshot::Receiver<Outcome>]) -> Vec<String> {
        let answers = receivers.iter_mut().map_while(|it| it.try_recv().ok());
        answers
            .map(|answer| {
                let answer = answer.expect("answered");
                String::from_utf8(answer.payload().to_vec()).expect("text")
            })
            .collect()
    }

    #[test]
    fn answers_for_another_runtime_are_given_out_there() {
        let (own, other) = (runtime(), runtime());
        let lanes = Lanes::new(own.handle().id());
        let (calls, mut receivers) = other.block_on(async { calls(&lanes, 3) });
        send(calls);
        assert!(
            arrived(&mut receivers).is_empty(),
            "its runtime stands still"
        );
        other.block_on(async {
            let last = receivers.pop().expect("three");
            last.await.expect("answered").expect("answered");
        });
        assert_eq!(arrived(&mut receivers), ["0", "1"]);
    }

    #[test]
    fn answers_for_the_links_own_runtime_are_there_at_once() {
        let own = runtime();
        let lanes = Lanes::new(own.handle().id());
        let (calls, mut receivers) = own.block_on(async { calls(&lanes, 2) });
        send(calls);
        assert_eq!(arrived(&mut receivers), ["0", "1"]);
    }

    #[test]
    fn no_answer_is_lost_to_a_runtime_or_a_link_that_ends() {
        let own = runtime();
        for link_first in [true, false] {
            let other = runtime();
            let lanes = Lanes::new(own.handle().id());
            let (mut early, mut receivers) = other.block_on(async { calls(&lanes, 2) });
            let late = early.split_off(1);
            send(early);
            if link_first {
                lanes.end();
            }
            drop(other);
            assert_eq!(arrived(&mut receivers[..1]), ["0"]);
            send(late);
            assert_eq!(arrived(&mut receivers[1..]), ["0"]);
        }
    }
}
