//! Messages to the service manager that started the gateway (`NOTIFY_SOCKET`, as systemd's `Type=notify-reload`): the end of
//! the start, the begin and end of a reload, the stop, and watchdog messages.
//!
//! Without `NOTIFY_SOCKET` nothing is sent. A message that cannot be sent is dropped: the gateway also serves without a
//! manager. A manager that does not read blocks only the thread that sends (its socket holds ten messages on some kernels).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use sd_notify::NotifyState;

/// Time extension requested from the manager during a start or a reload, since packages may be installed for minutes.
const EXTENSION: Duration = Duration::from_secs(30);

/// Maximum wait of a stop until the message to the manager is sent, since the process may end immediately afterwards.
const DELIVERY: Duration = Duration::from_secs(1);

/// Capacity of the queue of messages that are not repeated: a start, and two for each reload.
const QUEUE: usize = 64;

/// The service manager. Clones send to the same manager.
#[derive(Debug, Clone)]
pub(crate) struct ServiceManager {
    /// Time after which the manager ends a process without watchdog messages.
    watchdog: Option<Duration>,
    /// Starts and reloads that are under way.
    unfinished: Arc<AtomicUsize>,
    sender: Sender,
}

/// A start or a reload that is under way. The manager learns of its end when the value is dropped.
#[derive(Debug)]
pub(crate) struct Unfinished {
    count: Arc<AtomicUsize>,
    sender: Sender,
}

/// The queue of the thread that sends. Clones share it.
#[derive(Debug, Clone)]
struct Sender {
    /// `None` without a manager.
    queue: Option<mpsc::SyncSender<ManagerMessage>>,
    /// True while a repeated message is in the queue. The next one is skipped, so that a manager that does not read costs no
    /// memory.
    repeated_waits: Arc<AtomicBool>,
}

/// A message in the queue.
struct ManagerMessage {
    states: Vec<NotifyState<'static>>,
    /// A message that is sent at intervals.
    repeated: bool,
    /// Dropped when the message is sent.
    delivered: Option<mpsc::SyncSender<()>>,
}

impl ServiceManager {
    /// Reads the variables that the manager has set (`WATCHDOG_USEC`; `NOTIFY_SOCKET` is read with each message).
    pub(crate) fn of_environment() -> Self {
        Self {
            watchdog: sd_notify::watchdog_enabled(),
            unfinished: Arc::default(),
            sender: Sender::start(std::env::var_os("NOTIFY_SOCKET").is_some()),
        }
    }

    /// Interval of signs of life: half of the watchdog's time. `None` without a watchdog.
    pub(crate) fn sign_of_life_every(&self) -> Option<Duration> {
        const LEAST: Duration = Duration::from_millis(10);
        self.watchdog.map(|it| (it / 2).max(LEAST))
    }

    /// Sends a watchdog message.
    pub(crate) fn alive(&self) {
        self.sender.repeat(NotifyState::Watchdog);
    }

    /// Begins the start of this process, which lasts until the returned value is dropped.
    pub(crate) fn starting(&self) -> Unfinished {
        Unfinished::of(self)
    }

    /// Reports the begin of a reload, which lasts until the returned value is dropped.
    pub(crate) fn reloading(&self) -> Unfinished {
        let unfinished = Unfinished::of(self);
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.sender.send(vec![NotifyState::Reloading, now]),
            Err(error) => tracing::debug!("no monotonic clock: {error}"),
        }
        unfinished
    }

    /// Requests more time from the manager during a start or a reload. Called every second.
    pub(crate) fn extend(&self) {
        if self.unfinished.load(Ordering::Acquire) > 0 {
            self.sender.repeat(extension(EXTENSION));
        }
    }

    /// Reports that the gateway stops within `grace`. Waits until the message is sent, at most for a second.
    pub(crate) fn stopping(&self, grace: Duration) {
        self.sender.deliver(vec![
            NotifyState::Stopping,
            extension(grace.saturating_add(EXTENSION)),
        ]);
    }
}

impl Unfinished {
    fn of(manager: &ServiceManager) -> Self {
        manager.unfinished.fetch_add(1, Ordering::AcqRel);
        Self {
            count: Arc::clone(&manager.unfinished),
            sender: manager.sender.clone(),
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Two reloads may run at the same time. The service manager hears `READY=1` when the last of them has ended.
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.sender.send(vec![NotifyState::Ready]);
        }
    }
}

impl Sender {
    /// Starts the thread if there is a manager. The thread ends with the last clone.
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

    /// Puts a message into the queue that is sent again soon, unless one waits there.
    fn repeat(&self, state: NotifyState<'static>) {
        if !self.repeated_waits.swap(true, Ordering::AcqRel) {
            self.put(vec![state], true, None);
        }
    }

    /// Puts a message into the queue.
    fn send(&self, states: Vec<NotifyState<'static>>) {
        self.put(states, false, None);
    }

    /// Puts a message into the queue and waits until it is sent, at most for [`DELIVERY`].
    fn deliver(&self, states: Vec<NotifyState<'static>>) {
        let (delivered, end) = mpsc::sync_channel(0);
        self.put(states, false, Some(delivered));
        // An error is either the end of the message, sent or dropped, or of the time.
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
