use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Owns questions and notes what becomes of them.
#[derive(Default)]
pub(crate) struct Wait {
    taken_back: Mutex<Vec<String>>,
    settled: AtomicUsize,
}

impl Wait {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// What the client was told, and how often something was settled.
    fn seen(&self) -> (Vec<String>, usize) {
        let taken_back = self.taken_back.lock().expect("not poisoned").clone();
        (taken_back, self.settled.load(Ordering::SeqCst))
    }
}

impl Scope for Wait {
    fn take_back(&self, message: Vec<u8>) {
        let message = String::from_utf8(message).expect("UTF-8");
        self.taken_back.lock().expect("not poisoned").push(message);
    }

    fn settled(&self) {
        self.settled.fetch_add(1, Ordering::SeqCst);
    }
}

type Told = oneshot::Receiver<Result<Bytes, CallError>>;

/// A question for roots, with 60 s for its answer.
pub(crate) fn round(scope: &Arc<Wait>) -> (Arc<Interaction>, Told) {
    let question = Question {
        key: "k".into(),
        method: AskMethod::Roots,
        params: Bytes::new(),
    };
    let (responder, told) = oneshot::channel();
    let scope: Weak<dyn Scope> = Arc::<Wait>::downgrade(scope);
    let responder = Responder::Round(responder);
    let entry = Interaction::new(Some(question), responder, Duration::from_secs(60), scope);
    (entry, told)
}

fn yes() -> Bytes {
    Bytes::from_static(br#"{"action":"accept"}"#)
}

#[tokio::test]
async fn the_first_answer_counts_and_is_delivered_once() {
    let scope = Wait::new();
    let (entry, told) = round(&scope);
    assert!(entry.ask_under(4).is_some());
    assert!(entry.fulfil(yes()));
    assert!(!entry.fail(ask_failed("late")));
    entry.expire();
    entry.withdraw(b"{}");
    assert!(!entry.is_open() && !entry.is_over());
    entry.deliver();
    entry.deliver();
    assert!(entry.is_over());
    assert_eq!(told.await.expect("delivered").expect("a result"), yes());
    assert_eq!(scope.seen(), (Vec::new(), 1));
}

#[tokio::test]
async fn a_client_hears_that_its_question_is_taken_back_if_it_was_asked() {
    let withdrawn = br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"theirs","x":1.0}}"#;
    let end = |entry: &Interaction, how: usize| match how {
        0 => entry.withdraw(withdrawn),
        1 => entry.expire(),
        _ => entry.abandon(),
    };
    let words = [
        r#""requestId":9,"x":1.0"#,
        "The question timed out",
        "The call is over",
    ];
    let failures = [
        Some("The question was withdrawn"),
        Some("The client gave no answer within 60 s"),
        None,
    ];
    for how in 0..3 {
        let scope = Wait::new();
        let (asked, told) = round(&scope);
        let (unheard, _told) = round(&scope);
        assert!(asked.ask_under(9).is_some());
        end(&asked, how);
        end(&unheard, how);
        assert_eq!(unheard.ask_under(10), None, "nobody wants an answer");
        let (taken_back, _) = scope.seen();
        assert_eq!(taken_back.len(), 1, "{taken_back:?}");
        assert!(taken_back[0].contains(words[how]), "{taken_back:?}");
        asked.deliver();
        let failed = told.await.ok().map(|told| told.expect_err("no result"));
        assert_eq!(
            failed.map(|it| it.message),
            failures[how].map(str::to_owned)
        );
    }
}

#[test]
fn a_client_can_be_asked_what_it_declared_and_null_declares_nothing() {
    let declared = br#"{"elicitation":null,"s\u0061mpling":{},"other":[1]}"#;
    assert!(!may_ask(declared, AskMethod::Elicit));
    assert!(may_ask(declared, AskMethod::Sample));
    assert!(!may_ask(declared, AskMethod::Roots));
    assert!(!may_ask(b"[]", AskMethod::Sample));
}
