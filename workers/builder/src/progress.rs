//! Progress of a job, as it is sent to the gateway.

use tooldock_process::repositories::Progress;

/// Callback for progress of a job.
pub(crate) type Show<'a> = &'a dyn Fn(Progress);

/// Reports the start of a step.
pub(crate) fn step(show: Show<'_>, percent: u8, message: impl Into<String>) {
    let message = message.into();
    show(Progress { message, percent });
}
