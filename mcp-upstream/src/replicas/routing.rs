//! The way of a request to the replica that has its session: answered here, forwarded there, or claimed here once that
//! replica is gone. How a request travels is the edge's to know.

use std::future::Future;

use super::{Announcement, ReplicaId, Replicas, Standing};

/// Tries of one request: the session may move while it is on its way.
const TRIES: usize = 3;

/// A request on its way.
pub trait RoutedRequest: Send {
    /// The answer to it.
    type Answer: Send;

    /// Answers the request in this process, or names the replica that has its session.
    fn here(&mut self) -> impl Future<Output = Result<Self::Answer, ReplicaId>> + Send;

    /// Sends the request to another replica.
    fn there(
        &mut self,
        other: &Announcement,
    ) -> impl Future<Output = Result<Self::Answer, Unanswered>> + Send;

    /// False if the request has been forwarded so often that it is forwarded no more.
    fn may_be_forwarded(&self) -> bool;
}

/// Why another replica gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// The request may be made again.
    Repeatable,
    /// The request may have been carried out.
    Lost,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unrouted {
    /// The replica that has the session cannot be reached: the client may try again.
    Unreachable,
    /// The request may have been carried out by a replica that did not answer.
    Lost,
}

impl Replicas {
    /// Answers a request, here or in the replica that has its session.
    ///
    /// # Errors
    ///
    /// [`Unrouted`].
    pub async fn route<R: RoutedRequest>(&self, request: &mut R) -> Result<R::Answer, Unrouted> {
        for _ in 0..TRIES {
            let replica = match request.here().await {
                Ok(answer) => return Ok(answer),
                Err(replica) => replica,
            };
            let other = match self.settled_standing(replica).await {
                Standing::Up(other) => other,
                // The directory is silent: neither forwarded nor claimed.
                Standing::Unclear => break,
                // It is this process's to claim now.
                Standing::Own | Standing::Leaving | Standing::Gone => continue,
            };
            if !request.may_be_forwarded() || self.obstacle(&other).is_some() {
                match self.has_just_ended(replica).await {
                    true => continue,
                    false => break,
                }
            }
            match request.there(&other).await {
                Ok(answer) => return Ok(answer),
                Err(Unanswered::Lost) => return Err(Unrouted::Lost),
                // A replica that was killed is claimed from once its last beat is old.
                Err(Unanswered::Repeatable) => _ = self.departure(replica).await,
            }
        }
        Err(Unrouted::Unreachable)
    }
}
