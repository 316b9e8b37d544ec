//! nginx, to which the gateway is compared: answering every request with the same 200, and in front of a server.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::gateway::{NAMED_TOKEN, TOKEN, threads};
use super::{READY_LIMIT, Server};
use crate::message::FIRST_ID;
use crate::processes;

/// Folders in which distributions install nginx, outside the search path of ordinary users.
const USUAL_FOLDERS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/usr/local/nginx/sbin"];
/// Connections for listening sockets, and for the pipes between nginx's processes.
const OWN_CONNECTIONS: usize = 64;

/// The task of an nginx.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Task {
    /// Answers every request with the same 200.
    Fixed,
    /// Passes requests on to a server, and streams unbuffered.
    InFrontOf(SocketAddr),
    /// Passes requests on to an application, configured for speed: the bearer token is checked, connections to the application
    /// are kept, and bodies of a mebibyte stay in memory in both directions.
    InFrontOfApp(SocketAddr),
    /// Passes requests on to an MCP server with the checks of `conf.yaml`: Host, Origin, address, token, rates by address and
    /// by principal, and a line for each request in a buffered log. Streams are passed on unbuffered.
    Checking(SocketAddr),
}

/// Starts nginx with as many worker processes as the gateway has threads, for `clients` concurrent clients; `None` if it is not
/// installed.
pub(crate) async fn start(task: Task, clients: usize) -> anyhow::Result<Option<Server>> {
    let Some(program) = program() else {
        return Ok(None);
    };
    let workers = threads()?;
    let mut nginx = Server::start("nginx", |folder, address| {
        let config = folder.join("nginx.conf");
        let (http, location) = task.directives(clients);
        let text = configuration(folder, address, (workers, clients), &http, &location);
        fs::write(&config, text).context("nginx.conf")?;
        let mut command = Command::new(program);
        command.arg("-p").arg(folder).arg("-c").arg(&config);
        Ok(command)
    })
    .await?;
    // The master listens before it has workers, and the CPU time of the workers counts.
    let master = nginx.id();
    let ready = async || processes::descendants(master).len() == workers;
    nginx.process.until(READY_LIMIT, ready).await?;
    Ok(Some(nginx))
}

impl Task {
    /// The directives of the `http` block, and of the only location.
    fn directives(self, clients: usize) -> (String, String) {
        let upstream = |app: SocketAddr| {
            format!(
                "upstream app {{ server {app}; keepalive {clients}; keepalive_requests 1000000000; }}\n\
                 client_max_body_size 4m; client_body_buffer_size 2m;"
            )
        };
        match self {
            Self::Fixed => {
                let body = format!(r#"{{"jsonrpc":"2.0","id":{FIRST_ID},"result":{{}}}}"#);
                (String::new(), format!("return 200 '{body}';"))
            }
            Self::InFrontOf(server) => {
                let location = format!(
                    "proxy_pass http://{server}; proxy_http_version 1.1; proxy_set_header Host $http_host; \
                     proxy_buffering off; proxy_read_timeout 1h;"
                );
                (String::new(), location)
            }
            Self::InFrontOfApp(app) => {
                let refused = format!(
                    "map $http_authorization $refused {{ default 1; \"Bearer {TOKEN}\" 0; }}\n"
                );
                let location = "if ($refused) { return 401; } proxy_pass http://app; proxy_http_version 1.1; \
             proxy_set_header Connection \"\"; proxy_set_header Host $http_host; proxy_buffer_size 16k; \
             proxy_buffers 8 64k; proxy_busy_buffers_size 128k; proxy_max_temp_file_size 0;";
                (refused + &upstream(app), location.to_owned())
            }
            Self::Checking(app) => {
                let checks = format!(
                    "map $http_authorization $principal {{ default \"\"; \"Bearer {TOKEN}\" main; \"Bearer {NAMED_TOKEN}\" named; }}\n\
             map $http_origin $no_origin {{ default 1; \"\" 0; \"https://app.example.com\" 0; }}\n\
             map $http_host $no_host {{ default 1; \"~^(127\\.0\\.0\\.1|localhost|gateway\\.example\\.com)(:[0-9]+)?$\" 0; }}\n\
             limit_req_zone $binary_remote_addr zone=flood:1m rate=1000000r/s;\n\
             limit_req_zone $binary_remote_addr zone=address:1m rate=1000000r/s;\n\
             limit_req_zone $principal zone=principal:1m rate=1000000r/s;\n\
             log_format audit escape=json '{{\"time\":\"$time_iso8601\",\"client\":\"$remote_addr\",\"principal\":\"$principal\",\
             \"session\":\"$http_mcp_session_id\",\"status\":$status,\"bytes\":$body_bytes_sent,\"seconds\":$request_time}}';\n"
                );
                let location = "allow 127.0.0.0/8; allow ::1; deny all; \
             if ($no_host) { return 421; } if ($no_origin) { return 403; } if ($principal = \"\") { return 401; } \
             limit_req zone=flood burst=1000000 nodelay; limit_req zone=address burst=1000000 nodelay; \
             limit_req zone=principal burst=1000000 nodelay; access_log audit.log audit buffer=64k flush=1s; \
             proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection \"\"; \
             proxy_set_header Host $http_host; proxy_set_header Authorization \"\"; proxy_buffering off; \
             proxy_buffer_size 64k; proxy_buffers 8 64k; proxy_busy_buffers_size 128k; proxy_read_timeout 1h;";
                (checks + &upstream(app), location.to_owned())
            }
        }
    }
}

/// The path of the installed nginx, if there is one.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(USUAL_FOLDERS.map(PathBuf::from));
    program_in(folders)
}

