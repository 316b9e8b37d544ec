//! What a call says to its client before its answer: progress, log messages, questions.
//!
//! Bounded in events and in bytes. A client that does not keep up loses progress and log messages, which are counted;
//! a question it has no room for fails instead. A call whose function cannot talk has none of this.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use prometheus::IntCounter;
use tokio::sync::mpsc;
use tokio::task::coop::cooperative;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::worker::{LogLevel, Question};

use crate::jsonrpc::RelayedRequest;

/// Events that may wait for their reader.
const EVENTS: usize = 4096;
/// Bytes of progress and log messages that may wait for their reader, one event apart.
const EVENT_BYTES: usize = 4 * 1024 * 1024;

/// One thing said before the answer. Spans are raw JSON objects.
#[derive(Debug)]
pub(crate) enum Event {
    /// `{"progress", "total"?, "message"?}`: the params of `notifications/progress` without the token.
    Progress(Bytes),
    /// `{"level", "logger"?, "data"}`: the params of `notifications/message`.
    Log {
        /// The level that stands in `params`.
        level: LogLevel,
        /// The whole object.
        params: Bytes,
    },
    /// A notification of an upstream that speaks MCP itself.
    Message {
        /// Of a log message each client is to filter for itself.
        level: Option<LogLevel>,
        /// The whole message, untouched.
        message: Bytes,
    },
    /// The call waits for its client.
    InputRequests(InputRequests),
    /// An upstream that speaks MCP itself took a question back.
    Withdrawn {
        /// The question's key.
        key: Arc<str>,
        /// The whole `notifications/cancelled`, in which the upstream's own id of the question stands.
        message: Bytes,
    },
}

/// The engine's end of a call's events. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct EventSender(Arc<Queue>);

/// The transport's end.
#[derive(Debug)]
pub(crate) struct EventReceiver(Arc<Queue>);

/// Between the two. Most calls that may talk say nothing: until one does, this is all there is.
#[derive(Debug, Default)]
struct Queue(Mutex<Waiting>);

/// Plain data; nothing awaits under its lock.
#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Event>,
    bytes: usize,
    /// Who waits for an event.
    reader: Option<Waker>,
    /// Nobody will read any more.
    is_over: bool,
}

