//! What a file or folder is that is not the model a command takes, in one line that names the command or the step that helps.

use candle_core::quantized::gguf_file::{Content, Value};
use candle_transformers::embed::EncoderConfig;
use candle_transformers::rerank::RerankerConfig;
use std::io::Read;
use std::path::Path;

/// The kind of a file that is not GGUF, by its first bytes and its name; `None` if neither is known.
pub(super) fn of_file(file: &Path) -> Option<String> {
    let mut start = Vec::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(64).read_to_end(&mut start));
    read.ok()?;
    if start.starts_with(b"GGUF") {
        return None;
    }
    if start.starts_with(b"version https://git-lfs") {
        return Some("a pointer of Git LFS, not the file itself; run `git lfs pull` in its folder, or download it".into());
    }
    let folder = file.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new(".")).display();
    // A safetensors file starts with the length of its header, which is a JSON object.
    let is_safetensors = start.get(8) == Some(&b'{');
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => {}
        _ if is_safetensors => {}
        Some("bin" | "pt" | "pth" | "ckpt") => {
            return Some(
                "a PyTorch checkpoint; expected a GGUF file or the folder of a model in safetensors: save it with Transformers' `save_pretrained`"
                    .into(),
            )
        }
        Some("onnx") => return Some("an ONNX model; expected a GGUF file or the folder of a model in safetensors".into()),
        Some("json") => return Some(format!("a part of a model; pass its folder: {folder}")),
        _ if ["lmgg", "tjgg", "fmgg"].iter().any(|magic| start.starts_with(magic.as_bytes())) => {
            return Some("a GGML file, the format before GGUF; download the model as GGUF, or convert it with llama.cpp".into())
        }
        _ => return None,
    }
    let is_adapter = file
        .file_name()
        .is_some_and(|name| name == "adapter_model.safetensors");
    Some(if is_adapter {
        format!("the weights of {ADAPTER}")
    } else {
        format!("weights without a configuration; pass the folder that has them and config.json: {folder}")
    })
}

const ADAPTER: &str =
    "a LoRA adapter, not a model; pass its model with --model and the adapter's folder with --lora";

const GGUF_ADAPTER: &str = "a LoRA adapter as GGUF, not a model; --lora takes the folder that peft writes, or merge it into its model with llama.cpp's llama-export-lora";

/// The kind of a GGUF file that is not a language model; `None` if it may be one.
pub(super) fn of_gguf(content: &Content) -> Option<String> {
    let text = |key: &str| match content.metadata.get(key) {
        Some(Value::String(text)) => text.as_str(),
        _ => "",
    };
    let architecture = text("general.architecture");
    match (text("general.type"), architecture) {
        ("adapter", _) => {
            let base = match text("general.base_model.0.name") {
                "" => String::new(),
                base => format!(" (made for {base:?})"),
            };
            Some(format!("{GGUF_ADAPTER}{base}"))
        }
        ("mmproj", _) | (_, "clip") => Some(
            "the image or sound encoder of a model (mmproj), which goes beside a language model; pass the GGUF file of the language model: \
             images and sound are not supported here"
                .into(),
        ),
        ("imatrix", _) | (_, "imatrix") => Some("an importance matrix for quantising a model, not a model".into()),
        (_, "whisper") => Some("a Whisper model as GGUF, which is not supported; transcribe takes the Hugging Face folder".into()),
        (_, "t5encoder" | "flux" | "sd1" | "sdxl" | "sd3") => Some(format!(
            "a part of an image generator ({architecture}), not a language model; candle-transformers' examples generate images"
        )),
        _ => None,
    }
}

/// The kind of a folder that has no `config.json`; `None` if nothing in it says so.
pub(super) fn of_folder(folder: &Path) -> Option<String> {
    let has = |file: &str| folder.join(file).exists();
    if has("adapter_config.json") {
        let text = std::fs::read(folder.join("adapter_config.json")).ok();
        let json: Option<serde_json::Value> =
            text.and_then(|text| serde_json::from_slice(&text).ok());
        let base = json
            .as_ref()
            .and_then(|json| json["base_model_name_or_path"].as_str());
        let base = base.map_or(String::new(), |base| format!(" (made for {base:?})"));
        return Some(format!("{ADAPTER}{base}"));
    }
    has("model_index.json").then(|| {
        "an image generator (model_index.json), not a language model; candle-transformers' examples generate images".to_string()
    })
}

/// The command that takes the model of a `config.json` which is not a language model; `None` if no command takes it.
pub(crate) fn command_for(config: &str) -> Option<String> {
    let json: serde_json::Value = serde_json::from_str(config).ok()?;
    let model_type = json["model_type"].as_str()?;
    if ["whisper", "moonshine", "parakeet_ctc"].contains(&model_type) {
        return Some(format!(
            "{model_type:?} is a model of speech: use `candle-dvm transcribe`"
        ));
    }
    if RerankerConfig::parse(config).is_ok_and(|reranker| !reranker.answers()) {
        return Some(format!(
            "{model_type:?} with a head that scores pairs is a reranker: use `candle-dvm rerank`"
        ));
    }
    let encoder = EncoderConfig::parse(config).is_ok_and(|encoder| !encoder.causal);
    encoder.then(|| {
        format!("{model_type:?} is a model that makes vectors of texts: use `candle-dvm embed`")
    })
}

/// The commands that take the model of a `config.json` which is a language model.
#[cfg(all(feature = "speech", not(target_arch = "wasm32")))]
pub(crate) fn language_model(config: &str) -> Option<String> {
    let json: serde_json::Value = serde_json::from_str(config).ok()?;
    let model_type = json["model_type"].as_str()?;
    let known = candle_transformers::auto::model_types().contains(&model_type);
    known.then(|| {
        format!(
            "{model_type:?} is a language model: use `candle-dvm generate` or `candle-dvm chat`"
        )
    })
}
