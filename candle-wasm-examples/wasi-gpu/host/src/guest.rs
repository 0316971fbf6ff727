//! A guest that was started: its exports, under its limits.

use std::future::Future;
use std::time::Duration;

use candle_wasi_gpu::GpuBackend;
use wasmtime::component::wasm_wave::{self, wasm::DisplayType};
use wasmtime::component::{Func, Instance, ResourceTable, Val};
use wasmtime::{Store, Trap, UpdateDeadline};
use wasmtime_wasi::{I32Exit, WasiCtx, WasiCtxView, WasiView};

use crate::error::line;
use crate::gpu::Gpu;
use crate::imports::is_run;
use crate::limits::{Limits, Quota};
use crate::runner::{Export, Program};
use crate::stats::Stats;
use crate::{Error, Result};

/// The host's state of one guest.
pub(crate) struct State {
    pub(crate) gpu: Gpu,
    #[cfg(feature = "llm")]
    pub(crate) models: crate::Models,
    wasi: WasiCtx,
    table: ResourceTable,
    quota: Quota,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

/// A guest that was started by a [`Runner`](crate::Runner). It shares nothing with other guests.
///
/// Its methods want a Tokio runtime with time enabled. After a trap, a timeout or the end of a command it takes no more calls.
pub struct Guest {
    store: Store<State>,
    instance: Instance,
    exports: Vec<Export>,
    timeout: Option<Duration>,
    fuel: Option<u64>,
    ended: bool,
}

impl Guest {
    pub(crate) async fn start(
        program: &Program,
        limits: &Limits,
        backend: Box<dyn GpuBackend>,
        wasi: WasiCtx,
        #[cfg(feature = "llm")] models: crate::Models,
    ) -> Result<Self> {
        let state = State {
            gpu: Gpu::new(backend, limits),
            #[cfg(feature = "llm")]
            models,
            wasi,
            table: ResourceTable::new(),
            quota: Quota::new(limits),
        };
        let mut store = Store::new(program.pre.engine(), state);
        store.limiter(|state| &mut state.quota);
        store.set_hostcall_fuel(limits.transfer);
        store.set_max_component_handles(limits.handles);
        // At each tick the guest lets the executor look at the timeout, and at other guests.
        store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Yield(1)));
        store.set_epoch_deadline(1);
        if let Some(fuel) = limits.fuel {
            store
                .set_fuel(fuel)
                .map_err(|err| Error::Runtime(line(&err)))?;
        }
        let started = program.pre.instantiate_async(&mut store);
        let instance = match within(limits.timeout, started).await? {
            Ok(instance) => instance,
            Err(err) => return Err(trap(&err, limits.fuel)),
        };
        Ok(Self {
            store,
            instance,
            exports: program.exports.clone(),
            timeout: limits.timeout,
            fuel: limits.fuel,
            ended: false,
        })
    }

    /// Runs a command, `wasi:cli/run`, to its end and returns its exit code.
    ///
    /// # Errors
    /// [`Error::NotACommand`] if the guest has no such export; [`Error::Trap`], [`Error::Timeout`], [`Error::Fuel`] if it did not get
    /// to its end.
    pub async fn run(&mut self) -> Result<i32> {
        let Some(export) = self.exports.iter().find(|export| is_run(export)).cloned() else {
            return Err(Error::NotACommand {
                exports: self.names(),
            });
        };
        let func = self.func(&export)?;
        let run = func
            .typed::<(), (std::result::Result<(), ()>,)>(&self.store)
            .map_err(|err| Error::Link(line(&err)))?;
        self.enter()?;
        let done = within(self.timeout, run.call_async(&mut self.store, ())).await;
        match self.in_time(done)? {
            Ok((Ok(()),)) => Ok(0),
            Ok((Err(()),)) => Ok(1),
            Err(err) => match err.downcast_ref::<I32Exit>() {
                Some(exit) => Ok(exit.0),
                None => Err(trap(&err, self.fuel)),
            },
        }
    }

    /// Calls an export with arguments as [WAVE](https://github.com/bytecodealliance/wasm-tools/tree/main/crates/wasm-wave) writes them,
    /// such as `1.5`, `"text"`, `[1, 2]`, `{x: 1}`, `some(2)`, and returns its results in the same form.
    ///
    /// `name` is that of a function, or `INTERFACE#FUNCTION` where several interfaces have it.
    ///
    /// # Errors
    /// [`Error::NoExport`], [`Error::Ambiguous`] and [`Error::Arguments`] before the call, and those of [`Guest::call`].
    pub async fn invoke(&mut self, name: &str, args: &[impl AsRef<str>]) -> Result<Vec<String>> {
        let func = self.find(name)?;
        let ty = func.ty(&self.store);
        if args.len() != ty.params().len() {
            let takes: Vec<String> = ty
                .params()
                .map(|(param, ty)| format!("{param}: {}", DisplayType(&ty)))
                .collect();
            return Err(Error::Arguments(format!(
                "{name} takes {} arguments ({}), {} were given",
                takes.len(),
                takes.join(", "),
                args.len()
            )));
        }
        let values: Vec<Val> = ty
            .params()
            .zip(args)
            .map(|((param, ty), arg)| {
                let arg = arg.as_ref();
                wasm_wave::from_str::<Val>(&ty, arg).map_err(|err| {
                    Error::Arguments(format!(
                        "the argument {param} of {name} is {}, which {arg:?} is not: {}",
                        DisplayType(&ty),
                        line(&err)
                    ))
                })
            })
            .collect::<Result<_>>()?;
        let results = self.enter_func(func, &values).await?;
        results
            .iter()
            .map(|value| {
                wasm_wave::to_string(value).map_err(|err| Error::Unwritable {
                    function: name.to_string(),
                    reason: line(&err),
                })
            })
            .collect()
    }

    /// Calls an export, named as for [`Guest::invoke`].
    ///
    /// # Errors
    /// [`Error::NoExport`], [`Error::Ambiguous`] and [`Error::Arguments`] before the call. [`Error::Trap`], [`Error::Timeout`] and
    /// [`Error::Fuel`] end the guest, and [`Error::Ended`] says that it has ended before.
    pub async fn call(&mut self, name: &str, args: &[Val]) -> Result<Vec<Val>> {
        let func = self.find(name)?;
        let takes = func.ty(&self.store).params().len();
        if args.len() != takes {
            return Err(Error::Arguments(format!(
                "{name} takes {takes} arguments, {} were given",
                args.len()
            )));
        }
        self.enter_func(func, args).await
    }

    /// The guest's calls of `wasi:gpu` so far.
    pub fn stats(&self) -> &Stats {
        &self.store.data().gpu.stats
    }

    /// The fuel that is left; `None` without a limit.
    pub fn fuel_left(&self) -> Option<u64> {
        self.fuel.and_then(|_| self.store.get_fuel().ok())
    }

    async fn enter_func(&mut self, func: Func, args: &[Val]) -> Result<Vec<Val>> {
        let mut results = vec![Val::Bool(false); func.ty(&self.store).results().len()];
        self.enter()?;
        let call = func.call_async(&mut self.store, args, &mut results);
        let done = within(self.timeout, call).await;
        match self.in_time(done)? {
            Ok(()) => {
                self.ended = false;
                Ok(results)
            }
            Err(err) => match err.downcast_ref::<I32Exit>() {
                Some(exit) => Err(Error::Trap(format!("it exited with code {}", exit.0))),
                None => Err(trap(&err, self.fuel)),
            },
        }
    }

    /// A guest that is entered has ended unless it returns: also if the caller drops the future.
    /// A guest that had no time left leaves nothing to be done.
    fn in_time<T>(&self, done: Result<T>) -> Result<T> {
        if done.is_err() {
            self.store.data().gpu.stop();
        }
        done
    }

    fn enter(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.ended, true) {
            Err(Error::Ended)
        } else {
            Ok(())
        }
    }

    fn names(&self) -> Vec<String> {
        self.exports.iter().map(Export::to_string).collect()
    }

    /// The function with this full name, or the only one with this bare name.
    fn find(&mut self, name: &str) -> Result<Func> {
        let full = |export: &&Export| export.to_string() == name;
        let bare = |export: &&Export| export.function == name;
        let mut found: Vec<Export> = self.exports.iter().filter(full).cloned().collect();
        if found.is_empty() {
            found = self.exports.iter().filter(bare).cloned().collect();
        }
        match found.as_slice() {
            [export] => self.func(export),
            [] => Err(self.no_export(name.to_string())),
            several => Err(Error::Ambiguous {
                asked: name.to_string(),
                exports: several.iter().map(Export::to_string).collect(),
            }),
        }
    }

    fn func(&mut self, export: &Export) -> Result<Func> {
        self.look_up(export)
            .ok_or_else(|| self.no_export(export.to_string()))
    }

    fn look_up(&mut self, export: &Export) -> Option<Func> {
        let (store, instance) = (&mut self.store, self.instance);
        let interface = match &export.interface {
            Some(name) => Some(instance.get_export_index(&mut *store, None, name)?),
            None => None,
        };
        let at = instance.get_export_index(&mut *store, interface.as_ref(), &export.function)?;
        instance.get_func(store, at)
    }

    fn no_export(&self, asked: String) -> Error {
        Error::NoExport {
            asked,
            exports: self.names(),
        }
    }
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guest")
            .field("exports", &self.names())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// Waits for a call into the guest as long as the guest may take.
async fn within<T>(timeout: Option<Duration>, call: impl Future<Output = T>) -> Result<T> {
    match timeout {
        None => Ok(call.await),
        Some(timeout) => tokio::time::timeout(timeout, call)
            .await
            .map_err(|_| Error::Timeout(timeout)),
    }
}

fn trap(err: &wasmtime::Error, fuel: Option<u64>) -> Error {
    match (err.downcast_ref::<Trap>(), fuel) {
        (Some(Trap::OutOfFuel), Some(fuel)) => Error::Fuel(fuel),
        _ => Error::Trap(line(err)),
    }
}
