//! Whether there is WebGPU, and in words that help why not.

use candle_core::Device;
use candle_engine::device::describe;
use js_sys::Reflect;
use wasm_bindgen::{JsError, JsValue};

/// The device of a page's model: the CPU, until a GPU is opened.
pub struct Place {
    /// The device.
    pub device: Device,
    why_cpu: Option<String>,
}

impl Default for Place {
    fn default() -> Self {
        Self::cpu("init_gpu was not called")
    }
}

impl Place {
    /// The GPU, or the CPU with the reason.
    pub async fn gpu() -> Self {
        match open().await {
            Ok(device) => Self {
                device,
                why_cpu: None,
            },
            Err(reason) => Self::cpu(reason),
        }
    }

    /// The CPU, for a reason.
    pub fn cpu(reason: impl Into<String>) -> Self {
        Self {
            device: Device::Cpu,
            why_cpu: Some(reason.into()),
        }
    }

    /// `cpu`, or `webgpu` and what the browser tells of the GPU.
    pub fn describe(&self) -> String {
        describe(&self.device)
    }

    /// The reason for running on the CPU; `None` on a GPU.
    pub fn cpu_reason(&self) -> Option<String> {
        self.why_cpu.clone()
    }

    /// `true`, or the reason as an error for JavaScript.
    pub fn opened(&self) -> Result<bool, JsError> {
        match &self.why_cpu {
            None => Ok(true),
            Some(reason) => Err(JsError::new(reason)),
        }
    }
}

const NO_ADAPTER: &str = "the browser has WebGPU but no adapter: it may block this GPU or driver (see chrome://gpu or about:support), or hardware \
                          acceleration is off";

/// The browser's adapter as a device, or why there is none.
pub async fn open() -> Result<Device, String> {
    let gpu = gpu()?;
    device(gpu).await
}

#[cfg(feature = "webgpu")]
async fn device(_: JsValue) -> Result<Device, String> {
    let opened = Device::new_webgpu_async(0).await;
    opened.map_err(|err| {
        let err = err.to_string();
        if err.contains("no WebGPU adapter") {
            NO_ADAPTER.to_string()
        } else {
            err
        }
    })
}

/// A module without code for GPUs is loaded where there is no adapter, and says so.
#[cfg(not(feature = "webgpu"))]
async fn device(gpu: JsValue) -> Result<Device, String> {
    use wasm_bindgen::JsCast;
    let asked = get(&gpu, "requestAdapter").dyn_into::<js_sys::Function>();
    let asked = asked
        .and_then(|ask| ask.call0(&gpu))
        .map(js_sys::Promise::from);
    let adapter = match asked {
        Ok(promise) => wasm_bindgen_futures::JsFuture::from(promise).await,
        Err(err) => Err(err),
    };
    Err(match adapter {
        Ok(adapter) if !adapter.is_null() => {
            "this build of the module has no code for GPUs: load the build `simd`"
        }
        _ => NO_ADAPTER,
    }
    .to_string())
}

fn get(of: &JsValue, name: &str) -> JsValue {
    Reflect::get(of, &name.into()).unwrap_or(JsValue::UNDEFINED)
}

/// `navigator.gpu`.
fn gpu() -> Result<JsValue, String> {
    let global: JsValue = js_sys::global().into();
    let gpu = get(&get(&global, "navigator"), "gpu");
    if gpu.is_undefined() || gpu.is_null() {
        return Err(match get(&global, "isSecureContext").as_bool() {
            Some(false) => "WebGPU needs a secure context, and this page is not one: open it over https, or from \
                            127.0.0.1"
                .to_string(),
            _ => "this browser has no WebGPU (no navigator.gpu): use Chrome or Edge 113, Safari 26 or Firefox 141, or later; on Linux \
                  you may need to enable it"
                .to_string(),
        });
    }
    Ok(gpu)
}
