//! What is in a picture, in a browser: [`WasmVision`], on the GPU or on the CPU. Three kinds of networks, which their weights tell apart, name a
//! picture (EfficientNet-Lite0), find objects in it (YOLOv8) or cut out what is at a point (MobileSAM).
//!
//! ```js
//! const vision = await WasmVision.open(await fromUrl("model.safetensors"));
//! await vision.read_labels(await fromUrl("labels.txt"));
//! await vision.init_gpu().catch(reason => console.log(`on the CPU: ${reason.message}`));
//! await vision.load();
//! const view = vision.view(picture.width, picture.height);
//! // The part `view` of the picture, in the size that it asks for.
//! const { classes } = await vision.look(pixels, view.columns, view.rows);
//! ```

#![deny(missing_docs)]

mod kind;
mod labels;
mod network;
mod weights;

use browser::files::{message, File, JsFile};
use browser::gpu::Place;
use browser::options::{dtype, or_undefined, JsLoad};
use candle_core::{DType, Tensor};
use candle_engine::PartFile;
use js_sys::{Reflect, Uint8Array};
use kind::Kind;
use network::{Network, View};
use std::cell::RefCell;
use std::rc::Rc;
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;
use weights::Weights;

/// TypeScript types that wasm-bindgen cannot generate.
#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** Which part of a picture a model looks at, in pixels, and the size that it sees it in. */
export interface View {
    x: number;
    y: number;
    width: number;
    height: number;
    columns: number;
    rows: number;
}

/** What a model sees: `classes` if it names a picture, `objects` if it finds them, nothing if it waits for a point. */
export interface Seen {
    /** Likeliest first, at most five. */
    classes?: { class: number; label: string; probability: number }[];
    /** Likeliest first. A box is left, top, right and bottom, parts of the view from 0 to 1. */
    objects?: { class: number; label: string; probability: number; box: [number, number, number, number] }[];
}

/** What is meant by points. */
export interface Mask {
    columns: number;
    rows: number;
    /** 1 inside, 0 outside, row by row. */
    inside: Uint8Array;
    /** What the model thinks that the mask shares with what is meant, from 0 to 1. */
    iou: number;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// The interface `View` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "View")]
    pub type JsView;
    /// The interface `Seen` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "Seen")]
    pub type JsSeen;
    /// The interface `Mask` of the TypeScript types.
    #[wasm_bindgen(typescript_type = "Mask")]
    pub type JsMask;
}

/// A model of pictures. `load` brings its weights to a device; until `init_gpu` has succeeded that is the CPU.
#[wasm_bindgen]
pub struct WasmVision {
    weights: Weights,
    kind: Kind,
    state: RefCell<State>,
}

struct State {
    place: Place,
    /// Names of the classes; empty if there are none.
    labels: Vec<String>,
    loaded: Option<Rc<Network>>,
    /// The embeddings of the last picture, if the model cuts out, and its size as the model saw it.
    picture: Option<(Tensor, [usize; 2])>,
}

#[wasm_bindgen]
impl WasmVision {
    /// A model by its weights: a safetensors file, or a checkpoint of PyTorch (.pth, .pt). Reads and checks names and shapes.
    pub async fn open(weights: JsFile) -> Result<WasmVision, JsError> {
        let weights = Weights::open(File::of_js(weights.into()))
            .await
            .map_err(error)?;
        let kind = Kind::of(&weights).map_err(core_error)?;
        Ok(Self {
            weights,
            kind,
            state: RefCell::new(State {
                place: Place::default(),
                labels: labels::own(kind),
                loaded: None,
                picture: None,
            }),
        })
    }

    /// Reads the names of the classes: a line for each, a JSON array, an object with numbers as keys, or a `config.json` with `id2label`.
    pub async fn read_labels(&self, file: JsFile) -> Result<(), JsError> {
        let file = File::of_js(file.into());
        if file.size() > labels::MOST {
            let (name, size) = (file.name(), file.size());
            let problem = format!("{name}: {size} bytes; labels have {} at most", labels::MOST);
            return Err(JsError::new(&problem));
        }
        let bytes = file.read(0, file.size()).await.map_err(error)?;
        let read = labels::read(file.name(), &bytes, self.kind).map_err(core_error)?;
        if !read.is_empty() {
            self.state.borrow_mut().labels = read;
        }
        Ok(())
    }

    /// Opens the GPU; `true`, or an error with the reason why there is none, and the model stays on the CPU. `load` comes after it.
    pub async fn init_gpu(&self) -> Result<bool, JsError> {
        let place = Place::gpu().await;
        let state = &mut *self.state.borrow_mut();
        (state.loaded, state.picture) = (None, None);
        state.place = place;
        state.place.opened()
    }

