//! The pipelines of a device, compiled on the first use of a kernel and cached.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::adapter::Caps;
use super::kernel::{AnyKernel, ByKernel};
use super::limits::PARAM_BYTES;
use super::pipeline_cache::PipelineCache;
use super::shader::Shader;
use crate::{Error, Result};

/// The source of a module from another crate. A device has one copy of it, so equal sources have the same address.
#[derive(Clone)]
pub(super) struct ForeignText(Arc<str>);

impl ForeignText {
    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

impl PartialEq for ForeignText {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ForeignText {}

impl Hash for ForeignText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_ptr().hash(state);
    }
}

/// The sources of modules from other crates.
#[derive(Default)]
struct ForeignTexts {
    all: HashSet<Arc<str>>,
    /// The last one of each name: each dispatch looks its source up, by one comparison instead of a hash of some kilobytes.
    last: HashMap<&'static str, Arc<str>>,
}

impl ForeignTexts {
    fn get(&mut self, name: &'static str, source: &str) -> ForeignText {
        if let Some(text) = self.last.get(name).filter(|text| ***text == *source) {
            return ForeignText(text.clone());
        }
        let text = match self.all.get(source) {
            Some(text) => text.clone(),
            None => {
                let text: Arc<str> = source.into();
                self.all.insert(text.clone());
                text
            }
        };
        self.last.insert(name, text.clone());
        ForeignText(text)
    }
}

/// A compiled kernel.
pub(super) struct Pipeline {
    pub(super) raw: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
    pub(super) id: u32,
    pub(super) label: String,
}

/// The compiled kernels of one device.
pub(super) struct Kernels {
    device: wgpu::Device,
    pub(super) caps: Caps,
    checks: bool,
    dump: Option<std::path::PathBuf>,
    next_id: AtomicU32,
    cache: RwLock<ByKernel<Arc<Pipeline>>>,
    /// The sources of modules from other crates.
    foreign: Mutex<ForeignTexts>,
    disk: Option<PipelineCache>,
    /// Number of pipelines when `disk` was last written.
    saved: AtomicUsize,
}

