//! A running task: its state, its open questions, and the loop that runs its call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, interval, sleep, sleep_until};
use tooldock_base::error::CallErrorCode;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::interaction::{self, AnswersTooLarge, Interaction, PeerEvent};
use tooldock_sessions::tasks::{
    StoredTask, TaskEnd, TaskEvent, TaskOutcome, TaskOwner, TaskRecord, TaskStatus, UpdatedTask,
    unix_millis,
};

use super::{TaskCall, outcome};
use crate::mcp::Core;
use crate::mcp::driver::{CallDriver, DriverStep};
use crate::mcp::modern::Inputs;
use tooldock_engine::engine::UpstreamCall;

/// Maximum number of characters of the text about a task's state.
const MESSAGE_MAX: usize = 1024;
/// Pause between two attempts to store the end of a task while the store cannot be reached.
const STORE_AGAIN: Duration = Duration::from_secs(1);
/// Interval at which the runner of a task looks whether another replica has cancelled the task.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// A task whose call runs in this process.
pub(super) struct RunningTask {
    owner: TaskOwner,
    /// Capabilities that the client declared when it began the task, as raw JSON. Questions need them.
    capabilities: Arc<RawValue>,
    /// The lock is never held across an await.
    state: Mutex<TaskState>,
    /// Notified when the task is cancelled.
    cancelled: Notify,
    /// True once the task has ended. Marked as changed when questions are asked or answered.
    changes: watch::Sender<bool>,
}

struct TaskState {
    record: TaskRecord,
    outcome: Option<TaskOutcome>,
    /// Questions of the call, among them some that are answered. The engine limits their number.
    questions: Vec<Arc<Interaction>>,
}

/// The state of a task at one moment, with its open questions.
pub(super) struct TaskView {
    pub(super) record: TaskRecord,
    pub(super) outcome: Option<TaskOutcome>,
    pub(super) questions: Vec<Arc<Interaction>>,
}

impl From<StoredTask> for TaskView {
    fn from(stored: StoredTask) -> Self {
        Self {
            record: stored.record,
            outcome: stored.outcome,
            questions: Vec::new(),
        }
    }
}

impl RunningTask {
    pub(super) fn new(record: TaskRecord, capabilities: Arc<RawValue>) -> Arc<Self> {
        Arc::new(Self {
            owner: record.owner.clone(),
            capabilities,
            state: Mutex::new(TaskState {
                record,
                outcome: None,
                questions: Vec::new(),
            }),
            cancelled: Notify::new(),
            changes: watch::Sender::new(false),
        })
    }

    pub(super) fn owner(&self) -> &TaskOwner {
        &self.owner
    }

    /// The task as its owner may see it now.
    pub(super) fn view(&self) -> TaskView {
        let mut state = self.state();
        let questions = state.note_questions();
        TaskView {
            record: state.record.clone(),
            outcome: state.outcome.clone(),
            questions,
        }
    }

    /// Delivers the client's answers to open questions. Answers to other questions are ignored.
    ///
    /// # Errors
    ///
    /// [`AnswersTooLarge`]; the task has failed then.
    pub(super) fn answer(&self, inputs: &Inputs<'_>) -> Result<(), AnswersTooLarge> {
        let questions = self.view().questions;
        let answers = inputs.iter();
        let answers = answers.map(|(key, answer)| (&**key, answer.get().as_bytes()));
        let taken = interaction::set_answer(&questions, answers, bytes::Bytes::copy_from_slice);
        if let Err(refused) = &taken {
            let code = CallErrorCode::InvalidArguments;
            let (failure, message) = outcome::failed(code, refused.to_string());
            self.end(TaskEnd::Failed, Some(failure), Some(message));
            self.cancelled.notify_one();
        }
        self.note_change();
        taken
    }

    /// Cancels the task. Returns false if it has ended already.
    pub(super) fn cancel(&self, reason: &str) -> bool {
        let cancelled = self.end(TaskEnd::Cancelled, None, Some(reason.to_owned()));
        if cancelled {
            self.cancelled.notify_one();
        }
        cancelled
    }

