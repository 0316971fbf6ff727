//! `candle-dvm serve` in a tab's worker, in a module apart: relays, signatures and a journal are a fifth of it, which a page that only runs a
//! model does not load. It has all that the module of language models has.

#![deny(missing_docs)]

mod events;
mod storage;

pub use candle_wasm::WasmModel;

use browser::files::JsSource;
use candle_dvm::journal::RedbJournal;
use candle_dvm::payment::Free;
use candle_dvm::service::{Metrics, Offers, Service, Settings};
use candle_dvm::Error;
use candle_engine::{CandleBackend, CompletionRequest, Wait};
use futures_channel::oneshot;
use js_sys::{Function, Object, JSON};
use nostr::nips::nip19::ToBech32;
use nostr::prelude::Keys;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::spawn_local;

#[wasm_bindgen]
extern "C" {
    /// The interface `ServeSettings` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "ServeSettings")]
    pub type JsSettings;

    /// A function that takes a `ServeEvent` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "(event: ServeEvent) => void")]
    pub type JsListener;
}

// The package's own, two folders above the module.
#[wasm_bindgen(raw_module = "../../files.js")]
extern "C" {
    #[wasm_bindgen(js_name = fromAddress, catch)]
    async fn from_address(address: &str) -> Result<JsValue, JsValue>;
}

/// Settings of `candle-dvm serve` that name what a browser does not have.
const NATIVE: [&str; 11] = [
    "model",
    "draft",
    "draft-tokens",
    "speech-model",
    "device",
    "key-file",
    "data-dir",
    "metrics",
    "price-msat",
    "cashu-mints",
    "wallet-file",
];

/// A Data Vending Machine (NIP-90, kind 5050) in this tab. It works in a dedicated worker alone, where the browser can keep its journal.
#[wasm_bindgen]
pub struct BrowserDvm {
    keys: Keys,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    model: Option<Model>,
    running: Option<Running>,
    journal: Option<String>,
}

#[derive(Clone)]
struct Model {
    name: String,
    backend: Arc<CandleBackend>,
    device: String,
}

struct Running {
    stop: oneshot::Sender<()>,
    stopped: oneshot::Receiver<Result<(), String>>,
    metrics: Arc<Metrics>,
    relays: usize,
}

#[wasm_bindgen]
impl BrowserDvm {
    /// A machine with a secret key, as nsec1… or 64 hexadecimal digits; without one it makes a new one.
    #[wasm_bindgen(constructor)]
    pub fn new(secret: Option<String>) -> Result<BrowserDvm, JsError> {
        let keys = match secret {
            // What was given is a secret, and stays out of the message.
            Some(secret) => Keys::parse(secret.trim()).map_err(|_| {
                JsError::new("not a secret key: expected nsec1… or 64 hexadecimal digits")
            })?,
            None => Keys::generate(),
        };
        Ok(Self {
            keys,
            state: RefCell::default(),
        })
    }

    /// The public key, as npub1…
    #[wasm_bindgen(getter)]
    pub fn public_key(&self) -> Result<String, JsError> {
        Ok(self.keys.public_key().to_bech32()?)
    }

    /// The secret key, as nsec1…, to be stored for the next visit. Anyone who has it can act as this machine.
    pub fn secret_key(&self) -> Result<String, JsError> {
        Ok(self.keys.secret_key().to_bech32()?)
    }

    /// Loads a model from an address: of a GGUF file, of a folder, or a name on Hugging Face such as owner/model. It goes to the GPU, and
    /// where there is none to the CPU: `device` tells which it is and why.
    pub async fn load_model(&self, url: String) -> Result<(), JsError> {
        let source: JsSource = from_address(&url)
            .await
            .map_err(|err| JsError::new(&browser::files::message(&err)))?
            .unchecked_into();
        let model = WasmModel::open(source).await?;
        // The reason stays with the model.
        let _ = model.init_gpu().await;
        self.use_model(&model, url).await
    }

