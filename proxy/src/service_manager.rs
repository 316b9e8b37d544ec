//! Messages to the service manager that started the gateway (`NOTIFY_SOCKET`, as systemd's `Type=notify-reload`): the start is
//! over, a reload begins and ends, the gateway stops, and a sign of life for the watchdog.
//!
//! Without `NOTIFY_SOCKET` nothing is sent. A message that cannot be sent is dropped: the gateway serves without a manager, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;

/// Time that the manager waits for more at least, while a start or a reload goes on: packages may be installed for minutes.
const EXTENSION: Duration = Duration::from_secs(30);

/// The service manager. Clones send to the same manager.
#[derive(Debug, Clone)]
pub(crate) struct ServiceManager {
    /// Time after which the manager ends a process that gives no sign of life.
    watchdog: Option<Duration>,
    /// Starts and reloads that are under way.
    unfinished: Arc<AtomicUsize>,
}

/// A start or a reload that is under way. The manager learns of its end when the value is dropped.
#[derive(Debug)]
pub(crate) struct Unfinished(Arc<AtomicUsize>);

impl ServiceManager {
    /// Reads the variables that the manager has set (`WATCHDOG_USEC`; `NOTIFY_SOCKET` is read with each message).
    pub(crate) fn of_environment() -> Self {
        Self {
            watchdog: sd_notify::watchdog_enabled(),
            unfinished: Arc::default(),
        }
    }

    /// Interval of signs of life: half of the watchdog's time. `None` without a watchdog.
    pub(crate) fn sign_of_life_every(&self) -> Option<Duration> {
        const LEAST: Duration = Duration::from_millis(10);
        self.watchdog.map(|it| (it / 2).max(LEAST))
    }

    /// Gives a sign of life.
    pub(crate) fn alive(&self) {
        send(&[NotifyState::Watchdog]);
    }

    /// The start of this process, which goes on until the returned value is dropped.
    pub(crate) fn starting(&self) -> Unfinished {
        Unfinished::of(&self.unfinished)
    }

    /// Tells the manager that a reload begins. It goes on until the returned value is dropped.
    pub(crate) fn reloading(&self) -> Unfinished {
        let unfinished = Unfinished::of(&self.unfinished);
        match NotifyState::monotonic_usec_now() {
            Ok(now) => send(&[NotifyState::Reloading, now]),
            Err(error) => tracing::debug!("no monotonic clock: {error}"),
        }
        unfinished
    }

    /// Asks the manager for patience while a start or a reload goes on. Called every second.
    pub(crate) fn extend(&self) {
        if self.unfinished.load(Ordering::Acquire) > 0 {
            send(&[extension(EXTENSION)]);
        }
    }

    /// Tells the manager that the gateway stops, within `grace`.
    pub(crate) fn stopping(&self, grace: Duration) {
        send(&[
            NotifyState::Stopping,
            extension(grace.saturating_add(EXTENSION)),
        ]);
    }
}

impl Unfinished {
    fn of(unfinished: &Arc<AtomicUsize>) -> Self {
        unfinished.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(unfinished))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // A manager that was told of two reloads waits for the end of both.
        if self.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            send(&[NotifyState::Ready]);
        }
    }
}

fn extension(by: Duration) -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(by.as_micros().try_into().unwrap_or(u32::MAX))
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("the service manager was not reached: {error}");
    }
}
