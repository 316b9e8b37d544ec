//! A `subscriptions/listen` request that is registered for change notifications of a namespace.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{Change, Changes, NamespaceAudience, Stream, URI_BYTES_MAX, URIS_MAX, frame};
use crate::session::subscriptions;
use crate::stream::HeldByStream;

/// The kinds of changes of which a listen request is notified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// True if the client is notified of changes of the list of tools.
    pub tools: bool,
    /// True if the client is notified of changes of the list of prompts.
    pub prompts: bool,
    /// True if the client is notified of changes of the list of resources.
    pub resources: bool,
    /// URIs of the resources of whose updates the client is notified.
    pub updates: Vec<String>,
}

/// Error: a listen request names more resources than are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many resource subscriptions")]
pub struct TooManyUpdates;

/// Registration of a listen request for change notifications. Dropping it ends the registration.
pub struct ListenGuard {
    members: Arc<NamespaceAudience>,
    key: usize,
}

pub(super) struct StreamListener {
    tools: bool,
    prompts: bool,
    resources: bool,
    updates: BTreeSet<String>,
    /// Id of the `subscriptions/listen` request, as raw JSON; `None` for a stream that belongs to no such request.
    subscription_id: Option<Box<str>>,
    stream: Arc<Stream>,
}

impl Filter {
    /// Checks the number and size of the resource URIs in the filter.
    ///
    /// # Errors
    ///
    /// [`TooManyUpdates`], if there are more than 1000 URIs or more than 64 KiB of them. A session has the same limits.
    pub fn check(&self) -> Result<(), TooManyUpdates> {
        let bytes: usize = self.updates.iter().map(String::len).sum();
        if self.updates.len() > URIS_MAX || bytes > URI_BYTES_MAX {
            return Err(TooManyUpdates);
        }
        Ok(())
    }
}

impl Filter {
    /// Approximate memory that a listen request with this filter occupies, in bytes.
    pub fn bytes(&self) -> usize {
        let uris = self.updates.iter().map(String::len).sum();
        subscriptions::cost(self.updates.len(), uris)
    }
}

impl StreamListener {
    /// Creates the registration of a listen request. Resource URIs beyond the limits of [`Filter::check`] are left out.
    pub(super) fn new(filter: Filter, subscription_id: &str, stream: &Arc<Stream>) -> Self {
        stream.listen(final_result(subscription_id));
        let mut bytes = 0;
        let within = |uri: &String| {
            bytes += uri.len();
            bytes <= URI_BYTES_MAX
        };
        Self {
            tools: filter.tools,
            prompts: filter.prompts,
            resources: filter.resources,
            updates: filter
                .updates
                .into_iter()
                .take(URIS_MAX)
                .take_while(within)
                .collect(),
            subscription_id: Some(subscription_id.into()),
            stream: Arc::clone(stream),
        }
    }

    /// Creates the registration of a stream that belongs to no request, for changes of all lists.
    pub(super) fn alone(stream: &Arc<Stream>) -> Self {
        Self {
            tools: true,
            prompts: true,
            resources: true,
            updates: BTreeSet::new(),
            subscription_id: None,
            stream: Arc::clone(stream),
        }
    }

    /// Returns the given changes without those that the listen request does not subscribe to.
    pub(super) fn among(&self, changes: &Changes) -> Vec<Change> {
        let lists = [
            (changes.tools && self.tools, Change::Tools),
            (changes.prompts && self.prompts, Change::Prompts),
            (changes.resources && self.resources, Change::Resources),
        ];
        let lists = lists.into_iter().filter(|(wanted, _)| *wanted);
        let updated = self.updates.iter();
        let updated = updated.filter_map(|uri| changes.updated.get(uri.as_str()));
        let updated = updated.map(|uri| Change::Updated(Arc::clone(uri)));
        lists.map(|(_, change)| change).chain(updated).collect()
    }

    pub(super) fn subscription_id(&self) -> Option<&str> {
        self.subscription_id.as_deref()
    }

    pub(super) fn push(&self, frame: Bytes) {
        // A failure is ignored: a listener whose client has disconnected or reads too slowly is removed with its guard.
        self.stream.push(frame);
    }
}

/// The result of the listen request, which is sent when the gateway ends the subscription.
fn final_result(subscription_id: &str) -> Bytes {
    let message = format!(
        r#"{{"jsonrpc":"2.0","id":{subscription_id},"result":{{"resultType":"complete","_meta":{{"io.modelcontextprotocol/subscriptionId":{subscription_id}}}}}}}"#
    );
    frame::message(None, message.as_bytes())
}

impl HeldByStream for ListenGuard {}

impl ListenGuard {
    pub(super) fn new(members: Arc<NamespaceAudience>, key: usize) -> Self {
        Self { members, key }
    }
}

impl Drop for ListenGuard {
    fn drop(&mut self) {
        let gone = self.members.listeners().try_remove(self.key);
        drop(gone);
    }
}

impl fmt::Debug for ListenGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenGuard").finish_non_exhaustive()
    }
}
