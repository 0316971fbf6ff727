//! Modules, which are shared libraries of the host, and their kernels.

use crate::compile;
use crate::device::{compute_capability, current_device, shared_at_most};
use crate::launch::Program;
use crate::loader::Library;
use crate::status::*;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

/// As `EmuKernel` in shim/launch.h.
#[repr(C)]
pub struct Kernel {
    pub run: unsafe extern "C" fn(*mut *mut c_void),
    pub sizes: *const u32,
    pub pointers: *const u8,
    pub max_threads: u32,
}

pub struct Function {
    pub name: CString,
    pub device: usize,
    kernel: *const Kernel,
    pub program: Arc<Program>,
    /// Bytes of the `__shared__` variables that it declares.
    pub static_shared: usize,
    /// Maximum bytes that a launch may request.
    pub dynamic_shared: AtomicUsize,
}

// The kernel's record is constant data of a library that stays open.
unsafe impl Send for Function {}
unsafe impl Sync for Function {}

impl Function {
    pub fn kernel(&self) -> &Kernel {
        unsafe { &*self.kernel }
    }

    /// The size of each parameter, and whether it is a pointer.
    pub fn parameters(&self) -> impl Iterator<Item = (usize, bool)> + '_ {
        let kernel = self.kernel();
        (0..)
            .map(|i| unsafe { (*kernel.sizes.add(i) as usize, *kernel.pointers.add(i) != 0) })
            .take_while(|(size, _)| *size != 0)
    }

    pub fn max_threads(&self) -> u32 {
        match self.kernel().max_threads {
            0 => 1024,
            bound => bound,
        }
    }
}

struct Module {
    device: usize,
    library: Library,
    program: Arc<Program>,
    shared: Vec<(String, usize)>,
}

#[derive(Default)]
struct Modules {
    modules: HashMap<usize, Module>,
    functions: HashMap<usize, (usize, Arc<Function>)>,
    last_handle: usize,
}

fn all() -> MutexGuard<'static, Modules> {
    static ALL: LazyLock<Mutex<Modules>> = LazyLock::new(Mutex::default);
    ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub fn function(handle: usize) -> Result<Arc<Function>, Status> {
    all()
        .functions
        .get(&handle)
        .map(|(_, function)| function.clone())
        .ok_or(ERROR_INVALID_HANDLE)
}

