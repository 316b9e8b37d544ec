//! The states of a task, and the transitions between them.

use serde::{Deserialize, Serialize};

/// The state of a task, in the words of MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// The task's call runs.
    Working,
    /// The task's call waits for answers of its client.
    InputRequired,
    /// The call has a result, which may report a failure of the tool.
    Completed,
    /// The call has no result: the gateway or the worker failed.
    Failed,
    /// The task was cancelled.
    Cancelled,
}

/// The end of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskEnd {
    /// The call has a result.
    Completed,
    /// The call has no result.
    Failed,
    /// The task was cancelled.
    Cancelled,
}

/// An event that may change the state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskEvent {
    /// The call has asked its client.
    Asked,
    /// No question of the call is open any more.
    Answered,
    /// The task has ended.
    Ended(TaskEnd),
}

impl TaskStatus {
    /// Returns the state after an event; `None` if the event changes nothing. A terminal state is never left.
    pub fn after(self, event: TaskEvent) -> Option<Self> {
        let next = match (self, event) {
            (Self::Completed | Self::Failed | Self::Cancelled, _) => return None,
            (Self::Working | Self::InputRequired, TaskEvent::Asked) => Self::InputRequired,
            (Self::Working | Self::InputRequired, TaskEvent::Answered) => Self::Working,
            (Self::Working | Self::InputRequired, TaskEvent::Ended(end)) => match end {
                TaskEnd::Completed => Self::Completed,
                TaskEnd::Failed => Self::Failed,
                TaskEnd::Cancelled => Self::Cancelled,
            },
        };
        (next != self).then_some(next)
    }

    /// Returns true if the task has ended.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// The state as MCP writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: [TaskEnd; 3] = [TaskEnd::Completed, TaskEnd::Failed, TaskEnd::Cancelled];
    const ALL: [TaskStatus; 5] = [
        TaskStatus::Working,
        TaskStatus::InputRequired,
        TaskStatus::Completed,
        TaskStatus::Failed,
        TaskStatus::Cancelled,
    ];

    #[test]
    fn a_terminal_state_is_never_left() {
        for status in ALL.into_iter().filter(|it| it.is_terminal()) {
            let ends = ENDS.map(TaskEvent::Ended);
            for event in ends
                .into_iter()
                .chain([TaskEvent::Asked, TaskEvent::Answered])
            {
                assert_eq!(status.after(event), None, "{status:?} {event:?}");
            }
        }
    }

    #[test]
    fn a_running_task_can_end_in_every_way_and_ask_any_number_of_times() {
        let mut status = TaskStatus::Working;
        for _ in 0..3 {
            status = status.after(TaskEvent::Asked).expect("it asks");
            assert_eq!(status, TaskStatus::InputRequired);
            assert_eq!(status.after(TaskEvent::Asked), None);
            status = status.after(TaskEvent::Answered).expect("it goes on");
            assert_eq!(status, TaskStatus::Working);
            assert_eq!(status.after(TaskEvent::Answered), None);
        }
        for running in [TaskStatus::Working, TaskStatus::InputRequired] {
            for end in ENDS {
                let ended = running.after(TaskEvent::Ended(end));
                assert!(ended.is_some_and(TaskStatus::is_terminal), "{end:?}");
            }
        }
    }

    #[test]
    fn a_state_is_stored_in_the_words_of_mcp() {
        for status in ALL {
            let text = serde_json::to_string(&status).expect("plain data");
            assert_eq!(text, format!("\"{}\"", status.as_str()));
        }
    }
}
