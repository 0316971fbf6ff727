//! Names of models on the Hub, and of their GGUF files.

use crate::Error;
use candle_core::quantized::gguf_file::names_of_parts;
use hf_hub::{Repo, RepoType};
use std::fmt;

/// Prefixes of names that are copied from a browser or another program.
const HOSTS: [&str; 2] = ["hf.co/", "huggingface.co/"];

/// A model on the Hub, as `owner/name[@revision][:file.gguf]` names it. Instead of a file there can be a format, such as `Q4_K_M`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    pub(super) repo: String,
    pub(super) revision: Option<String>,
    /// A GGUF file, or a format.
    pub(super) file: Option<String>,
}

impl HubModel {
    /// The model that `text` names, if it has the form.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("https://").unwrap_or(text);
        let host = HOSTS.iter().find_map(|host| text.strip_prefix(host));
        let (rest, file) = split(host.unwrap_or(text), ':');
        let (repo, revision) = split(rest, '@');
        let (owner, name) = repo.split_once('/')?;
        let word = |word: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !word.is_empty() && word.chars().all(plain) && !word.starts_with(['.', '-'])
        };
        // Such names are mistyped paths.
        let local = [".gguf", ".safetensors"];
        let named = word(owner) && word(name) && !local.iter().any(|end| name.ends_with(end));
        // Both become parts of a path in the cache.
        let inside = |path: &str| path.split('/').all(word);
        let fits = named
            && revision.is_none_or(inside)
            && file.is_none_or(|file| {
                inside(file) && (file.ends_with(".gguf") || !file.contains(['/', '.']))
            });
        fits.then(|| Self {
            repo: repo.to_string(),
            revision: revision.map(str::to_string),
            file: file.map(str::to_string),
        })
    }

    /// The model's name where owner and revision do not matter: the file's stem, or the name.
    pub fn short_name(&self) -> &str {
        let file = self.file.as_deref().filter(|file| file.ends_with(".gguf"));
        let path = file.unwrap_or(&self.repo);
        let last = path.rsplit('/').next().unwrap_or(path);
        last.strip_suffix(".gguf").unwrap_or(last)
    }

    pub(super) fn at(&self, revision: &str) -> Repo {
        Repo::with_revision(self.repo.clone(), RepoType::Model, revision.to_string())
    }

    pub(super) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    pub(super) fn error(&self, problem: impl fmt::Display) -> Error {
        Error::Hub {
            model: self.to_string(),
            problem: problem.to_string(),
        }
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.file {
            Some(file) => write!(f, ":{file}"),
            None => Ok(()),
        }
    }
}

/// The GGUF file among `files` that `wanted` names: a file, or a format such as `Q4_K_M` that one file has in its name. Of a model in
/// several files it is the first.
pub(super) fn gguf_file<'a>(
    files: &'a [String],
    wanted: &str,
) -> std::result::Result<&'a str, String> {
    if wanted.ends_with(".gguf") {
        let found = files.iter().find(|file| *file == wanted);
        return found
            .map(String::as_str)
            .ok_or_else(|| format!("the model has no {wanted}"));
    }
    let is_model = |file: &&String| {
        let name = file.rsplit('/').next().unwrap_or(file);
        let later = names_of_parts(name)
            .is_some_and(|parts| parts.first().is_none_or(|first| first != name));
        name.ends_with(".gguf") && !name.starts_with("mmproj") && !later
    };
    let models: Vec<&String> = files.iter().filter(is_model).collect();
    let tag = wanted.to_ascii_lowercase();
    // `IQ4_XS` is not in `MIQ4_XS`, and `Q4_K` is not in `Q4_K_M`.
    let has = |file: &&&String| {
        let name = file.rsplit('/').next().unwrap_or(file).to_ascii_lowercase();
        let word = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
        name.match_indices(&tag).any(|(at, _)| {
            let (before, behind) = (&name[..at], &name[at + tag.len()..]);
            word(before.chars().next_back()) && word(behind.chars().next())
        })
    };
    let found: Vec<&&String> = models.iter().filter(has).collect();
    let list = |files: &[&String]| {
        let files: Vec<&str> = files.iter().map(|file| file.as_str()).collect();
        files.join(", ")
    };
    match found.as_slice() {
        [one] => Ok(one.as_str()),
        [] if models.is_empty() => Err("the model has no GGUF files".to_string()),
        [] => Err(format!(
            "no GGUF file of the model has {wanted:?} in its name; it has {}",
            list(&models)
        )),
        several => {
            let several: Vec<&String> = several.iter().map(|file| **file).collect();
            Err(format!(
                "several GGUF files have {wanted:?} in their names; name one: {}",
                list(&several)
            ))
        }
    }
}

/// The other files of the model that `file` is part of.
pub(super) fn parts_of(file: &str) -> Vec<String> {
    let (folder, name) = file
        .rsplit_once('/')
        .map_or(("", file), |(folder, name)| (folder, name));
    let inside = |part: String| match folder {
        "" => part,
        folder => format!("{folder}/{part}"),
    };
    let parts = names_of_parts(name).unwrap_or_default().into_iter();
    parts.map(inside).filter(|part| part != file).collect()
}

/// The text before the first `mark`, and the text after it if there is one.
fn split(text: &str, mark: char) -> (&str, Option<&str>) {
    match text.split_once(mark) {
        Some((before, behind)) => (before, Some(behind)),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::HubModel;

    #[test]
    fn names() {
        for (text, repo, revision, file, short) in [
            ("a/b", "a/b", None, None, "b"),
            (
                "Org-1/Model-3.2_x",
                "Org-1/Model-3.2_x",
                None,
                None,
                "Model-3.2_x",
            ),
            ("a/b@v1.0", "a/b", Some("v1.0"), None, "b"),
            ("a/b@refs/pr/3", "a/b", Some("refs/pr/3"), None, "b"),
            ("a/b:q4.gguf", "a/b", None, Some("q4.gguf"), "q4"),
            (
                "a/b@main:sub/q4.gguf",
                "a/b",
                Some("main"),
                Some("sub/q4.gguf"),
                "q4",
            ),
        ] {
            let model = HubModel::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(model.repo, repo);
            assert_eq!(model.revision.as_deref(), revision, "{text}");
            assert_eq!(model.file.as_deref(), file, "{text}");
            assert_eq!(
                (model.to_string().as_str(), model.short_name()),
                (text, short)
            );
        }
        for text in [
            "",
            "a",
            "a/",
            "/b",
            "./b",
            "../b",
            "a/b/c",
            "/a/b",
            "a/b@",
            "a/b:",
            "a/b@../x",
            "a/b:../x.gguf",
            "a/b:/x.gguf",
            "a/b:x.bin",
            "a/b.gguf",
            "a/b c",
            "C:\\a/b",
            "C:/a",
            "~/b",
            "a/b@x y",
            "a/b@-x",
        ] {
            assert_eq!(HubModel::parse(text), None, "{text}");
        }
    }
}
