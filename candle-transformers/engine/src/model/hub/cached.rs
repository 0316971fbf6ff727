//! The models in the cache: a list of them, and their removal.
//!
//! Each model has a folder `models--OWNER--NAME`: `blobs` has the contents of files, `snapshots/COMMIT` links to them under the files' names,
//! and `refs/BRANCH` has the commit of a branch. Python's `huggingface_hub` has the same layout.

use super::name::{gguf_file, parts_of};
use super::{Hub, HubModel};
use crate::model::folder;
use crate::{Error, Result};
use candle_core::quantized::gguf_file::names_of_parts;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A repository in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CachedRepo {
    /// `owner/name`.
    pub repo: String,
    /// Bytes on the disk, with those of incomplete downloads.
    pub bytes: u64,
    /// Bytes of incomplete downloads.
    pub incomplete_bytes: u64,
    /// Its models; none if no revision has all files of one.
    pub models: Vec<CachedModel>,
}

/// A complete model in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CachedModel {
    /// The name for `--model`.
    pub name: String,
    /// Bytes of its files. Revisions share files that are the same.
    pub bytes: u64,
}

/// Files to delete, and what that frees.
pub struct Removal {
    repo: String,
    /// Links of snapshots.
    links: Vec<PathBuf>,
    blobs: Vec<PathBuf>,
    refs: Vec<PathBuf>,
    /// The folder of the repository, if the removal leaves nothing in it.
    whole: Option<PathBuf>,
    bytes: u64,
}

impl Removal {
    /// Number of bytes on the disk that it frees.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Deletes the files.
    ///
    /// # Errors
    /// The first file that cannot be deleted.
    pub fn run(self) -> Result<()> {
        if let Some(folder) = self.whole {
            return std::fs::remove_dir_all(&folder).map_err(|err| Error::file(&folder, err));
        }
        // Links first: a link without its blob would look like a broken model.
        for file in self.refs.iter().chain(&self.links).chain(&self.blobs) {
            std::fs::remove_file(file).map_err(|err| Error::file(file, err))?;
        }
        for link in &self.links {
            // Up to the first folder that has other files.
            let mut folder = link.parent();
            while let Some(path) =
                folder.filter(|path| path.file_name() != Some("snapshots".as_ref()))
            {
                if std::fs::remove_dir(path).is_err() {
                    break;
                }
                folder = path.parent();
            }
        }
        tracing::debug!(repo = self.repo, "removed");
        Ok(())
    }
}

