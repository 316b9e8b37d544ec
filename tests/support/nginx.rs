//! A running nginx, as a child process with all its files in a folder of the test.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};

use tokio::net::TcpStream;

use super::ports::free_address;
use super::{eventually, programs};

/// A running nginx. Dropping it ends the process.
pub struct Nginx {
    process: Child,
}

impl Nginx {
    /// Starts an nginx that sends each request to the next gateway in turn, without regard to sessions. Returns it with its
    /// address. `next`: the value of `proxy_next_upstream`, the failures after which nginx tries another gateway.
    pub async fn in_front_of(
        folder: &Path,
        gateways: &[SocketAddr],
        next: &str,
    ) -> (Self, SocketAddr) {
        let address = free_address();
        let conf = round_robin(address, gateways, next);
        fs::write(folder.join("nginx.conf"), conf).expect("written");
        (Self::start(folder, address).await, address)
    }

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

fn round_robin(listen: SocketAddr, gateways: &[SocketAddr], next: &str) -> String {
    let servers = gateways
        .iter()
        .map(|at| format!("server {at} max_fails=0;"));
    let servers: String = servers.collect();
    format!(
        r#"
events {{}}
http {{
    client_body_temp_path temp/body;
    proxy_temp_path temp/proxy;
    fastcgi_temp_path temp/fastcgi;
    scgi_temp_path temp/scgi;
    uwsgi_temp_path temp/uwsgi;
    access_log off;
    upstream replicas {{ {servers} }}
    server {{
        listen {listen};
        location / {{
            proxy_pass http://replicas;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 1h;
            proxy_next_upstream {next};
        }}
    }}
}}
"#
    )
}
