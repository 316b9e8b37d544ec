//! A call whose function takes a context: it may report, log and ask its client before it answers.
//!
//! ```text
//!              ┌──────────── a question ───────────┐
//!   Running ───┤                                   ▼
//!   permit,    │                                Asking      clock stands, permit given back, place in the parking
//!   clock runs │                                   │
//!      ▲       │                                   │ every open question is answered, failed or out of time
//!      └───────┴─── a permit ──── Resuming ◀───────┘        clock runs again
//! ```
//!
//! Answers wait until all open questions have theirs: with one of them the function could go on working, and then its
//! clock and its permit would have to be taken back while it still waits for the others. They are handed to the worker
//! only when the call holds a permit again, so that calls which were answered do not run beside as many as may run.
//!
//! The worker's reader only queues what it reads; everything else happens in the call's own future, so that dropping
//! it frees permit, place and the call in the worker.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tooldock_workers::error::CallError;
use tooldock_workers::gate::Permit;
use tooldock_workers::parking::{Parked, ParkingFull};
use tooldock_workers::registry::Namespace;
use tooldock_workers::worker::{Notice, Replier};

use super::events::{Given, InputResponse};
use super::{Engine, Event, EventSender, InputRequests, ask_failed, overloaded, timed_out};

mod inbox;

pub(super) use inbox::CallInbox;
use inbox::{Asking, Inward, refuse};

/// Questions one call may have open at once.
const OPEN_QUESTIONS: usize = 64;
/// Asks and notices of one call that may wait for it to look. Further notices are dropped and counted, further
/// questions fail.
const INBOX: usize = 64;
/// Stands for "never" where a configured limit is too long to add to the clock.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The call in the upstream, which owns all it needs.
pub(super) type Work<T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send>>;
type Working<'w, T> = Pin<&'w mut (dyn Future<Output = Outcome<T>> + Send)>;
type Outcome<T> = Result<T, CallError>;
/// What a question was answered: the client's result, or why there is none.
type Told = Result<Bytes, CallError>;

/// One call that may talk.
pub(super) struct InteractiveCall<'a> {
    engine: &'a Engine,
    namespace: &'a Namespace,
    /// Whose call it is; empty where nobody says.
    principal: &'a str,
    /// The whole time limit, for the message.
    limit: Duration,
    /// What is left of it while the clock stands.
    left: Duration,
    events: Option<EventSender>,
    answers: mpsc::Receiver<InputResponse>,
    answering: mpsc::Sender<InputResponse>,
    turns: Vec<InputTurn>,
    next_turn: u64,
}

/// Questions that were asked at once.
struct InputTurn {
    number: u64,
    deadline: Instant,
    replier: Replier,
    /// In their order; with what they were answered.
    questions: Vec<(Arc<str>, Option<Told>)>,
    given: Given,
}

/// How the phase `Running` ended.
enum Ran<T> {
    Over(Outcome<T>),
    Asked(Parked),
}

/// How the phase `Resuming` ended.
enum Resumed<T> {
    Over(Outcome<T>),
    Entered(Permit),
    AskedAgain,
}

