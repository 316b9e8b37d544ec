//! Capacity of pipes.

use std::os::fd::AsFd;

/// Size of a message, in bytes, beyond which its pipe is widened: the default capacity of a pipe.
pub const LARGE: usize = 64 * 1024;
/// Capacity of a widened pipe, in bytes. The kernel gives a user without privileges 64 MiB in all.
const WIDE: usize = 256 * 1024;

/// Widens a pipe that carries large messages, so that each takes fewer turns of both sides. If that is not allowed, the pipe
/// stays as it is.
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
