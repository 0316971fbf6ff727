//! Shared libraries of the host.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::path::Path;

#[cfg_attr(target_os = "linux", link(name = "dl"))]
extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

const NOW: c_int = 2;
const GLOBAL: c_int = if cfg!(target_os = "macos") { 8 } else { 0x100 };

/// Never closed: a graph may use its exports.
pub struct Library(*mut c_void);

unsafe impl Send for Library {}
unsafe impl Sync for Library {}

impl Library {
    /// If `global`, its symbols are available to libraries opened later.
    pub fn open(path: &Path, global: bool) -> Result<Self, String> {
        let name =
            CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
        let library = unsafe { dlopen(name.as_ptr(), NOW | if global { GLOBAL } else { 0 }) };
        if library.is_null() {
            let error = unsafe { dlerror() };
            return Err(if error.is_null() {
                format!("{} cannot be opened", path.display())
            } else {
                unsafe { CStr::from_ptr(error) }
                    .to_string_lossy()
                    .into_owned()
            });
        }
        Ok(Self(library))
    }

    pub fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        let symbol = unsafe { dlsym(self.0, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    }

    /// A function by its name.
    ///
    /// # Safety
    /// `F` is the type of a pointer to that function.
    pub unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        let symbol = self
            .symbol(name)
            .ok_or_else(|| format!("no symbol {name:?}"))?;
        Ok(unsafe { std::mem::transmute_copy(&symbol) })
    }
}
