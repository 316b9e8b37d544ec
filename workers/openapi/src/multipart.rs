//! Bodies of the type `multipart/form-data`.

use std::collections::BTreeSet;

/// Start of each boundary. A number follows.
const BOUNDARY: &str = "tooldock-part-";
/// Number of digits at the end of a boundary.
const NUMBER_LEN: usize = 10;

/// A part of a `multipart/form-data` body.
pub(crate) struct FormPart {
    pub(crate) name: String,
    /// Name of the file that the part contains; `None` for plain values.
    pub(crate) file: Option<String>,
    pub(crate) media_type: Option<String>,
    pub(crate) content: Vec<u8>,
}

/// Writes a body with these parts. Returns the value of `Content-Type`, and the body.
pub(crate) fn written(parts: &[FormPart]) -> (String, Vec<u8>) {
    let boundary = boundary(parts);
    let mut body = Vec::new();
    for part in parts {
        let mut head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{}\"",
            quoted(&part.name)
        );
        if let Some(file) = &part.file {
            head.push_str(&format!("; filename=\"{}\"", quoted(file)));
        }
        if let Some(media_type) = &part.media_type {
            head.push_str(&format!("\r\nContent-Type: {media_type}"));
        }
        head.push_str("\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(&part.content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={boundary}"), body)
}

/// Returns a boundary that no content contains. Each content is scanned once, even if it contains many possible boundaries.
fn boundary(parts: &[FormPart]) -> String {
    let mut taken = BTreeSet::new();
    for part in parts {
        let starts = part.content.windows(BOUNDARY.len()).enumerate();
        for (at, _) in starts.filter(|(_, it)| *it == BOUNDARY.as_bytes()) {
            let number = at + BOUNDARY.len();
            taken.extend(part.content.get(number..number + NUMBER_LEN));
        }
    }
    let boundaries = (0_u32..).map(|number| format!("{number:0NUMBER_LEN$}"));
    let free = boundaries
        .into_iter()
        .find(|it| !taken.contains(it.as_bytes()));
    format!("{BOUNDARY}{}", free.unwrap_or_default())
}

/// Escapes quotes and line breaks of a name, as browsers do.
fn quoted(name: &str) -> String {
    name.replace('"', "%22")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_names_files_and_types() {
        let parts = [
            FormPart {
                name: "a\"b".into(),
                file: None,
                media_type: None,
                content: b"1".to_vec(),
            },
            FormPart {
                name: "f".into(),
                file: Some("f.png".into()),
                media_type: Some("image/png".into()),
                content: b"tooldock-part-0000000000".to_vec(),
            },
        ];
        let (kind, body) = written(&parts);
        assert_eq!(
            kind,
            "multipart/form-data; boundary=tooldock-part-0000000001"
        );
        let expected = "--tooldock-part-0000000001\r\nContent-Disposition: form-data; name=\"a%22b\"\r\n\r\n1\r\n\
            --tooldock-part-0000000001\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f.png\"\r\n\
            Content-Type: image/png\r\n\r\ntooldock-part-0000000000\r\n--tooldock-part-0000000001--\r\n";
        assert_eq!(String::from_utf8_lossy(&body), expected);
    }

    #[test]
    fn boundaries_in_contents_are_passed_over_in_a_single_scan() {
        let taken: String = (0..50_000)
            .map(|it| format!("tooldock-part-{it:010}"))
            .collect();
        let part = FormPart {
            name: "a".into(),
            file: None,
            media_type: None,
            content: taken.into_bytes(),
        };
        assert_eq!(boundary(&[part]), "tooldock-part-0000050000");
    }
}
