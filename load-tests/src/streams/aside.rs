//! A separate thread for clients that are not timed.
//!
//! Thousands of readers that wake up together would delay the timed clients, if both were on one thread, and that delay would
//! be attributed to the server.

use std::thread::JoinHandle;

use anyhow::Context;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread with a runtime. Dropping it ends the tasks on it.
pub(crate) struct Aside {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Aside {
    pub(crate) fn start(name: &str) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .context("a runtime")?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // A dropped sender stops the runtime, too. The runtime ends with the thread, and its tasks
                // with it.
                let _ = runtime.block_on(stopped);
            })
            .context("a thread")?;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The handle for spawning tasks on the thread.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already, and must not cause another one here.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_run_on_their_own_thread_and_end_with_it() {
        let aside = Aside::start("aside").unwrap();
        let name = || std::thread::current().name().map(str::to_owned);
        let there = aside.handle().spawn(async move { name() }).await.unwrap();
        assert_eq!(there.as_deref(), Some("aside"));
        let endless = aside.handle().spawn(std::future::pending::<()>());
        drop(aside);
        assert!(endless.await.unwrap_err().is_cancelled());
    }
}
