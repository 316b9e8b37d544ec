//! Notifications of clients that are passed to the server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tooldock_base::names::NamespaceName;
use tooldock_protocol::version::ServerInfo;
use tooldock_servers::pool::ConnectionKey;

use super::{ExternalServers, Requester, tasks};
use crate::upstream::{CallContext, Client};

/// Notifications that the gateway handles itself and does not pass on.
const OURS: [&str; 3] = [
    "notifications/initialized",
    "initialized",
    "notifications/cancelled",
];
/// Notifications that a client of a shared process must not send: they refer to requests of the server, and a shared process must
/// not send requests to its clients.
const PRIVATE: [&str; 3] = [
    "notifications/roots/list_changed",
    "notifications/progress",
    "notifications/tasks/status",
];

/// Maximum number of pending notifications of a client in a namespace; further ones are dropped. A notification is pending while
/// it waits for a process.
const OF_ONE_MAX: usize = 32;
/// Maximum number of pending notifications of all clients; it is reached if 32 clients use their full quota.
const ALL_MAX: usize = 32 * OF_ONE_MAX;
/// Maximum size of a client's pending notifications, in bytes. It allows the longest message that the gateway accepts.
const OF_ONE_BYTES: usize = 8 * 1024 * 1024;
/// Maximum size of all pending notifications, in bytes.
const ALL_BYTES: usize = 16 * OF_ONE_BYTES;

/// Pending notifications by client. A client without pending notifications takes no space.
#[derive(Debug, Default)]
pub(super) struct NotificationQuota(Mutex<QuotaUsage>);

#[derive(Debug, Default)]
struct QuotaUsage {
    all: Usage,
    by_client: HashMap<NotificationSource, Usage>,
}

/// Number and size in bytes of pending notifications.
#[derive(Debug, Default, Clone, Copy)]
struct Usage {
    count: usize,
    bytes: usize,
}

/// Namespace and source of a notification: the principal, or the session of a client without credentials.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct NotificationSource(NamespaceName, Option<Arc<str>>, Option<Arc<str>>);

/// Guard that counts a pending notification; dropping it ends the count.
struct PendingNotification {
    external: Arc<ExternalServers>,
    source: NotificationSource,
    bytes: usize,
}

impl NotificationSource {
    fn of(namespace: &NamespaceName, principal: Option<&Arc<str>>, client: &Client) -> Self {
        let session = match client {
            Client::Session(session) if principal.is_none() => Some(Arc::clone(session.tag())),
            _ => None,
        };
        Self(namespace.clone(), principal.cloned(), session)
    }
}

impl Usage {
    /// The usage with one more notification of this size; `None` if a limit would be exceeded.
    fn and(self, bytes: usize, count_max: usize, bytes_max: usize) -> Option<Self> {
        let more = Self {
            count: self.count + 1,
            bytes: self.bytes.saturating_add(bytes),
        };
        (more.count <= count_max && more.bytes <= bytes_max).then_some(more)
    }

    fn without(self, bytes: usize) -> Self {
        Self {
            count: self.count - 1,
            bytes: self.bytes - bytes,
        }
    }
}

impl NotificationQuota {
    /// Counts a pending notification of the client. Returns false if a limit is reached.
    fn begin(&self, source: &NotificationSource, bytes: usize) -> bool {
        let mut waiting = self.lock();
        let own = waiting.by_client.get(source).copied().unwrap_or_default();
        let own = own.and(bytes, OF_ONE_MAX, OF_ONE_BYTES);
        let all = waiting.all.and(bytes, ALL_MAX, ALL_BYTES);
        let Some((own, all)) = own.zip(all) else {
            return false;
        };
        waiting.by_client.insert(source.clone(), own);
        waiting.all = all;
        true
    }