impl Kernels {
    pub(super) fn new(device: wgpu::Device, caps: Caps, disk: Option<PipelineCache>) -> Self {
        Self {
            disk,
            saved: AtomicUsize::new(0),
            device,
            caps,
            checks: crate::watch::switch("CANDLE_WEBGPU_CHECKS").unwrap_or(cfg!(debug_assertions)),
            dump: std::env::var_os("CANDLE_WEBGPU_DUMP_SHADERS").map(Into::into),
            next_id: AtomicU32::new(0),
            cache: RwLock::default(),
            foreign: Mutex::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.cache.read().len()
    }

    /// The single copy of the source of a module from another crate.
    pub(super) fn foreign(&self, name: &'static str, source: &str) -> ForeignText {
        self.foreign.lock().get(name, source)
    }

    /// The pipeline of `kernel`, compiled from `shader` on the first use.
    pub(super) fn get(
        &self,
        kernel: &(dyn AnyKernel + 'static),
        shader: impl FnOnce() -> Shader,
    ) -> Result<Arc<Pipeline>> {
        if let Some(found) = self.cache.read().get(kernel) {
            return Ok(found.clone());
        }
        let pipeline = Arc::new(self.compile(shader())?);
        let mut cache = self.cache.write();
        Ok(cache.entry(kernel.boxed()).or_insert(pipeline).clone())
    }

    /// Compiles the new ones, on one thread per core; returns their number.
    pub(super) fn compile_all(&self, shaders: ByKernel<Shader>) -> Result<usize> {
        let mut shaders: Vec<_> = shaders.into_iter().collect();
        shaders.retain(|(kernel, _)| !self.cache.read().contains_key(kernel));
        let count = shaders.len();
        // A browser has one thread here, and compiles in parallel anyway.
        let threads = match std::thread::available_parallelism() {
            Ok(threads) if cfg!(not(target_arch = "wasm32")) => threads.get().min(count),
            _ => 1,
        };
        if threads <= 1 {
            for (kernel, shader) in shaders {
                self.get(&*kernel, || shader)?;
            }
            return Ok(count);
        }
        let rest = Mutex::new(shaders);
        std::thread::scope(|scope| {
            let work = || -> Result<()> {
                loop {
                    let next = rest.lock().pop();
                    let Some((kernel, shader)) = next else {
                        return Ok(());
                    };
                    self.get(&*kernel, || shader)?;
                }
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| {
                let died =
                    |_| Err(Error::WebGpu("a thread that compiled kernels died".into()).bt());
                thread.join().unwrap_or_else(died)
            })
        })?;
        Ok(count)
    }

    pub(super) fn disk(&self) -> Option<&PipelineCache> {
        self.disk.as_ref()
    }

    /// Writes compiled pipelines to disk, if there are new ones.
    pub(super) fn save(&self) -> std::io::Result<()> {
        let count = self.count();
        match &self.disk {
            Some(disk) if self.saved.swap(count, Ordering::Relaxed) < count => disk.save(),
            _ => Ok(()),
        }
    }

    /// Writes a shader's source if the environment requests it.
    fn dump(&self, label: &str, text: &str) -> Result<()> {
        let Some(dir) = &self.dump else {
            return Ok(());
        };
        let words = label.split(|c: char| !c.is_ascii_alphanumeric());
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        let mut file = words.join("_");
        // No system allows names of more than 255 bytes.
        file.truncate(200);
        // The hash distinguishes kernels with equal labels, and several devices write the same file once.
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let name = format!("{file}_{:016x}.wgsl", hasher.finish());
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join(name), text)?;
        Ok(())
    }

    fn compile(&self, shader: Shader) -> Result<Pipeline> {
        let Shader {
            text,
            label,
            bindings,
            foreign,
        } = shader;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        // A module from another crate is a pipeline only if it compiles.
        if !foreign {
            self.dump(&label, &text)?;
        }
        tracing::debug!(kernel = label, id, "compiling");
        // In a browser the scope's result arrives later than this function can wait; there, the device's handler of uncaptured errors
        // receives it.
        #[cfg(not(target_arch = "wasm32"))]
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(&label),
            source: wgpu::ShaderSource::Wgsl(text.as_str().into()),
        };
        let module = if self.checks || foreign {
            self.device.create_shader_module(descriptor)
        } else {
            // SAFETY: the tests run every kernel with checks enabled; the kernels compare indexes from data.
            unsafe {
                self.device.create_shader_module_trusted(
                    descriptor,
                    wgpu::ShaderRuntimeChecks::unchecked(),
                )
            }
        };
        let mut entries: Vec<_> = bindings
            .iter()
            .map(|ty| (*ty, false))
            .chain([(wgpu::BufferBindingType::Uniform, true)])
            .enumerate()
            .map(
                |(binding, (ty, has_dynamic_offset))| wgpu::BindGroupLayoutEntry {
                    binding: binding as u32,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: wgpu::BindingType::Buffer {
                        ty,
                        has_dynamic_offset,
                        min_binding_size: None,
                    },
                    count: None,
                },
            )
            .collect();
        if let Some(wgpu::BindGroupLayoutEntry {
            ty: wgpu::BindingType::Buffer {
                min_binding_size, ..
            },
            ..
        }) = entries.last_mut()
        {
            *min_binding_size = std::num::NonZeroU64::new(PARAM_BYTES as u64);
        }
        let layout = self
            .device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: Some(&label),
                entries: &entries,
            });
        let pipeline_layout = self
            .device
            .create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(&label),
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            });
        let raw = self
            .device
            .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(&label),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: foreign,
                    ..Default::default()
                },
                cache: self.disk.as_ref().map(PipelineCache::raw),
            });
        #[cfg(not(target_arch = "wasm32"))]
        if let Some(err) = pollster::block_on(scope.pop()) {
            return Err(Error::WebGpu(format!(
                "cannot compile kernel {label} on this adapter: {err}"
            ))
            .bt());
        }
        if foreign {
            self.dump(&label, &text)?;
        }
        Ok(Pipeline {
            raw,
            layout,
            id,
            label,
        })
    }
}
