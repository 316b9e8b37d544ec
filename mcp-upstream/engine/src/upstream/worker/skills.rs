//! Skills of a namespace: the extension `io.modelcontextprotocol/skills` (SEP-2640).
//!
//! `resources/directory/read` is answered from the snapshot, and `skills/list` and `skills/get` are calls of the worker.
//! The worker describes its skills with their front matters as text. Clients get a front matter as JSON, so it is parsed here: within
//! bounds, since the authors of skills write it, and outside the I/O threads.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::gate::Principal;
use tooldock_base::heavy_work;
use tooldock_base::resource::Resource;
use tooldock_base::yaml::{self, Bounds};
use tooldock_workers::registry::Namespace;

use crate::engine::{CallOutcome, UpstreamReply};

/// Name of the extension.
pub(super) const EXTENSION: &str = "io.modelcontextprotocol/skills";
/// Media type of folders.
pub(super) const FOLDER_TYPE: &str = "inode/directory";
/// Maximum number of skills of a namespace. The worker has the same limit.
const SKILLS_MAX: usize = 100;
/// Bounds of a front matter. The worker reads no larger one than 64 KiB.
const BOUNDS: Bounds = Bounds {
    values: 1000,
    texts: 64 * 1024,
    depth: 16,
};

/// Skills as the worker describes them.
#[derive(Deserialize)]
struct SkillsOfWorker<'a> {
    #[serde(borrow)]
    skills: Vec<SkillOfWorker<'a>>,
}

#[derive(Deserialize)]
struct SkillOfWorker<'a> {
    #[serde(borrow)]
    uri: &'a RawValue,
    /// YAML without the lines `---`.
    frontmatter: String,
    #[serde(borrow)]
    resources: &'a RawValue,
}

/// A skill as clients get it.
#[derive(Serialize)]
struct SkillEntry<'a> {
    uri: &'a RawValue,
    frontmatter: Map<String, Value>,
    resources: &'a RawValue,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum SkillsResult<'a> {
    Skills(Vec<SkillEntry<'a>>),
    Skill(SkillEntry<'a>),
}

/// Returns true if a namespace has skills.
pub(super) fn are_in(namespace: &Namespace) -> bool {
    namespace.resources.iter().any(|it| root(it).is_some())
}

/// An entry of a skill's folder.
pub(super) enum DirectoryEntry<'a> {
    File(&'a Resource),
    Folder { uri: &'a str, name: &'a str },
}

/// Lists the files and folders directly in a folder of a skill; empty if the URI names no such folder.
pub(super) fn directory<'a>(resources: &'a [Arc<Resource>], uri: &str) -> Vec<DirectoryEntry<'a>> {
    let roots = resources.iter().filter_map(|it| root(it));
    let is_inside = |root: &str| {
        let rest = uri.strip_prefix(root);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if !roots.into_iter().any(is_inside) {
        return Vec::new();
    }
    let mut entries = Vec::new();
    let mut folders = HashSet::new();
    for resource in resources {
        let rest = resource.uri.strip_prefix(uri);
        let Some(rest) = rest.and_then(|rest| rest.strip_prefix('/')) else {
            continue;
        };
        match rest.split_once('/') {
            None => entries.push(DirectoryEntry::File(resource)),
            Some((name, _)) if folders.insert(name) => {
                let uri = &resource.uri[..=uri.len() + name.len()];
                entries.push(DirectoryEntry::Folder { uri, name });
            }
            Some(_) => {}
        }
    }
    entries
}

/// The folder of a skill, if the resource is its `SKILL.md`.
fn root(resource: &Resource) -> Option<&str> {
    let root = resource.uri.strip_suffix("/SKILL.md")?;
    root.starts_with("skill://").then_some(root)
}

/// Converts the worker's description of skills to the result for the client. `is_single`: true for the description of one skill,
/// `skills/get`.
pub(super) async fn result_of(
    principal: &Principal,
    is_single: bool,
    reply: UpstreamReply,
) -> CallOutcome {
    let UpstreamReply::Result(described) = reply else {
        return Err(unreadable("no result"));
    };
    let result = heavy_work::run(principal, move || result(&described, is_single)).await??;
    Ok(UpstreamReply::Result(result.into()))
}

/// Skills whose front matter is no YAML within bounds are left out of a list.
fn result(described: &[u8], is_single: bool) -> Result<Vec<u8>, CallError> {
    let described: SkillsOfWorker<'_> =
        serde_json::from_slice(described).map_err(|_| unreadable("not of the expected form"))?;
    let skills = described.skills;
    let texts = skills.iter().map(|it| it.frontmatter.as_bytes());
    if skills.len() > SKILLS_MAX || !yaml::all_readable_in_time(texts) {
        return Err(unreadable("too large; use fewer brackets in front matters"));
    }
    let mut entries = skills.into_iter().map(SkillOfWorker::entry);
    let result = match is_single {
        false => SkillsResult::Skills(entries.filter_map(Result::ok).collect()),
        true => SkillsResult::Skill(
            entries
                .next()
                .unwrap_or_else(|| Err(unreadable("its SKILL.md cannot be read any more")))?,
        ),
    };
    serde_json::to_vec(&result).map_err(|_| unreadable("no JSON"))
}

impl<'a> SkillOfWorker<'a> {
    fn entry(self) -> Result<SkillEntry<'a>, CallError> {
        // The worker's own bound does not count, since tool code runs beside it.
        if self.frontmatter.len() > BOUNDS.texts {
            return Err(unreadable("a front matter has more than 64 KiB"));
        }
        let frontmatter = yaml::from_slice_within(self.frontmatter.as_bytes(), BOUNDS);
        Ok(SkillEntry {
            uri: self.uri,
            frontmatter: frontmatter.map_err(|error| unreadable(&error.to_string()))?,
            resources: self.resources,
        })
    }
}