fn program_in(mut folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    folders.find_map(|folder| Some(folder.join("nginx")).filter(|file| file.is_file()))
}

fn configuration(
    folder: &Path,
    address: SocketAddr,
    (workers, clients): (usize, usize),
    http: &str,
    location: &str,
) -> String {
    // nginx allocates memory for each possible connection, and that memory is compared, so it gets only as many as the scenario
    // needs. A worker may get all clients. Each client has a connection to the server behind nginx, and may have another that
    // nginx keeps or has not closed yet.
    let connections = 3 * clients + OWN_CONNECTIONS;
    let folder = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("    {kind}_temp_path {folder}/{kind};\n"))
        .concat();
    format!(
        "daemon off;\nworker_processes {workers};\npid {folder}/nginx.pid;\nerror_log {folder}/error.log warn;\n\
         events {{ worker_connections {connections}; }}\n\
         http {{\n    access_log off;\n    keepalive_requests 1000000000;\n    default_type application/json;\n\
         {temporary}{http}\n    server {{\n        listen {address};\n        location / {{ {location} }}\n    }}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_is_missing_where_no_folder_has_it() {
        let (with, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = with.path().join("nginx");
        fs::write(&file, "").unwrap();
        let folders = |folders: &[&tempfile::TempDir]| {
            folders
                .iter()
                .map(|f| f.path().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(program_in(folders(&[&without]).into_iter()), None);
        assert_eq!(
            program_in(folders(&[&without, &with]).into_iter()),
            Some(file)
        );
    }

    #[test]
    fn the_configuration_keeps_to_its_folder_to_loopback_and_to_its_clients() {
        let text = configuration(
            Path::new("/tmp/x"),
            "127.0.0.1:4000".parse().unwrap(),
            (2, 32),
            "client_max_body_size 4m;",
            "return 204;",
        );
        assert!(
            text.contains("listen 127.0.0.1:4000;") && text.contains("worker_processes 2;"),
            "{text}"
        );
        let paths = text
            .split_whitespace()
            .filter(|word| word.starts_with('/') && word.len() > 1);
        assert!(
            paths.into_iter().all(|path| path.starts_with("/tmp/x/")),
            "{text}"
        );
        assert!(text.contains("client_max_body_size 4m;"), "{text}");
        assert!(text.contains("worker_connections 160;"), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
