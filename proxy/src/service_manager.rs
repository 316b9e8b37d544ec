//! Sends messages to the service manager that started the gateway (`NOTIFY_SOCKET`, as systemd's `Type=notify-reload`): the end
//! of the start, the begin and end of a reload, the stop, and watchdog messages.
//!
//! Without `NOTIFY_SOCKET` nothing is sent. A message that cannot be sent is dropped, because the gateway also works without a
//! manager. Messages are sent by a separate thread, so that a manager that does not read (on some kernels its socket has room for
//! only ten messages) blocks only that thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use sd_notify::NotifyState;

/// Time extension that is requested from the manager during a start or a reload. Installing packages may take minutes.
const EXTENSION: Duration = Duration::from_secs(30);

/// Maximum time for which a stop waits until its message is sent. The wait is needed because the process may end right after it.
const DELIVERY: Duration = Duration::from_secs(1);

/// Maximum number of queued messages. A start queues one message, a reload two. Further messages are dropped.
const QUEUE: usize = 64;

/// The service manager that started this process. Clones send to the same manager.
#[derive(Debug, Clone)]
pub(crate) struct ServiceManager {
    /// Time without a watchdog message after which the manager ends the process; `None` without a watchdog.
    watchdog: Option<Duration>,
    /// Number of starts and reloads in progress.
    unfinished: Arc<AtomicUsize>,
    sender: Sender,
}

/// Guard of a start or a reload in progress. When the last guard is dropped, the service manager is told that the gateway is
/// ready.
#[derive(Debug)]
pub(crate) struct InProgressGuard {
    count: Arc<AtomicUsize>,
    sender: Sender,
}

/// Sends messages through a queue and a thread. Clones share the queue.
#[derive(Debug, Clone)]
struct Sender {
    /// The queue of messages; `None` without a service manager.
    queue: Option<mpsc::SyncSender<ManagerMessage>>,
    /// True while a message that is sent at intervals is in the queue. The next such message is then skipped, so that the queue
    /// does not fill if the manager does not read.
    repeated_waits: Arc<AtomicBool>,
}

/// A message for the service manager, in the queue.
struct ManagerMessage {
    states: Vec<NotifyState<'static>>,
    /// True for a message that is sent again at intervals, such as a watchdog message.
    repeated: bool,
    /// Dropped when the message has been sent, so that the sender of the message can wait for that.
    delivered: Option<mpsc::SyncSender<()>>,
}

impl ServiceManager {
    /// Reads the environment variables that the manager has set: `WATCHDOG_USEC`, and whether `NOTIFY_SOCKET` exists. The value
    /// of `NOTIFY_SOCKET` is read with each message.
    pub(crate) fn of_environment() -> Self {
        Self {
            watchdog: sd_notify::watchdog_enabled(),
            unfinished: Arc::default(),
            sender: Sender::start(std::env::var_os("NOTIFY_SOCKET").is_some()),
        }
    }

    /// Interval of watchdog messages: half of the watchdog's time limit. `None` without a watchdog.
    pub(crate) fn sign_of_life_every(&self) -> Option<Duration> {
        const LEAST: Duration = Duration::from_millis(10);
        self.watchdog.map(|it| (it / 2).max(LEAST))
    }

    /// Sends a watchdog message to the service manager.
    pub(crate) fn alive(&self) {
        self.sender.repeat(NotifyState::Watchdog);
    }

    /// Begins the start of this process. Dropping the returned value reports its end.
    pub(crate) fn starting(&self) -> InProgressGuard {
        InProgressGuard::of(self)
    }

    /// Reports the begin of a reload. Dropping the returned value reports its end.
    pub(crate) fn reloading(&self) -> InProgressGuard {
        let unfinished = InProgressGuard::of(self);
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.sender.send(vec![NotifyState::Reloading, now]),
            Err(error) => tracing::debug!("no monotonic clock: {error}"),
        }
        unfinished
    }

    /// Requests more time from the manager if a start or a reload is in progress. Called every second.
    pub(crate) fn extend(&self) {
        if self.unfinished.load(Ordering::Acquire) > 0 {
            self.sender.repeat(extension(EXTENSION));
        }
    }

    /// Reports that the gateway stops within `grace`. Waits at most one second until the message is sent.
    pub(crate) fn stopping(&self, grace: Duration) {
        self.sender.deliver(vec![
            NotifyState::Stopping,
            extension(grace.saturating_add(EXTENSION)),
        ]);
    }
}

impl InProgressGuard {
    fn of(manager: &ServiceManager) -> Self {
        manager.unfinished.fetch_add(1, Ordering::AcqRel);
        Self {
            count: Arc::clone(&manager.unfinished),
            sender: manager.sender.clone(),
        }
    }
}

impl Drop for InProgressGuard {
    fn drop(&mut self) {
        // Two reloads may run at the same time. `READY=1` is sent when the last of them has ended.
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.sender.send(vec![NotifyState::Ready]);
        }
    }
}

impl Sender {
    /// Creates the queue, and starts the thread if there is a manager. The thread ends when the last clone is dropped.
    fn start(has_manager: bool) -> Self {
        let (queue, messages) = mpsc::sync_channel(QUEUE);
        let repeated_waits = Arc::new(AtomicBool::new(false));
        let waits = Arc::clone(&repeated_waits);
        let started = has_manager
            && std::thread::Builder::new()
                .name("service-manager".to_owned())
                .spawn(move || run(&messages, &waits))
                .inspect_err(|error| tracing::warn!("the service manager is told nothing: {error}"))
                .is_ok();
        Self {
            queue: started.then_some(queue),
            repeated_waits,
        }
    }

    /// Queues a message that is sent at intervals. The message is skipped if such a message is still in the queue.
    fn repeat(&self, state: NotifyState<'static>) {
        if !self.repeated_waits.swap(true, Ordering::AcqRel) {
            self.put(vec![state], true, None);
        }
    }

    /// Queues a message for the service manager.
    fn send(&self, states: Vec<NotifyState<'static>>) {
        self.put(states, false, None);
    }

    /// Puts a message into the queue and waits until it is sent, at most for [`DELIVERY`].
    fn deliver(&self, states: Vec<NotifyState<'static>>) {
        let (delivered, end) = mpsc::sync_channel(0);
        self.put(states, false, Some(delivered));
        // An error is expected: it means that the message was sent or dropped, or that the time limit has expired.
        let _ = end.recv_timeout(DELIVERY);
    }

    fn put(
        &self,
        states: Vec<NotifyState<'static>>,
        repeated: bool,
        delivered: Option<mpsc::SyncSender<()>>,
    ) {
        if let Some(queue) = &self.queue {
            let message = ManagerMessage {
                states,
                repeated,
                delivered,
            };
            if queue.try_send(message).is_err() {
                if repeated {
                    self.repeated_waits.store(false, Ordering::Release);
                }
                tracing::debug!("the service manager reads nothing: a message was dropped");
            }
        }
    }
}

fn run(messages: &mpsc::Receiver<ManagerMessage>, repeated_waits: &AtomicBool) {
    for message in messages {
        if message.repeated {
            repeated_waits.store(false, Ordering::Release);
        }
        if let Err(error) = sd_notify::notify(&message.states) {
            tracing::debug!("the service manager was not reached: {error}");
        }
        drop(message.delivered);
    }
}

fn extension(by: Duration) -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(by.as_micros().try_into().unwrap_or(u32::MAX))
}
