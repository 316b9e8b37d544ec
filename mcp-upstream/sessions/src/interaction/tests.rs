use tooldock_base::parking::Parking;
use tooldock_protocol::jsonrpc::{Asker, Notification, RawId, RpcError, ServerRequest};

use super::testing::{Wait, round};
use super::*;

fn yes() -> Bytes {
    Bytes::from_static(br#"{"action":"accept"}"#)
}

#[tokio::test]
async fn the_first_answer_counts_and_is_delivered_once() {
    let scope = Wait::new();
    let (entry, told) = round(&scope);
    assert!(entry.ask_under(4).is_some());
    assert!(entry.set_answer(yes()));
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
    let failures = [None, Some("The client gave no answer within 60 s"), None];
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

fn of_kind(method: AskMethod, params: &'static str) -> Question {
    Question {
        key: "k".into(),
        method,
        params: params.into(),
    }
}

#[test]
fn a_client_is_asked_to_open_links_or_fill_in_forms_as_it_declares() {
    let form = of_kind(AskMethod::Elicit, r#"{"message":"m","requestedSchema":{}}"#);
    let link = of_kind(
        AskMethod::Elicit,
        r#"{"mode":"url","url":"https://a","message":"m"}"#,
    );
    for (declared, forms, links) in [
        (r#"{"elicitation":{}}"#, true, false),
        (r#"{"elicitation":{"form":{}}}"#, true, false),
        (r#"{"elicitation":{"form":{},"url":{}}}"#, true, true),
        (r#"{"elicitation":{"url":{}}}"#, false, true),
        (r#"{"sampling":{}}"#, false, false),
    ] {
        let may = |question| may_ask(declared.as_bytes(), question);
        assert_eq!((may(&form), may(&link)), (forms, links), "{declared}");
    }
    let error = missing_capability(&link);
    assert!(error.message.contains("m https://a"), "{error}");
    let details = error.details.expect("details");
    assert_eq!(
        details.get(),
        r#"{"requiredCapabilities":{"elicitation":{"url":{}}}}"#
    );
}

#[test]
fn a_client_can_be_asked_what_it_declared_and_null_declares_nothing() {
    let declared = br#"{"elicitation":null,"s\u0061mpling":{},"other":[1]}"#;
    assert!(!may_ask(declared, &of_kind(AskMethod::Elicit, "{}")));
    assert!(may_ask(declared, &of_kind(AskMethod::Sample, "{}")));
    assert!(!may_ask(declared, &of_kind(AskMethod::Roots, "{}")));
    assert!(!may_ask(b"[]", &of_kind(AskMethod::Sample, "{}")));
}

/// A server that records its answered requests.
#[derive(Default)]
struct Server(Mutex<Vec<String>>);

impl Asker for Server {
    fn answer(&self, id: &RawId, _: u64, _: Result<&RawValue, RpcError<'_>>) -> bool {
        let mut answered = self.0.lock().expect("not poisoned");
        answered.push(id.as_str().to_owned());
        true
    }

    fn forward_answer(&self, id: &RawId, number: u64, _: &Response) -> bool {
        let error = RpcError {
            code: 0,
            message: "",
        };
        self.answer(id, number, Err(error))
    }
}

impl Server {
    /// A request for roots with this id.
    fn asks(self: &Arc<Self>, id: &str) -> ServerRequest {
        self.asks_at_length(id, 0)
    }

    /// A request for roots with this id, and this many bytes in an unknown member.
    fn asks_at_length(self: &Arc<Self>, id: &str, bytes: usize) -> ServerRequest {
        let more = "x".repeat(bytes);
        let message =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list","x":"{more}"}}"#);
        let message = Bytes::from(message);
        let text = std::str::from_utf8(&message).expect("UTF-8");
        let place = text.find(id).expect("it stands there");
        let id = &text[place..place + id.len()];
        let asker = Arc::clone(self) as Arc<dyn Asker>;
        ServerRequest::new(&message, text, (id, 1), "roots/list", None, asker)
    }
}

/// The server's `notifications/cancelled` for its request of this id.
fn takes_back(asked: &ConnectionInteractions, id: &str) {
    takes_back_at_length(asked, id, 0);
}

/// The server's `notifications/cancelled` with a reason of this many bytes.
fn takes_back_at_length(asked: &ConnectionInteractions, id: &str, bytes: usize) {
    let reason = "x".repeat(bytes);
    let params = format!(r#"{{"requestId":{id},"reason":"{reason}"}}"#);
    let message =
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
    asked.withdraw(&Notification {
        method: "notifications/cancelled",
        params: Some(params.into()),
        message: message.into(),
    });
}

/// A call whose server may ask, with the receiver of its client.
struct Asking {
    call: Arc<CallInteractions>,
    asked: ConnectionInteractions,
    server: Arc<Server>,
}

impl Asking {
    fn new() -> (Self, EventReceiver) {
        let mut namespace = crate::testing::full("shared");
        namespace.parked = Arc::new(Parking::new(1));
        let (sender, receiver) = events();
        let asking = Self {
            call: CallInteractions::new(Arc::new(namespace), None, Some(sender)),
            asked: ConnectionInteractions::default(),
            server: Arc::default(),
        };
        (asking, receiver)
    }

    /// Asks by a message of about `bytes` bytes. Returns `false` if the question is refused.
    fn ask(&self, id: &str, bytes: usize) -> bool {
        let question = Question {
            key: id.into(),
            method: AskMethod::Roots,
            params: Bytes::new(),
        };
        let request = self.server.asks_at_length(id, bytes);
        let responder = Responder::Request(Box::new(request), Some(self.asked.unanswered()));
        let opened = self.call.open(vec![(question, responder)]);
        if let Some(entry) = opened.first() {
            self.asked.note(RawId::new(id), entry);
        }
        !opened.is_empty()
    }
}

const MIB: usize = 1024 * 1024;

#[test]
fn what_a_server_asks_and_takes_back_while_nobody_reads_is_bounded_in_bytes() {
    let (asking, mut receiver) = Asking::new();
    let ask = || {
        let opened = asking.ask("7", MIB);
        takes_back(&asking.asked, "7");
        opened
    };
    let opened = (0..20).filter(|_| ask()).count();
    assert_eq!(opened, 3, "what fits into 4 MiB");
    while receiver.try_next().is_some() {}
    assert!(ask(), "there is room again");
}

#[test]
fn long_words_that_take_questions_back_are_passed_while_there_is_room_and_shortened_then() {
    let (asking, mut receiver) = Asking::new();
    for id in 10..20 {
        assert!(asking.ask(&id.to_string(), 0));
        let Some(PeerEvent::InputRequests(asked)) = receiver.try_next() else {
            panic!("no question");
        };
        assert!(asked[0].ask_under(100 + id).is_some());
    }
    for id in 10..20 {
        takes_back_at_length(&asking.asked, &id.to_string(), MIB);
    }
    let mut long = 0;
    for id in 110..120 {
        let Some(PeerEvent::Message { message, .. }) = receiver.try_next() else {
            panic!("{id} is not taken back");
        };
        let read: serde_json::Value = serde_json::from_slice(&message).expect("JSON");
        assert_eq!(read["method"], "notifications/cancelled");
        assert_eq!(read["params"]["requestId"], id);
        match message.len() > MIB {
            true => long += 1,
            false => assert!(message.len() < 200, "{} bytes", message.len()),
        }
    }
    assert_eq!(long, 3, "what fits into 4 MiB");
}

#[tokio::test]
async fn what_a_server_asks_and_takes_back_while_it_waits_is_not_kept() {
    let (asking, mut receiver) = Asking::new();
    asking.ask("77", 0);
    for _ in 0..10 * OPEN_IN_CALL {
        asking.ask("78", 0);
        takes_back(&asking.asked, "78");
        while receiver.try_next().is_some() {}
    }
    let Asking { call, asked, .. } = asking;
    assert!(call.kept() <= 2, "{} questions are kept", call.kept());
    assert!(asked.is_asking() && asked.any_open());
    takes_back(&asked, "77");
    asked.settled().await;
    assert!(call.next_deadline().is_none() && !asked.any_open());
}

#[test]
fn a_question_that_is_taken_back_before_its_call_begins_is_never_asked() {
    let (asked, server) = (
        ConnectionInteractions::default(),
        Arc::new(Server::default()),
    );
    for id in 0..EARLY_MAX {
        let request = server.asks(&(100 + id).to_string());
        assert!(asked.keep_early(AskMethod::Roots, request).is_none());
    }
    let more = server.asks("99");
    assert!(asked.keep_early(AskMethod::Roots, more).is_some(), "full");
    takes_back(&asked, "100");
    let early = asked.take_early();
    let early: Vec<_> = early.iter().map(|(_, it)| it.id().as_str()).collect();
    assert_eq!((early.len(), early[0]), (EARLY_MAX - 1, "101"));
}
