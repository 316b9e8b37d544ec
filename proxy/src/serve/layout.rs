//! The number of Pingora's services and of their threads.

/// The number of Pingora's services, and the number of threads of each.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) services: usize,
    /// The number of threads of each Pingora service.
    pub(super) threads: usize,
}

impl Layout {
    pub(super) const ONE: Self = Self {
        services: 1,
        threads: 1,
    };

    /// Without work stealing, there is one service per thread, and each accepts and serves connections on that thread. A single
    /// service would be slower: Pingora would accept a connection in one runtime and serve it in another one, chosen at random.
    /// Later bytes from the client then arrive in the first runtime, which has to wake the second with a system call.
    pub(super) fn new(threads: usize, work_stealing: bool) -> Self {
        if work_stealing {
            Self {
                threads,
                ..Self::ONE
            }
        } else {
            Self {
                services: threads,
                ..Self::ONE
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_work_stealing_every_thread_is_a_service_of_its_own() {
        let layout = |stealing| {
            let Layout { services, threads } = Layout::new(4, stealing);
            (services, threads)
        };
        assert_eq!(layout(false), (4, 1));
        assert_eq!(layout(true), (1, 4));
    }
}
