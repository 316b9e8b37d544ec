//! Signals of the operator to a running gateway: SIGTERM and SIGINT drain it, a second one ends it immediately, SIGHUP reloads,
//! SIGUSR1 reopens log files (DESIGN §3, *Signals*), SIGQUIT logs the instructions for an upgrade. Every other signal that
//! would end the process without a fault of its own is ignored, with a line in the log.
//!
//! Signals are handled, not blocked or set to be ignored, since children would inherit that. Their guards themselves ignore the
//! signals that must not end them.
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

/// Exit status of a gateway that received two stop signals.
const STATUS_TOLD_TWICE: i32 = 1;

/// Signals without effect. SIGQUIT starts an upgrade in other programs built with Pingora; here the successor starts it.
const MEANINGLESS: [i32; 7] = [
    SIGUSR2, SIGQUIT, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGXCPU,
];
/// SIGSTKFLT and SIGPWR, which do not exist on every platform and are not named by the library.
const MEANINGLESS_ON_LINUX: [i32; 2] = [16, 30];
/// The realtime signals. The C library reserves the first ones and refuses a handler.
const REALTIME: std::ops::RangeInclusive<i32> = 34..=64;

/// The requests made by signals so far. Clones share the requests.
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
        // Ignored without a line in the log: the write to the file that is too large fails and is reported by its
        // writer, and the log itself may be that file.
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

    /// Stops the process as SIGTERM does, since a successor accepts connections in its place.
    pub(crate) fn hand_over(&self) {
        self.handed_over.send_replace(true);
        self.stop_sender.send_replace(true);
    }

    /// Turns true when a successor accepts connections in place of this process.
    pub(crate) fn handed_over(&self) -> watch::Receiver<bool> {
        self.handed_over.subscribe()
    }

    /// Turns true when the process has been told to stop.
    pub(crate) fn stop_requested(&self) -> watch::Receiver<bool> {
        self.stop.clone()
    }

    /// Counts SIGHUPs; a change is a request to reload.
    pub(crate) fn reload_requests(&self) -> watch::Receiver<u64> {
        self.reload.clone()
    }

    /// Counts SIGUSR1s; a change is a request to open log files anew.
    pub(crate) fn reopen_requests(&self) -> watch::Receiver<u64> {
        self.reopen.clone()
    }
}

/// The name of a signal.
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
        // The sender is on a thread that never ends, so an error cannot occur; to be safe, it would be read as a stop.
        let _ = stop.wait_for(|stop| *stop).await;
        ShutdownSignal::GracefulTerminate
    }
}
