//! Waits for the end of a task: `tasks/result` of 2025-11-25.
//!
//! A client that waits in a session and accepts a stream is asked the task's questions meanwhile, by requests on the stream of its
//! `tasks/result`. Each waiting client gets copies of the questions, and the first answer counts: the copies at other clients are
//! withdrawn then, and all of them when the task ends. A client that leaves, or does not support a question, fails its own copies
//! only, so the question stays open for a later wait.
//!
//! A wait ends with its client: when its request is cancelled, its session ends, or its connection closes before there is a stream
//! from which the client can resume. A wait with such a stream does not keep the session of a client that has gone away.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{AbortHandle, Abortable, Aborted};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_sessions::interaction::{EventSender, Interaction, QuestionOwner, WithdrawalMessage};
use tooldock_sessions::session::{CancelNotice, InFlightCalls, Session};
use tooldock_sessions::tasks::TaskOwner;

use super::requests::unknown;
use super::running::{RunningTask, TaskView};
use super::{FoundTask, written};
use crate::jsonrpc::RequestError;
use crate::mcp::Core;
use crate::mcp::call::cancelled;

/// Interval at which a wait reads the store for a task of another replica.
const STORE_POLL: Duration = Duration::from_secs(1);

/// Maximum number of waits of one session, and of waits for one task. Waits pass no gate of a namespace.
const WAITS_MAX: usize = 64;

/// A request that waits for the end of a task.
pub(crate) struct TaskWait {
    pub(super) core: Arc<Core>,
    pub(super) owner: TaskOwner,
    pub(super) found: FoundTask,
}

/// A POST that waits for its response, and with whose connection the request ends. Dropped when the POST becomes a stream.
pub(in crate::mcp) struct AwaitingPost;

/// Notice of a wait among the running requests of its session.
struct WaitNotice(Weak<AwaitingPost>);

impl CancelNotice for WaitNotice {
    fn keeps_session(&self) -> bool {
        self.0.strong_count() > 0
    }

    fn is_wait(&self) -> bool {
        true
    }
}

impl TaskWait {
    /// Waits for the end of the task, and returns the response to the request with the raw id `id`. `client`: channel by which the
    /// waiting client is asked; `None` if it cannot be asked. In a session the wait ends when the client cancels its request or the
    /// session ends.
    pub(in crate::mcp) fn run(
        self,
        session: Option<&Arc<Session>>,
        id: &str,
        post: &Arc<AwaitingPost>,
        client: Option<EventSender>,
    ) -> impl Future<Output = Result<Vec<u8>, RequestError>> + Send + use<> {
        let (handle, registration) = AbortHandle::new_pair();
        let notice = Arc::new(WaitNotice(Arc::downgrade(post)));
        let of_task = match &self.found {
            FoundTask::Here(task) => task.waits(),
            FoundTask::Stored(_) => 0,
        };
        let of_session = session.map_or(0, |session| session.in_flight().waits());
        let is_refused = of_task.max(of_session) >= WAITS_MAX;
        let entry = session
            .filter(|_| !is_refused)
            .map(|session| InFlightCalls::enter(session, id, handle, notice));
        let id = id.to_owned();
        async move {
            if is_refused {
                return Err(too_many());
            }
            let response = Abortable::new(self.response(&id, client), registration).await;
            drop(entry);
            response.unwrap_or_else(|Aborted| Err(RequestError::Upstream(cancelled())))
        }
    }

    async fn response(
        self,
        id: &str,
        client: Option<EventSender>,
    ) -> Result<Vec<u8>, RequestError> {
        let ended = self.ended(client).await?;
        match &ended.outcome {
            Some(outcome) => Ok(written::result(id, &ended.record, outcome)),
            None => Err(RequestError::Upstream(cancelled())),
        }
    }

    /// Waits until the task has ended. The task's own limits bound the wait.
    async fn ended(mut self, client: Option<EventSender>) -> Result<TaskView, RequestError> {
        loop {
            match &self.found {
                FoundTask::Here(task) => {
                    end_of(task, client).await;
                    return Ok(task.view());
                }
                FoundTask::Stored(stored) if stored.record.status.is_terminal() => {
                    return Ok(self.found.view());
                }
                FoundTask::Stored(stored) => {
                    sleep(STORE_POLL).await;
                    let id = &stored.record.id;
                    let again = self.core.tasks.find_of(&self.owner, id).await?;
                    self.found = again.ok_or_else(unknown)?;
                }
            }
        }
    }
}

fn too_many() -> RequestError {
    let message = format!(
        "{WAITS_MAX} requests wait already, in this session or for this task; use tasks/get, or wait for one of them"
    );
    RequestError::Upstream(CallError::new(CallErrorCode::Overloaded, message))
}

/// Waits until a task of this process has ended, and asks the client its questions meanwhile.
async fn end_of(task: &RunningTask, client: Option<EventSender>) {
    let mut client = client.map(|events| AskedClient::new(task, events));
    let mut changes = task.changes();
    while !*changes.borrow_and_update() {
        if let Some(client) = &mut client {
            client.ask(&task.view());
        }
        // changed: the task has ended, or other questions are open.
        // settled: a copy of a question was answered or has failed; other waiting clients must look at their copies.
        tokio::select! {
            _ = changes.changed() => {}
            () = settled(client.as_ref()) => task.note_change(),
        }
    }
}