fn load(to: *mut usize, path: &Path) -> Result<(), Status> {
    let device = current_device()?;
    let explained = |error: String| {
        eprintln!("CUDA emulator: {error}");
        ERROR_INVALID_IMAGE
    };
    compile::runtime().map_err(explained)?;
    let library = Library::open(path, false).map_err(explained)?;
    let program = Program {
        shared_address: unsafe { library.function(c"emu_shared_address") }.map_err(explained)?,
    };
    let shared = std::fs::read(path)
        .map(|image| crate::elf::thread_variables(&image))
        .unwrap_or_default();
    let mut modules = all();
    modules.last_handle += 64;
    let handle = 0x100_0000 + modules.last_handle;
    modules.modules.insert(
        handle,
        Module {
            device,
            library,
            program: Arc::new(program),
            shared,
        },
    );
    unsafe { put(to, handle) }
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadData(to: *mut usize, image: *const u8) -> Status {
    if image.is_null() {
        return ERROR_INVALID_VALUE;
    }
    status(match unsafe { crate::elf::length(image) } {
        Some(length) => {
            let image = unsafe { std::slice::from_raw_parts(image, length) };
            match compile::keep_image(image) {
                Ok(path) => load(to, &path),
                Err(error) => {
                    eprintln!("CUDA emulator: {error}");
                    Err(ERROR_INVALID_IMAGE)
                }
            }
        }
        None => {
            let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
            match text
                .lines()
                .next()
                .and_then(|line| line.strip_prefix(compile::TEXT_PREFIX))
            {
                Some(path) => load(to, Path::new(path)),
                None => {
                    eprintln!(
                        "CUDA emulator: this module was not compiled by the emulator's NVRTC"
                    );
                    Err(ERROR_INVALID_IMAGE)
                }
            }
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    to: *mut usize,
    image: *const u8,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
) -> Status {
    unsafe { cuModuleLoadData(to, image) }
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleLoad(to: *mut usize, path: *const c_char) -> Status {
    if path.is_null() {
        return ERROR_INVALID_VALUE;
    }
    let path = unsafe { CStr::from_ptr(path) }
        .to_string_lossy()
        .into_owned();
    match std::fs::read(&path) {
        Ok(mut image) => {
            image.push(0);
            unsafe { cuModuleLoadData(to, image.as_ptr()) }
        }
        Err(error) => {
            eprintln!("CUDA emulator: {path}: {error}");
            ERROR_NOT_FOUND
        }
    }
}

#[no_mangle]
pub extern "C" fn cuModuleUnload(handle: usize) -> Status {
    let mut modules = all();
    modules.functions.retain(|_, (module, _)| *module != handle);
    match modules.modules.remove(&handle) {
        Some(_) => SUCCESS,
        None => ERROR_INVALID_HANDLE,
    }
}

fn get_function(to: *mut usize, handle: usize, name: &CStr) -> Result<(), Status> {
    let mut modules = all();
    let module = modules.modules.get(&handle).ok_or(ERROR_INVALID_HANDLE)?;
    let symbol = CString::new([b"emu_kernel_", name.to_bytes()].concat())
        .map_err(|_| ERROR_INVALID_VALUE)?;
    let kernel = module
        .library
        .symbol(&symbol)
        .ok_or(ERROR_NOT_FOUND)?
        .cast_const()
        .cast();
    // The names of a kernel's own variables begin with its name.
    let text = name.to_string_lossy();
    let own = format!("_ZZ{}{text}", text.len());
    let static_shared = module
        .shared
        .iter()
        .filter(|(name, _)| name.starts_with(&own))
        .map(|(_, bytes)| bytes)
        .sum();
    let function = Function {
        name: name.to_owned(),
        device: module.device,
        kernel,
        program: module.program.clone(),
        static_shared,
        dynamic_shared: AtomicUsize::new((48usize << 10).saturating_sub(static_shared)),
    };
    modules.last_handle += 64;
    let function_handle = 0x100_0000 + modules.last_handle;
    modules
        .functions
        .insert(function_handle, (handle, Arc::new(function)));
    unsafe { put(to, function_handle) }
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleGetFunction(
    to: *mut usize,
    module: usize,
    name: *const c_char,
) -> Status {
    if name.is_null() {
        return ERROR_INVALID_VALUE;
    }
    status(get_function(to, module, unsafe { CStr::from_ptr(name) }))
}

#[no_mangle]
pub extern "C" fn cuFuncSetAttribute(handle: usize, attribute: c_int, value: c_int) -> Status {
    let function = match function(handle) {
        Ok(function) => function,
        Err(error) => return error,
    };
    match (attribute, usize::try_from(value)) {
        (8, Ok(bytes)) if bytes + function.static_shared <= shared_at_most() => {
            function.dynamic_shared.store(bytes, Ordering::Relaxed);
            SUCCESS
        }
        // How shared memory and cache divide.
        (9, _) => SUCCESS,
        _ => ERROR_INVALID_VALUE,
    }
}

#[no_mangle]
pub extern "C" fn cuFuncSetCacheConfig(handle: usize, _config: u32) -> Status {
    status(function(handle).map(drop))
}

#[no_mangle]
pub extern "C" fn cuFuncGetAttribute(to: *mut c_int, attribute: c_int, handle: usize) -> Status {
    let (major, minor) = compute_capability();
    status(function(handle).and_then(|function| {
        let value = match attribute {
            0 => function.max_threads() as c_int,
            1 => function.static_shared as c_int,
            4 => 32,
            5 | 6 => 10 * major + minor,
            8 => function.dynamic_shared.load(Ordering::Relaxed) as c_int,
            2 | 3 | 7 => 0,
            9 => -1,
            _ => return Err(ERROR_INVALID_VALUE),
        };
        unsafe { put(to, value) }
    }))
}

fn blocks_at_once(
    function: &Function,
    threads: c_int,
    dynamic_shared: usize,
) -> Result<c_int, Status> {
    let threads = usize::try_from(threads)
        .ok()
        .filter(|threads| *threads > 0)
        .ok_or(ERROR_INVALID_VALUE)?;
    let shared = function.static_shared + dynamic_shared + 1024;
    let by_shared = (shared_at_most() + 1024) / shared;
    let fits = threads <= function.max_threads() as usize;
    Ok(if fits {
        (1024 / threads).max(1).min(by_shared).min(16) as c_int
    } else {
        0
    })
}

#[no_mangle]
pub extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    to: *mut c_int,
    handle: usize,
    threads: c_int,
    dynamic_shared: usize,
) -> Status {
    status(function(handle).and_then(|function| {
        let blocks = blocks_at_once(&function, threads, dynamic_shared)?;
        unsafe { put(to, blocks) }
    }))
}

#[no_mangle]
pub extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    to: *mut c_int,
    handle: usize,
    threads: c_int,
    dynamic_shared: usize,
    _flags: u32,
) -> Status {
    cuOccupancyMaxActiveBlocksPerMultiprocessor(to, handle, threads, dynamic_shared)
}