impl Hub {
    /// The models in the cache, by name. It asks no server.
    ///
    /// # Errors
    /// A cache that cannot be read. A cache that does not exist is empty.
    pub fn repos(&self) -> Result<Vec<CachedRepo>> {
        let entries = match std::fs::read_dir(&self.cache) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|err| Error::file(&self.cache, err))?,
        };
        let mut repos = Vec::new();
        for entry in entries {
            let name = entry
                .map_err(|err| Error::file(&self.cache, err))?
                .file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix("models--")) else {
                continue;
            };
            // Models of the Hub's first years have no owner, and `--model` does not take them.
            let name = name.replacen("--", "/", 1);
            if let Some(model) = HubModel::parse(&name).filter(|model| model.repo == name) {
                repos.push(self.describe(&model)?);
            }
        }
        repos.sort_unstable_by(|a: &CachedRepo, b| a.repo.cmp(&b.repo));
        Ok(repos)
    }

    fn describe(&self, model: &HubModel) -> Result<CachedRepo> {
        let repo = Tree::read(&self.repo_folder(model))?;
        let mut models = Vec::new();
        for (commit, snapshot) in &repo.snapshots {
            let branches = repo.branches_of(commit);
            let revision = match branches.iter().find(|branch| **branch == "main") {
                Some(_) => String::new(),
                None => format!("@{}", branches.first().unwrap_or(&commit.as_str())),
            };
            let name = format!("{}{revision}", model.repo);
            let size = |files: &mut dyn Iterator<Item = &String>| {
                let sizes = files.filter_map(|file| length(&snapshot.folder.join(file)));
                sizes.sum()
            };
            if folder::is_whole(&snapshot.folder) {
                let files = &snapshot.files;
                let mut files = files.iter().filter(|file| !file.ends_with(".gguf"));
                models.push(CachedModel {
                    name: name.clone(),
                    bytes: size(&mut files),
                });
            }
            for file in snapshot.files.iter().filter(|file| file.ends_with(".gguf")) {
                let last = file.rsplit('/').next().unwrap_or(file);
                let parts = names_of_parts(last).unwrap_or_default();
                let mut all = parts_of(file);
                all.push(file.clone());
                let complete = all.iter().all(|part| snapshot.files.contains(part));
                if complete && parts.first().is_none_or(|first| first == last) {
                    models.push(CachedModel {
                        name: format!("{name}:{file}"),
                        bytes: size(&mut all.iter()),
                    });
                }
            }
        }
        models.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(CachedRepo {
            repo: model.repo.clone(),
            bytes: repo.bytes(),
            incomplete_bytes: repo.incomplete(),
            models,
        })
    }

    fn repo_folder(&self, model: &HubModel) -> PathBuf {
        self.cache.join(model.at(model.revision()).folder_name())
    }

    /// The files that belong to `model` alone: of `owner/name` all, of `owner/name@revision` those that no other revision has, of
    /// `owner/name:file.gguf` that file with its parts.
    ///
    /// # Errors
    /// A model that is not in the cache, a format that several files have.
    pub fn removal(&self, model: &HubModel) -> Result<Removal> {
        let folder = self.repo_folder(model);
        let cache = self.cache.display();
        let missing = |what: &str| model.error(format!("{what} is not in the cache {cache}"));
        if !folder.is_dir() {
            return Err(missing("it"));
        }
        if folder.is_symlink() {
            return Err(Error::file(
                &folder,
                "a link to another place; remove it yourself",
            ));
        }
        let repo = Tree::read(&folder)?;
        let mut removal = Removal {
            repo: model.repo.clone(),
            links: Vec::new(),
            blobs: Vec::new(),
            refs: Vec::new(),
            whole: None,
            bytes: repo.bytes(),
        };
        if model.revision.is_none() && model.file.is_none() {
            removal.whole = Some(folder);
            return Ok(removal);
        }
        let commit = model.revision.as_ref().map(|revision| {
            let commit = repo.refs.get(revision).map(|(_, commit)| commit);
            commit.unwrap_or(revision).clone()
        });
        let chosen = repo.snapshots.iter();
        let chosen =
            chosen.filter(|(name, _)| commit.as_ref().is_none_or(|commit| commit == *name));
        let mut found = false;
        for (_, snapshot) in chosen {
            let files = match &model.file {
                None => snapshot.files.clone(),
                Some(wanted) => match gguf_file(&snapshot.files, wanted) {
                    Ok(file) => {
                        let mut files = parts_of(file);
                        files.push(file.to_string());
                        files.retain(|file| snapshot.files.contains(file));
                        files
                    }
                    Err(problem) if problem.starts_with("several") => {
                        return Err(model.error(problem))
                    }
                    Err(_) => continue,
                },
            };
            found = true;
            let links = files.iter().map(|file| snapshot.folder.join(file));
            removal.links.extend(links);
        }
        if !found {
            return Err(missing(match &model.file {
                Some(_) => "such a file",
                None => "this revision",
            }));
        }
        let going: BTreeSet<&PathBuf> = removal.links.iter().collect();
        let all = repo.links();
        if all.iter().all(|link| going.contains(link)) {
            removal.whole = Some(folder);
            return Ok(removal);
        }
        let blob = |link: &PathBuf| std::fs::canonicalize(link).ok();
        let kept: BTreeSet<PathBuf> = all
            .iter()
            .filter(|link| !going.contains(link))
            .filter_map(blob)
            .collect();
        let blobs: BTreeSet<PathBuf> = removal.links.iter().filter_map(blob).collect();
        let blobs = blobs.difference(&kept).cloned();
        let blobs: Vec<PathBuf> = blobs.collect();
        removal.bytes = blobs.iter().filter_map(|blob| length(blob)).sum();
        // On systems without links, a snapshot has the file itself.
        let inside = std::fs::canonicalize(folder.join("blobs"));
        let inside = inside.map_err(|err| Error::file(&folder, err))?;
        let ours = blobs.into_iter().filter(|blob| blob.starts_with(&inside));
        removal.blobs = ours.collect();
        if model.file.is_none() {
            let refs = repo.refs.values();
            let refs = refs.filter(|(_, of)| commit.as_ref() == Some(of));
            removal.refs = refs.map(|(file, _)| file.clone()).collect();
        }
        Ok(removal)
    }
}