async fn settled(client: Option<&AskedClient<'_>>) {
    match client {
        Some(client) => client.settled().await,
        None => std::future::pending().await,
    }
}

/// A waiting client, with its copies of the task's questions. Dropping it passes answers on, and withdraws the open copies.
struct AskedClient<'a> {
    task: &'a RunningTask,
    copies: Vec<QuestionCopy>,
    owner: Arc<CopyOwner>,
}

struct QuestionCopy {
    question: Arc<Interaction>,
    copy: Arc<Interaction>,
}

/// Owner of a client's copies.
struct CopyOwner {
    events: EventSender,
    settled: Notify,
}

impl QuestionOwner for CopyOwner {
    fn take_back(&self, message: WithdrawalMessage) {
        self.events.take_back(message);
    }

    fn settled(&self) {
        self.settled.notify_one();
    }
}

impl<'a> AskedClient<'a> {
    fn new(task: &'a RunningTask, events: EventSender) -> Self {
        Self {
            task,
            copies: Vec::new(),
            owner: Arc::new(CopyOwner {
                events,
                settled: Notify::new(),
            }),
        }
    }

    /// Asks the client the open questions that it was not asked yet, and withdraws those that are no longer open.
    fn ask(&mut self, task: &TaskView) {
        self.copies.retain(|it| {
            let is_open = it.question.is_open();
            if !is_open {
                it.copy.abandon();
            }
            is_open
        });
        let mut new = Vec::new();
        for question in &task.questions {
            let of_question = |it: &QuestionCopy| Arc::ptr_eq(&it.question, question);
            if self.copies.iter().any(of_question) {
                continue;
            }
            let Some(content) = question.question() else {
                continue;
            };
            let params = String::from_utf8_lossy(&content.params);
            let params = Bytes::from(written::related(&params, &task.record.id));
            let owner: Weak<dyn QuestionOwner> = Arc::<CopyOwner>::downgrade(&self.owner);
            if let Some(copy) = question.copy_for_client(params, owner) {
                new.push(Arc::clone(&copy));
                let question = Arc::clone(question);
                self.copies.push(QuestionCopy { question, copy });
            }
        }
        if !new.is_empty() {
            // Without room in the client's queue the copies stay unasked. A later wait asks the questions again.
            self.owner.events.ask(new);
        }
    }

    /// Waits until a copy is answered, fails or reaches its deadline, and passes answers to the task's questions. Cancel safe.
    async fn settled(&self) {
        let open = self.copies.iter().filter(|it| it.copy.is_open());
        let deadline = open.map(|it| it.copy.deadline()).min();
        let expired = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.owner.settled.notified() => {}
            () = expired => {}
        }
        let now = Instant::now();
        for QuestionCopy { copy, .. } in &self.copies {
            if copy.deadline() <= now {
                copy.expire();
            }
            copy.deliver();
        }
    }
}