impl<'a> InteractiveCall<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        namespace: &'a Namespace,
        principal: &'a str,
        limit: Duration,
        events: Option<EventSender>,
    ) -> Self {
        // Room for every open question twice: one that ran out of time may still be answered.
        let (answering, answers) = mpsc::channel(2 * OPEN_QUESTIONS);
        Self {
            engine,
            namespace,
            principal,
            limit,
            left: limit,
            events,
            answers,
            answering,
            turns: Vec::new(),
            next_turn: 0,
        }
    }

    /// Who runs the namespace's functions now.
    pub(super) fn backend(&self) -> Result<Arc<dyn crate::backend::Backend>, CallError> {
        self.engine.backends.of(self.namespace)
    }

    /// Runs the call to its end. `start` begins it, once it has its turn.
    pub(super) async fn run<T>(
        mut self,
        start: impl FnOnce(&Self, Arc<CallInbox>) -> Result<Work<T>, CallError> + Send,
    ) -> Outcome<T> {
        let began = Instant::now();
        let entered = timeout_at(after(began, self.left), self.namespace.gate.enter()).await;
        // It never ran: another try is safe, and the tool is not what is slow.
        let permit = entered
            .map_err(|_| overloaded())?
            .map_err(|_| overloaded())?;
        self.stop_clock(began);
        let (sender, mut inbox) = mpsc::channel(INBOX);
        let sink = CallInbox {
            events: self.events.clone(),
            inbox: sender,
            dropped: self.engine.metrics.events_dropped.clone(),
        };
        let mut work = start(&self, Arc::new(sink))?;
        let outcome = self.phases(work.as_mut(), &mut inbox, permit).await;
        // What the function announced before its end goes out before its answer.
        while let Ok(inward) = inbox.try_recv() {
            if let Inward::Notice(notice) = inward {
                self.announce(notice);
            }
        }
        outcome
    }

    async fn phases<T>(
        &mut self,
        mut work: Working<'_, T>,
        inbox: &mut mpsc::Receiver<Inward>,
        mut permit: Permit,
    ) -> Outcome<T> {
        loop {
            let place = match self.running(work.as_mut(), inbox).await {
                Ran::Over(outcome) => return outcome,
                Ran::Asked(place) => place,
            };
            drop(permit);
            permit = loop {
                if let Some(outcome) = self.asking(work.as_mut(), inbox).await {
                    return outcome;
                }
                match self.resuming(work.as_mut(), inbox).await {
                    Resumed::Over(outcome) => return outcome,
                    Resumed::Entered(permit) => break permit,
                    Resumed::AskedAgain => {}
                }
            };
            drop(place);
            self.hand_over();
        }
    }

    /// The function works.
    async fn running<T>(
        &mut self,
        mut work: Working<'_, T>,
        inbox: &mut mpsc::Receiver<Inward>,
    ) -> Ran<T> {
        let began = Instant::now();
        let deadline = after(began, self.left);
        loop {
            // The answer; what the worker says meanwhile; the end of the time.
            tokio::select! {
                biased;
                outcome = work.as_mut() => return Ran::Over(outcome),
                Some(inward) = inbox.recv() => match inward {
                    Inward::Notice(notice) => self.announce(notice),
                    Inward::Ask(ask) => {
                        if let Some(place) = self.first_ask(ask) {
                            self.stop_clock(began);
                            return Ran::Asked(place);
                        }
                    }
                    // Answered already, or refused.
                    Inward::Withdraw { .. } => {}
                },
                () = sleep_until(deadline) => return Ran::Over(Err(timed_out(self.limit))),
            }
        }
    }

    /// Questions are open. Ends with `None` when none is any more.
    async fn asking<T>(
        &mut self,
        mut work: Working<'_, T>,
        inbox: &mut mpsc::Receiver<Inward>,
    ) -> Option<Outcome<T>> {
        while let Some(deadline) = self.next_deadline() {
            // The answer (a function may end without waiting); what the worker says; what the client says; the end of
            // a question's time.
            tokio::select! {
                biased;
                outcome = work.as_mut() => return Some(outcome),
                Some(inward) = inbox.recv() => match inward {
                    Inward::Notice(notice) => self.announce(notice),
                    Inward::Ask(ask) => {
                        self.ask(ask);
                    }
                    Inward::Withdraw { key, message } => self.withdraw(key, message),
                },
                Some(answer) = self.answers.recv() => self.take(answer),
                () = sleep_until(deadline) => self.expire(),
            }
        }
        None
    }

    /// All is answered; the call waits for its turn.
    async fn resuming<T>(
        &mut self,
        mut work: Working<'_, T>,
        inbox: &mut mpsc::Receiver<Inward>,
    ) -> Resumed<T> {
        let began = Instant::now();
        let deadline = after(began, self.left);
        let gate = Arc::clone(&self.namespace.gate);
        let mut entered = std::pin::pin!(gate.resume());
        let end = loop {
            // The answer; what the worker says; a permit; the end of the time.
            tokio::select! {
                biased;
                outcome = work.as_mut() => break Resumed::Over(outcome),
                Some(inward) = inbox.recv() => match inward {
                    Inward::Notice(notice) => self.announce(notice),
                    Inward::Ask(ask) => {
                        if self.ask(ask) {
                            break Resumed::AskedAgain;
                        }
                    }
                    Inward::Withdraw { .. } => {}
                },
                permit = &mut entered => break Resumed::Entered(permit),
                () = sleep_until(deadline) => break Resumed::Over(Err(timed_out(self.limit))),
            }
        };
        self.stop_clock(began);
        end
    }

    /// The first questions of a call that runs: it needs a place among those that ask.
    fn first_ask(&mut self, ask: Asking) -> Option<Parked> {
        if self.events.is_none() {
            refuse(&ask.ask, "The caller cannot be asked anything");
            return None;
        }
        let full = match self.namespace.parked.enter(self.principal) {
            Ok(place) => return self.ask(ask).then_some(place),
            Err(full) => full,
        };
        let reason = match full {
            ParkingFull::Namespace => {
                "Too many calls of the namespace wait for an answer of their client"
            }
            ParkingFull::Principal => {
                "Too many calls of this principal wait for an answer of their client"
            }
        };
        refuse(&ask.ask, reason);
        None
    }

    /// Opens questions and says whether it did; those that cannot be asked have failed.
    fn ask(&mut self, ask: Asking) -> bool {
        let Asking { ask, relayed } = ask;
        let Some(events) = &self.events else {
            refuse(&ask, "The caller cannot be asked anything");
            return false;
        };
        let open: usize = self.turns.iter().map(InputTurn::open).sum();
        if open + ask.questions.len() > OPEN_QUESTIONS {
            let reason = format!("A call may have at most {OPEN_QUESTIONS} questions open");
            refuse(&ask, &reason);
            return false;
        }
        let number = self.next_turn;
        self.next_turn += 1;
        let keys = ask.questions.iter();
        let keys = keys.map(|it| (Arc::clone(&it.key), None)).collect();
        let questions = InputRequests::new(number, ask.questions, relayed, self.answering.clone());
        let turn = InputTurn {
            number,
            deadline: after(Instant::now(), self.namespace.limits.ask_timeout),
            questions: keys,
            given: questions.given(),
            replier: ask.replier,
        };
        if events.ask(questions).is_err() {
            turn.fail("The client does not read what it is sent");
            return false;
        }
        self.turns.push(turn);
        true
    }

    /// Keeps an answer until the call may go on. One that comes too late finds nothing to answer.
    fn take(&mut self, answer: InputResponse) {
        let mut turns = self.turns.iter_mut();
        let turn = turns.find(|turn| turn.number == answer.turn);
        if let Some((_, outcome)) = turn.and_then(|turn| turn.questions.get_mut(answer.position)) {
            outcome.get_or_insert(answer.outcome);
        }
    }

    /// Closes a question nobody wants an answer to any more, and lets its client know.
    fn withdraw(&mut self, key: Arc<str>, message: Bytes) {
        let mut turns = self.turns.iter_mut();
        if !turns.any(|turn| turn.withdraw(&key)) {
            return;
        }
        if let Some(events) = &self.events {
            let withdrawn = Event::Withdrawn { key, message };
            events.tell(withdrawn, &self.engine.metrics.events_dropped);
        }
    }

    /// Fails the questions whose time is over.
    fn expire(&mut self) {
        let now = Instant::now();
        let limit = self.namespace.limits.ask_timeout.as_secs_f64();
        for turn in self.turns.iter_mut().filter(|turn| turn.deadline <= now) {
            for (_, outcome) in &mut turn.questions {
                outcome.get_or_insert_with(|| {
                    Err(ask_failed(format!(
                        "The client gave no answer within {limit} s"
                    )))
                });
            }
        }
    }

    /// When the next open question runs out of time; `None` if none is open.
    fn next_deadline(&self) -> Option<Instant> {
        let open = self.turns.iter().filter(|turn| turn.open() > 0);
        open.map(|turn| turn.deadline).min()
    }

    /// Gives the worker the answers of all turns.
    fn hand_over(&mut self) {
        for turn in self.turns.drain(..) {
            for (key, outcome) in &turn.questions {
                if let Some(outcome) = outcome {
                    turn.replier.answer(key, outcome.as_deref());
                }
            }
        }
    }

    fn announce(&self, notice: Notice) {
        self.engine.notices.announce(&self.namespace.name, notice);
    }

    fn stop_clock(&mut self, began: Instant) {
        self.left = self.left.saturating_sub(began.elapsed());
    }
}

impl InputTurn {
    /// Questions without an answer.
    fn open(&self) -> usize {
        let questions = self.questions.iter();
        questions.filter(|(_, outcome)| outcome.is_none()).count()
    }

    /// Whether the question of that key was open.
    fn withdraw(&mut self, key: &str) -> bool {
        let mut questions = self.questions.iter_mut().zip(&*self.given);
        let open = questions.find(|((own, outcome), _)| **own == *key && outcome.is_none());
        let Some(((_, outcome), given)) = open else {
            return false;
        };
        *outcome = Some(Err(ask_failed("The question was withdrawn")));
        given.store(true, Ordering::Release);
        true
    }

    fn fail(&self, reason: &str) {
        for (key, _) in &self.questions {
            self.replier.answer(key, Err(&ask_failed(reason)));
        }
    }
}

fn after(now: Instant, limit: Duration) -> Instant {
    now.checked_add(limit).unwrap_or_else(|| now + FAR)
}

#[cfg(test)]
mod tests;
