//! Compiles guests and starts them.

use std::fmt;
use std::time::Duration;

use candle_core::Device;
use candle_wasi_gpu::GpuBackend;
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Config, Engine};
use wasmtime_wasi::WasiCtx;

use crate::error::line;
use crate::guest::State;
use crate::imports::{self, is_run, Inspection};
use crate::{componentize, gpu, is_core_module, Error, Guest, Limits, Result};

/// Interval at which guests check whether their time is up. A check costs some microseconds.
const TICK: Duration = Duration::from_millis(10);

/// Compiles guests and starts them, each under the same limits.
pub struct Runner {
    engine: Engine,
    linker: Linker<State>,
    limits: Limits,
    #[cfg(feature = "llm")]
    models: crate::Models,
}

/// A guest that was compiled. It can be started many times.
#[derive(Clone)]
pub struct Program {
    pub(crate) pre: InstancePre<State>,
    pub(crate) exports: Vec<Export>,
}

/// A function that a component exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    /// The interface that it belongs to.
    pub(crate) interface: Option<String>,
    pub(crate) function: String,
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            Some(interface) => write!(f, "{interface}#{}", self.function),
            None => self.function.fmt(f),
        }
    }
}

impl Runner {
    /// A compiler for guests, and a thread that reminds them of their time while the runner or a guest lives.
    ///
    /// # Errors
    /// [`Error::Runtime`] if this machine is none that wasmtime compiles for, or gives no thread.
    pub fn new(limits: Limits) -> Result<Self> {
        let fault = |err: wasmtime::Error| Error::Runtime(line(&err));
        let mut config = Config::new();
        config
            .epoch_interruption(true)
            .consume_fuel(limits.fuel.is_some());
        let engine = Engine::new(&config).map_err(fault)?;
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker).map_err(fault)?;
        gpu::add_to_linker(&mut linker).map_err(fault)?;
        #[cfg(feature = "llm")]
        crate::llm::add_to_linker(&mut linker).map_err(fault)?;
        let ticking = engine.weak();
        std::thread::Builder::new()
            .name("wasi-gpu-epochs".into())
            .spawn(move || {
                while let Some(engine) = ticking.upgrade() {
                    engine.increment_epoch();
                    drop(engine);
                    std::thread::sleep(TICK);
                }
            })
            .map_err(|err| Error::Runtime(line(&err)))?;
        Ok(Self {
            engine,
            linker,
            limits,
            #[cfg(feature = "llm")]
            models: crate::Models::new(),
        })
    }

    /// The same runner, whose guests have these language models. Without any, they get `model-not-supported`.
    #[cfg(feature = "llm")]
    pub fn with_models(self, models: crate::Models) -> Self {
        Self { models, ..self }
    }

    /// Under which limits guests run.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Compiles a component, or a core module after [`componentize`]. The time depends on the file's size, and there is no timeout.
    ///
    /// # Errors
    /// [`Error::TooLarge`] past [`Limits::program`], [`Error::Invalid`] if the bytes are not valid WebAssembly, [`Error::Componentize`] as
    /// for [`componentize`],
    /// [`Error::MissingImports`] and [`Error::Link`] if the guest imports what this host does not have.
    pub fn load(&self, wasm: &[u8]) -> Result<Program> {
        let component = self.compile(wasm)?;
        let lacking: Vec<String> = self
            .interfaces(&component)
            .iter()
            .flat_map(imports::Interface::lacking)
            .collect();
        if !lacking.is_empty() {
            return Err(Error::MissingImports(lacking));
        }
        let pre = self
            .linker
            .instantiate_pre(&component)
            .map_err(|err| Error::Link(line(&err)))?;
        let exports = imports::exports(&self.engine, &component);
        Ok(Program { pre, exports })
    }

    /// The imports and exports of a guest, and those that this host lacks.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Invalid`] and [`Error::Componentize`], as for [`Runner::load`].
    pub fn inspect(&self, wasm: &[u8]) -> Result<Inspection> {
        let component = self.compile(wasm)?;
        Ok(Inspection {
            core_module: is_core_module(wasm),
            command: imports::exports(&self.engine, &component)
                .iter()
                .any(is_run),
            imports: self.interfaces(&component),
            exports: imports::exported(&self.engine, &component),
        })
    }

    /// Starts a guest on a device, which no other guest should be given; [`Devices::open`](crate::Devices::open) makes one each time.
    ///
    /// The guest reaches of the host what is in `wasi`; `WasiCtx::default()` has no file, no variable, no network, and drops
    /// what the guest prints.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails; [`Error::Trap`], [`Error::Timeout`] and [`Error::Fuel`] if the guest does while it starts.
    pub async fn start(&self, program: &Program, device: &Device, wasi: WasiCtx) -> Result<Guest> {
        let limits = candle_wasi_gpu::Limits {
            memory: self.limits.gpu_memory,
            buffers: self.limits.buffers,
        };
        let backend = candle_wasi_gpu::backend(device, limits).map_err(|err| Error::Device {
            asked: crate::device::name(device),
            reason: line(&err),
        })?;
        self.start_on(program, backend, wasi).await
    }

    /// As [`Runner::start`], on a backend that was made before. `gpu_memory` and `buffers` of the limits are the backend's affair.
    ///
    /// # Errors
    /// As [`Runner::start`].
    pub async fn start_on(
        &self,
        program: &Program,
        backend: Box<dyn GpuBackend>,
        wasi: WasiCtx,
    ) -> Result<Guest> {
        Guest::start(
            program,
            &self.limits,
            backend,
            wasi,
            #[cfg(feature = "llm")]
            self.models.clone(),
        )
        .await
    }

    fn compile(&self, wasm: &[u8]) -> Result<Component> {
        let limit = self.limits.program;
        if wasm.len() > limit {
            return Err(Error::TooLarge {
                size: wasm.len() as u64,
                limit,
            });
        }
        let made;
        let wasm = if is_core_module(wasm) {
            made = componentize(wasm)?;
            &made
        } else {
            wasm
        };
        Component::from_binary(&self.engine, wasm).map_err(|err| Error::Invalid(line(&err)))
    }

    fn interfaces(&self, component: &Component) -> Vec<imports::Interface> {
        imports::imported(&self.engine, &self.linker, component)
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Program {
    /// Whether it is a command: exports `wasi:cli/run`.
    pub fn is_command(&self) -> bool {
        self.exports.iter().any(is_run)
    }

    /// The functions that it exports, as [`Guest::invoke`] takes them.
    pub fn exports(&self) -> Vec<String> {
        self.exports.iter().map(Export::to_string).collect()
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("exports", &self.exports())
            .finish_non_exhaustive()
    }
}