impl Drop for AskedClient<'_> {
    fn drop(&mut self) {
        for QuestionCopy { copy, .. } in &self.copies {
            // The client may have answered just before its wait was cancelled.
            copy.deliver();
            copy.abandon();
        }
        if !self.copies.is_empty() {
            self.task.note_change();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tooldock_protocol::jsonrpc::{Response, ResponseOutcome};
    use tooldock_sessions::interaction::testing::{Wait, round};
    use tooldock_sessions::interaction::{self, EventReceiver, PeerEvent};
    use tooldock_sessions::session::{Binding, SessionId, SessionTransport};

    use super::super::tests::running_task;
    use super::*;
    use crate::protocol::ProtocolVersion;

    fn session() -> Arc<Session> {
        let binding = Binding {
            namespace: "shared".parse().expect("a name"),
            principal: None,
            version: ProtocolVersion::V2025_11_25,
            transport: SessionTransport::Streamable,
        };
        let session = Session::new(SessionId::random(), binding, Instant::now());
        Arc::new(session)
    }

    /// A client that waits for a task.
    struct Client {
        session: Arc<Session>,
        events: EventReceiver,
        wait: tokio::task::JoinHandle<()>,
    }

    impl Client {
        fn of(task: &Arc<RunningTask>) -> Self {
            let (sender, events) = interaction::events();
            let task = Arc::clone(task);
            Self {
                session: session(),
                events,
                wait: tokio::spawn(async move { end_of(&task, Some(sender)).await }),
            }
        }

        /// The next question, and the request by which the client is asked.
        async fn asked(&mut self) -> (Arc<Interaction>, Value) {
            let PeerEvent::InputRequests(copies) = self.events.next().await else {
                panic!("no question");
            };
            let [copy] = &*copies else {
                panic!("{} questions", copies.len());
            };
            let request = self.session.ask(copy).expect("it is open");
            let request = serde_json::from_slice(&request).expect("JSON");
            (Arc::clone(copy), request)
        }

        /// The next notification for the client.
        async fn told(&mut self) -> Value {
            let PeerEvent::Message { message, .. } = self.events.next().await else {
                panic!("no message");
            };
            serde_json::from_slice(&message).expect("JSON")
        }

        fn answers(&self, request: &Value) {
            let result = Bytes::from_static(br#"{"roots":[]}"#);
            let response = Response::from_outcome(ResponseOutcome::Result(result));
            self.session.answer(&request["id"].to_string(), response);
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_or_cannot_be_asked_leaves_the_question_to_the_next() {
        let (task, owner) = (running_task(), Wait::new());
        let (question, told) = round(&owner);
        task.ask(vec![Arc::clone(&question)]);
        // Its session ends.
        let mut first = Client::of(&task);
        let (_, request) = first.asked().await;
        let related = &request["params"]["_meta"]["io.modelcontextprotocol/related-task"];
        assert_eq!(related["taskId"], &*task.view().record.id, "{request}");
        first.session.close();
        // It does not support the question.
        let mut second = Client::of(&task);
        let (copy, _) = second.asked().await;
        assert!(!copy.admit(b"{}"));
        // Its request is cancelled.
        let mut third = Client::of(&task);
        third.asked().await;
        third.wait.abort();
        third.wait.await.expect_err("aborted");
        assert!(question.is_open());
        // It does not read its questions.
        drop(Client::of(&task).events);
        tokio::task::yield_now().await;
        assert!(question.is_open());

        let mut last = Client::of(&task);
        let (_, request) = last.asked().await;
        last.answers(&request);
        while question.is_open() {
            tokio::task::yield_now().await;
        }
        question.deliver();
        let answer = told.await.expect("delivered").expect("a result");
        assert_eq!(&*answer, br#"{"roots":[]}"#);
    }

    #[tokio::test]
    async fn an_answer_counts_although_its_wait_is_cancelled_before_it_is_read() {
        let (task, owner) = (running_task(), Wait::new());
        let (question, told) = round(&owner);
        task.ask(vec![Arc::clone(&question)]);
        let mut client = Client::of(&task);
        let (_, request) = client.asked().await;
        client.answers(&request);
        // The test's runtime has one thread, so the wait has not run since the answer.
        client.wait.abort();
        client.wait.await.expect_err("aborted");
        question.deliver();
        assert!(told.await.expect("delivered").is_ok());
    }

    #[tokio::test]
    async fn the_first_answer_counts_and_the_others_are_withdrawn() {
        let (task, owner) = (running_task(), Wait::new());
        let (mut one, mut other) = (Client::of(&task), Client::of(&task));
        let (question, _told) = round(&owner);
        task.ask(vec![question]);
        let (_, request) = one.asked().await;
        let (_, withdrawn) = other.asked().await;
        one.answers(&request);
        let told = other.told().await;
        assert_eq!(told["method"], "notifications/cancelled");
        assert_eq!(told["params"]["requestId"], withdrawn["id"]);
        // The next question goes to both.
        let (question, _told) = round(&owner);
        task.ask(vec![question]);
        one.asked().await;
        other.asked().await;
    }

    #[tokio::test]
    async fn a_cancelled_task_withdraws_its_question_before_the_wait_ends() {
        let (task, owner) = (running_task(), Wait::new());
        let (question, _told) = round(&owner);
        task.ask(vec![question]);
        let mut client = Client::of(&task);
        let (_, request) = client.asked().await;
        task.cancel("the client cancelled the task");
        (&mut client.wait).await.expect("ended");
        let told = client.told().await;
        assert_eq!(told["method"], "notifications/cancelled");
        assert_eq!(told["params"]["requestId"], request["id"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_without_an_answer_is_withdrawn_at_its_deadline() {
        let (task, owner) = (running_task(), Wait::new());
        let (question, _told) = round(&owner);
        task.ask(vec![question]);
        let mut client = Client::of(&task);
        let (_, request) = client.asked().await;
        let told = client.told().await;
        assert_eq!(told["params"]["requestId"], request["id"]);
        assert_eq!(task.waits(), 1);
    }

    #[test]
    fn waits_of_a_session_are_counted_apart_from_its_calls() {
        let session = session();
        let post = Arc::new(AwaitingPost);
        let enter = |id| {
            let notice = Arc::new(WaitNotice(Arc::downgrade(&post)));
            InFlightCalls::enter(&session, id, AbortHandle::new_pair().0, notice)
        };
        let entries = [enter("1"), enter("2")];
        assert_eq!(session.in_flight().waits(), 2);
        drop(entries);
        assert_eq!(session.in_flight().waits(), 0);
    }

    #[test]
    fn a_wait_keeps_the_session_only_while_its_post_waits() {
        let session = session();
        let post = Arc::new(AwaitingPost);
        let notice = Arc::new(WaitNotice(Arc::downgrade(&post)));
        let (handle, _) = AbortHandle::new_pair();
        let _entry = InFlightCalls::enter(&session, "1", handle, notice);
        let later = Instant::now() + Duration::from_secs(3600);
        assert!(!session.idle_for(Duration::from_secs(60), later));
        drop(post);
        assert!(session.idle_for(Duration::from_secs(60), later));
    }
}