fn length(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|metadata| metadata.len())
}

/// The folder of a repository.
struct Tree {
    folder: PathBuf,
    /// By commit.
    snapshots: BTreeMap<String, Snapshot>,
    /// File and commit of each branch, tag or pull request.
    refs: BTreeMap<String, (PathBuf, String)>,
}

struct Snapshot {
    folder: PathBuf,
    /// Names of its files, with `/` between folders. A link without its blob is not one.
    files: Vec<String>,
}

impl Tree {
    fn read(folder: &Path) -> Result<Self> {
        let mut tree = Self {
            folder: folder.to_path_buf(),
            snapshots: BTreeMap::new(),
            refs: BTreeMap::new(),
        };
        let place = folder.join("snapshots");
        for file in files_in(&place)? {
            if let Some((commit, file)) = file.split_once('/') {
                let snapshot = tree.snapshots.entry(commit.to_string());
                let snapshot = snapshot.or_insert_with(|| Snapshot {
                    folder: place.join(commit),
                    files: Vec::new(),
                });
                snapshot.files.push(file.to_string());
            }
        }
        let place = folder.join("refs");
        for name in files_in(&place)? {
            let file = place.join(&name);
            let commit = std::fs::read_to_string(&file).map_err(|err| Error::file(&file, err))?;
            tree.refs.insert(name, (file, commit.trim().to_string()));
        }
        Ok(tree)
    }

    fn branches_of(&self, commit: &str) -> Vec<&str> {
        let refs = self.refs.iter().filter(|(_, (_, of))| of == commit);
        // hf-hub notes a commit as its own branch.
        let names = refs.map(|(name, _)| name.as_str());
        names.filter(|name| *name != commit).collect()
    }

    fn links(&self) -> Vec<PathBuf> {
        let snapshots = self.snapshots.values();
        let links = snapshots.flat_map(|snapshot| {
            let files = snapshot.files.iter();
            files.map(|file| snapshot.folder.join(file))
        });
        links.collect()
    }

    /// Bytes on the disk: the blobs, and files of snapshots where a system has no links.
    fn bytes(&self) -> u64 {
        let blobs: u64 = self.blobs().iter().map(|(_, bytes)| bytes).sum();
        let own = self.links().into_iter().filter(|link| !link.is_symlink());
        let own: u64 = own.filter_map(|link| length(&link)).sum();
        blobs.max(own)
    }

    fn incomplete(&self) -> u64 {
        let blobs = self.blobs();
        let parts = blobs.iter().filter(|(name, _)| {
            // hf-hub's and Python's.
            name.ends_with(".part") || name.ends_with(".incomplete")
        });
        parts.map(|(_, bytes)| bytes).sum()
    }

    /// Names and sizes of the blobs and of incomplete downloads.
    fn blobs(&self) -> Vec<(String, u64)> {
        let place = self.folder.join("blobs");
        let names = files_in(&place).unwrap_or_default().into_iter();
        let blobs = names.filter(|name| !name.ends_with(".lock"));
        let sized = blobs.filter_map(|name| {
            let bytes = length(&place.join(&name))?;
            Some((name, bytes))
        });
        sized.collect()
    }
}

/// The files below a folder, in order, with `/` between folders; none if it does not exist. Links to folders are not followed, and links
/// to nothing are left out.
fn files_in(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    let mut folders = vec![(folder.to_path_buf(), String::new())];
    while let Some((path, prefix)) = folders.pop() {
        let entries = match std::fs::read_dir(&path) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries.map_err(|err| Error::file(&path, err))?,
        };
        for entry in entries {
            let entry = entry.map_err(|err| Error::file(&path, err))?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push((entry.path(), format!("{name}/"))),
                _ if entry.path().is_file() => files.push(name),
                _ => {}
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}
