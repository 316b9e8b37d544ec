//! A prompt as declared by a worker. The gateway does not interpret the prompt's arguments.

use crate::definition::announced;

announced! {
    /// A prompt of a namespace.
    Prompt by
    /// Name by which clients get the prompt.
    name, "name"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_known_by_the_name_in_its_definition() {
        let line = r#"{"definition": {"name":"greet", "arguments":[]}, "filename": "p.py"}"#;
        let prompt: Prompt = serde_json::from_str(line).unwrap();
        assert_eq!(&*prompt.name, "greet");
        assert_eq!(
            prompt.definition.get(),
            r#"{"name":"greet", "arguments":[]}"#
        );
        assert!(serde_json::from_str::<Prompt>(r#"{"definition": {"title":"x"}}"#).is_err());
    }
}
