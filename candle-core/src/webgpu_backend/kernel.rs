//! WGSL put together for dtypes and layouts, and the pipelines made from it, kept by the kernel that they run.
//!
//! A kernel is a value ([`Kernel`]): a struct of everything that makes its pipeline. The struct is the key that the pipeline is kept
//! under, its `Debug` form is the pipeline's label, and its shader is written from nothing else.
//!
//! A shader is a prelude plus a body from `shaders/*.wgsl`. The prelude, written here, holds what depends on the call: the
//! bindings with their accessors by dtype, the parameter struct, and constants. The body says what the kernel does, in terms
//! of `lhs_at(i)`, `dst_put(word, lanes)`, `p.len` and named constants, and asserts what it expects of the constants.

use std::any::{Any, TypeId};
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::fmt::{Debug, Write};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

pub(super) use super::adapter::Caps;
pub(super) use super::elem::Elem;
use super::limits::{MAX_BUFFERS, PARAM_BYTES};
use super::pipeline_cache::PipelineCache;
use crate::{Error, Result};

/// Parameters of a kernel: one struct, declared once, seen from Rust and from WGSL.
pub(super) trait Params: bytemuck::Pod {
    /// The struct's declaration in WGSL, under the name `Params`.
    const WGSL: &'static str;
}

/// Shapes and strides in parameters: up to eight dimensions, the last one in the last place used.
pub(super) type Dims = [u32; 8];

/// Declares a parameter struct for both languages. Fields of type `Dims` must come first: WGSL aligns them to 16 bytes.
macro_rules! params {
    (@rust u32) => { u32 };
    (@rust f32) => { f32 };
    (@rust Dims) => { $crate::webgpu_backend::kernel::Dims };
    (@wgsl u32) => { "u32" };
    (@wgsl f32) => { "f32" };
    (@wgsl Dims) => { "array<vec4<u32>, 2>" };
    ($name:ident { $($field:ident: $ty:tt),* $(,)? }) => {
        #[repr(C)]
        #[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        pub(super) struct $name { $(pub(super) $field: params!(@rust $ty)),* }

        impl $crate::webgpu_backend::kernel::Params for $name {
            const WGSL: &'static str = concat!(
                "struct Params {\n",
                $("  ", stringify!($field), ": ", params!(@wgsl $ty), ",\n",)*
                "}\n",
            );
        }
    };
}
pub(super) use params;

/// A kernel as a value: dtypes, ranks, tiles and features, whatever its pipeline is made for.
///
/// Two equal values share a pipeline. `Debug` names it in logs, profiles and dumps.
pub(super) trait Kernel: Hash + Eq + Debug + Clone + Send + Sync + 'static {
    type Params: Params;

    /// The WGSL, which depends on the value and on what the adapter can do, and on nothing else.
    fn shader(&self, caps: &Caps) -> Shader;
}

/// Any kernel, as the key of its pipeline. A look-up borrows the value and allocates nothing.
pub(super) trait AnyKernel: Any + Send + Sync {
    fn number(&self) -> u64;
    fn equals(&self, other: &(dyn AnyKernel + 'static)) -> bool;
    fn boxed(&self) -> Box<dyn AnyKernel>;
}

impl<T: Hash + Eq + Clone + Send + Sync + 'static> AnyKernel for T {
    fn number(&self) -> u64 {
        let mut hasher = Mix::default();
        TypeId::of::<T>().hash(&mut hasher);
        self.hash(&mut hasher);
        hasher.finish()
    }

    fn equals(&self, other: &(dyn AnyKernel + 'static)) -> bool {
        (other as &dyn Any).downcast_ref::<T>() == Some(self)
    }

    fn boxed(&self) -> Box<dyn AnyKernel> {
        Box::new(self.clone())
    }
}

impl Hash for dyn AnyKernel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.number());
    }
}

impl PartialEq for dyn AnyKernel {
    fn eq(&self, other: &Self) -> bool {
        self.equals(other)
    }
}

impl Eq for dyn AnyKernel {}

