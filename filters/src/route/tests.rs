use super::*;

const CORE: RouteGroups = ALL.without(RouteGroup::Metrics).without(RouteGroup::Web);

/// The route, namespace and tool of a path.
fn core(path: &str) -> Option<(RouteId, Option<String>, Option<String>)> {
    let found = CORE.find(path)?;
    let text = |value: Option<Cow<'_, str>>| value.map(Cow::into_owned);
    let (namespace, name) = (found.namespace().unwrap(), found.name().unwrap());
    Some((found.spec.id, text(namespace), text(name)))
}

#[test]
fn the_core_serves_its_documented_paths() {
    for (path, route, namespace, name) in [
        ("/mcp", RouteId::Mcp, None, None),
        ("/mcp/", RouteId::Mcp, None, None),
        ("/mcp/shared", RouteId::Mcp, Some("shared"), None),
        ("/mcp/shared/", RouteId::Mcp, Some("shared"), None),
        ("/mcp/a%2Db", RouteId::Mcp, Some("a-b"), None),
        ("/sse", RouteId::Sse, None, None),
        ("/messages", RouteId::Messages, None, None),
        ("/tools", RouteId::Tools, None, None),
        ("/tools/say_hello", RouteId::Tool, None, Some("say_hello")),
        ("/tools/say%5Fhello", RouteId::Tool, None, Some("say_hello")),
        (
            "/tools/say_hello/schema",
            RouteId::ToolSchema,
            None,
            Some("say_hello"),
        ),
        ("/tools/schema", RouteId::Tool, None, Some("schema")),
        ("/namespaces", RouteId::Namespaces, None, None),
        ("/openapi.json", RouteId::OpenApi, None, None),
        ("/namespaces/a%2Db/tools", RouteId::Tools, Some("a-b"), None),
        (
            "/namespaces/a-b/tools/ad%64",
            RouteId::Tool,
            Some("a-b"),
            Some("add"),
        ),
        (
            "/namespaces/a-b/tools/add/schema",
            RouteId::ToolSchema,
            Some("a-b"),
            Some("add"),
        ),
        (
            "/namespaces/a-b/openapi.json",
            RouteId::OpenApi,
            Some("a-b"),
            None,
        ),
        ("/reload", RouteId::Reload, None, None),
        ("/explain", RouteId::Explain, None, None),
        ("/output", RouteId::Output, None, None),
        ("/operator/status", RouteId::Api, None, None),
        ("/mcp/_probe/nonce", RouteId::FrontProbe, None, None),
        ("/health", RouteId::Health, None, None),
        ("/ready", RouteId::Ready, None, None),
        (
            "/.well-known/oauth-protected-resource/mcp",
            RouteId::WellKnown,
            None,
            None,
        ),
    ] {
        let expected = (route, namespace.map(str::to_owned), name.map(str::to_owned));
        assert_eq!(core(path), Some(expected), "{path}");
    }
}

#[test]
fn nothing_else_is_served() {
    for path in [
        "/",
        "",
        "*",
        "/sse/",
        "/messages/x",
        "/metrics",
        "/MCP",
        "/mcp//",
        "/mcp//x",
        "/mcp/a/b",
        "/mcp/a//",
        "/tools/",
        "/tools//schema",
        "/tools/a/b",
        "/tools/a/schema/",
        "/tools/a/schema/x",
        "/namespaces/",
        "/namespaces/a",
        "/namespaces/a/",
        "/namespaces//tools",
        "/namespaces/a/tools/",
        "/namespaces/a/tools/b/c",
        "/namespaces/a/tools/b/schema/",
        "/namespaces/a/openapi.json/",
        "/namespaces/a/mcp",
        "/namespaces/a/b/tools",
        "/health/",
        "/healthz",
        "/.well-known",
        "//mcp",
    ] {
        assert_eq!(core(path), None, "{path}");
    }
}

#[test]
fn a_listener_serves_its_groups_alone() {
    let metrics = RouteGroups::of(&[RouteGroup::Metrics, RouteGroup::Probes]);
    let find = |path| metrics.find(path).map(|found| found.spec.id);
    assert_eq!(find("/metrics"), Some(RouteId::Metrics));
    assert_eq!(find("/ready"), Some(RouteId::Ready));
    for path in ["/mcp", "/tools", "/reload", "/.well-known/x", "/"] {
        assert_eq!(find(path), None, "{path}");
    }
    assert!(!metrics.call_tools() && CORE.call_tools());
    let newer = CORE.without(RouteGroup::Sse);
    assert!(newer.find("/sse").is_none() && newer.find("/messages").is_none());
    assert!(newer.find("/mcp").is_some());
}

#[test]
fn a_route_knows_the_methods_it_says_it_allows() {
    for route in ROUTES {
        let allowed: Vec<_> = route.allow().split(", ").collect();
        for method in [
            Method::GET,
            Method::HEAD,
            Method::POST,
            Method::PUT,
            Method::DELETE,
            Method::OPTIONS,
            Method::PATCH,
            Method::TRACE,
            Method::CONNECT,
        ] {
            let known = allowed.contains(&method.as_str());
            assert_eq!(
                route.check_method(&method).is_ok(),
                known,
                "{method} {route:?}"
            );
        }
        // Only a POST has a body, and a route with a namespace needs a principal.
        assert!(route.body == RouteBody::None || allowed.contains(&"POST"));
        let is_public = matches!(route.access, RouteAccess::Public | RouteAccess::Probe);
        assert!(!is_public || route.namespace == RouteNamespace::None);
    }
}

#[test]
fn an_unknown_method_is_405_with_the_known_ones() {
    for method in ["PUT", "HEAD", "POSTS", "post", "PO"] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let refused = of("/mcp").check_method(&method).unwrap_err();
        assert_eq!(refused.reason, Reason::MethodNotAllowed);
        assert_eq!(refused.headers[0].1, "GET, POST, DELETE, OPTIONS");
    }
    assert!(of("/sse").check_method(&Method::POST).is_err());
    assert!(of("/messages").check_method(&Method::GET).is_err());
    for path in ["/health", "/ready"] {
        assert!(of(path).check_method(&Method::HEAD).is_ok());
    }
}

#[test]
fn modern_versions_have_post_only() {
    let outcome = |method: Method, version: &str, route: &RouteSpec| {
        let request = http::Request::builder()
            .method(method)
            .uri("/mcp")
            .header("mcp-protocol-version", version);
        let parts = request.body(()).unwrap().into_parts().0;
        route
            .check_modern_method(&parts.method, &Fields::of(&parts.headers))
            .map_err(|refused| refused.headers[0].1.clone())
    };
    for method in [Method::GET, Method::DELETE] {
        for version in ["2026-07-28", "2030-01-01"] {
            let refused = outcome(method.clone(), version, of("/mcp"));
            assert_eq!(refused.unwrap_err(), "POST, OPTIONS", "{method} {version}");
        }
        for version in ["2025-11-25", "", "2026-07-27", "latest", "9999-99-9x"] {
            assert_eq!(outcome(method.clone(), version, of("/mcp")), Ok(()));
        }
    }
    assert_eq!(outcome(Method::POST, "2026-07-28", of("/mcp")), Ok(()));
    assert_eq!(outcome(Method::GET, "2026-07-28", of("/sse")), Ok(()));
}

#[test]
fn errors_have_the_shape_that_the_clients_of_a_path_read() {
    for route in ROUTES {
        // A path of the table and a path beside it agree.
        let path = route.label.replace("{name}", "x");
        assert_eq!(route.error_shape(), ErrorShape::of_path(&path), "{path}");
    }
}
