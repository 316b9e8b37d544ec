//! The number of services that Pingora runs, and of their threads.

/// The division of threads among Pingora's services.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) services: usize,
    /// The number of threads of each service.
    pub(super) threads: usize,
}

impl Layout {
    pub(super) const ONE: Self = Self {
        services: 1,
        threads: 1,
    };

    /// Without work stealing, Pingora runs a service per thread, each of which accepts connections and serves them. With a
    /// single service Pingora would accept a connection in one runtime and serve it in another, chosen at random; later bytes
    /// of the client then arrive in the first, which has to wake the second with a write.
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