/// A hash of few instructions, by a rotation, an exclusive or and a product for each field: the standard library's takes as long as
/// a tenth of a launch, to keep off attackers that a kernel does not have.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Mix {
    fn add(&mut self, value: u64) {
        // 2^64 over the golden ratio, an odd number.
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Mix {
    /// The product's upper bits, the best ones, to where a table looks for its place.
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.add(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.add(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.add(value as u64);
    }
}

/// Pipelines, or what they are to be made from, by their kernels.
pub(super) type ByKernel<T> = HashMap<Box<dyn AnyKernel>, T, BuildHasherDefault<Mix>>;

/// WGSL under construction. A kernel begins with the default, which has nothing.
#[derive(Default)]
pub(super) struct Shader {
    text: String,
    label: String,
    bindings: Vec<wgpu::BufferBindingType>,
    foreign: bool,
}

impl Shader {
    /// The shader of a kernel, under its name.
    pub(super) fn of(kernel: &impl Kernel, caps: &Caps) -> Self {
        Self {
            label: short(format!("{kernel:?}")),
            ..kernel.shader(caps)
        }
    }

    /// A whole module from outside of this crate: it is compiled with all checks, and workgroup memory starts as zeros.
    pub(super) fn foreign(source: &str, inputs: usize, outputs: usize) -> Self {
        let storage = |i| wgpu::BufferBindingType::Storage {
            read_only: i < inputs,
        };
        Self {
            text: source.into(),
            label: String::new(),
            bindings: (0..inputs + outputs).map(storage).collect(),
            foreign: true,
        }
    }

    fn binding(&mut self, name: &str, word: &str, read_only: bool) {
        let index = self.bindings.len();
        assert!(
            index < MAX_BUFFERS,
            "kernels have at most {MAX_BUFFERS} buffers"
        );
        let access = if read_only { "read" } else { "read_write" };
        let _ = writeln!(
            self.text,
            "@group(0) @binding({index}) var<storage, {access}> {name}: array<{word}>;"
        );
        self.bindings
            .push(wgpu::BufferBindingType::Storage { read_only });
    }

    /// A tensor to read: `name_at(i)` gives element `i` as `name_t`.
    pub(super) fn input(mut self, name: &str, elem: Elem) -> Self {
        self.binding(name, elem.word(), true);
        let (ty, read) = (elem.arithmetic(), elem.read(name));
        let _ = writeln!(
            self.text,
            "alias {name}_t = {ty};\nfn {name}_at(i: u32) -> {ty} {{ {read} }}"
        );
        self
    }

    /// A tensor to read as words of another type than its dtype's own: for kernels that load many elements at once.
    pub(super) fn input_words(mut self, name: &str, word: &str) -> Self {
        self.binding(name, word, true);
        self
    }

    /// A tensor to write: `name_put(word, lanes)` writes the `NAME_LANES` elements of a word; `name_at(i)` reads;
    /// `name_rounded(lanes)` is what a written word reads back as.
    pub(super) fn output(mut self, name: &str, elem: Elem) -> Self {
        self.binding(name, elem.word(), false);
        let (ty, read, pack) = (elem.arithmetic(), elem.read(name), elem.pack());
        let round = elem.round();
        let (upper, lanes) = (name.to_uppercase(), elem.lanes());
        let _ = writeln!(
            self.text,
            "alias {name}_t = {ty};\nconst {upper}_LANES = {lanes}u;\n\
             fn {name}_at(i: u32) -> {ty} {{ {read} }}\n\
             fn {name}_put(word: u32, lanes: array<{name}_t, {lanes}>) {{ var v = lanes; {name}[word] = {pack}; }}\n\
             fn {name}_rounded(lanes: array<{name}_t, {lanes}>) -> array<{name}_t, {lanes}> {{ var v = lanes; {round} return v; }}"
        );
        self
    }

    /// A tensor to write, as words of another type than its dtype's own.
    pub(super) fn output_words(mut self, name: &str, word: &str) -> Self {
        self.binding(name, word, false);
        self
    }

    /// The status buffer, where a kernel reports an index that is out of range.
    pub(super) fn status(mut self) -> Self {
        self.binding("status", "atomic<u32>", false);
        self
    }

    /// `name_offset(i)`: where element `i` of the shape `p.dims` is in the tensor `name`, by `p.name_stride` and
    /// `p.name_offset`; for `rank` 0 the tensor is contiguous and strides are not looked at.
    pub(super) fn strided(mut self, name: &str, rank: usize) -> Self {
        let mut body = String::new();
        if rank == 0 {
            let _ = write!(body, "return p.{name}_offset + i;");
        } else {
            let _ = write!(body, "var rest = i; var at = p.{name}_offset;");
            for dim in (0..rank).rev() {
                let place = format!("[{}][{}]", dim / 4, dim % 4);
                if dim == 0 {
                    let _ = write!(body, " at += rest * p.{name}_stride{place};");
                } else {
                    let _ = write!(
                        body,
                        " at += (rest % p.dims{place}) * p.{name}_stride{place}; rest /= p.dims{place};"
                    );
                }
            }
            body.push_str(" return at;");
        }
        let _ = writeln!(self.text, "fn {name}_offset(i: u32) -> u32 {{ {body} }}");
        self
    }

    /// A tensor to read in any layout: [`Shader::input`] and [`Shader::strided`].
    pub(super) fn view(self, name: &str, elem: Elem, rank: usize) -> Self {
        self.input(name, elem).strided(name, rank)
    }

    /// A named constant.
    pub(super) fn constant(mut self, name: &str, value: impl Into<Constant>) -> Self {
        let value = match value.into() {
            Constant::U32(v) => format!("{v}u"),
            Constant::Bool(v) => v.to_string(),
        };
        let _ = writeln!(self.text, "const {name} = {value};");
        self
    }

    /// Any WGSL.
    pub(super) fn text(mut self, text: &str) -> Self {
        self.text.push_str(text);
        self.text.push('\n');
        self
    }

    /// WGSL that must stand before everything else, such as `enable f16;`.
    pub(super) fn directive(mut self, text: &str) -> Self {
        self.text.insert_str(0, text);
        self
    }

    /// Panics with the compiler's words unless naga takes the shader and can write it for Vulkan.
    #[cfg(test)]
    pub(super) fn assert_valid(self) {
        let text = self.text;
        let module = naga::front::wgsl::parse_str(&text)
            .unwrap_or_else(|err| panic!("{}", err.emit_to_string(&text)));
        let flags = naga::valid::ValidationFlags::all();
        let info = naga::valid::Validator::new(flags, naga::valid::Capabilities::all())
            .validate(&module)
            .unwrap_or_else(|err| panic!("{}", err.emit_to_string(&text)));
        let options = naga::back::spv::Options {
            lang_version: (1, 6),
            ..Default::default()
        };
        naga::back::spv::write_vec(&module, &info, &options, None)
            .unwrap_or_else(|err| panic!("{err}\n{text}"));
    }

    /// The parameter struct as `p`, then the body. The prelude that all kernels share comes with it.
    pub(super) fn body<P: Params>(mut self, body: &str) -> Self {
        assert!(size_of::<P>() <= PARAM_BYTES);
        let index = self.bindings.len();
        self.text.push_str(P::WGSL);
        let _ = writeln!(
            self.text,
            "@group(0) @binding({index}) var<uniform> p: Params;"
        );
        self.text.push_str(include_str!("shaders/prelude.wgsl"));
        self.text.push_str(body);
        self
    }
}

/// A kernel's `Debug` form without the fields that are `false` or `None`, and with the names alone of those that are `true`.
fn short(mut label: String) -> String {
    for value in [": false", ": None"] {
        while let Some(at) = label.find(value) {
            let first = label[..at].rfind([' ', '{']).map_or(0, |space| space + 1);
            let end = at + value.len();
            let comma = if label[end..].starts_with(", ") { 2 } else { 0 };
            label.replace_range(first..end + comma, "");
        }
    }
    label.replace(": true", "").replace(",  }", " }")
}

/// Panics unless naga takes the kernel's shader, for an adapter with subgroups and for one without.
#[cfg(test)]
pub(super) fn assert_valid(kernel: &impl Kernel) {
    for subgroup in [None, Some(32)] {
        let caps = Caps {
            subgroup,
            ..Caps::default()
        };
        Shader::of(kernel, &caps).assert_valid();
    }
}

/// A value that a shader is specialised for.
pub(super) enum Constant {
    U32(u32),
    Bool(bool),
}

impl From<u32> for Constant {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<bool> for Constant {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// The text of a module from outside of this crate, of which a device has one copy: the same text is the same place.
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

/// A compiled kernel.
pub(super) struct Pipeline {
    pub(super) raw: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
    pub(super) id: u32,
    pub(super) label: String,
}

/// The kernels of one device that were compiled so far.
pub(super) struct Kernels {
    device: wgpu::Device,
    pub(super) caps: Caps,
    checks: bool,
    dump: Option<std::path::PathBuf>,
    next_id: AtomicU32,
    cache: RwLock<ByKernel<Arc<Pipeline>>>,
    /// The texts of modules from outside of this crate.
    foreign: Mutex<HashSet<Arc<str>>>,
    disk: Option<PipelineCache>,
    /// Pipelines that `disk` was last written with.
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

    /// The one copy of a module's text from outside of this crate.
    pub(super) fn foreign(&self, source: &str) -> ForeignText {
        let mut texts = self.foreign.lock();
        if let Some(text) = texts.get(source) {
            return ForeignText(text.clone());
        }
        let text: Arc<str> = source.into();
        texts.insert(text.clone());
        ForeignText(text)
    }

    /// The pipeline of `kernel`, built from `shader` if this is its first use.
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

    /// Compiles those that are new, on as many threads as the machine runs at once; gives their number.
    pub(super) fn compile_all(&self, shaders: ByKernel<Shader>) -> Result<usize> {
        let mut shaders: Vec<_> = shaders.into_iter().collect();
        shaders.retain(|(kernel, _)| !self.cache.read().contains_key(kernel));
        let count = shaders.len();
        // A browser has one thread here, and compiles beside it anyway.
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

    /// Writes a shader's text where the environment asks for it.
    fn dump(&self, label: &str, text: &str) -> Result<()> {
        let Some(dir) = &self.dump else {
            return Ok(());
        };
        let words = label.split(|c: char| !c.is_ascii_alphanumeric());
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        let mut file = words.join("_");
        // No system takes names of more than 255 bytes.
        file.truncate(200);
        // The hash tells apart what the label does not, and several devices write the same file once.
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
        // Of a module from outside, only what compiles is a pipeline's.
        if !foreign {
            self.dump(&label, &text)?;
        }
        tracing::debug!(kernel = label, id, "compiling");
        // In a browser the scope's answer comes later than this function can wait for; there, the device's handler of
        // uncaptured errors has it.
        #[cfg(not(target_arch = "wasm32"))]
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(&label),
            source: wgpu::ShaderSource::Wgsl(text.as_str().into()),
        };
        let module = if self.checks || foreign {
            self.device.create_shader_module(descriptor)
        } else {
            // SAFETY: the tests run every kernel with checks on; indexes that come from data are compared in the kernels.
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
                "kernel {label} does not compile on this adapter: {err}"
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

#[cfg(test)]
mod tests {
    use super::{short, AnyKernel, ByKernel, Elem};

    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Cast {
        from: Elem,
        to: Elem,
    }

    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Copy {
        from: Elem,
        to: Elem,
    }

    #[test]
    fn labels_say_what_there_is() {
        for (label, expected) in [
            ("Cast { from: F32, to: F16 }", "Cast { from: F32, to: F16 }"),
            ("A { b: false, c: true, d: None }", "A { c }"),
            (
                "A { b: B { c: false }, d: Some(2), e: false }",
                "A { b: B {  }, d: Some(2) }",
            ),
        ] {
            assert_eq!(short(label.into()), expected);
        }
    }

    #[test]
    fn a_pipeline_is_found_by_type_and_value_alone() {
        let elems = [Elem::F32, Elem::F16, Elem::U8, Elem::I64];
        let mut cache = ByKernel::default();
        for (number, from) in elems.into_iter().enumerate() {
            for to in elems {
                cache.insert(Cast { from, to }.boxed(), ("cast", number, to));
                cache.insert(Copy { from, to }.boxed(), ("copy", number, to));
            }
        }
        assert_eq!(cache.len(), 2 * elems.len() * elems.len());
        let find = |kernel: &(dyn AnyKernel + 'static)| cache.get(kernel).copied();
        for (number, from) in elems.into_iter().enumerate() {
            for to in elems {
                assert_eq!(find(&Cast { from, to }), Some(("cast", number, to)));
                assert_eq!(find(&Copy { from, to }), Some(("copy", number, to)));
            }
        }
        let other = Cast {
            from: Elem::F32,
            to: Elem::F64,
        };
        assert_eq!(find(&other), None);
    }
}
