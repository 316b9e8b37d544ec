//! A link to a Unix socket that can be cut: bytes wait in it, as in a network that loses every packet, until it is mended.

use std::path::PathBuf;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Dropping it closes its connections.
pub struct Link {
    folder: TempDir,
    whole: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Link {
    /// Opens a socket whose connections lead to `target`.
    pub fn to(target: PathBuf) -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        let listener = UnixListener::bind(folder.path().join("socket")).expect("a free path");
        let (whole, mended) = watch::channel(true);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = UnixStream::connect(&target).await else {
                    continue;
                };
                let ((near_out, near_in), (far_out, far_in)) =
                    (near.into_split(), far.into_split());
                tokio::spawn(carry(near_out, far_in, mended.clone()));
                tokio::spawn(carry(far_out, near_in, mended.clone()));
            }
        });
        Self {
            folder,
            whole,
            accepting,
        }
    }

    /// The socket of the link.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    pub fn mend(&self) {
        self.whole.send_replace(true);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Carries bytes in one direction while the link is whole, and ends with the link.
async fn carry(
    mut from: tokio::net::unix::OwnedReadHalf,
    mut to: tokio::net::unix::OwnedWriteHalf,
    mut whole: watch::Receiver<bool>,
) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if whole.wait_for(|whole| *whole).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
