//! Follows the file of keys while the process runs: a look at its metadata several times a second, so that a key which
//! another process revokes counts no more within a second on every file system.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::store::KeyStore;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How often last uses are written, in looks: about once a minute.
const WRITE_EVERY: u32 = 240;

impl KeyStore {
    /// Puts in force what other processes change, and writes when keys were used last. Runs until it is dropped.
    pub async fn follow(self: Arc<Self>) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut until_write = WRITE_EVERY;
        loop {
            looks.tick().await;
            until_write -= 1;
            let (store, writes) = (Arc::clone(&self), until_write == 0);
            if writes {
                until_write = WRITE_EVERY;
            }
            let look = tokio::task::spawn_blocking(move || {
                store.refresh();
                if writes {
                    store.write_uses();
                }
            });
            if let Err(error) = look.await {
                tracing::error!(%error, "a look at the API keys failed; the next one follows");
            }
        }
    }
}
