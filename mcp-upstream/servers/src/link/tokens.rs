//! Progress tokens of calls that were answered with a task, as their callers wrote them. The server uses the call's id instead.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::NotificationSink;

/// Maximum number of calls whose progress token is kept after their response. The oldest token is dropped for a new one.
const LASTING_MAX: usize = 64;

/// Progress tokens and sinks of calls that were answered with a task. Progress of the task still names the call's id.
#[derive(Default)]
pub(super) struct TaskTokens(VecDeque<(u64, Arc<str>, Arc<dyn NotificationSink>)>);

impl TaskTokens {
    /// Stores the progress token of a call that was answered with a task.
    pub(super) fn keep(&mut self, id: u64, token: Arc<str>, sink: Arc<dyn NotificationSink>) {
        if self.0.len() == LASTING_MAX {
            self.0.pop_front();
        }
        self.0.push_back((id, token, sink));
    }

    /// Finds the progress token and sink of a call that was answered with a task.
    pub(super) fn find(&self, id: u64) -> Option<(Arc<str>, Arc<dyn NotificationSink>)> {
        self.0
            .iter()
            .find(|(kept, ..)| *kept == id)
            .map(|(_, token, sink)| (Arc::clone(token), Arc::clone(sink)))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreatedTask<'a> {
    #[serde(borrow, default)]
    task: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result_type: Option<&'a RawValue>,
}

/// Returns true if a result shows that the call continues as a task.
pub(super) fn is_task(result: &RawValue) -> bool {
    let text = result.get();
    /// Text that is searched for before the result is parsed, since results are large and tasks are rare.
    static WORD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"task\""));
    if !text.starts_with('{') || WORD.find(text.as_bytes()).is_none() {
        return false;
    }
    serde_json::from_str::<CreatedTask<'_>>(text).is_ok_and(|created| {
        created.task.is_some_and(|task| task.get().starts_with('{'))
            || created
                .result_type
                .is_some_and(|kind| kind.get() == "\"task\"")
    })
}
