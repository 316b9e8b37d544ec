//! Directory of replicas: one hash in Redis, changed by scripts. Ages are measured by the clock of Redis, so that the clocks
//! of replicas may differ.

use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use redis::Script;
use tooldock_base::budget::BudgetUse;

use super::{RedisStore, millis};
use crate::replicas::{Announcement, BEAT_LIFE, DirectoryReply, ReplicaDirectory, ReplicaId};
use crate::stream::StoreError;

static BEAT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("beat.lua")));
static TELL: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("tell.lua")));
static LEAVE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("leave.lua")));

/// Maximum number of news items that are kept for replicas that have not read them. Older ones are deleted.
const NEWS_KEPT: u64 = 1024;

/// Name of the hash field that counts reloads.
const RELOADS: &str = "reloads";

#[async_trait]
impl ReplicaDirectory for RedisStore {
    async fn beat(
        &self,
        own: &Announcement,
        seen: Option<u64>,
    ) -> Result<DirectoryReply, StoreError> {
        let said = serde_json::to_string(own).map_err(|error| StoreError(error.to_string()))?;
        let mut script = BEAT.key(self.keys.replicas());
        script
            .arg(field(own.id))
            .arg(own.incarnation)
            .arg(said)
            .arg(millis(BEAT_LIFE))
            .arg(seen.map_or_else(String::new, |seen| seen.to_string()));
        let script = &script;
        let answer = self.link.run(|mut connection| async move {
            script.invoke_async::<Vec<String>>(&mut connection).await
        });
        parse_reply(&answer.await?).ok_or_else(|| {
            StoreError("Redis answered a beat with something else than a list of replicas".into())
        })
    }

    async fn tell(&self, own: ReplicaId, news: &[String]) -> Result<(), StoreError> {
        let mut script = TELL.key(self.keys.replicas());
        script.arg(field(own)).arg(NEWS_KEPT).arg(news);
        let script = &script;
        // A failed command is not repeated: it may have succeeded, and clients would take a second copy of the news for another
        // change.
        self.link
            .run_once(|mut connection| async move { script.invoke_async(&mut connection).await })
            .await
    }

    async fn leave(&self, own: &Announcement) -> Result<(), StoreError> {
        let mut script = LEAVE.key(self.keys.replicas());
        script.arg(field(own.id)).arg(own.incarnation);
        let script = &script;
        self.link
            .run(|mut connection| async move { script.invoke_async(&mut connection).await })
            .await
    }

    async fn ask_reload(&self) -> Result<u64, StoreError> {
        let mut ask = redis::cmd("HINCRBY");
        ask.arg(self.keys.replicas()).arg(RELOADS).arg(1);
        let ask = &ask;
        // The command may be repeated: at worst all replicas reload once more.
        self.link
            .run(|mut connection| async move { ask.query_async(&mut connection).await })
            .await
    }

    async fn take_budgets(
        &self,
        used: &[BudgetUse],
        replicas: usize,
    ) -> Result<Vec<Duration>, StoreError> {
        self.take_from_budgets(used, replicas).await
    }
}

fn field(id: ReplicaId) -> String {
    format!("replica:{}", id.0)
}

/// Parses the response of the script. Announcements in the format of another gateway version are omitted.
fn parse_reply(answer: &[String]) -> Option<DirectoryReply> {
    let [now, settled, rival, known, reloads, newest, up, said @ ..] = answer else {
        return None;
    };
    let (others, news) = said.split_at_checked(up.parse().ok()?)?;
    let others = others.iter();
    Some(DirectoryReply {
        others: others
            .filter_map(|other| serde_json::from_str(other).ok())
            .collect(),
        settled: settled == "1",
        rival: rival == "1",
        known: known == "1",
        reloads: reloads.parse().ok()?,
        newest: newest.parse().ok()?,
        news: news.to_vec(),
        now: now.parse().ok()?,
    })
}
