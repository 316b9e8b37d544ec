//! Differences in behaviour that the import mends or tells, beside rules that are lost.

use super::*;

#[test]
fn clients_keep_sessions_of_their_own_at_each_server() {
    let outcome = import(
        "upstream pool { server 10.0.0.1:80; server 10.0.0.2:80; }
         server { listen 80; server_name a.example; location /a/ { proxy_pass http://pool/; } location /b/ { proxy_pass http://10.0.0.3/; }
                  location /sse { proxy_pass http://10.0.0.4; } }",
    );
    let value = outcome.value();
    let Value::Mapping(servers) = &value["upstreams"]["remote"] else {
        panic!("{}", outcome.yaml);
    };
    assert_eq!(servers.len(), 3, "{}", outcome.yaml);
    assert!(
        servers.values().all(|it| it["isolation"] == "session"),
        "{}",
        outcome.yaml
    );
}
