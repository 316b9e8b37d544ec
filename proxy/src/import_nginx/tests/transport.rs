//! Rules that need TLS, and listeners without.

use super::*;

#[test]
fn a_certificate_that_is_needed_leaves_no_listener_without_tls() {
    for condition in [
        "if ($ssl_client_verify != SUCCESS) { return 403; }",
        "if ($client = '') { return 403; }",
    ] {
        let outcome = import(&format!(
            "map $ssl_client_s_dn $client {{ default ''; 'CN=a,O=b' a; }}
             server {{ listen 443 ssl; listen 80; server_name a.example; ssl_certificate a; ssl_certificate_key b;
                       ssl_client_certificate c; ssl_verify_client optional; {condition}
                       location /mcp {{ proxy_pass http://127.0.0.1:9000; }} }}"
        ));
        assert!(outcome.yaml.contains("address: 0.0.0.0:443"), "{condition}");
        assert_eq!(outcome.yaml.matches("address: ").count(), 1, "{condition}");
    }
}

#[test]
fn tls_that_is_asked_for_where_nobody_speaks_it_is_said_to_be_missing() {
    for condition in [
        "if ($https = '') { return 403; }",
        "if ($scheme = http) { return 301 https://$host$request_uri; }",
    ] {
        let outcome = import(&format!(
            "server {{ listen 127.0.0.1:8080; server_name a.example; {condition}
                       location /mcp {{ proxy_pass http://127.0.0.1:9000; }} }}"
        ));
        assert!(outcome.says(&["security", "TLS"]), "{condition}");
    }
}
