//! An owner of questions that records their ends, and a question for roots.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::oneshot;

use super::*;

/// Owns questions and records their withdrawals and ends.
#[derive(Default)]
pub struct Wait {
    taken_back: Mutex<Vec<String>>,
    settled: AtomicUsize,
}

impl Wait {
    /// An owner without questions.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The messages to the client, and the number of settled questions.
    pub fn seen(&self) -> (Vec<String>, usize) {
        let taken_back = self.taken_back.lock().expect("not poisoned").clone();
        (taken_back, self.settled.load(Ordering::SeqCst))
    }
}

impl QuestionOwner for Wait {
    fn take_back(&self, message: WithdrawalMessage) {
        let message = message.own.unwrap_or(message.ours);
        let message = String::from_utf8(message.into()).expect("UTF-8");
        self.taken_back.lock().expect("not poisoned").push(message);
    }

    fn settled(&self) {
        self.settled.fetch_add(1, Ordering::SeqCst);
    }
}

/// The outcome of a question, for its server.
pub type Told = oneshot::Receiver<Result<Bytes, CallError>>;

/// A question for roots, with 60 s for its answer.
pub fn round(scope: &Arc<Wait>) -> (Arc<Interaction>, Told) {
    let question = Question {
        key: "k".into(),
        method: AskMethod::Roots,
        params: Bytes::new(),
    };
    let (responder, told) = oneshot::channel();
    let scope: Weak<dyn QuestionOwner> = Arc::<Wait>::downgrade(scope);
    let responder = Responder::Round(responder);
    let entry = Interaction::new(Some(question), responder, Duration::from_secs(60), scope);
    (entry, told)
}
