//! Routing of a request to the replica that has its session: the request is answered here, forwarded to that replica, or
//! answered here after this replica has claimed the session of a replica that is gone. The edge implements the transport.

use std::future::Future;

use super::{Announcement, ReplicaId, ReplicaStatus, Replicas};

/// Maximum number of attempts to route one request. A second and a third attempt are needed only if the session moves to another
/// replica during the attempt before.
const TRIES: usize = 3;

/// Request that this replica can answer or forward to another replica.
pub trait RoutedRequest: Send {
    /// Type of the response to the request.
    type Answer: Send;

    /// Answers the request in this process, or returns the replica that has its session.
    fn here(&mut self) -> impl Future<Output = Result<Self::Answer, ReplicaId>> + Send;

    /// Sends the request to another replica, and returns that replica's response.
    fn there(
        &mut self,
        other: &Announcement,
    ) -> impl Future<Output = Result<Self::Answer, ForwardError>> + Send;

    /// Returns false if the request has reached the maximum number of forwards.
    fn may_be_forwarded(&self) -> bool;
}

/// Error: another replica did not answer a forwarded request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardError {
    /// The other replica has not carried out the request: it may be sent again.
    Repeatable,
    /// The other replica may have carried out the request: it must not be sent again.
    Lost,
}

/// Error: no response to a request could be obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutingError {
    /// The replica that has the session cannot be reached: the client may try again.
    Unreachable,
    /// The request may have been carried out by a replica that did not answer.
    Lost,
}

impl Replicas {
    /// Answers a request, in this replica or in the one that has its session.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Unreachable`] when the session's replica cannot be reached; [`RoutingError::Lost`] when that replica may
    /// have carried out the request.
    pub async fn route<R: RoutedRequest>(
        &self,
        request: &mut R,
    ) -> Result<R::Answer, RoutingError> {
        for _ in 0..TRIES {
            let replica = match request.here().await {
                Ok(answer) => return Ok(answer),
                Err(replica) => replica,
            };
            let other = match self.settled_status(replica).await {
                ReplicaStatus::Up(other) => other,
                // The directory does not respond: the request is not forwarded, and the session is not claimed.
                ReplicaStatus::Unclear => break,
                // This process can claim the session now, in the next attempt.
                ReplicaStatus::Own | ReplicaStatus::Leaving | ReplicaStatus::Gone => continue,
            };
            if !request.may_be_forwarded() || self.obstacle(&other).is_some() {
                match self.has_just_ended(replica).await {
                    true => continue,
                    false => break,
                }
            }
            match request.there(&other).await {
                Ok(answer) => return Ok(answer),
                Err(ForwardError::Lost) => return Err(RoutingError::Lost),
                // The other replica is unreachable from this one, by its network or certificates: a retry would fail in the
                // same way.
                Err(ForwardError::Repeatable) if self.unreachable.reason(replica).is_some() => {
                    match self.has_just_ended(replica).await {
                        true => continue,
                        false => break,
                    }
                }
                // If the replica was killed, its sessions can be claimed once its last beat is old enough, so this waits for
                // that.
                Err(ForwardError::Repeatable) => _ = self.departure(replica).await,
            }
        }
        Err(RoutingError::Unreachable)
    }
}
