//! Models of the Hugging Face Hub, downloaded to its cache and then opened like local ones.
//!
//! The cache is the one of Python's `huggingface_hub`, with the same environment variables: `HF_HOME` and `HF_HUB_CACHE` for its path,
//! `HF_TOKEN` or the token file in `HF_HOME`, `HF_ENDPOINT`, and `HF_HUB_OFFLINE`.
//!
//! A revision is resolved first, and every file is then downloaded at the resolved commit, so that a model never mixes two commits. The
//! cache records the commit of a branch after all files are present: an interrupted download leaves the earlier commit usable.

mod cached;
mod download;
mod name;

pub use cached::{CachedModel, CachedRepo, Removal};
pub use name::HubModel;

use super::{folder, ModelSource};
use crate::{Error, Result};
use candle_core::quantized::gguf_file::names_of_parts;
use download::{Download, Problem};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::api::RepoInfo;
use hf_hub::{Cache, CacheRepo};
use name::{gguf_file, parts_of};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Files of a folder that a model can do without.
const OPTIONAL: [&str; 5] = [
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
];

/// The files of a LoRA adapter.
const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// Number of consecutive attempts to resume a download without progress.
const TRIES: u32 = 3;

/// Timeout of the Hub's listing of a model's files.
const LOOK_UP: Duration = Duration::from_secs(30);

/// The source and the cache of models.
#[derive(Clone)]
pub struct Hub {
    /// The address of the Hub, without a slash at its end.
    pub endpoint: String,
    /// The folder of the cache, in which each model has one.
    pub cache: PathBuf,
    /// The access token, for models with restricted access.
    pub token: Option<String>,
    /// Whether the cache has to do.
    pub offline: bool,
}

