//! The configurations of docs/from-nginx.md.

use super::*;

/// The blocks of nginx on the page, each under its heading.
fn blocks() -> Vec<(String, String)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/from-nginx.md");
    let page = fs::read_to_string(page).expect("the page");
    let (mut heading, mut blocks) = (String::new(), Vec::new());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("## ") {
            heading = text.to_owned();
        } else if line == "```nginx" {
            let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            // The page leaves out the rest of tokens.
            blocks.push((heading.clone(), block.join("\n").replace('…', "-etc")));
        }
    }
    blocks
}

#[test]
fn each_configuration_of_the_page_becomes_what_stands_beside_it() {
    let blocks = blocks();
    assert!(blocks.len() >= 10, "{}", blocks.len());
    let expected: &[(&str, &str, &str)] = &[
        (
            "Names and certificates",
            "admission.hosts",
            "[gw.example.com,*.tools.example.com]",
        ),
        (
            "Names and certificates",
            "listeners.0.tls.certificates",
            "[{cert:gw.pem,key:gw.key},{cert:tools.pem,key:tools.key}]",
        ),
        (
            "Several locations",
            "upstreams.remote.time.backends",
            "[http://127.0.0.1:9001/mcp]",
        ),
        (
            "Several locations",
            "upstreams.remote.github.backends",
            "[http://127.0.0.1:9002/mcp]",
        ),
        ("Limits", "admission.flood", "{rate:50,burst:100}"),
        (
            "Limits",
            "admission.rate_limits",
            "[{key:principal,rate:10,burst:20}]",
        ),
        (
            "Limits",
            "admission.limits",
            "{concurrency:{per_address:20},streams_per_principal:20,body:1MiB}",
        ),
        (
            "Networks",
            "admission.cidrs",
            "{allow:[10.0.0.0/8,2001:db8::/32]}",
        ),
        ("Networks", "admission.trusted_proxies", "[10.0.0.5/32]"),
        ("Tokens and origins", "admission.tokens.0.name", "ci"),
        ("Tokens and origins", "admission.tokens.1.name", "desk"),
        (
            "Tokens and origins",
            "admission.origins",
            "[https://chat.example.com]",
        ),
        (
            "Client certificates",
            "listeners.0.tls",
            "{cert:gw.pem,key:gw.key,client_ca:clients.pem,client_auth:required}",
        ),
        (
            "Behind a load balancer",
            "listeners.0.proxy_protocol",
            "true",
        ),
        (
            "Behind a load balancer",
            "admission.trusted_proxies",
            "[10.0.0.0/24]",
        ),
        (
            "Headers",
            "listeners.0.headers.response.set",
            "{Strict-Transport-Security:max-age=31536000,X-Content-Type-Options:nosniff}",
        ),
        ("Logs", "observability.access_log.path", "stdout"),
        (
            "Pools",
            "upstreams.remote.search.backends",
            "[{url:http://10.0.0.11:9000/mcp,weight:2},http://10.0.0.12:9000/mcp,{url:http://10.0.0.13:9000/mcp,backup:true}]",
        ),
        (
            "Pools",
            "upstreams.remote.search.credentials",
            "Bearer ${SEARCH_TOKEN}",
        ),
        ("Pools", "upstreams.remote.search.timeouts.connect", "2s"),
    ];
    for (heading, path, value) in expected {
        let found = blocks.iter().filter(|(of, _)| of == heading);
        let values: Vec<_> = found.map(|(_, block)| at(&import(block), path)).collect();
        assert!(
            values.iter().any(|it| it == value),
            "{heading} {path}: {values:?}"
        );
    }
    for (heading, block) in blocks {
        let outcome = import(&block);
        let said = outcome.lines.iter();
        let security: Vec<_> = said.filter(|it| it.contains("security: ")).collect();
        // The page's own line about long streams.
        let known = |it: &&String| it.contains("limit_conn: security: long streams");
        assert!(security.iter().all(known), "{heading}: {security:#?}");
    }
}