    /// Receiver of changes: true once the task has ended, and marked as changed when questions are asked or answered.
    pub(super) fn changes(&self) -> watch::Receiver<bool> {
        self.changes.subscribe()
    }

    /// Number of waits for the task.
    pub(super) fn waits(&self) -> usize {
        self.changes.receiver_count()
    }

    /// Lets the clients that wait for the task look at its questions again.
    pub(super) fn note_change(&self) {
        self.changes.send_modify(|_| {});
    }

    /// Records the end of the task. Returns false if it has ended already.
    fn end(&self, end: TaskEnd, outcome: Option<TaskOutcome>, message: Option<String>) -> bool {
        let mut state = self.state();
        let ended = state.record.apply(TaskEvent::Ended(end));
        if ended {
            state.outcome = outcome;
            state.record.message = message.map(shortened);
            state.questions.clear();
        }
        drop(state);
        self.changes.send_replace(true);
        ended
    }

    /// Applies an event of the call. Returns true if the stored record must be renewed.
    fn hear(&self, event: PeerEvent) -> bool {
        match event {
            PeerEvent::Progress(report) => {
                if let Some(message) = progress(&report) {
                    let mut state = self.state();
                    state.record.message = Some(message);
                    state.record.updated = unix_millis().max(state.record.updated);
                }
                false
            }
            PeerEvent::InputRequests(questions) => {
                self.ask(questions);
                true
            }
            // A client of a task has no stream for messages.
            PeerEvent::Log { .. } | PeerEvent::Message { .. } => false,
        }
    }

    /// Adds questions that the client supports; the others fail immediately.
    pub(super) fn ask(&self, questions: Vec<Arc<Interaction>>) {
        let capabilities = self.capabilities.get().as_bytes();
        let known = questions
            .into_iter()
            .filter(|it| it.question().is_some() && it.admit(capabilities));
        let known: Vec<_> = known.collect();
        let mut state = self.state();
        state.questions.extend(known);
        state.note_questions();
        drop(state);
        self.note_change();
    }

    fn state(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TaskState {
    /// Returns the open questions, and changes the state of the record accordingly.
    fn note_questions(&mut self) -> Vec<Arc<Interaction>> {
        self.questions.retain(|it| it.is_open());
        self.record.apply(match self.questions.is_empty() {
            true => TaskEvent::Answered,
            false => TaskEvent::Asked,
        });
        self.questions.clone()
    }
}

/// The text about a report of progress: the tool's own message, or the numbers.
fn progress(report: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Report {
        progress: serde_json::Number,
        total: Option<serde_json::Number>,
        message: Option<String>,
    }
    let report: Report = serde_json::from_slice(report).ok()?;
    Some(match (report.message, report.total) {
        (Some(message), _) => shortened(message),
        (None, Some(total)) => format!("{} of {total}", report.progress),
        (None, None) => report.progress.to_string(),
    })
}

fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MESSAGE_MAX) {
        text.truncate(end);
    }
    text
}

/// Creates the driver of a call that becomes a task. The request that began the call gets no more notes of it.
pub(super) fn started(core: &Arc<Core>, caller: &Caller, call: &Arc<dyn UpstreamCall>) -> TaskCall {
    let (sender, events) = interaction::events();
    let mut caller = caller.clone();
    (caller.note, caller.budget, caller.trace) = (None, None, None);
    let (core, running) = (Arc::clone(core), Arc::clone(call));
    let work = async move { core.engine.run(&caller, &running, Some(sender)).await };
    TaskCall {
        call: Arc::clone(call),
        driver: CallDriver::new(work, Some(events)),
        questions: Vec::new(),
    }
}