impl Hub {
    /// The Hub, with the settings of the environment.
    ///
    /// # Errors
    /// The environment gives no path for the cache, or an invalid address.
    pub fn from_env() -> Result<Self> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = set("HF_HOME").map(PathBuf::from).or_else(|| {
            let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
            home.map(|home| home.join(".cache").join("huggingface"))
        });
        let setting = |name, value: &str, expected: &str| Error::Setting {
            name,
            value: value.to_string(),
            expected: expected.to_string(),
        };
        let hub = home.as_ref().map(|home| Cache::new(home.join("hub")));
        let cache = set("HF_HUB_CACHE").map(PathBuf::from);
        let cache = cache.or_else(|| hub.as_ref().map(|hub| hub.path().clone()));
        let cache = cache.ok_or_else(|| {
            setting(
                "HF_HOME",
                "",
                "a model folder, since there is no home folder",
            )
        })?;
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_string());
        if !["http://", "https://"]
            .iter()
            .any(|scheme| endpoint.starts_with(scheme))
        {
            return Err(setting(
                "HF_ENDPOINT",
                &endpoint,
                "a URL with https:// or http://",
            ));
        }
        let token = set("HF_TOKEN").map(|token| token.trim().to_string());
        let offline = set("HF_HUB_OFFLINE").map(|value| value.to_ascii_lowercase());
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_string(),
            cache,
            token: token.or_else(|| hub.and_then(|hub| hub.token())),
            offline: offline
                .is_some_and(|value| ["1", "true", "yes", "on"].contains(&value.as_str())),
        })
    }

    /// As [`Hub::fetch`], of a LoRA adapter of peft, and gives its folder.
    ///
    /// # Errors
    /// As [`Hub::fetch`]; a name with a file.
    pub fn fetch_adapter(&self, model: &HubModel) -> Result<PathBuf> {
        if let Some(file) = &model.file {
            return Err(model.error(format!("an adapter is a folder; expected no file {file}")));
        }
        let cached = || {
            let cache = Cache::new(self.cache.clone()).repo(model.at(model.revision()));
            let pointer = cache.pointer_path(model.revision());
            let find = |file: &str| cache.get(file).or_else(|| Some(pointer.join(file)));
            let folder = find(ADAPTER[0])?.parent()?.to_path_buf();
            ADAPTER
                .iter()
                .all(|file| folder.join(file).exists())
                .then_some(folder)
        };
        self.fetch_with(model, cached(), |snapshot| {
            let path = snapshot.required(ADAPTER[0])?;
            snapshot.required(ADAPTER[1])?;
            Ok(path.parent().map(Path::to_path_buf).unwrap_or_default())
        })
    }

    /// Downloads the files of a model that the cache lacks, with bars on standard error; returns the folder or the GGUF file.
    ///
    /// # Errors
    /// A model, revision or file that is not there; one that needs a token; no network, or none allowed, and a cache without the model.
    pub fn fetch(&self, model: &HubModel) -> Result<ModelSource> {
        self.fetch_with(model, self.cached(model), |snapshot| {
            let Some(wanted) = &model.file else {
                return Ok(ModelSource::Folder(snapshot.folder()?));
            };
            let file = match gguf_file(&snapshot.files, wanted) {
                Ok(file) => file,
                // With the names of the files that there are.
                Err(_) if wanted.ends_with(".gguf") => return Err(snapshot.lacks(wanted)),
                Err(problem) => return Err(model.error(problem)),
            };
            let path = snapshot.required(file)?;
            for part in parts_of(file) {
                snapshot.required(&part)?;
            }
            Ok(ModelSource::Gguf(path))
        })
    }

    /// The result of `files` for a model's commit; that of `cached` where there is no network or none is allowed.
    fn fetch_with<T>(
        &self,
        model: &HubModel,
        cached: Option<T>,
        files: impl FnOnce(&Snapshot) -> Result<T>,
    ) -> Result<T> {
        if self.offline {
            return cached.ok_or_else(|| {
                let cache = self.cache.display();
                model.error(format!(
                    "no such file or folder, and missing or incomplete in the cache {cache}; HF_HUB_OFFLINE prevents a download"
                ))
            });
        }
        let failed = |err| model.error(self.explain(err));
        let api = ApiBuilder::from_cache(Cache::new(self.cache.clone()))
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_progress(false)
            .build()
            .map_err(failed)?;
        let info = match self.look_up(model, &api.repo(model.at(model.revision()))) {
            Ok(info) => info,
            Err(LookUp::Unreachable(why)) => {
                let Some(cached) = cached else {
                    return Err(model.error(format!(
                        "no such file or folder, not in the cache, and cannot reach {}: {why}",
                        self.endpoint
                    )));
                };
                tracing::warn!(
                    "cannot reach {} ({why}): using {model} from the cache",
                    self.endpoint
                );
                return Ok(cached);
            }
            Err(LookUp::Refused(err)) => return Err(err),
        };
        let snapshot = Snapshot {
            hub: self,
            model,
            files: info
                .siblings
                .into_iter()
                .map(|file| file.rfilename)
                .collect(),
            repo: api.repo(model.at(&info.sha)),
            cache: Cache::new(self.cache.clone()).repo(model.at(&info.sha)),
            commit: info.sha,
            api,
        };
        let source = files(&snapshot)?;
        let cache = Cache::new(self.cache.clone()).repo(model.at(model.revision()));
        let noted = cache.create_ref(&snapshot.commit);
        noted.map_err(|err| Error::file(&self.cache, err))?;
        Ok(source)
    }

    /// The model, if all of it is in the cache.
    fn cached(&self, model: &HubModel) -> Option<ModelSource> {
        let cache = Cache::new(self.cache.clone()).repo(model.at(model.revision()));
        let find = |file: &str| {
            cache.get(file).or_else(|| {
                // A commit's own name needs no entry.
                let path = cache.pointer_path(model.revision()).join(file);
                path.exists().then_some(path)
            })
        };
        let Some(wanted) = model.file.as_deref() else {
            let path = find(folder::CONFIG)?;
            let folder = path.parent()?;
            return folder::is_whole(folder).then(|| ModelSource::Folder(folder.to_path_buf()));
        };
        let path = if wanted.ends_with(".gguf") {
            find(wanted)?
        } else {
            self.tagged(model, &cache, wanted)?
        };
        let name = path.file_name()?.to_str()?;
        let whole = names_of_parts(name)
            .is_none_or(|parts| parts.iter().all(|part| path.with_file_name(part).exists()));
        whole.then_some(ModelSource::Gguf(path))
    }

    /// The file of a format, among those of a model in the cache.
    fn tagged(&self, model: &HubModel, cache: &CacheRepo, tag: &str) -> Option<PathBuf> {
        let repo = self.cache.join(model.at(model.revision()).folder_name());
        let named = std::fs::read_to_string(repo.join("refs").join(model.revision()));
        let commit = named.map_or(model.revision().to_string(), |commit| {
            commit.trim().to_string()
        });
        let folder = cache.pointer_path(&commit);
        let mut files = Vec::new();
        // Quantised models are often in a folder for each format.
        let mut folders = vec![folder.clone()];
        while let Some(inner) = folders.pop() {
            for entry in std::fs::read_dir(inner).ok()?.flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path)
                } else {
                    let file = path.strip_prefix(&folder).ok()?.to_str()?;
                    files.push(file.replace('\\', "/"));
                }
            }
        }
        gguf_file(&files, tag).ok().map(|file| folder.join(file))
    }

    /// The Hub's listing of a model.
    fn look_up(&self, model: &HubModel, repo: &ApiRepo) -> std::result::Result<RepoInfo, LookUp> {
        let config = repo.info_request().config();
        let request = config
            .http_status_as_error(false)
            .timeout_global(Some(LOOK_UP));
        let mut response = request.build().call().map_err(|err| {
            if unreachable(&err) {
                LookUp::Unreachable(err.to_string())
            } else {
                LookUp::Refused(model.error(format!("{}: {err}", self.endpoint)))
            }
        })?;
        let refused = |problem| LookUp::Refused(model.error(problem));
        let status = response.status().as_u16();
        let code = response.headers().get("x-error-code");
        let code = code.and_then(|code| code.to_str().ok()).unwrap_or("");
        let endpoint = &self.endpoint;
        match (status, code) {
            (200, _) => (),
            (_, "RevisionNotFound") => {
                let revision = model.revision();
                return Err(refused(format!(
                    "{endpoint} has no revision `{revision}` of this model"
                )));
            }
            (_, "GatedRepo") => return Err(refused(self.gated(model))),
            (401 | 403 | 404, _) => {
                let revision = match &model.revision {
                    Some(revision) if code.is_empty() => {
                        format!(" or no revision `{revision}` of it")
                    }
                    _ => String::new(),
                };
                return Err(refused(format!(
                    "no such file or folder, and {endpoint} has no such model{revision} ({status}); for a private model, set HF_TOKEN to a token that \
                     can read it"
                )));
            }
            _ => return Err(refused(format!("{endpoint} returned {status}"))),
        }
        let info: RepoInfo = response
            .body_mut()
            .read_json()
            .map_err(|err| refused(format!("{endpoint}: cannot parse the list of files: {err}")))?;
        // It becomes a folder of the cache.
        if !info.sha.is_empty() && info.sha.chars().all(|c| c.is_ascii_alphanumeric()) {
            Ok(info)
        } else {
            Err(refused(format!(
                "{endpoint} returned an invalid commit {:?}",
                info.sha
            )))
        }
    }

    fn gated(&self, model: &HubModel) -> String {
        let page = format!("{}/{}", self.endpoint, model.repo);
        match self.token {
            Some(_) => format!("gated, and the token has no access: request it at {page}"),
            None => {
                format!("gated: request access at {page} and set HF_TOKEN to a token that has it")
            }
        }
    }

    /// A message for an error of the crate.
    fn explain(&self, err: ApiError) -> String {
        let endpoint = &self.endpoint;
        match err {
            ApiError::RequestError(err) => match *err {
                ureq::Error::StatusCode(status) => format!("{endpoint} returned {status}"),
                err if unreachable(&err) => format!("cannot reach {endpoint}: {err}"),
                err => format!("{endpoint}: {err}"),
            },
            ApiError::LockAcquisition(lock) => {
                format!(
                    "another process is downloading it (lock file {})",
                    lock.display()
                )
            }
            err => err.to_string(),
        }
    }
}

