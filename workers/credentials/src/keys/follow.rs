//! Follows the changes of the file of API keys while the process runs. The file is read as soon as a writer announces a change
//! ([`super::readers`]). Its metadata are also checked several times a second, for writers that cannot announce a change.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::readers::{ChangeSocket, OBEYED};
use super::store::KeyStore;

/// Interval at which the metadata of the file of keys are checked.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Number of metadata checks after which the keys' times of last use are written: about once a minute.
const WRITE_EVERY: u32 = 240;

impl KeyStore {
    /// Applies changes of other processes, and writes the keys' times of last use. Runs until the future is dropped.
    pub async fn follow(self: Arc<Self>, socket: Option<ChangeSocket>) {
        self.tables().look_into(&self);
        let writers = socket.as_ref().and_then(|socket| {
            let listener = socket.listener().and_then(UnixListener::from_std);
            let told =
                |error| tracing::warn!(%error, "changes of API keys are not heard of at once");
            listener.map_err(told).ok()
        });
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut until_write = WRITE_EVERY;
        loop {
            // Waits for the first of two events:
            // - the next check of the file's metadata is due
            // - a writer connects, which then waits until its change is in force
            let writer = tokio::select! {
                _ = looks.tick() => None,
                writer = accepted(writers.as_ref()) => Some(writer),
            };
            let store = Arc::clone(&self);
            let writes = writer.is_none() && {
                until_write -= 1;
                until_write == 0
            };
            if writes {
                until_write = WRITE_EVERY;
            }
            let is_told = writer.is_some();
            let look = spawn_blocking(move || {
                match is_told {
                    true => store.reread(),
                    false => store.refresh(),
                }
                if writes {
                    store.write_uses();
                }
            });
            match (look.await, writer) {
                (Ok(()), Some(writer)) => {
                    // Errors are ignored: the buffer is empty, so these few bytes always fit, and a writer that has disconnected
                    // needs no answer.
                    let _ = writer.try_write(OBEYED);
                }
                (Ok(()), None) => {}
                (Err(error), _) => {
                    tracing::error!(%error, "a look at the API keys failed; the next one follows");
                }
            }
        }
    }
}

/// Waits for the connection of the next writer; without a listener, waits for ever.
async fn accepted(listener: Option<&UnixListener>) -> UnixStream {
    let Some(listener) = listener else {
        return pending().await;
    };
    match listener.accept().await {
        Ok((writer, _)) => writer,
        // Accepting fails, for example, if no file descriptors are free. The next check of the metadata then finds the change.
        Err(_) => pending().await,
    }
}