    /// Takes a model that was opened already. `origin` is its address or its file's name: requests call the model by the last part of it.
    pub async fn use_model(&self, model: &WasmModel, origin: String) -> Result<(), JsError> {
        let backend = model.backend().await?;
        let device = match model.cpu_reason() {
            Some(reason) => format!("{}: {reason}", model.device()),
            None => model.device(),
        };
        self.state.borrow_mut().model = Some(Model {
            name: name_of(&origin),
            backend,
            device,
        });
        Ok(())
    }

    /// The model's device, with the reason if it is the CPU; `undefined` without a model.
    #[wasm_bindgen(getter)]
    pub fn device(&self) -> Option<String> {
        let state = self.state.borrow();
        state.model.as_ref().map(|model| model.device.clone())
    }

    /// The location of the jobs' journal; `undefined` before `start`.
    #[wasm_bindgen(getter)]
    pub fn journal(&self) -> Option<String> {
        self.state.borrow().journal.clone()
    }

    /// Runs one job without a customer: the continuation of a prompt.
    pub async fn process_job(&self, prompt: String) -> Result<String, JsError> {
        let model = self.model()?;
        let request = CompletionRequest {
            prompt,
            ..Default::default()
        };
        let mut on_piece = |_: &str| ControlFlow::Continue(());
        let done = model
            .backend
            .complete_steps(&request, Wait::HERE, &mut on_piece);
        let done = done.await;
        Ok(done.map_err(|err| JsError::new(&err.one_line()))?.text)
    }

    /// Calls `listener` for all events of every machine of this worker, until another listener replaces it.
    pub fn on_event(&self, listener: JsListener) {
        events::listen(listener.unchecked_into::<Function>());
    }

    /// Starts to serve on `relays`. Settings are those of `candle-dvm serve`, by the names of its configuration file, except those for
    /// features that a browser lacks.
    pub async fn start(
        &self,
        relays: Vec<String>,
        settings: Option<JsSettings>,
    ) -> Result<(), JsError> {
        if self.state.borrow().running.is_some() {
            return Err(JsError::new(
                "the service is already running: stop it first",
            ));
        }
        let model = self.model()?;
        let mut settings = read_settings(settings)?;
        settings.relays = relays;
        settings.check().map_err(refused)?;
        let positions = model.backend.max_positions();
        settings.max_tokens = settings.max_tokens.min(positions);
        settings.default_tokens = settings.default_tokens.min(settings.max_tokens);
        let (journal, place) = self.open_journal().await?;
        let metrics = Arc::new(Metrics::default());
        let relays = settings.relays.len();
        let name = settings.model_name.clone().unwrap_or(model.name);
        let service = Service::new(
            settings,
            Offers::default().text(name, model.backend, None),
            self.keys.clone(),
            Arc::new(journal),
            Arc::new(Free),
            metrics.clone(),
        );
        let service = service.map_err(refused)?;
        let (stop, asked) = oneshot::channel();
        let (tell, stopped) = oneshot::channel();
        spawn_local(async move {
            let asked = async move {
                // A machine that is gone wants it to stop as well.
                let _ = asked.await;
            };
            let ended = service.run(asked).await.map_err(|err: Error| {
                let error = err.one_line();
                events::tell("failed", &[("error", &error)]);
                error
            });
            let _ = tell.send(ended);
        });
        let mut state = self.state.borrow_mut();
        state.journal = Some(place);
        state.running = Some(Running {
            stop,
            stopped,
            metrics,
            relays,
        });
        Ok(())
    }

    /// The status, in one line.
    #[wasm_bindgen(getter)]
    pub fn status(&self) -> String {
        match &self.state.borrow().running {
            Some(running) => running.metrics.line(running.relays),
            None => "not serving".to_string(),
        }
    }

    /// Stops: what runs gets a while to end, and the announcement is withdrawn. Resolves when all that is done.
    pub async fn stop(&self) -> Result<(), JsError> {
        let Some(running) = self.state.borrow_mut().running.take() else {
            return Ok(());
        };
        // If the receiver is gone, it has stopped.
        let _ = running.stop.send(());
        match running.stopped.await {
            Ok(Err(problem)) => Err(JsError::new(&problem)),
            _ => Ok(()),
        }
    }

