//! The open questions of a call, and the sending of their answers to the worker.
//!
//! A question is open from its arrival until it is answered or its call has ended; only while it is open is an answer accepted.
//! This module deliberately has no time limits and asks no client: the owner of the [`Ask`] does that.

use std::sync::{Arc, Weak};

use tooldock_base::error::{CallError, CallErrorCode};

use super::event::FrameQuestion;
use super::{Link, write};
use crate::worker::{Answers, Ask, CallEvent, OPEN_QUESTIONS_MAX, Question, Replier};

/// Answers the questions of one call until its connection ends.
struct QuestionReplier {
    link: Weak<Link>,
    id: u64,
}

impl Answers for QuestionReplier {
    fn answer(&self, key: &str, outcome: Result<&[u8], &CallError>) {
        if let Some(link) = self.link.upgrade() {
            link.answer(self.id, key, outcome);
        }
    }
}

impl Link {
    /// Registers the questions of a frame as open and passes them to the call's sink. Questions that cannot be asked are answered
    /// with an error immediately, so that their function does not wait.
    pub(super) fn ask(self: &Arc<Self>, id: u64, asked: Vec<FrameQuestion>) {
        let mut questions = Vec::new();
        let mut refused = Vec::new();
        let mut protocol_errors = 0;
        let sink = {
            let mut calls = self.calls();
            // A call that has ended cannot ask questions; its function is cancelled.
            let Ok(entry) = calls.pending.get_mut(id) else {
                return;
            };
            for asked in asked {
                match asked {
                    FrameQuestion::Question(question) => match entry.refuses(&question) {
                        Some(why) => refused.push((question.key, why)),
                        None => {
                            entry.open.push(Arc::clone(&question.key));
                            questions.push(question);
                        }
                    },
                    FrameQuestion::Refused { key, why } => refused.push((key, why)),
                    FrameQuestion::Senseless => protocol_errors += 1,
                }
            }
            entry.sink.clone()
        };
        protocol_errors += refused.len();
        if protocol_errors > 0 {
            self.metrics.protocol_errors("question", protocol_errors);
        }
        for (key, why) in refused {
            let error = CallError::new(CallErrorCode::AskFailed, why);
            if !self.write_answer(id, &key, Err(&error)) {
                return;
            }
        }
        if questions.is_empty() {
            return;
        }
        let Some(sink) = sink else {
            let error = CallError::new(
                CallErrorCode::AskFailed,
                "the caller cannot be asked anything",
            );
            for question in questions {
                self.answer(id, &question.key, Err(&error));
            }
            return;
        };
        let replier = Replier::new(Arc::new(QuestionReplier {
            link: Arc::downgrade(self),
            id,
        }));
        sink.event(CallEvent::Ask(Ask { questions, replier }));
    }

    /// Sends the answer to an open question, which is closed then.
    fn answer(&self, id: u64, key: &str, outcome: Result<&[u8], &CallError>) {
        let is_open = {
            let mut calls = self.calls();
            let open = calls.pending.get_mut(id).ok().map(|entry| &mut entry.open);
            open.and_then(|open| {
                let at = open.iter().position(|open| **open == *key)?;
                Some(open.swap_remove(at))
            })
            .is_some()
        };
        if is_open {
            self.write_answer(id, key, outcome);
        }
    }

    /// Appends an answer to the outbox; an answer that is too large is replaced by an error. If the outbox is full, the call
    /// fails and `false` is returned: otherwise its function would wait for ever.
    fn write_answer(&self, id: u64, key: &str, outcome: Result<&[u8], &CallError>) -> bool {
        let too_large;
        let mut outcome = outcome;
        let size = size_of(key, outcome);
        if size as u64 > self.frame_max {
            too_large = CallError::new(
                CallErrorCode::AskFailed,
                format!(
                    "the answer is {size} bytes; a worker takes at most {}",
                    self.frame_max
                ),
            );
            outcome = Err(&too_large);
        }
        let written = self.append(size_of(key, outcome), |outbox| {
            write::answer(outbox, id, key, outcome);
        });
        if !written {
            self.give_up(id);
        }
        written
    }

    /// Fails a call because its worker does not read the answers it asked for.
    fn give_up(&self, id: u64) {
        if let Ok(entry) = self.take(id) {
            let error = self.overloaded("the worker does not keep up with the answers it asks for");
            let _ = entry.reply.send(Err(error));
            self.send_cancel(id);
        }
    }
}

impl super::PendingRpcCall {
    /// Returns the reason why a question cannot be asked in addition to the open ones; `None` if it can.
    fn refuses(&self, question: &Question) -> Option<&'static str> {
        if self.open.contains(&question.key) {
            Some("a question with this key is open already")
        } else if self.open.len() >= OPEN_QUESTIONS_MAX {
            Some("too many questions are open already")
        } else {
            None
        }
    }
}

/// The approximate size of an answer's frame, in bytes.
fn size_of(key: &str, outcome: Result<&[u8], &CallError>) -> usize {
    const OVERHEAD: usize = 128;
    let outcome = match outcome {
        Ok(result) => result.len(),
        Err(error) => {
            let details = error.details.as_deref();
            error.message.len() + details.map_or(0, |details| details.get().len())
        }
    };
    OVERHEAD + key.len() + outcome
}
