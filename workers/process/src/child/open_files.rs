//! Limit on open files: the gateway raises its own to the maximum, and its children get the original one.
//!
//! A program that closes every descriptor it could have, or waits with `select`, is slow or wrong under a limit it does not
//! expect. So the soft limit is raised for the gateway alone, and its guards restore the old limit for their commands.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Option of a guard with the soft limit of its command.
pub(super) const OPTION: &str = "--open-files";

/// The soft limit that this process was started with, if it was raised since.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Number of files that this process may have open; `None` is any number.
pub fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Number of files that this process could have open after [`raise`].
pub fn highest() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
}

/// Raises the soft limit to the hard one. Returns the limit then in force.
pub fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let before = current?;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    if maximum.is_none_or(|maximum| maximum > before) && setrlimit(Resource::Nofile, raised).is_ok()
    {
        let _ = BEFORE.set(before);
    }
    limit()
}

/// Options of a guard with the soft limit that this process was started with.
pub(super) fn for_children() -> Option<[String; 2]> {
    BEFORE
        .get()
        .map(|before| [OPTION.to_owned(), before.to_string()])
}

/// Sets the soft limit of this process and its children. If that fails, the higher limit stays.
pub(super) fn lower(soft: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let lowered = Rlimit {
        current: Some(soft),
        maximum,
    };
    let _ = setrlimit(Resource::Nofile, lowered);
}
