//! Progress messages of a job, which are sent to the gateway.

use tooldock_process::repositories::Progress;

/// Callback that reports the progress of a job.
pub(crate) type Show<'a> = &'a dyn Fn(Progress);

/// Reports that a step of the job begins. `percent` is the completed share of the job.
pub(crate) fn step(show: Show<'_>, percent: u8, message: impl Into<String>) {
    let message = message.into();
    show(Progress { message, percent });
}