    /// Removes a notification from the count.
    fn end(&self, source: &NotificationSource, bytes: usize) {
        let mut waiting = self.lock();
        let Some(own) = waiting.by_client.get_mut(source) else {
            return;
        };
        *own = own.without(bytes);
        if own.count == 0 {
            waiting.by_client.remove(source);
        }
        waiting.all = waiting.all.without(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, QuotaUsage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingNotification {
    fn begin(
        external: &Arc<ExternalServers>,
        source: NotificationSource,
        bytes: usize,
    ) -> Option<Self> {
        external.notices.begin(&source, bytes).then(|| Self {
            external: Arc::clone(external),
            source,
            bytes,
        })
    }
}

impl Drop for PendingNotification {
    fn drop(&mut self) {
        self.external.notices.end(&self.source, self.bytes);
    }
}

/// Sends a complete notification to the server if the server should receive it. Does not wait for the delivery, and does not
/// report a failed delivery to the sender.
pub(super) fn notify(
    external: &Arc<ExternalServers>,
    cx: &CallContext<'_>,
    method: &str,
    message: &str,
) {
    if OURS.contains(&method) {
        return;
    }
    let external = Arc::clone(external);
    let requester = Requester::of(cx);
    let principal = requester.principal.clone();
    let client = cx.client.clone();
    let source = NotificationSource::of(&cx.namespace.name, principal.as_ref(), &client);
    let Some(on_the_way) = PendingNotification::begin(&external, source, message.len()) else {
        tracing::debug!(namespace = %cx.namespace.name, "a client's notification was dropped: too many at a time");
        return;
    };
    let namespace = Arc::clone(&cx.namespace);
    let (method, message) = (method.to_owned(), message.to_owned());
    // The number of tasks is bounded by the quota, and each task by the time that a process may take to start.
    tokio::spawn(async move {
        let _on_the_way = on_the_way;
        let target = external.target(&namespace, &client, &requester, &method);
        let Ok(target) = target.await else {
            return;
        };
        let private = PRIVATE.contains(&&*method);
        let told = match target.key {
            ConnectionKey::Session(_) => true,
            // A process that is started only for the notification has no state that the notification could be about.
            ConnectionKey::Exclusive => false,
            ConnectionKey::Shared | ConnectionKey::Replica(_) | ConnectionKey::Principal(_) => {
                !private
            }
        };
        if !told {
            return;
        }
        let Ok(leased) = external.lease(&namespace, &client, target).await else {
            return;
        };
        let alike = matches!(
            (&client, leased.process.opened()),
            (Client::Modern(_), ServerInfo::Modern(_))
                | (
                    Client::Session(_) | Client::Legacy(_),
                    ServerInfo::Legacy(_)
                )
        );
        let own = tasks::may_name(&leased, principal.as_ref(), message.as_bytes());
        if own && (alike || !private) {
            let _ = leased.process.forward_notification(&message);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(namespace: &str, principal: &str) -> NotificationSource {
        let principal = Some(principal.into());
        NotificationSource(namespace.parse().expect("a name"), principal, None)
    }

    #[test]
    fn one_client_on_its_way_with_all_it_may_leaves_room_for_the_others() {
        let notices = NotificationQuota::default();
        let (ada, bob) = (source("a", "ada"), source("a", "bob"));
        let begun = std::iter::from_fn(|| notices.begin(&ada, 1).then_some(()));
        assert_eq!(begun.count(), OF_ONE_MAX);
        assert!(notices.begin(&bob, 1) && notices.begin(&source("b", "ada"), 1));
        notices.end(&ada, 1);
        assert!(notices.begin(&ada, 1) && !notices.begin(&ada, 1));
        for _ in 0..OF_ONE_MAX {
            notices.end(&ada, 1);
        }
        // Clients without notifications take no space.
        assert_eq!(notices.lock().by_client.len(), 2);
    }

    #[test]
    fn large_notifications_count_by_their_bytes() {
        let notices = NotificationQuota::default();
        let ada = source("a", "ada");
        assert!(notices.begin(&ada, OF_ONE_BYTES) && !notices.begin(&ada, 1));
        assert!(notices.begin(&source("a", "bob"), 1));
        notices.end(&ada, OF_ONE_BYTES);
        assert!(notices.begin(&ada, 1));
    }

    #[test]
    fn all_clients_together_have_a_bound() {
        let notices = NotificationQuota::default();
        let begun = (0..).map(|number| source("a", &format!("{}", number / OF_ONE_MAX)));
        let begun = begun.take_while(|source| notices.begin(source, 1)).count();
        assert_eq!(begun, ALL_MAX);
    }
}
