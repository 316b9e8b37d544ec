//! A `subscriptions/listen` request in the audience of its namespace.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{Change, Changes, NamespaceAudience, Stream, URI_BYTES_MAX, URIS_MAX, frame};
use crate::session::subscriptions;

/// The kinds of changes that a listener subscribes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Changes of the list of tools.
    pub tools: bool,
    /// Changes of the list of prompts.
    pub prompts: bool,
    /// Changes of the list of resources.
    pub resources: bool,
    /// Updates of these resources.
    pub updates: Vec<String>,
}

/// Error: a filter names more resources than a listener may subscribe to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many resource subscriptions")]
pub struct TooManyUpdates;

/// Keeps a listener in the audience; dropping it removes the listener.
pub struct ListenGuard {
    members: Arc<NamespaceAudience>,
    key: usize,
}

pub(super) struct StreamListener {
    tools: bool,
    prompts: bool,
    resources: bool,
    updates: BTreeSet<String>,
    /// The id of the `subscriptions/listen` request; `None` for a stream that answers no request.
    subscription_id: Option<Box<str>>,
    stream: Arc<Stream>,
}

impl Filter {
    /// Checks that the filter is within the bounds of a listener.
    ///
    /// # Errors
    ///
    /// [`TooManyUpdates`] beyond 1000 resources or 64 KiB of their URIs: the bounds of a session.
    pub fn check(&self) -> Result<(), TooManyUpdates> {
        let bytes: usize = self.updates.iter().map(String::len).sum();
        if self.updates.len() > URIS_MAX || bytes > URI_BYTES_MAX {
            return Err(TooManyUpdates);
        }
        Ok(())
    }
}

impl Filter {
    /// The approximate memory of a listener with this filter, in bytes.
    pub fn bytes(&self) -> usize {
        let uris = self.updates.iter().map(String::len).sum();
        subscriptions::cost(self.updates.len(), uris)
    }
}

impl StreamListener {
    /// A listener for the changes that `filter` names. Updates beyond the bounds of [`Filter::check`] are omitted.
    pub(super) fn new(filter: Filter, subscription_id: &str, stream: &Arc<Stream>) -> Self {
        stream.listen(farewell(subscription_id));
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

    /// A listener for all lists, whose stream answers no request.
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

    /// The changes among `changes` that the listener subscribes to.
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
        // A listener whose client disconnected or reads too slowly is removed when its guard is dropped.
        self.stream.push(frame);
    }
}

/// The result of the listen request, sent when the subscription ends in good order.
fn farewell(subscription_id: &str) -> Bytes {
    let message = format!(
        r#"{{"jsonrpc":"2.0","id":{subscription_id},"result":{{"resultType":"complete","_meta":{{"io.modelcontextprotocol/subscriptionId":{subscription_id}}}}}}}"#
    );
    frame::message(None, message.as_bytes())
}

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