/// Runs the call of a task to its end, and stores the outcome. The task ends early when it is cancelled or expires.
pub(super) async fn run(entry: TableEntry, call: TaskCall, caller: Caller) {
    let (core, task) = (&entry.core, &entry.task);
    let first = task.view().record;
    let TaskCall {
        call,
        mut driver,
        questions,
    } = call;
    task.ask(questions);
    let expires = Instant::now() + Duration::from_millis(first.ttl);
    let mut checks = interval(CHECK_EVERY);
    checks.reset();
    let are_many = core.tasks.replicas.are_many();
    let over = loop {
        // cancelled: the task has ended, and dropping the driver cancels the call.
        // expires: the task is deleted.
        // checks: another replica may have cancelled the task.
        // next: progress, a question, or the end of the call.
        tokio::select! {
            biased;
            () = task.cancelled.notified() => break None,
            () = sleep_until(expires) => {
                task.cancel("the task has expired");
                break None;
            }
            _ = checks.tick(), if are_many => {
                if was_cancelled(core, &first.id).await {
                    task.cancel(requests_reason());
                }
            }
            step = driver.next() => match step {
                DriverStep::Event(event) => {
                    if task.hear(event) {
                        // A failure of the store shows in the stored record alone. The end is stored later.
                        let record = task.view().record;
                        if !record.status.is_terminal() {
                            let _ = core.tasks.store.update(&record, None, core.tasks.bounds).await;
                        }
                    }
                }
                DriverStep::Over(outcome) => break Some(outcome),
            },
        }
    };
    drop(driver);
    if let Some(over) = over {
        let (end, outcome, message) = outcome::of(&*call, &caller, over);
        task.end(end, Some(outcome), message);
    }
    store_end(core, task).await;
}

/// The text about a task that its client has cancelled.
pub(super) fn requests_reason() -> &'static str {
    "the client cancelled the task"
}

/// Returns true if the stored record says that the task was cancelled.
async fn was_cancelled(core: &Core, id: &str) -> bool {
    let stored = core.tasks.store.find(id).await;
    stored.is_ok_and(|stored| stored.is_some_and(|it| it.record.status.is_terminal()))
}

/// Stores the end of a task. An outcome that is too large for the store is replaced by a failure. While the store cannot be
/// reached, the task stays in this process until it expires.
async fn store_end(core: &Core, task: &RunningTask) {
    let (tasks, mut view) = (&core.tasks, task.view());
    let mut is_told = false;
    while view.record.expires() > unix_millis() {
        let stored = tasks
            .store
            .update(&view.record, view.outcome.as_ref(), tasks.bounds);
        match stored.await {
            Ok(UpdatedTask::Stored | UpdatedTask::Over) => return,
            Ok(UpdatedTask::TooLarge) => {
                let (outcome, message) = outcome::too_large();
                view.record.status = TaskStatus::Failed;
                (view.outcome, view.record.message) = (Some(outcome), message);
                continue;
            }
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::error!(%error, "the outcome of a task is not stored yet");
                }
            }
        }
        sleep(STORE_AGAIN).await;
    }
}

/// A task's entry in the table of running tasks. Dropping it removes the task from the table: after its end, after a panic, and if
/// the client leaves before the task is stored.
pub(super) struct TableEntry {
    core: Arc<Core>,
    task: Arc<RunningTask>,
    id: Arc<str>,
}

impl TableEntry {
    /// Adds a task to the table.
    pub(super) fn enter(core: &Arc<Core>, task: Arc<RunningTask>) -> Self {
        let id = Arc::clone(&task.view().record.id);
        let (shared, entered) = (Arc::clone(&id), Arc::clone(&task));
        core.tasks.running().insert(shared, entered);
        Self {
            core: Arc::clone(core),
            task,
            id,
        }
    }
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        // Only a task whose runner panicked, or that was not stored, has not ended yet. Waits for it must be answered.
        let (failure, message) = outcome::not_run_to_its_end();
        let end = TaskEnd::Failed;
        self.task.end(end, Some(failure), Some(message));
        self.core.tasks.running().remove(&self.id);
    }
}
