//! A running nginx, as a child process with all its files in a folder of the test.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};

use tokio::net::TcpStream;

use super::{eventually, programs};

/// A running nginx. Dropping it ends the process.
pub struct Nginx {
    process: Child,
}

impl Nginx {
    /// Starts nginx with `nginx.conf` of the folder, and waits until it listens on `address`.
    ///
    /// # Panics
    ///
    /// When nginx is not installed, or ends with this configuration.
    pub async fn start(folder: &Path, address: SocketAddr) -> Self {
        fs::create_dir_all(folder.join("temp")).expect("a folder for bodies");
        let errors = folder.join("nginx.error.log");
        let process = programs::nginx()
            .arg("-p")
            .arg(folder)
            .args(["-c", "nginx.conf", "-e", "nginx.error.log", "-g"])
            .arg("daemon off; master_process off; pid nginx.pid;")
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx starts");
        let mut nginx = Self { process };
        eventually("nginx listens", || {
            let ended = nginx.process.try_wait().expect("own child");
            if let Some(status) = ended {
                let said = fs::read_to_string(&errors).unwrap_or_default();
                panic!("nginx ended with {status}:\n{said}");
            }
            async { TcpStream::connect(address).await.ok() }
        })
        .await;
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
