//! What the operator says to a running gateway: SIGTERM and SIGINT drain it, a second one ends it at once, SIGHUP
//! reloads (DESIGN §3, *Signals*).
//!
//! Pingora's own watcher is not used: its SIGINT drops every task at once, and while it shuts down it ignores all further
//! signals. Ours lives on a thread of its own, started before anything slow, so that a SIGHUP or SIGTERM that comes while
//! the first environment is being built is not lost and kills nothing by default action.

use std::io;
use std::thread;

use async_trait::async_trait;
use pingora_core::server::{ShutdownSignal, ShutdownSignalWatch};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use tokio::sync::watch;

/// The exit status of a gateway that was told twice to stop.
const STATUS_TOLD_TWICE: i32 = 1;

/// What has been asked so far. Clones see the same requests.
#[derive(Debug, Clone)]
pub(crate) struct Signals {
    stop: watch::Receiver<bool>,
    reload: watch::Receiver<u64>,
}

impl Signals {
    /// Takes over the signals of this process.
    ///
    /// # Errors
    ///
    /// When the operating system refuses a handler or the thread.
    pub(crate) fn install() -> io::Result<Self> {
        let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP, SIGQUIT])?;
        let (stop_sender, stop) = watch::channel(false);
        let (reload_sender, reload) = watch::channel(0);
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    match signal {
                        SIGHUP => reload_sender.send_modify(|count| *count += 1),
                        SIGQUIT => {
                            tracing::warn!(
                                "SIGQUIT ignored: upgrades are not supported by this version"
                            );
                        }
                        _ if *stop_sender.borrow() => {
                            tracing::warn!("told twice to stop, ending at once");
                            std::process::exit(STATUS_TOLD_TWICE);
                        }
                        _ => {
                            stop_sender.send_replace(true);
                        }
                    }
                }
            })?;
        Ok(Self { stop, reload })
    }

    /// Turns true when the process has been told to stop.
    pub(crate) fn stop_requested(&self) -> watch::Receiver<bool> {
        self.stop.clone()
    }

    /// Counts SIGHUPs; a change is a request to reload.
    pub(crate) fn reload_requests(&self) -> watch::Receiver<u64> {
        self.reload.clone()
    }
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let mut stop = self.stop.clone();
        // The sender lives on a thread that never ends, so an error cannot come; stopping is the safe reading of one.
        let _ = stop.wait_for(|stop| *stop).await;
        ShutdownSignal::GracefulTerminate
    }
}