fn unreadable(reason: &str) -> CallError {
    let message = format!("The description of skills cannot be used: {reason}");
    CallError::new(CallErrorCode::InternalError, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(skills: &Value, is_single: bool) -> Result<Value, String> {
        let described = json!({ "skills": skills }).to_string();
        let result = result(described.as_bytes(), is_single);
        let result = result.map_err(|error| error.message.to_string())?;
        Ok(serde_json::from_slice(&result).expect("JSON"))
    }

    fn skill(frontmatter: &str) -> Value {
        json!({ "uri": "skill://a/SKILL.md", "frontmatter": frontmatter, "resources": "dynamic" })
    }

    #[test]
    fn front_matters_are_rendered_as_json_and_others_are_left_out() {
        let good = skill("name: a\nmetadata: {version: 1.5, tags: [x, yes]}\nlicense: ~");
        let expected = json!({
            "uri": "skill://a/SKILL.md",
            "frontmatter": {"name": "a", "metadata": {"version": 1.5, "tags": ["x", "yes"]}, "license": null},
            "resources": "dynamic",
        });
        let list = read(&json!([good, skill("name: a: b"), skill("- a")]), false);
        assert_eq!(list, Ok(json!({ "skills": [expected] })));
        assert_eq!(read(&json!([good]), true), Ok(json!({ "skill": expected })));
        let refused = read(&json!([skill("name: a: b")]), true);
        assert!(refused.is_err_and(|message| message.contains("line 1")));
    }

    #[test]
    fn a_folder_of_a_skill_has_its_files_and_folders_and_no_other_uri_has_any() {
        let resource = |uri: &str| -> Arc<Resource> {
            let line = json!({"definition": {"uri": uri}, "filename": "x", "context": false});
            Arc::new(serde_json::from_value(line).expect("a resource"))
        };
        let all = [
            "skill://team/a/SKILL.md",
            "skill://team/a/b/c.md",
            "skill://team/a/b/d/e.md",
            "skill://team/ab/SKILL.md",
            "test://x/y",
        ]
        .map(resource);
        let named = |uri: &str| -> Vec<String> {
            let entries = directory(&all, uri).into_iter();
            let named = entries.map(|entry| match entry {
                DirectoryEntry::File(file) => file.uri.to_string(),
                DirectoryEntry::Folder { uri, name } => format!("{uri} {name}"),
            });
            named.collect()
        };
        let a = ["skill://team/a/SKILL.md", "skill://team/a/b b"];
        assert_eq!(named("skill://team/a"), a);
        let b = ["skill://team/a/b/c.md", "skill://team/a/b/d d"];
        assert_eq!(named("skill://team/a/b"), b);
        for other in [
            "skill://team",
            "skill://team/a/SKILL.md",
            "test://x",
            "",
            "skill://team/a/",
        ] {
            assert_eq!(named(other), [""; 0], "{other}");
        }
    }

    #[test]
    fn front_matters_that_take_much_time_or_memory_are_refused() {
        let (list, uses) = (vec!["x"; 100].join(","), vec!["*a"; 100].join(","));
        let bomb = skill(&format!("name: a\nx: &a [{list}]\ny: [{uses}]"));
        let refused = read(&json!([bomb]), true).expect_err("refused");
        assert!(refused.contains("more than 1000 values"), "{refused}");
        assert_eq!(read(&json!([bomb]), false), Ok(json!({ "skills": [] })));
        // Each of them could be read in time, and all together could not.
        let slow = skill(&format!("name: {}", "[".repeat(10_000)));
        let many: Vec<_> = (0..SKILLS_MAX).map(|_| slow.clone()).collect();
        let refused = read(&json!(many), false).expect_err("refused");
        assert!(refused.contains("fewer brackets"), "{refused}");
        // Its many values would all be parsed before they could be counted.
        let long = skill(&"-\n".repeat(40 * 1024));
        let refused = read(&json!([long]), true).expect_err("refused");
        assert!(refused.contains("more than 64 KiB"), "{refused}");
        let many: Vec<_> = (0..=SKILLS_MAX).map(|_| skill("name: a")).collect();
        assert!(read(&json!(many), false).is_err());
    }
}
