//! Signals of the operator to a running gateway: SIGTERM and SIGINT drain it, a second one ends it immediately, SIGHUP reloads,
//! SIGUSR1 reopens log files (DESIGN §3, *Signals*), SIGQUIT logs the instructions for an upgrade. Other signals that would end a
//! process by default are ignored and logged, except those for faults of the process itself.
//!
//! Signals are handled. They are not blocked or set to be ignored, because children would inherit that. The guards of children
//! ignore those signals themselves that must not end them.
//!
//! Pingora's own signal watcher is not used: its SIGINT drops every task immediately, and while it shuts down it ignores all
//! further signals. This watcher runs in a separate thread, started before any slow work, so that a SIGHUP or SIGTERM that
//! arrives while the first environment is being built is not lost and does not kill the process.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::thread;

use async_trait::async_trait;
use pingora_core::server::{ShutdownSignal, ShutdownSignalWatch};
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM,
    SIGXCPU, SIGXFSZ,
};
use tokio::sync::watch;

/// Exit status of a gateway that was ended by a second stop signal.
const STATUS_TOLD_TWICE: i32 = 1;

/// Signals that are logged and otherwise ignored. In other programs built with Pingora, SIGQUIT starts an upgrade; here the new
/// process starts it.
const MEANINGLESS: [i32; 7] = [
    SIGUSR2, SIGQUIT, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGXCPU,
];
/// The ignored signals SIGSTKFLT and SIGPWR, by number. They do not exist on every platform, and the library has no names for
/// them.
const MEANINGLESS_ON_LINUX: [i32; 2] = [16, 30];
/// The realtime signals, which are ignored. The C library reserves the first ones and refuses a handler for them.
const REALTIME: std::ops::RangeInclusive<i32> = 34..=64;

/// Requests of the operator that arrived as signals. Clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct Signals {
    stop: watch::Receiver<bool>,
    stop_sender: Arc<watch::Sender<bool>>,
    handed_over: Arc<watch::Sender<bool>>,
    reload: watch::Receiver<u64>,
    reopen: watch::Receiver<u64>,
}

impl Signals {
    /// Installs handlers for the signals of this process.
    ///
    /// # Errors
    ///
    /// When the operating system refuses a handler or the thread.
    pub(crate) fn install() -> io::Result<Self> {
        let wanted = [SIGTERM, SIGINT, SIGHUP, SIGUSR1];
        let mut signals = signal_hook::iterator::Signals::new(wanted.iter().chain(&MEANINGLESS))?;
        for signal in MEANINGLESS_ON_LINUX.into_iter().chain(REALTIME) {
            let _ = signals.add_signal(signal);
        }
        // SIGXFSZ is ignored and not logged. It means that a file is too large; its writer reports that, and the file may be the
        // log itself.
        signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        let (stop_sender, stop) = watch::channel(false);
        let stop_sender = Arc::new(stop_sender);
        let stopping = Arc::clone(&stop_sender);
        let (reload_sender, reload) = watch::channel(0);
        let (reopen_sender, reopen) = watch::channel(0);
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let mut told = false;
                for signal in signals.forever() {
                    match signal {
                        SIGHUP => reload_sender.send_modify(|count| *count += 1),
                        SIGUSR1 => reopen_sender.send_modify(|count| *count += 1),
                        SIGTERM | SIGINT if std::mem::replace(&mut told, true) => {
                            tracing::warn!("told to stop a second time: ending at once");
                            std::process::exit(STATUS_TOLD_TWICE);
                        }
                        SIGTERM | SIGINT => {
                            stopping.send_replace(true);
                        }
                        SIGQUIT => tracing::info!(
                            "SIGQUIT: a gateway that is started with `tooldock serve --upgrade` takes over as soon as it is \
                             ready, and this one serves until then"
                        ),
                        other => tracing::warn!(
                            "{} ignored: the gateway has no use for this signal",
                            name(other)
                        ),
                    }
                }
            })?;
        Ok(Self {
            stop,
            stop_sender,
            handed_over: Arc::new(watch::Sender::new(false)),
            reload,
            reopen,
        })
    }

    /// Stops the process in the same way as SIGTERM, because a successor accepts connections in its place.
    pub(crate) fn hand_over(&self) {
        self.handed_over.send_replace(true);
        self.stop_sender.send_replace(true);
    }

    /// Becomes true when a successor accepts connections in place of this process.
    pub(crate) fn handed_over(&self) -> watch::Receiver<bool> {
        self.handed_over.subscribe()
    }

    /// Becomes true when the process has been requested to stop.
    pub(crate) fn stop_requested(&self) -> watch::Receiver<bool> {
        self.stop.clone()
    }

    /// The number of SIGHUP signals so far. Each change of the number is a request to reload.
    pub(crate) fn reload_requests(&self) -> watch::Receiver<u64> {
        self.reload.clone()
    }

    /// The number of SIGUSR1 signals so far. Each change of the number is a request to reopen the log files.
    pub(crate) fn reopen_requests(&self) -> watch::Receiver<u64> {
        self.reopen.clone()
    }
}

/// The name of a signal for the log; its number if it has no name.
fn name(signal: i32) -> Cow<'static, str> {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => name.into(),
        None => format!("signal {signal}").into(),
    }
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let mut stop = self.stop.clone();
        // An error would mean that the sending thread has ended, which it never does. It would be treated as a stop.
        let _ = stop.wait_for(|stop| *stop).await;
        ShutdownSignal::GracefulTerminate
    }
}