/// The channel of one call.
pub(crate) fn events() -> (EventSender, EventReceiver) {
    let queue = Arc::new(Queue::default());
    (EventSender(Arc::clone(&queue)), EventReceiver(queue))
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an event; gives it back where there is no room. Never waits.
    fn put(&self, event: Event) -> Result<(), Event> {
        let reader = {
            let mut waiting = self.lock();
            if !waiting.has_room_for(&event) {
                return Err(event);
            }
            waiting.bytes += event.bytes();
            waiting.events.push_back(event);
            waiting.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(())
    }
}

impl Waiting {
    fn has_room_for(&self, event: &Event) -> bool {
        let bytes = event.bytes();
        // A single large event passes: it is bounded by the worker's frame limit.
        let fits = bytes == 0 || self.bytes == 0 || self.bytes + bytes <= EVENT_BYTES;
        fits && self.events.len() < EVENTS && !self.is_over
    }

    fn take(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.bytes -= event.bytes();
        Some(event)
    }
}

impl Event {
    /// What the event counts in the queue. Questions count nothing: they are bounded by their number.
    fn bytes(&self) -> usize {
        match self {
            Self::Progress(params) | Self::Log { params, .. } => params.len(),
            Self::Message { message, .. } | Self::Withdrawn { message, .. } => message.len(),
            Self::InputRequests(_) => 0,
        }
    }
}

impl EventSender {
    /// Queues progress or a log message; counts it as dropped where there is no room. Never waits.
    pub(super) fn tell(&self, event: Event, dropped: &IntCounter) {
        if self.0.put(event).is_err() {
            dropped.inc();
        }
    }

    /// Queues questions; gives them back where there is no room. Never waits.
    pub(super) fn ask(&self, questions: InputRequests) -> Result<(), Box<InputRequests>> {
        self.0
            .put(Event::InputRequests(questions))
            .map_err(|refused| match refused {
                Event::InputRequests(questions) => Box::new(questions),
                _ => unreachable!("questions were sent"),
            })
    }
}

impl EventReceiver {
    /// The next event; of a call that is over there is none, so it is waited for beside the call. Cancel safe.
    pub(crate) async fn next(&mut self) -> Event {
        // Whoever reads a function that never stops talking lets others run in between.
        cooperative(poll_fn(|context| self.poll(context))).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let mut waiting = self.0.lock();
        if let Some(event) = waiting.take() {
            return Poll::Ready(event);
        }
        match &mut waiting.reader {
            Some(reader) => reader.clone_from(context.waker()),
            none @ None => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// The next event if one waits. What a call said before its answer is in here when the call has returned.
    pub(crate) fn try_next(&mut self) -> Option<Event> {
        self.0.lock().take()
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        let unread = {
            let mut waiting = self.0.lock();
            waiting.is_over = true;
            std::mem::take(&mut waiting.events)
        };
        // Not under the lock: questions that nobody answers tell their call.
        drop(unread);
    }
}

/// One flag per question of a turn: it needs no answer any more.
pub(super) type Given = Arc<[AtomicBool]>;

/// Questions a call asks at once. Dropped, those without an answer fail.
#[derive(Debug)]
pub(crate) struct InputRequests {
    /// What is asked.
    pub(crate) list: Vec<Question>,
    /// Where a single question is a whole request of an upstream that speaks MCP itself: that.
    pub(crate) relayed: Option<Arc<RelayedRequest>>,
    /// Tells these questions from others of the same call.
    turn: u64,
    given: Given,
    answers: mpsc::Sender<InputResponse>,
}

/// An answer on its way to the engine.
#[derive(Debug)]
pub(super) struct InputResponse {
    pub(super) turn: u64,
    /// The question's place in its list.
    pub(super) position: usize,
    pub(super) outcome: Result<Bytes, CallError>,
}

impl InputRequests {
    pub(super) fn new(
        turn: u64,
        list: Vec<Question>,
        relayed: Option<Arc<RelayedRequest>>,
        answers: mpsc::Sender<InputResponse>,
    ) -> Self {
        Self {
            given: list.iter().map(|_| AtomicBool::new(false)).collect(),
            list,
            relayed,
            turn,
            answers,
        }
    }

    /// The flags of its questions.
    pub(super) fn given(&self) -> Given {
        Arc::clone(&self.given)
    }

    /// Answers a question with the result object of its method, or with why there is none. The first answer counts;
    /// others, unknown keys and answers after the call's end change nothing. Says whether the answer was taken.
    pub(crate) fn answer(&self, key: &str, outcome: Result<Bytes, CallError>) -> bool {
        match self.list.iter().position(|question| *question.key == *key) {
            Some(position) => self.give(position, outcome),
            None => false,
        }
    }

    /// The questions that still need an answer.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Question> {
        self.list
            .iter()
            .zip(&*self.given)
            .filter(|(_, given)| !given.load(Ordering::Acquire))
            .map(|(question, _)| question)
    }

    /// Whether the call still waits for any of them.
    pub(crate) fn awaited(&self) -> bool {
        !self.answers.is_closed()
    }

    fn give(&self, position: usize, outcome: Result<Bytes, CallError>) -> bool {
        if self.given[position].swap(true, Ordering::AcqRel) {
            return false;
        }
        let turn = self.turn;
        let answer = InputResponse {
            turn,
            position,
            outcome,
        };
        self.answers.try_send(answer).is_ok()
    }
}

impl Drop for InputRequests {
    fn drop(&mut self) {
        for position in 0..self.list.len() {
            self.give(position, Err(ask_failed("The client gave no answer")));
        }
    }
}

/// A question that got no answer.
pub(crate) fn ask_failed(message: impl Into<String>) -> CallError {
    CallError::new(CallErrorCode::AskFailed, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(bytes: usize) -> Event {
        Event::Log {
            level: LogLevel::Info,
            params: Bytes::from(vec![b'x'; bytes]),
        }
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_but_one_large_event_passes() {
        let dropped = IntCounter::new("dropped", "dropped").expect("a valid name");
        let (sender, mut receiver) = events();
        sender.tell(log(2 * EVENT_BYTES), &dropped);
        sender.tell(log(1), &dropped);
        assert_eq!(dropped.get(), 1);
        assert!(receiver.try_next().is_some());
        sender.tell(log(EVENT_BYTES - 1), &dropped);
        sender.tell(log(1), &dropped);
        sender.tell(log(1), &dropped);
        assert_eq!(dropped.get(), 2);
        let read = std::iter::from_fn(|| receiver.try_next()).count();
        assert_eq!((read, receiver.0.lock().bytes), (2, 0));
    }

    #[test]
    fn what_waits_is_bounded_in_number() {
        let dropped = IntCounter::new("dropped", "dropped").expect("a valid name");
        let (sender, mut receiver) = events();
        for _ in 0..EVENTS + 2 {
            sender.tell(log(0), &dropped);
        }
        assert_eq!(dropped.get(), 2);
        assert!(receiver.try_next().is_some());
        sender.tell(log(0), &dropped);
        assert_eq!(dropped.get(), 2);
    }

    #[tokio::test]
    async fn a_reader_that_waits_hears_what_is_said_then() {
        let dropped = IntCounter::new("dropped", "dropped").expect("a valid name");
        let (sender, mut receiver) = events();
        let reader = tokio::spawn(async move {
            let first = receiver.next().await;
            (first, receiver.next().await)
        });
        tokio::task::yield_now().await;
        sender.tell(log(1), &dropped);
        tokio::task::yield_now().await;
        sender.tell(log(2), &dropped);
        let (first, second) = reader.await.expect("both events");
        assert_eq!((first.bytes(), second.bytes()), (1, 2));
        assert_eq!(dropped.get(), 0);
    }

    #[tokio::test]
    async fn a_reader_of_a_call_that_never_stops_talking_lets_others_run() {
        let dropped = IntCounter::new("dropped", "dropped").expect("a valid name");
        let (sender, mut receiver) = events();
        let reads = tokio::spawn(async move {
            loop {
                sender.tell(log(1), &dropped);
                receiver.next().await;
            }
        });
        // On one thread this ends only if the reader makes room.
        tokio::task::yield_now().await;
        reads.abort();
    }

    #[test]
    fn what_nobody_reads_is_dropped_and_counted() {
        let dropped = IntCounter::new("dropped", "dropped").expect("a valid name");
        let (sender, receiver) = events();
        drop(receiver);
        sender.tell(log(1), &dropped);
        assert_eq!(dropped.get(), 1);
    }
}
