//! Table of nginx's directives by name: directives that can be ignored since the gateway always behaves that way, directives that
//! another file of this crate imports, and report lines for the others. An unknown directive may refuse requests, so its report
//! line is marked as relevant for security.

mod shown;

pub(crate) use shown::shown;

/// Treatment of an nginx directive by the import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// The directive can be ignored without an effect.
    Fine,
    /// Another file of this crate imports the directive and reports it.
    Mapped,
    /// The directive is not imported, and no additional requests are admitted without it. Contains the text for the report.
    Plain(&'static str),
    /// The directive is not imported, and requests that it refused may be admitted. Contains the text for the report.
    Security(&'static str),
}

/// Directives that other files of this crate read. Each line of the list belongs to one of these files.
#[rustfmt::skip]
const MAPPED: &[&str] = &[
    "http", "server", "location", "events", "if", "map", "geo", "set", "return", "split_clients", "upstream", "types", "include",
    "listen", "server_name", "ssl", "ssl_certificate", "ssl_certificate_key", "ssl_protocols", "ssl_client_certificate", "ssl_verify_client",
    "ssl_verify_depth",
    "allow", "deny", "set_real_ip_from", "real_ip_header", "real_ip_recursive",
    "limit_req_zone", "limit_req", "limit_conn_zone", "limit_conn",
    "proxy_pass", "rewrite", "try_files", "error_page", "proxy_connect_timeout", "proxy_read_timeout", "proxy_send_timeout", "proxy_next_upstream", "proxy_next_upstream_tries",
    "proxy_ssl_verify", "proxy_ssl_trusted_certificate", "proxy_ssl_name", "proxy_ssl_certificate", "proxy_ssl_certificate_key",
    "proxy_set_header", "add_header", "proxy_hide_header",
    "client_max_body_size", "client_header_timeout", "client_body_timeout", "keepalive_timeout", "send_timeout", "large_client_header_buffers",
    "log_format", "access_log", "worker_processes", "worker_connections", "worker_shutdown_timeout", "stub_status",
];

/// Directives of an `upstream` block, which `pools` imports.
#[rustfmt::skip]
const OF_POOLS: &[&str] = &[
    "hash", "ip_hash", "least_conn", "least_time", "random", "fair", "keepalive", "zone", "sticky", "sticky_cookie_insert", "queue", "state",
    "ntlm", "check", "health_check",
];

/// Directives that can be ignored: the gateway always behaves as they request, or never needs them.
#[rustfmt::skip]
const FINE: &[&str] = &[
    "http2", "tcp_nodelay", "tcp_nopush", "sendfile", "sendfile_max_chunk", "aio", "directio", "output_buffers", "postpone_output",
    "proxy_redirect", "proxy_buffer_size", "proxy_buffers", "proxy_busy_buffers_size", "proxy_request_buffering",
    "proxy_max_temp_file_size", "proxy_temp_path", "proxy_temp_file_write_size", "proxy_headers_hash_max_size", "proxy_headers_hash_bucket_size",
    "proxy_socket_keepalive", "proxy_ignore_client_abort", "proxy_ssl_server_name", "proxy_ssl_session_reuse", "proxy_ssl_protocols",
    "proxy_ssl_ciphers", "proxy_pass_request_headers", "proxy_next_upstream_timeout", "proxy_force_ranges", "proxy_ignore_headers",
    "proxy_cache_bypass", "proxy_no_cache", "proxy_cache_path", "chunked_transfer_encoding", "server_tokens", "default_type", "charset", "etag", "if_modified_since",
    "server_names_hash_max_size", "server_names_hash_bucket_size", "types_hash_max_size", "types_hash_bucket_size",
    "variables_hash_max_size", "variables_hash_bucket_size", "map_hash_max_size", "map_hash_bucket_size",
    "client_header_buffer_size", "client_body_buffer_size", "client_body_temp_path", "fastcgi_temp_path", "scgi_temp_path", "uwsgi_temp_path", "client_body_in_file_only", "client_body_in_single_buffer",
    "keepalive_requests", "keepalive_time", "keepalive_disable", "keepalive_min_timeout", "lingering_close", "lingering_time", "lingering_timeout",
    "reset_timedout_connection", "connection_pool_size", "request_pool_size", "log_not_found", "log_subrequest", "open_log_file_cache",
    "limit_req_log_level", "limit_conn_log_level", "resolver", "resolver_timeout", "merge_slashes", "absolute_redirect", "port_in_redirect",
    "server_name_in_redirect", "underscores_in_headers", "ignore_invalid_headers", "recursive_error_pages", "msie_padding", "msie_refresh",
    "max_ranges", "read_ahead", "types_hash", "rewrite_log", "uninitialized_variable_warn", "break", "default",
    "ssl_prefer_server_ciphers", "ssl_session_cache", "ssl_session_timeout", "ssl_session_tickets", "ssl_session_ticket_key", "ssl_dhparam",
    "ssl_ecdh_curve", "ssl_buffer_size", "ssl_early_data", "ssl_handshake_timeout",
    "http2_chunk_size", "http2_max_field_size", "http2_max_header_size", "http2_max_requests", "http2_idle_timeout", "http2_push",
    "http2_push_preload", "http2_recv_buffer_size", "proxy_protocol_timeout", "preread_buffer_size",
    "user", "pid", "daemon", "master_process", "worker_rlimit_nofile", "worker_rlimit_core", "worker_priority", "worker_cpu_affinity",
    "worker_aio_requests", "working_directory", "pcre_jit", "multi_accept", "use", "accept_mutex", "accept_mutex_delay", "epoll_events",
    "debug_connection", "timer_resolution", "thread_pool", "lock_file", "ssl_engine", "load_module", "env", "debug_points",
    "health_check_timeout", "proxy_bind_dynamic", "js_import", "js_path", "js_fetch_timeout", "perl_modules", "perl_require",
    "lua_package_path", "lua_package_cpath", "lua_shared_dict", "lua_code_cache", "lua_ssl_trusted_certificate", "lua_ssl_verify_depth",
    "lua_socket_connect_timeout", "lua_socket_read_timeout", "lua_socket_send_timeout", "auth_basic_user_file", "limit_req_status", "limit_conn_status",
];

/// Directives that can be ignored with certain values, which equal the gateway's behaviour. Each has the report line for any
/// other value.
#[rustfmt::skip]
const FINE_WITH: &[(&str, &[&str], &str)] = &[
    ("proxy_buffering", &["off"], "streams are never gathered: leave it out"),
    ("proxy_http_version", &["1.1"], "HTTP/1.1 is spoken to servers: leave it out"),
    ("proxy_cache", &["off"], "answers are not cached"),
    ("gzip", &["off"], "answers are not compressed: streams would be gathered"),
    ("brotli", &["off"], "answers are not compressed: streams would be gathered"),
    ("expires", &["off"], "write Cache-Control in headers.response.set of the listener, if clients need it"),
    ("proxy_intercept_errors", &["off"], "errors are JSON that MCP clients can read"),
    ("proxy_pass_request_body", &["on"], "bodies always go up"),
    ("http3", &["off"], "HTTP/3 is not spoken"),
    ("quic_retry", &["off"], "HTTP/3 is not spoken"),
    ("ssl_stapling", &["off"], "no OCSP answers are stapled to certificates"),
    ("ssl_ocsp", &["off"], REVOCATION),
    ("ssl_reject_handshake", &["off"], HANDSHAKE),
    ("auth_basic", &["off"], BASIC),
    ("auth_request", &["off"], REQUEST),
    ("auth_jwt", &["off"], JWT),
    ("modsecurity", &["off"], FIREWALL),
    ("app_protect_enable", &["off"], FIREWALL),
    ("satisfy", &["all"], SATISFY),
];

const REVOCATION: &str = "certificates are not looked up in revocation lists: take revoked ones out of admission.certificates, or issue short ones";
const SATISFY: &str =
    "here an address that is let in needs a credential all the same: either is not enough";
const HANDSHAKE: &str = "nobody comes to this server by TLS in nginx: take its locations out";
const BASIC: &str = "there are no user names and passwords: give each user a token in admission.tokens, or a key by tooldock keys create";
const REQUEST: &str = "no other server is asked whether a request may pass: see docs/oauth.md for identity providers, or use admission.tokens";
const JWT: &str = "write the issuer into admission.oauth, see docs/oauth.md";
const FIREWALL: &str =
    "there is no web application firewall here: keep one in front of the gateway";
const ANSWERS: &str = "scripts are not run: what this one takes out of answers would be shown";
const SCRIPT: &str = "scripts are not run: express what this one refuses in admission";

/// Directives that refuse requests and have no equivalent in the gateway, with their report lines.
#[rustfmt::skip]
const SECURITY: &[(&[&str], &str)] = &[
    (&["ssl_crl", "ssl_ocsp"], REVOCATION),
    (&["ssl_reject_handshake"], HANDSHAKE),
    (&["proxy_ssl_crl"], "certificates of servers are not looked up in revocation lists"),
    (&["secure_link", "secure_link_md5", "secure_link_secret"], "links are not signed: use admission.tokens"),
    (&["valid_referers"], "the Referer is not judged: list web pages in admission.origins"),
    (&["auth_request"], REQUEST),
    (&["auth_basic"], BASIC),
    (&["auth_jwt"], JWT),
    (&["modsecurity", "app_protect_enable"], FIREWALL),
    (&["satisfy"], SATISFY),
    (&["limit_except"], "GET, POST and DELETE are served on the paths of MCP, by one rule for all"),
    (&["sub_filter"], "bodies are not rewritten: what this one takes out of answers reaches clients here"),
];

/// Prefixes of the names of directives that refuse requests, with their report lines.
#[rustfmt::skip]
const SECURITY_BEGINNINGS: &[(&[&str], &str)] = &[
    (&["auth_jwt", "auth_oidc"], JWT),
    (&["auth_request"], REQUEST),
    (&["auth_"], "this way of logging in has no counterpart: use admission.tokens, or see docs/oauth.md"),
    (&["modsecurity", "app_protect"], FIREWALL),
    (&["access_by_lua", "rewrite_by_lua", "server_rewrite_by_lua", "ssl_client_hello_by_lua", "ssl_certificate_by_lua", "js_access"], SCRIPT),
    (&["header_filter_by_lua", "body_filter_by_lua", "js_header_filter", "js_body_filter"], ANSWERS),
    (&["js_set"], "scripts are not run: what uses this variable needs another way"),
];

/// Directives without which no additional requests are admitted, with their report lines.
#[rustfmt::skip]
const PLAIN: &[(&[&str], &str)] = &[
    (&["limit_req_dry_run", "limit_conn_dry_run"], "limits are in force here: take out those that refuse nothing in nginx"),
    (&["proxy_send_lowat", "ssl_conf_command", "google_perftools_profiles"], "has no counterpart"),
    (&["auth_delay"], "has no counterpart: refused requests are answered at once"),
    (&["auth_request_set"], "no other server is asked about requests"),
    (&["root", "alias", "index", "autoindex", "empty_gif", "random_index"], "no files are served"),
    (&["post_action"], "no other location is asked when a request has been answered"),
    (&["error_log"], "the gateway's own log goes to standard error; observability.log.level is how much of it"),
    (&["ssl_ciphers"], "TLS is spoken with forward secrecy and authenticated encryption only; the suites are not chosen one by one"),
    (&["ssl_trusted_certificate"], "tls.client_ca alone names the authorities of client certificates"),
    (&["ssl_password_file"], "private keys are read without a password: decrypt the key into a file that only the gateway can read"),
    (&["ssl_stapling_verify", "ssl_stapling_file", "ssl_stapling_responder"], "no OCSP answers are stapled to certificates"),
    (&["proxy_ssl_verify_depth"], "up to six certificates may stand between a server's and that of the authority"),
    (&["http2_max_concurrent_streams"], "how many requests a connection of HTTP/2 carries at once is fixed"),
    (&["limit_rate", "limit_rate_after", "proxy_limit_rate"], "bytes per second are not limited"),
    (&["proxy_method"], "requests keep their method"),
    (&["proxy_set_body", "add_before_body", "add_after_body"], "bodies are not rewritten"),
    (&["proxy_bind"], "the system chooses the address of outgoing connections"),
    (&["proxy_pass_header"], "headers of servers' answers are the gateway's business"),
    (&["proxy_cookie_path", "proxy_cookie_domain", "proxy_cookie_flags"], "cookies of servers do not reach clients"),
    (&["proxy_store"], "answers are not kept"),
    (&["mirror", "mirror_request_body"], "requests are not copied"),
    (&["health_check"], "each backend is asked by itself: write interval and uri into health.active"),
    (&["match"], "see health.active of the remote server"),
    (&["status_zone", "api"], "see /metrics of the metrics listener"),
    (&["more_set_headers"], "write headers.response.set of the listener"),
    (&["more_clear_headers"], "write headers.response.remove of the listener"),
    (&["add_trailer"], "answers have no trailers"),
    (&["internal"], "only what nginx calls itself is internal"),
    (&["stream"], "TCP and UDP are not passed on"),
    (&["mail"], "mail is not passed on"),
    (&["perl"], "scripts are not run"),
];

/// Prefixes of the names of directives without which no additional requests are admitted, with their report lines.
#[rustfmt::skip]
const PLAIN_BEGINNINGS: &[(&[&str], &str)] = &[
    (&["gzip_", "gunzip", "brotli_", "proxy_cache_", "open_file_cache", "aio_", "init_by_lua", "init_worker_by_lua", "exit_worker_by_lua", "lua_"], ""),
    (&["proxy_ssl_conf"], "has no counterpart"),
    (&["fastcgi_", "uwsgi_", "scgi_", "memcached_"], "only HTTP is spoken to servers"),
    (&["grpc_"], "only HTTP/1.1 is spoken to servers"),
    (&["content_by_lua", "log_by_lua", "js_"], "scripts are not run"),
    (&["balancer_by_lua"], "scripts are not run: see balance of the remote server"),
    (&["set_by_lua"], "scripts are not run: what uses this variable needs another way"),
    (&["quic_", "http3_"], "HTTP/3 is not spoken"),
    (&["image_filter", "xslt_", "sub_filter_", "addition_", "ssi"], "bodies are not rewritten"),
    (&["dav_", "autoindex_", "mp4"], "no files are served"),
    (&["otel_", "opentelemetry"], "see observability.otlp"),
    (&["opentracing"], "see observability.otlp, which exports to OpenTelemetry"),
    (&["userid"], "no cookies are set"),
    (&["geoip"], "what uses its variables is listed by itself"),
    (&["vhost_traffic"], "see /metrics of the metrics listener"),
];

/// The treatment of a directive in an `http`, `server` or `location` block.
pub(crate) fn treatment(name: &str, value: &str) -> Treatment {
    let is_name = |known: &&str| *known == name;
    let is_beginning = |known: &&str| name.starts_with(known);
    let security = why(SECURITY, is_name);
    if MAPPED.contains(&name) {
        return Treatment::Mapped;
    }
    if FINE.contains(&name) {
        return Treatment::Fine;
    }
    if let Some((_, values, otherwise)) = FINE_WITH.iter().find(|(known, ..)| *known == name) {
        return match (values.contains(&value), security) {
            (true, _) => Treatment::Fine,
            (false, Some(why)) => Treatment::Security(why),
            (false, None) => Treatment::Plain(otherwise),
        };
    }
    let plain = why(PLAIN, is_name);
    if let Some(why) = security {
        Treatment::Security(why)
    } else if let Some(why) = plain {
        Treatment::Plain(why)
    } else if let Some(why) = why(SECURITY_BEGINNINGS, is_beginning) {
        Treatment::Security(why)
    } else {
        match why(PLAIN_BEGINNINGS, is_beginning) {
            Some("") => Treatment::Fine,
            Some(why) => Treatment::Plain(why),
            None => Treatment::Security(
                "the importer does not know this directive, which may refuse requests",
            ),
        }
    }
}

/// The report line of the first group with a name or prefix that `is_of` accepts.
fn why(groups: &[(&[&str], &'static str)], is_of: impl Fn(&&str) -> bool) -> Option<&'static str> {
    let group = groups.iter().find(|(names, _)| names.iter().any(&is_of));
    group.map(|(_, why)| *why)
}

#[cfg(test)]
mod tests;
