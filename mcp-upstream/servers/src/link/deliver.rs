//! Delivery of responses to callers that run in another runtime than the link's reader.
//!
//! Waking a task of another runtime costs a system call. So each other runtime has a delivery queue of responses, and a task in
//! that runtime which passes them to the callers there. All responses of one read for the same runtime are put into its delivery
//! queue together, and only the delivery queue's task is woken. Callers in the reader's own runtime are woken directly. If all
//! calls come from another runtime, the reader moves there (see `follow`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::{self, Handle};
use tokio::sync::{Notify, oneshot};
use tooldock_base::error::CallError;
use tooldock_protocol::jsonrpc::Response;

/// Outcome of a call: the response, or the reason why there is none.
pub(super) type LinkOutcome = Result<Response, CallError>;

type Answers = Vec<(oneshot::Sender<LinkOutcome>, LinkOutcome)>;

/// Maximum number of runtimes with a delivery queue. Callers in further runtimes are woken individually.
const DELIVERY_QUEUES_MAX: usize = 64;

/// A caller that waits for a response, with the delivery queue of its runtime.
pub(super) struct WaitingCaller {
    reply: oneshot::Sender<LinkOutcome>,
    /// The delivery queue to the caller's runtime; `None` if the caller is in the reader's runtime, or if there is no free
    /// delivery queue.
    queue: Option<Arc<DeliveryQueue>>,
}

impl WaitingCaller {
    pub(super) fn new(
        reply: oneshot::Sender<LinkOutcome>,
        queue: Option<Arc<DeliveryQueue>>,
    ) -> Self {
        Self { reply, queue }
    }

    /// Ends the call with this outcome directly, without a delivery queue.
    pub(super) fn end(self, outcome: LinkOutcome) {
        // If the caller no longer waits, the outcome is dropped.
        let _ = self.reply.send(outcome);
    }
}

/// The delivery queues of a link, one for each other runtime from which calls were made.
pub(super) struct DeliveryQueues(Mutex<OpenQueues>);

struct OpenQueues {
    /// The runtime in which the link's reader runs.
    own: runtime::Id,
    queues: Vec<Arc<DeliveryQueue>>,
    /// True once the link has ended; no delivery queue is created after that.
    over: bool,
}

impl DeliveryQueues {
    pub(super) fn new(own: runtime::Id) -> Self {
        Self(Mutex::new(OpenQueues {
            own,
            queues: Vec::new(),
            over: false,
        }))
    }

    /// Records the runtime in which the link's reader runs now. Responses to calls that already have a delivery queue are
    /// still delivered through it.
    pub(super) fn read_in(&self, own: runtime::Id) {
        lock(&self.0).own = own;
    }

    /// Returns the id of the runtime in which the link's reader runs, for tests.
    #[cfg(test)]
    pub(super) fn read_where(&self) -> runtime::Id {
        lock(&self.0).own
    }

    /// Returns the delivery queue to the current runtime, which is opened if needed. `None` in the reader's own runtime, and if
    /// no further delivery queue may be opened.
    pub(super) fn here(&self) -> Option<Arc<DeliveryQueue>> {
        let runtime = Handle::try_current().ok()?;
        let id = runtime.id();
        let mut open = lock(&self.0);
        if id == open.own {
            return None;
        }
        if let Some(queue) = open.queues.iter().find(|queue| queue.runtime.id() == id) {
            return Some(Arc::clone(queue));
        }
        if open.over || open.queues.len() == DELIVERY_QUEUES_MAX {
            return None;
        }
        let queue = Arc::new(DeliveryQueue::to(runtime.clone()));
        open.queues.push(Arc::clone(&queue));
        drop(open);
        // This task ends with the link, or with its runtime.
        runtime.spawn(carry(FinalDelivery(Arc::clone(&queue))));
        Some(queue)
    }

    /// Ends the delivery queues of a closed link. Responses that are already queued are still delivered.
    pub(super) fn end(&self) {
        let queues = {
            let mut open = lock(&self.0);
            open.over = true;
            std::mem::take(&mut open.queues)
        };
        for queue in queues {
            lock(&queue.due).over = true;
            queue.filled.notify_one();
        }
    }
}

/// Queue of responses for the callers in one runtime. A task in that runtime delivers them.
pub(super) struct DeliveryQueue {
    runtime: Handle,
    due: Mutex<QueuedAnswers>,
    filled: Notify,
}

#[derive(Default)]
struct QueuedAnswers {
    /// Responses to deliver. There are at most as many as pending calls.
    answers: Answers,
    /// True once the delivery queue is ended. Its task ends after the next delivery.
    over: bool,
}

/// Task of a delivery queue: delivers the queued responses until the delivery queue is ended.
async fn carry(queue: FinalDelivery) {
    // At each delivery this vector is swapped with the vector of the delivery queue, so that both keep their capacity.
    let mut answers = Vec::new();
    loop {
        queue.0.filled.notified().await;
        if queue.0.deliver(&mut answers) {
            return;
        }
    }
}

impl DeliveryQueue {
    fn to(runtime: Handle) -> Self {
        Self {
            runtime,
            due: Mutex::default(),
            filled: Notify::new(),
        }
    }