    fn model(&self) -> Result<Model, JsError> {
        let model = self.state.borrow().model.clone();
        model.ok_or_else(|| JsError::new("no model loaded: load one first"))
    }

    /// The journal of this key, and in words where it is.
    async fn open_journal(&self) -> Result<(RedbJournal, String), JsError> {
        let name = format!("candle-dvm-{}.redb", self.keys.public_key().to_hex());
        let failed = |err: candle_dvm::jobs::JournalError| JsError::new(&err.to_string());
        match storage::File::open(&name).await {
            Ok(file) => {
                let journal = RedbJournal::over(file).map_err(failed)?;
                Ok((journal, "saved by the browser".to_string()))
            }
            Err(storage::Problem::InUse) => Err(JsError::new(
                "another tab or worker is serving with this key: stop it there, or use a different key here",
            )),
            Err(storage::Problem::Missing(reason)) => {
                let journal = RedbJournal::in_memory().map_err(failed)?;
                let place = format!("in memory, lost when this tab closes: {reason}");
                Ok((journal, place))
            }
        }
    }
}

/// The last part of an address, without what tells the format.
fn name_of(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let last = path.trim_end_matches('/').rsplit('/').next();
    let last = last.unwrap_or(path).trim();
    let formats = [".gguf", ".safetensors", ".json"];
    let stem = formats.iter().find_map(|format| last.strip_suffix(format));
    match stem.unwrap_or(last) {
        "" => "model".to_string(),
        name => name.to_string(),
    }
}

fn refused(err: Error) -> JsError {
    JsError::new(&err.one_line())
}

fn read_settings(settings: Option<JsSettings>) -> Result<Settings, JsError> {
    let Some(settings) = settings else {
        return Ok(Settings::default());
    };
    let object: &Object = settings
        .dyn_ref()
        .ok_or_else(|| JsError::new("settings: expected an object"))?;
    for name in Object::keys(object).iter() {
        let name = name.as_string().unwrap_or_default();
        if NATIVE.contains(&name.as_str()) {
            return Err(JsError::new(&format!(
                "settings: `{name}` is not supported in a browser"
            )));
        }
    }
    let text = JSON::stringify(&settings)
        .ok()
        .and_then(|text| text.as_string());
    let text = text.ok_or_else(|| JsError::new("settings: not a plain object"))?;
    serde_json::from_str(&text).map_err(|err| JsError::new(&format!("settings: {err}")))
}

/// Types that the generated ones cannot express.
#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** Settings of `candle-dvm serve`, by the names of its configuration file; `serve.example.toml` tells of all. */
export interface ServeSettings {
    /** What tells announcements of one key apart. */
    identifier?: string;
    /** A name for people. */
    name?: string;
    /** What is offered, for people. */
    about?: string;
    /** What requests call the model. */
    "model-name"?: string;
    /** Jobs that run at the same time. */
    running?: number;
    /** Jobs that wait. */
    queue?: number;
    /** Tokens of a job that asks for no number, and of one that asks for many. */
    "default-tokens"?: number;
    "max-tokens"?: number;
    [setting: string]: unknown;
}

/** Something that happened: `message` tells what, and the other fields to whom. */
export interface ServeEvent {
    message: "accepted" | "refused" | "generated" | "answered" | "connected" | "not connected" | "failed" | string;
    level: string;
    job?: string;
    customer?: string;
    relay?: string;
    reason?: string;
    tokens?: number;
    seconds?: number;
    [field: string]: unknown;
}
"#;

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn models_are_called_as_their_files() {
        for (url, name) in [
            ("https://a.org/m/tiny.gguf?download=true", "tiny"),
            ("http://127.0.0.1:1/model/", "model"),
            ("owner/model", "model"),
            ("tiny.safetensors", "tiny"),
            ("https://a.org/", "a.org"),
            ("", "model"),
        ] {
            assert_eq!(name_of(url), name);
        }
    }
}
