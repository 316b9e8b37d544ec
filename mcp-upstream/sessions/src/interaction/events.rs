//! Messages of a call to its client before the call's response: progress, log messages, questions.
//!
//! The queue is bounded in events and in bytes. For a client that reads too slowly, progress and log messages are dropped and
//! counted; a question without room fails instead. A call whose function cannot send messages has no queue.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use prometheus::IntCounter;
use tokio::task::coop::cooperative;
use tooldock_process::worker::LogLevel;

use super::{Interaction, WithdrawalMessage, ask_failed};

/// Maximum number of events that wait for their reader.
const EVENTS: usize = 4096;
/// Maximum size of the waiting events together, in bytes; a single larger event is accepted.
const EVENT_BYTES: usize = 4 * 1024 * 1024;

/// Event that a call sends to its client before the call's response. Fields of type `Bytes` contain raw JSON.
#[derive(Debug)]
pub enum PeerEvent {
    /// Progress report: the `params` of `notifications/progress` without the token, `{"progress", "total"?, "message"?}`.
    Progress(Bytes),
    /// Log message: the `params` of `notifications/message`, `{"level", "logger"?, "data"}`.
    Log {
        /// Level of the log message, as stated in `params`.
        level: LogLevel,
        /// Complete `params` object of the log message.
        params: Bytes,
    },
    /// A notification from an upstream that is itself an MCP server.
    Message {
        /// Level of a log message, compared with the level that each client has requested; `None` for any other notification.
        level: Option<LogLevel>,
        /// The complete notification, as the client receives it.
        message: Bytes,
    },
    /// Questions to the client. The call waits for the client's answers.
    InputRequests(Vec<Arc<Interaction>>),
}

/// Sender of a call's events, owned by the engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventSender(Arc<EventQueue>);

/// Receiver of a call's events, owned by the transport.
#[derive(Debug)]
pub struct EventReceiver(Arc<EventQueue>);

/// The queue of a call's events. Most calls that may send messages send none: memory is allocated only with the first one.
#[derive(Debug, Default)]
struct EventQueue(Mutex<QueuedEvents>);

/// Queued events and the waker of their reader. The lock is never held across an await.
#[derive(Debug, Default)]
struct QueuedEvents {
    events: VecDeque<PeerEvent>,
    bytes: usize,
    /// The waker of the receiver that waits for an event.
    reader: Option<Waker>,
    /// True once the receiver was dropped; further events are then refused.
    is_over: bool,
}

/// Creates the event queue of one call.
pub fn events() -> (EventSender, EventReceiver) {
    let queue = Arc::new(EventQueue::default());
    (EventSender(Arc::clone(&queue)), EventReceiver(queue))
}

impl EventQueue {
    fn lock(&self) -> MutexGuard<'_, QueuedEvents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an event if there is room, and returns true if so. Never waits.
    fn put(&self, event: PeerEvent) -> bool {
        let waiting = self.lock();
        let fits = waiting.has_room_for(&event);
        if fits {
            Self::push(waiting, event);
        }
        fits
    }

    fn push(mut waiting: MutexGuard<'_, QueuedEvents>, event: PeerEvent) {
        waiting.bytes += event.bytes();
        waiting.events.push_back(event);
        let reader = waiting.reader.take();
        drop(waiting);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl QueuedEvents {
    fn has_room_for(&self, event: &PeerEvent) -> bool {
        let bytes = event.bytes();
        // A single large event is accepted: its size is bounded by the limit of a frame or a message.
        let fits = bytes == 0 || self.bytes == 0 || self.bytes + bytes <= EVENT_BYTES;
        fits && self.events.len() < EVENTS && !self.is_over
    }

    fn take(&mut self) -> Option<PeerEvent> {
        let event = self.events.pop_front()?;
        self.bytes -= event.bytes();
        Some(event)
    }
}

impl PeerEvent {
    /// Number of bytes that the event uses of the queue's limit. An answered or withdrawn question still counts, because the
    /// queued event keeps it in memory.
    fn bytes(&self) -> usize {
        match self {
            Self::Progress(params) | Self::Log { params, .. } => params.len(),
            Self::Message { message, .. } => message.len(),
            Self::InputRequests(questions) => questions.iter().map(|it| it.bytes()).sum(),
        }
    }
}

impl EventSender {
    /// Queues progress or a log message. If the queue is full, the event is dropped and counted. Never waits.
    pub fn tell(&self, event: PeerEvent, dropped: &IntCounter) {
        if !self.0.put(event) {
            dropped.inc();
        }
    }

    /// Queues questions if there is room, and returns true if so. Never waits.
    pub fn ask(&self, questions: Vec<Arc<Interaction>>) -> bool {
        self.0.put(PeerEvent::InputRequests(questions))
    }

    /// Queues the message that withdraws a question. If the MCP server's message does not fit into the queue, the gateway's
    /// shorter message is queued instead, even if the queue is full: there is at most one such message for each question that the
    /// receiver has read. Never waits.
    pub fn take_back(&self, message: WithdrawalMessage) {
        let WithdrawalMessage { own, ours } = message;
        let event = |message| PeerEvent::Message {
            level: None,
            message,
        };
        if own.is_some_and(|own| self.0.put(event(own))) {
            return;
        }
        let waiting = self.0.lock();
        if !waiting.is_over {
            EventQueue::push(waiting, event(ours));
        }
    }
}

impl EventReceiver {
    /// Returns the next event. Remains pending after the call has ended, so it must be awaited together with the call.
    /// Cancel safe.
    pub async fn next(&mut self) -> PeerEvent {
        // A function that never stops sending messages must not starve other tasks.
        cooperative(poll_fn(|context| self.poll(context))).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<PeerEvent> {
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

    /// Returns the next queued event, or `None` if the queue is empty. All events of a call are queued before the call returns.
    pub fn try_next(&mut self) -> Option<PeerEvent> {
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
        // Done after the lock is released, because failing a question notifies the call that waits for it.
        for event in unread {
            if let PeerEvent::InputRequests(questions) = event {
                for question in questions {
                    question.fail(ask_failed("The client gave no answer"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(bytes: usize) -> PeerEvent {
        PeerEvent::Log {
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
        // On one thread this ends only if the reader yields.
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