    /// Returns the runtime whose callers the delivery queue serves.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Passes the queued responses to their callers. Returns true if the delivery queue is ended.
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

/// Guard that delivers the remaining responses when the delivery queue's task ends, even if its runtime ends before the task
/// first runs.
struct FinalDelivery(Arc<DeliveryQueue>);

impl Drop for FinalDelivery {
    fn drop(&mut self) {
        lock(&self.0.due).over = true;
        self.0.deliver(&mut Vec::new());
    }
}

/// The responses of one read, sorted by the runtimes of their callers.
#[derive(Default)]
pub(super) struct Batch {
    queues: Vec<(Arc<DeliveryQueue>, Answers)>,
    /// Number of responses that were passed to their callers directly, without a delivery queue.
    at_once: usize,
}

/// Runtimes on which the callers of a batch wait. A batch is all responses that a single read from the server returned.
pub(super) enum DeliveryTarget<'a> {
    /// The read contained no response.
    Nowhere,
    /// The read contained a single response, for a caller in another runtime.
    Queue(&'a Arc<DeliveryQueue>),
    /// The read contained several responses, or one for a caller in the reader's runtime.
    Here,
}

impl Batch {
    /// Passes the outcome of a call to its caller: at once if the caller has no delivery queue, otherwise with the next
    /// [`Batch::send`].
    pub(super) fn add(&mut self, to: WaitingCaller, outcome: LinkOutcome) {
        let Some(queue) = to.queue else {
            self.at_once += 1;
            let _ = to.reply.send(outcome);
            return;
        };
        let answer = (to.reply, outcome);
        match self
            .queues
            .iter_mut()
            .find(|(known, _)| Arc::ptr_eq(known, &queue))
        {
            Some((_, answers)) => answers.push(answer),
            None => self.queues.push((queue, vec![answer])),
        }
    }

    /// Classifies the responses since the last call of `send`.
    pub(super) fn delivery_target(&self) -> DeliveryTarget<'_> {
        if self.at_once > 0 {
            return DeliveryTarget::Here;
        }
        let mut queues = self
            .queues
            .iter()
            .filter(|(_, answers)| !answers.is_empty());
        match (queues.next(), queues.next()) {
            (None, _) => DeliveryTarget::Nowhere,
            (Some((queue, answers)), None) if answers.len() == 1 => DeliveryTarget::Queue(queue),
            (Some(_), _) => DeliveryTarget::Here,
        }
    }

    /// Puts the responses into their delivery queues and wakes the delivery queues' tasks.
    pub(super) fn send(&mut self) {
        self.at_once = 0;
        let queues = self.queues.iter_mut();
        for (queue, answers) in queues.filter(|(_, answers)| !answers.is_empty()) {
            let over = {
                let mut due = lock(&queue.due);
                due.answers.append(answers);
                due.over
            };
            if over {
                queue.deliver(&mut Vec::new());
            } else {
                queue.filled.notify_one();
            }
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.send();
    }
}

/// Locks a mutex that is held for a few instructions only, without awaits or calls to other code.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::runtime::{Builder, Runtime};
    use tooldock_protocol::jsonrpc::ResponseOutcome;

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread()
            .build()
            .expect("a runtime can be built")
    }

    fn answer(number: usize) -> LinkOutcome {
        Ok(Response::from_outcome(ResponseOutcome::Result(
            Bytes::from(number.to_string()),
        )))
    }

    /// Calls of the current runtime, with their receivers.
    fn calls(
        queues: &DeliveryQueues,
        count: usize,
    ) -> (Vec<WaitingCaller>, Vec<oneshot::Receiver<LinkOutcome>>) {
        let call = |_| {
            let (reply, receiver) = oneshot::channel();
            (WaitingCaller::new(reply, queues.here()), receiver)
        };
        (0..count).map(call).unzip()
    }

    fn send(calls: Vec<WaitingCaller>) {
        let mut batch = Batch::default();
        for (number, call) in calls.into_iter().enumerate() {
            batch.add(call, answer(number));
        }
        batch.send();
    }

    fn arrived(receivers: &mut [oneshot::Receiver<LinkOutcome>]) -> Vec<String> {
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
        let queues = DeliveryQueues::new(own.handle().id());
        let (calls, mut receivers) = other.block_on(async { calls(&queues, 3) });
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
        let queues = DeliveryQueues::new(own.handle().id());
        let (calls, mut receivers) = own.block_on(async { calls(&queues, 2) });
        send(calls);
        assert_eq!(arrived(&mut receivers), ["0", "1"]);
    }

    #[test]
    fn no_answer_is_lost_to_a_runtime_or_a_link_that_ends() {
        let own = runtime();
        for link_first in [true, false] {
            let other = runtime();
            let queues = DeliveryQueues::new(own.handle().id());
            let (mut early, mut receivers) = other.block_on(async { calls(&queues, 2) });
            let late = early.split_off(1);
            send(early);
            if link_first {
                queues.end();
            }
            drop(other);
            assert_eq!(arrived(&mut receivers[..1]), ["0"]);
            send(late);
            assert_eq!(arrived(&mut receivers[1..]), ["0"]);
        }
    }
}
