//! Black-box tests: they start the real binary and talk to it over sockets. A file per part of the behaviour that
//! clients see.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a test binary has no readers of its API, and a failed unwrap is a failed test"
)]

mod access_log;
mod architecture;
mod author_story;
mod authors;
mod beside_nginx;
mod careless_servers;
mod certificates;
mod chaos;
mod client_certificates;
mod client_configurations;
mod command_line;
mod concurrency;
mod conditions;
mod conformance;
mod connections;
mod containers;
mod credentials;
mod dev_secrets;
mod doctor;
mod documentation;
mod edge;
mod from_nginx;
mod header_edits;
mod hooks;
mod http_traps;
mod import_clients;
mod import_nginx;
mod keys;
mod legacy_sse;
mod log_files;
mod long_streams;
mod make_test;
mod management;
mod manager_cancels;
mod manager_sdk;
mod manager_transports;
mod mcp;
mod message_threads;
mod modern;
mod oauth;
mod observability;
mod older_surfaces;
mod openapi;
mod openapi_tools;
mod operator_cli;
mod otlp;
mod packaging;
mod pass_through;
mod pins;
mod precedence;
mod profiles;
mod proxy_protocol;
mod real_servers;
mod refusals_over_http2;
mod relay;
mod release_build;
mod reload;
mod remote;
mod remote_answers;
mod remote_pools;
mod remote_vices;
mod replicas;
mod repositories;
mod rest;
mod restarts;
mod rust_client;
mod sandbox;
mod sdk;
mod secrets;
mod secrets_in_failures;
mod secrets_store;
mod server_files;
mod service_manager;
mod sessions;
mod shutdown;
mod signals;
mod socket_activation;
mod starting;
mod stdio_clients;
mod stdio_servers;
mod streams;
mod support;
mod tasks;
mod tls;
mod tls_names;
mod toolman;
mod toolman_stdio;
mod torture;
mod tutorial;
mod unix_sockets;
mod unread_answers;
mod upgrade;
mod web_api;
mod web_frame;
mod web_page;
mod web_ui;
mod workers;
mod wrong_credentials;
