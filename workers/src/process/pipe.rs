//! How much a pipe holds.

use std::os::fd::AsFd;

/// What a message may have until its pipe is widened: as much as a pipe holds by default.
pub const LARGE: usize = 64 * 1024;
/// What a widened pipe holds. The kernel gives a user without privileges 64 MiB in all.
const WIDE: usize = 256 * 1024;

/// Lets a pipe that carries large messages hold more, so that each takes fewer turns of both sides. One that may not stays
/// as it is.
pub fn widen(pipe: impl AsFd) {
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, WIDE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_widened_pipe_holds_more_than_a_large_message() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let holds = || rustix::pipe::fcntl_getpipe_size(&reader).expect("a size");
        assert!(holds() <= LARGE);
        widen(&writer);
        assert_eq!(holds(), WIDE);
    }
}
