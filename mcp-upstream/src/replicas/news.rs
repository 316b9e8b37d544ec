//! News for the clients of all replicas, on their way to the directory: changes that a function of one replica announces.
//! They are told at once and heard with the next beat.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::{ReplicaDirectory, ReplicaId};

/// News that wait to be told. More at once are not told: the store is away, or a function announces changes without end.
const NEWS_MAX: usize = 256;
/// The longest news, in bytes.
const NEWS_BYTES: usize = 8 * 1024;

/// News that wait to be told. Equal ones are told once: clients fetch what changed anyway.
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

    /// Waits until there are some.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Tells what waits. A directory that is away says so at its beats, and is told after one that succeeds.
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
