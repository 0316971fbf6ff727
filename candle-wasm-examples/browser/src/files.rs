//! Files as JavaScript hands them over.

use candle_engine::model::Bytes;
use candle_engine::{Error, PartFile, PartSource};
use js_sys::{Array, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;

/// Types that the generated ones cannot express.
#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** A file that is read in parts. `fromUrl` and `fromBlob` of `files.js` make one. */
export interface PartFile {
    name: string;
    size: number;
    read(start: number, length: number): Promise<Uint8Array>;
}

/** A model: one GGUF file, or the files of a Hugging Face folder. */
export type ModelSource =
    | { gguf: PartFile }
    | {
        config: Uint8Array;
        tokenizer: Uint8Array;
        generation_config?: Uint8Array;
        /** `tokenizer_config.json`, which may have the chat template. */
        tokenizer_config?: Uint8Array;
        /** `chat_template.jinja`. */
        chat_template?: Uint8Array;
        weights: PartFile[];
    };
"#;

#[wasm_bindgen]
extern "C" {
    /// The interface `PartFile` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "PartFile")]
    #[derive(Clone)]
    pub type JsFile;

    #[wasm_bindgen(method, getter)]
    fn name(this: &JsFile) -> String;

    #[wasm_bindgen(method, getter)]
    fn size(this: &JsFile) -> f64;

    #[wasm_bindgen(method, catch)]
    fn read(this: &JsFile, start: f64, length: f64) -> Result<js_sys::Promise, JsValue>;

    /// The interface `ModelSource` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "ModelSource")]
    pub type JsSource;
}

/// The source of a model's bytes; none of them is in the wasm heap.
#[derive(Clone)]
pub enum Source {
    /// A GGUF file.
    Gguf(File),
    /// The files of a Hugging Face folder.
    Folder {
        /// `config.json`.
        config: Uint8Array,
        /// `generation_config.json`, if there is one.
        generation_config: Option<Uint8Array>,
        /// `tokenizer.json`.
        tokenizer: Uint8Array,
        /// `tokenizer_config.json`, if there is one.
        tokenizer_config: Option<Uint8Array>,
        /// `chat_template.jinja`, if there is one.
        chat_template: Option<Uint8Array>,
        /// `model.safetensors`, or the shards.
        weights: Vec<File>,
    },
}

/// A file that is read in parts.
#[derive(Clone)]
pub enum File {
    /// All of it is in the memory of JavaScript.
    Bytes {
        /// The name in messages.
        name: String,
        /// The contents.
        bytes: Uint8Array,
    },
    /// JavaScript reads the parts.
    Parts {
        /// The name in messages.
        name: String,
        /// The object that reads them.
        file: JsFile,
    },
}

impl Source {
    /// A model whose bytes are all there. A GGUF file begins with its name; without a configuration nothing else can be loaded.
    pub fn of_bytes(
        bytes: Uint8Array,
        config: Option<Uint8Array>,
        tokenizer: Option<Uint8Array>,
        generation_config: Option<Uint8Array>,
    ) -> Result<Self, JsError> {
        let head = bytes.slice(0, 4).to_vec();
        if head == b"GGUF" {
            let name = "the GGUF file".to_string();
            return Ok(Self::Gguf(File::Bytes { name, bytes }));
        }
        let (Some(config), Some(tokenizer)) = (config, tokenizer) else {
            return Err(JsError::new(&format!(
                "expected a GGUF file, but the bytes start with \"{}\": give a GGUF file, or the bytes of model.safetensors, config.json and \
                 tokenizer.json",
                head.escape_ascii()
            )));
        };
        let name = "model.safetensors".to_string();
        Ok(Self::Folder {
            config,
            generation_config,
            tokenizer,
            tokenizer_config: None,
            chat_template: None,
            weights: vec![File::Bytes { name, bytes }],
        })
    }

    /// A model as the interface `ModelSource` has it.
    pub fn of_js(source: &JsValue) -> Result<Self, JsError> {
        let field = |name: &str| {
            let value = Reflect::get(source, &name.into()).unwrap_or(JsValue::UNDEFINED);
            (!value.is_undefined() && !value.is_null()).then_some(value)
        };
        let bytes = |name: &str| {
            let value = field(name).map(|value| value.dyn_into::<Uint8Array>());
            value.transpose().map_err(|_| {
                JsError::new(&format!(
                    "`{name}` of the model's source is not a Uint8Array"
                ))
            })
        };
        if let Some(file) = field("gguf") {
            return Ok(Self::Gguf(File::of_js(file)));
        }
        let missing = |name: &str| {
            JsError::new(&format!(
                "the model's source has neither `gguf` nor `{name}`: a model is one GGUF file, or config, tokenizer and weights"
            ))
        };
        let weights = field("weights").ok_or_else(|| missing("weights"))?;
        let weights = Array::from(&weights).iter().map(File::of_js).collect();
        Ok(Self::Folder {
            config: bytes("config")?.ok_or_else(|| missing("config"))?,
            generation_config: bytes("generation_config")?,
            tokenizer: bytes("tokenizer")?.ok_or_else(|| missing("tokenizer"))?,
            tokenizer_config: bytes("tokenizer_config")?,
            chat_template: bytes("chat_template")?,
            weights,
        })
    }

    /// As the loader takes it.
    pub fn parts(&self) -> PartSource {
        match self.clone() {
            Self::Gguf(file) => PartSource::Gguf(Box::new(file)),
            Self::Folder {
                config,
                generation_config,
                tokenizer,
                tokenizer_config,
                chat_template,
                weights,
            } => PartSource::Folder {
                config: config.to_vec(),
                generation_config: generation_config.map(|bytes| bytes.to_vec()),
                tokenizer: tokenizer.to_vec(),
                tokenizer_config: tokenizer_config.map(|bytes| bytes.to_vec()),
                chat_template: chat_template.map(|bytes| bytes.to_vec()),
                weights: weights
                    .into_iter()
                    .map(|file| Box::new(file) as Box<dyn PartFile>)
                    .collect(),
            },
        }
    }
}

impl File {
    /// A file as the interface `PartFile` has it.
    pub fn of_js(file: JsValue) -> Self {
        let file: JsFile = file.unchecked_into();
        Self::Parts {
            name: file.name(),
            file,
        }
    }
}

impl PartFile for File {
    fn name(&self) -> &str {
        match self {
            Self::Bytes { name, .. } | Self::Parts { name, .. } => name,
        }
    }

    fn size(&self) -> u64 {
        match self {
            Self::Bytes { bytes, .. } => bytes.length().into(),
            Self::Parts { file, .. } => file.size() as u64,
        }
    }

    fn read(&self, start: u64, len: u64) -> Bytes<'_> {
        Box::pin(async move {
            match self {
                Self::Bytes { bytes, .. } => {
                    Ok(bytes.subarray(start as u32, (start + len) as u32).to_vec())
                }
                Self::Parts { name, file } => {
                    let failed = |problem: String| Error::File {
                        file: name.clone(),
                        problem,
                    };
                    let promise = file.read(start as f64, len as f64);
                    let read = match promise {
                        Ok(promise) => JsFuture::from(promise).await,
                        Err(err) => Err(err),
                    };
                    let bytes = read
                        .and_then(JsCast::dyn_into::<Uint8Array>)
                        .map_err(|err| failed(message(&err)))?;
                    if u64::from(bytes.length()) != len {
                        return Err(failed(format!(
                            "requested {len} bytes at {start}, but received {}: is the download complete?",
                            bytes.length()
                        )));
                    }
                    Ok(bytes.to_vec())
                }
            }
        })
    }
}

/// The message of a JavaScript exception.
pub fn message(err: &JsValue) -> String {
    match err.dyn_ref::<js_sys::Error>() {
        Some(err) => err.message().into(),
        None => err.as_string().unwrap_or_else(|| format!("{err:?}")),
    }
}
