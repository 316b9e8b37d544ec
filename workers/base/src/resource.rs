//! A resource or resource template as declared by a worker. The worker reads the contents and matches the templates; the
//! gateway does neither.

use crate::definition::announced;

announced! {
    /// A resource of a namespace.
    Resource by
    /// URI by which clients read the resource.
    uri, "uri"
}

announced! {
    /// A template for the URIs of a family of resources.
    ResourceTemplate by
    /// The pattern of the resources' URIs (RFC 6570).
    uri_template, "uriTemplate"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_stays_as_it_is_and_gives_the_key() {
        let line = r#"{"definition": {"uri":"a:\/\/b",  "name":"n"}, "filename": "x.py", "context": true, "new": 1}"#;
        let resource: Resource = serde_json::from_str(line).unwrap();
        assert_eq!(&*resource.uri, "a://b");
        assert_eq!(
            resource.definition.get(),
            r#"{"uri":"a:\/\/b",  "name":"n"}"#
        );
        assert!(resource.context && resource.filename == "x.py");

        let line = r#"{"definition": {"uriTemplate":"a://{b}"}}"#;
        let template: ResourceTemplate = serde_json::from_str(line).unwrap();
        assert_eq!(&*template.uri_template, "a://{b}");
        assert!(!template.context);
    }

    #[test]
    fn a_definition_without_its_key_is_refused() {
        for line in [
            "{}",
            r#"{"definition": {}}"#,
            r#"{"definition": {"uri": 1}}"#,
            r#"{"definition": ["a://b"]}"#,
            r#"{"definition": null}"#,
        ] {
            assert!(serde_json::from_str::<Resource>(line).is_err(), "{line}");
            assert!(
                serde_json::from_str::<ResourceTemplate>(line).is_err(),
                "{line}"
            );
        }
    }
}