/// The reason why the Hub has not returned a listing.
enum LookUp {
    /// There was no answer.
    Unreachable(String),
    /// There was one.
    Refused(Error),
}

/// Whether there was no answer at all.
fn unreachable(err: &ureq::Error) -> bool {
    use ureq::Error::{ConnectionFailed, HostNotFound, Io, Timeout};
    matches!(err, ConnectionFailed | HostNotFound | Io(_) | Timeout(_))
}

/// A model at one commit.
struct Snapshot<'a> {
    hub: &'a Hub,
    model: &'a HubModel,
    /// The files of the model.
    files: Vec<String>,
    commit: String,
    api: Api,
    repo: ApiRepo,
    cache: CacheRepo,
}

impl Snapshot<'_> {
    /// A folder of the cache with everything that `folder::open` reads.
    fn folder(&self) -> Result<PathBuf> {
        if !self.has(folder::CONFIG) {
            return Err(self.lacks(folder::CONFIG));
        }
        let config = self.required(folder::CONFIG)?;
        self.required(folder::TOKENIZER)?;
        for file in OPTIONAL.iter().filter(|file| self.has(file)) {
            self.required(file)?;
        }
        if self.has(folder::SINGLE) || !self.has(folder::INDEX) {
            self.required(folder::SINGLE)?;
        } else {
            let index = self.required(folder::INDEX)?;
            for shard in folder::shards(&folder::read_index(&index)?) {
                self.required(shard)?;
            }
        }
        let folder = config.parent().map(Path::to_path_buf);
        Ok(folder.unwrap_or_default())
    }

    fn has(&self, file: &str) -> bool {
        self.files.iter().any(|other| other == file)
    }

    /// The error for a file that the model does not have.
    fn lacks(&self, file: &str) -> Error {
        let gguf = self.files.iter().filter(|file| file.ends_with(".gguf"));
        let gguf: Vec<String> = gguf
            .map(|file| format!("{}:{file}", self.model.repo))
            .collect();
        let hint = match gguf.as_slice() {
            [] => String::new(),
            files => format!("; to run a GGUF file, pass its name: {}", files.join(", ")),
        };
        self.model.error(format!("the model has no {file}{hint}"))
    }

    /// The path of a file in the cache, to which it is fetched if it is not there.
    fn required(&self, file: &str) -> Result<PathBuf> {
        let path = self.cache.pointer_path(&self.commit).join(file);
        if path.exists() {
            return Ok(path);
        }
        if !self.has(file) {
            return Err(self.lacks(file));
        }
        let mut before = None;
        let mut tries = 0;
        loop {
            let failed = match self.attempt(file) {
                Ok(found) => return Ok(found),
                Err(failed) => failed,
            };
            let Failure::Interrupted { problem, arrived } = failed else {
                return Err(self.explain(file, failed));
            };
            tries = if before == arrived { tries + 1 } else { 0 };
            if tries >= TRIES {
                let failed = Failure::Interrupted { problem, arrived };
                return Err(self.explain(file, failed));
            }
            before = arrived;
            tracing::debug!(file, problem, "resumed");
            std::thread::sleep(Duration::from_millis(100 << tries));
        }
    }

    /// Fetches a file, from where an earlier attempt ended.
    fn attempt(&self, file: &str) -> std::result::Result<PathBuf, Failure> {
        let metadata = self
            .api
            .metadata(&self.repo.url(file))
            .map_err(|err| self.failure(err, None))?;
        // Both become parts of a path in the cache.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let etag = metadata.etag();
        if etag.is_empty() || !etag.chars().all(plain) || metadata.commit_hash() != self.commit {
            return Err(Failure::Other(format!(
                "the response has etag {etag:?} and commit {:?}; expected an alphanumeric etag and commit {:?}",
                metadata.commit_hash(),
                self.commit
            )));
        }
        let size = metadata.size() as u64;
        let blob = self.cache.blob_path(etag);
        let length = |path: &Path| std::fs::metadata(path).ok().map(|metadata| metadata.len());
        let download = Download {
            url: &self.repo.url(file),
            token: self.hub.token.as_deref(),
            name: file,
            size,
            etag,
        };
        let link = self.cache.pointer_path(&self.commit).join(file);
        download
            .to(&blob)
            .and_then(|()| link_to(&blob, &link, file).map_err(Problem::Disk))
            .map(|()| link)
            .map_err(|problem| self.problem(problem, length(&download::part_of(&blob))))
    }

    /// The failure of a download, when `arrived` bytes of the file were there.
    fn problem(&self, problem: Problem, arrived: Option<u64>) -> Failure {
        match problem {
            Problem::Request(err) => self.failure(ApiError::RequestError(err), arrived),
            Problem::Interrupted(problem) => Failure::Interrupted { problem, arrived },
            Problem::Disk(err) => Failure::Other(err.to_string()),
            Problem::Locked(lock) => {
                Failure::Other(self.hub.explain(ApiError::LockAcquisition(lock)))
            }
            Problem::Wrong(problem) => Failure::Other(problem),
        }
    }

    /// The failure of a download after `arrived` bytes of the file.
    fn failure(&self, err: ApiError, arrived: Option<u64>) -> Failure {
        let again = match &err {
            ApiError::RequestError(err) => match err.as_ref() {
                ureq::Error::StatusCode(401 | 403) => return Failure::Gated,
                ureq::Error::StatusCode(status) => *status >= 500,
                err => unreachable(err),
            },
            // Not what the disk says.
            ApiError::IoError(err) => !matches!(
                err.kind(),
                ErrorKind::StorageFull
                    | ErrorKind::PermissionDenied
                    | ErrorKind::ReadOnlyFilesystem
                    | ErrorKind::NotFound
                    | ErrorKind::AlreadyExists
            ),
            _ => false,
        };
        let problem = self.hub.explain(err);
        if again {
            Failure::Interrupted { problem, arrived }
        } else {
            Failure::Other(problem)
        }
    }

    fn explain(&self, file: &str, failure: Failure) -> Error {
        self.model.error(match failure {
            Failure::Gated => self.hub.gated(self.model),
            Failure::Interrupted {
                problem,
                arrived: Some(arrived),
            } => format!("{file}: {problem}; kept {arrived} bytes; the next attempt resumes there"),
            Failure::Interrupted { problem, .. } | Failure::Other(problem) => {
                format!("{file}: {problem}")
            }
        })
    }
}

/// The reason why a file has not been downloaded.
enum Failure {
    /// Only some may have it.
    Gated,
    /// It may go better now.
    Interrupted {
        problem: String,
        /// The bytes that are in the cache.
        arrived: Option<u64>,
    },
    /// It will go no better.
    Other(String),
}

/// Links `link` to a blob of the cache, as the cache's other entries are linked. `file` is its path within the snapshot.
fn link_to(blob: &Path, link: &Path, file: &str) -> std::io::Result<()> {
    if let Some(folder) = link.parent() {
        std::fs::create_dir_all(folder)?;
    }
    if !link.exists() && link.is_symlink() {
        // Its blob was deleted.
        std::fs::remove_file(link)?;
    }
    #[cfg(unix)]
    {
        // Up from the file's folder through the snapshot and `snapshots`.
        let mut relative = PathBuf::from("../../");
        relative.extend(file.split('/').skip(1).map(|_| ".."));
        relative.push("blobs");
        relative.push(blob.file_name().unwrap_or_default());
        std::os::unix::fs::symlink(relative, link)
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        std::fs::hard_link(blob, link)
    }
}