    /// The model's device: `cpu`, or `webgpu` and the browser's description of the GPU.
    #[wasm_bindgen(getter)]
    pub fn device(&self) -> String {
        self.state.borrow().place.describe()
    }

    /// The reason for running on the CPU; `undefined` on a GPU.
    #[wasm_bindgen(getter)]
    pub fn cpu_reason(&self) -> Option<String> {
        self.state.borrow().place.cpu_reason()
    }

    /// Its task: `classify`, `detect` or `segment`.
    #[wasm_bindgen(getter)]
    pub fn task(&self) -> String {
        self.kind.task().to_string()
    }

    /// Its name, such as `EfficientNet-Lite0`.
    #[wasm_bindgen(getter)]
    pub fn name(&self) -> String {
        self.kind.name()
    }

    /// Whether classes have names, not only numbers.
    #[wasm_bindgen(getter)]
    pub fn has_labels(&self) -> bool {
        !self.state.borrow().labels.is_empty()
    }

    /// Brings the weights to the device.
    pub async fn load(&self, options: Option<JsLoad>) -> Result<(), JsError> {
        let dtype = dtype(&or_undefined(options))?.unwrap_or(DType::F32);
        let device = {
            let state = &mut *self.state.borrow_mut();
            (state.loaded, state.picture) = (None, None);
            state.place.device.clone()
        };
        let vb = self.weights.load(dtype, &device).await.map_err(error)?;
        let network = Network::load(self.kind, vb).map_err(core_error)?;
        self.state.borrow_mut().loaded = Some(Rc::new(network));
        Ok(())
    }

    /// The part of an image of this size that the network reads, and the size to which it is scaled.
    pub fn view(&self, width: u32, height: u32) -> Result<JsView, JsError> {
        if width == 0 || height == 0 {
            let found = format!("the picture has {width}x{height} pixels; expected at least one");
            return Err(JsError::new(&found));
        }
        Ok(js(&View::of(self.kind, width, height))?.unchecked_into())
    }

    /// Looks at a picture: `pixels` are red, green, blue and alpha of the view, `columns` x `rows`, row by row.
    pub async fn look(
        &self,
        pixels: Vec<u8>,
        columns: usize,
        rows: usize,
    ) -> Result<JsSeen, JsError> {
        let network = self.network()?;
        let labels = self.state.borrow().labels.clone();
        let seen = network.look(&pixels, [columns, rows], &labels).await;
        let (seen, picture) = seen.map_err(core_error)?;
        self.state.borrow_mut().picture = picture.map(|picture| (picture, [columns, rows]));
        Ok(js(&seen)?.unchecked_into())
    }

    /// The mask of the thing at points of the last picture: for each point across and down, parts of the view from 0 to 1, and 1 if it is on the
    /// thing, 0 if it is outside.
    pub async fn mask(&self, points: Vec<f64>) -> Result<JsMask, JsError> {
        let network = self.network()?;
        let picture = self.state.borrow().picture.clone();
        let Some((picture, [columns, rows])) = picture else {
            return Err(JsError::new(
                "there is no picture: call `look` first, on a model that cuts out",
            ));
        };
        let wanted = network::points(&points).map_err(core_error)?;
        let (inside, iou) = network
            .mask(&picture, [columns, rows], &wanted)
            .await
            .map_err(core_error)?;
        let mask = js_sys::Object::new();
        let fields: [(&str, JsValue); 4] = [
            ("columns", (columns as f64).into()),
            ("rows", (rows as f64).into()),
            ("inside", Uint8Array::from(inside.as_slice()).into()),
            ("iou", f64::from(iou).into()),
        ];
        for (name, value) in fields {
            // A new object takes every name.
            let _ = Reflect::set(&mask, &name.into(), &value);
        }
        Ok(mask.unchecked_into())
    }

    fn network(&self) -> Result<Rc<Network>, JsError> {
        let loaded = self.state.borrow().loaded.clone();
        loaded.ok_or_else(|| JsError::new("the weights are on no device: call `load` first"))
    }
}

/// As JavaScript's objects.
fn js(value: &impl serde::Serialize) -> Result<JsValue, JsError> {
    let json = serde_json::to_string(value).map_err(|err| JsError::new(&err.to_string()))?;
    js_sys::JSON::parse(&json).map_err(|err| JsError::new(&message(&err)))
}

fn core_error(err: candle_core::Error) -> JsError {
    JsError::new(&err.to_string())
}

fn error(err: candle_engine::Error) -> JsError {
    JsError::new(&err.one_line())
}
