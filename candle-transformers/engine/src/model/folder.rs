//! Models from a Hugging Face folder.

use super::{kind, JsonFiles, ModelFiles, Weights, FORM};
#[cfg(not(target_arch = "wasm32"))]
use crate::error::brief;
use crate::pictures::PictureSupport;
use crate::{Error, Result};
use candle_core::quantized::gguf_file::names_of_parts;
#[cfg(not(target_arch = "wasm32"))]
use candle_transformers::pictures::PictureSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// The files that describe images before they are encoded; the first that is there counts.
#[cfg(not(target_arch = "wasm32"))]
const PROCESSORS: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];
pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Reads `config.json`, `tokenizer.json`, `generation_config.json` if it is there, and the headers of the weights.
pub(super) fn open(folder: &Path) -> Result<ModelFiles> {
    if !folder.exists() {
        return Err(Error::file(
            folder,
            format!("no such file or folder, and not a Hugging Face Hub model: {FORM}"),
        ));
    }
    expect_folder(folder, "config.json, tokenizer.json and model.safetensors")?;
    refuse_gguf(folder)?;
    let config_file = folder.join(CONFIG);
    let generation_file = folder.join("generation_config.json");
    let tokenizer_file = folder.join(TOKENIZER);
    let config = read(&config_file)?;
    let optional = |file: &Path| file.exists().then(|| read(file)).transpose();
    let generation_config = optional(&generation_file)?;
    let tokenizer_config_file = folder.join("tokenizer_config.json");
    let template_file = folder.join("chat_template.jinja");
    let tokenizer_config = optional(&tokenizer_config_file)?;
    let chat_template = optional(&template_file)?;
    let tokenizer = read(&tokenizer_file)?;
    let weights = open_weights(folder)?;
    let json = JsonFiles {
        config: (&config_file, &config),
        generation_config: generation_config
            .as_ref()
            .map(|bytes| (generation_file.as_path(), bytes.as_slice())),
        tokenizer: (&tokenizer_file, &tokenizer),
        tokenizer_config: tokenizer_config
            .as_ref()
            .map(|bytes| (tokenizer_config_file.as_path(), bytes.as_slice())),
        chat_template: chat_template
            .as_ref()
            .map(|bytes| (template_file.as_path(), bytes.as_slice())),
    };
    let pictures = pictures(folder, &config, &weights)?;
    let name = folder.display().to_string();
    let files = ModelFiles::from_parts(name, json, weights, false)?;
    Ok(ModelFiles { pictures, ..files })
}

/// A browser has no files that could be mapped later.
#[cfg(target_arch = "wasm32")]
fn pictures(_: &Path, _: &[u8], _: &Weights) -> Result<PictureSupport> {
    Ok(PictureSupport::none(
        "images are not supported in a browser",
    ))
}

/// Whether the model takes images. A model without images, or with an unsupported image encoder, is still a language model.
#[cfg(not(target_arch = "wasm32"))]
fn pictures(folder: &Path, config: &[u8], weights: &Weights) -> Result<PictureSupport> {
    let json: serde_json::Value = serde_json::from_slice(config).unwrap_or_default();
    if !json["vision_config"].is_object() {
        return Ok(PictureSupport::none(format!(
            "its {CONFIG} describes no image encoder"
        )));
    }
    let processor = PROCESSORS.map(|name| folder.join(name));
    let Some(processor) = processor.into_iter().find(|file| file.exists()) else {
        let problem = format!("it has no {}", PROCESSORS.join(" or "));
        return Ok(PictureSupport::none(problem));
    };
    let texts =
        [config, &read(&processor)?].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let spec = match PictureSpec::read(&texts[0], &texts[1]) {
        Ok(spec) => spec,
        Err(err) => return Ok(PictureSupport::none(brief(&err))),
    };
    let first = spec.first_weights();
    if first.iter().all(|name| weights.file_of(name).is_none()) {
        return Ok(PictureSupport::none(
            "its files have no weights of the image encoder",
        ));
    }
    let files = weights.files().map(Path::to_path_buf).collect();
    Ok(PictureSupport::new(spec, files))
}

