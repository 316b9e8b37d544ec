//! Outbox of news for the clients of all replicas: changes that a function of one replica announces. News are sent to the
//! directory immediately, and other replicas receive them with their next beat.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::{ReplicaDirectory, ReplicaId};

/// Maximum number of queued news items. Further items are dropped. The maximum is reached only if the store is unavailable, or
/// if a function announces changes in a loop.
const NEWS_MAX: usize = 256;
/// Maximum size of a news item, in bytes.
const NEWS_BYTES: usize = 8 * 1024;

/// Queued news items. Equal items are sent once, since clients fetch the changed lists after any of them.
#[derive(Default)]
pub(super) struct Outbox {
    news: Mutex<BTreeSet<String>>,
    filled: Notify,
}

impl Outbox {
    pub(super) fn put(&self, news: String) {
        let mut waiting = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < NEWS_MAX && news.len() <= NEWS_BYTES {
            waiting.insert(news);
            self.filled.notify_one();
        }
    }

    /// Waits until a news item is put into the outbox.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Sends the queued news. If that fails, they are sent with the next beat. The failure is not logged here, since the beats
    /// log that the store is unavailable.
    pub(super) async fn empty_into(&self, directory: &dyn ReplicaDirectory, own: ReplicaId) {
        let news: Vec<_> = {
            let mut waiting = self.news.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *waiting).into_iter().collect()
        };
        if !news.is_empty() && directory.tell(own, &news).await.is_err() {
            let mut waiting = self.news.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.extend(news);
        }
    }
}