/// Refuses a folder of GGUF files, each of which is a separate model, with the hint to name one of them.
fn refuse_gguf(folder: &Path) -> Result<()> {
    if folder.join(CONFIG).exists() {
        return Ok(());
    }
    let entries = std::fs::read_dir(folder).map_err(|err| Error::file(folder, err))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut models: Vec<String> = paths
        .filter(|path| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or("");
            // The first file of a model in several files names it.
            name.ends_with(".gguf")
                && names_of_parts(name)
                    .is_none_or(|parts| parts.first().is_some_and(|first| first == name))
        })
        .map(|path| path.display().to_string())
        .collect();
    models.sort_unstable();
    match models.as_slice() {
        [] => Ok(()),
        models => Err(Error::file(
            folder,
            format!(
                "no config.json; to run a GGUF file, pass its path: {}",
                models.join(", ")
            ),
        )),
    }
}

/// An error that says what was found, unless there is a folder that may hold a model; `wanted` is what it should have.
pub(crate) fn expect_folder(folder: &Path, wanted: &str) -> Result<()> {
    let found = match (folder.is_dir(), folder.exists()) {
        (true, _) => {
            let other = kind::of_folder(folder).filter(|_| !folder.join(CONFIG).exists());
            return other.map_or(Ok(()), |found| Err(Error::file(folder, found)));
        }
        (false, true) => "not a folder",
        (false, false) => "no such folder",
    };
    Err(Error::file(
        folder,
        format!("{found}; expected one with {wanted}"),
    ))
}

pub(crate) fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|err| Error::file(file, err))
}

/// One file if there is one, else the shards that the index names.
pub(crate) fn open_weights(folder: &Path) -> Result<Weights> {
    let single = folder.join(SINGLE);
    if single.exists() {
        return Weights::from_files(&[single]);
    }
    let index = folder.join(INDEX);
    if !index.exists() {
        return Err(Error::file(
            &single,
            format!("no such file, and no {INDEX} in the folder"),
        ));
    }
    let shard_of = read_index(&index)?;
    let shards = shards(&shard_of);
    let files: Vec<PathBuf> = shards.iter().map(|shard| folder.join(shard)).collect();
    for (shard, file) in shards.iter().zip(&files) {
        if !file.is_file() {
            let tensor = shard_of.iter().find(|(_, of)| of == shard);
            return Err(Error::Tensor {
                file: index.display().to_string(),
                tensor: tensor.map_or_else(String::new, |(name, _)| name.clone()),
                problem: format!("shard `{shard}` is missing from the folder"),
            });
        }
    }
    let weights = Weights::from_files(&files)?;
    for (tensor, shard) in &shard_of {
        if weights.file_of(tensor) != Some(folder.join(shard).as_path()) {
            return Err(Error::Tensor {
                file: index.display().to_string(),
                tensor: tensor.clone(),
                problem: format!("shard `{shard}` does not contain it"),
            });
        }
    }
    Ok(weights)
}

/// The shards of an index, each once.
pub(super) fn shards(shard_of: &BTreeMap<String, String>) -> BTreeSet<&str> {
    shard_of.values().map(String::as_str).collect()
}

/// Whether the files that a model cannot do without are there.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn is_whole(folder: &Path) -> bool {
    let has = |file: &str| folder.join(file).exists();
    let weights = || {
        let shard_of = read_index(&folder.join(INDEX));
        has(SINGLE) || shard_of.is_ok_and(|shard_of| shards(&shard_of).into_iter().all(has))
    };
    has(CONFIG) && has(TOKENIZER) && weights()
}

/// The index's map from tensor to shard. A shard has to be a plain file name: an index must not reach outside its
/// folder.
pub(super) fn read_index(index: &Path) -> Result<BTreeMap<String, String>> {
    let bytes = read(index)?;
    let json: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|err| Error::file(index, err))?;
    let field = |field: String, problem: String| Error::Field {
        file: index.display().to_string(),
        field,
        problem,
    };
    let map = json.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| {
        field(
            "weight_map".to_string(),
            "expected an object that maps tensor names to file names".to_string(),
        )
    })?;
    if map.is_empty() {
        return Err(field(
            "weight_map".to_string(),
            "names no tensor".to_string(),
        ));
    }
    map.iter()
        .map(|(tensor, shard)| {
            let plain = shard.as_str().filter(|shard| {
                let mut parts = Path::new(shard).components();
                matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none()
            });
            let shard = plain.ok_or_else(|| {
                field(
                    format!("weight_map.{tensor}"),
                    format!("expected a file name in the same folder, found {shard}"),
                )
            })?;
            Ok((tensor.clone(), shard.to_string()))
        })
        .collect()
}
