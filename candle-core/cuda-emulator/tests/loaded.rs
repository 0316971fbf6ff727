//! The library as an unmodified program opens it: in a folder, under NVIDIA's names.
#![cfg(target_os = "linux")]

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::path::{Path, PathBuf};

#[link(name = "dl")]
extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

struct Library(*mut c_void);

impl Library {
    fn open(path: &Path) -> Self {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let library = unsafe { dlopen(name.as_ptr(), 2) };
        assert!(!library.is_null(), "{}", path.display());
        Self(library)
    }

    unsafe fn get<F: Copy>(&self, name: &CStr) -> F {
        let symbol = unsafe { dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        unsafe { std::mem::transmute_copy(&symbol) }
    }
}

/// The cdylib of this build, in the folder of the tests.
fn built() -> PathBuf {
    let folder = std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_path_buf();
    let library = folder.join("libcandle_cuda_emulator.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

#[test]
fn two_copies_under_nvidias_names() {
    let folder =
        std::env::temp_dir().join(format!("candle-cuda-emulator-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let open = |name: &str| {
        std::fs::copy(built(), folder.join(name)).unwrap();
        Library::open(&folder.join(name))
    };
    let (driver, compiler) = (open("libcuda.so.1"), open("libnvrtc.so.13"));
    unsafe {
        type Create =
            unsafe extern "C" fn(*mut usize, *const c_char, usize, c_int, usize, usize) -> u32;
        let create: Create = compiler.get(c"nvrtcCreateProgram");
        let compile: unsafe extern "C" fn(usize, c_int, *const *const c_char) -> u32 =
            compiler.get(c"nvrtcCompileProgram");
        let size: unsafe extern "C" fn(usize, *mut usize) -> u32 =
            compiler.get(c"nvrtcGetCUBINSize");
        let image: unsafe extern "C" fn(usize, *mut u8) -> u32 = compiler.get(c"nvrtcGetCUBIN");
        let (mut program, mut bytes) = (0, 0);
        let text = c"extern \"C\" __global__ void number(int* x) { *x = 41 + gridDim.y; }";
        assert_eq!(create(&mut program, text.as_ptr(), 0, 0, 0, 0), 0);
        assert_eq!(
            compile(program, 1, [c"--gpu-architecture=sm_90a".as_ptr()].as_ptr()),
            0
        );
        assert_eq!(size(program, &mut bytes), 0);
        let mut cubin = vec![0; bytes];
        assert_eq!(image(program, cubin.as_mut_ptr()), 0);

        let init: unsafe extern "C" fn(u32) -> u32 = driver.get(c"cuInit");
        let retain: unsafe extern "C" fn(*mut usize, c_int) -> u32 =
            driver.get(c"cuDevicePrimaryCtxRetain");
        let make_current: unsafe extern "C" fn(usize) -> u32 = driver.get(c"cuCtxSetCurrent");
        let allocate: unsafe extern "C" fn(*mut usize, usize) -> u32 = driver.get(c"cuMemAlloc_v2");
        let load: unsafe extern "C" fn(*mut usize, *const u8) -> u32 =
            driver.get(c"cuModuleLoadData");
        let find: unsafe extern "C" fn(*mut usize, usize, *const c_char) -> u32 =
            driver.get(c"cuModuleGetFunction");
        type Launch = unsafe extern "C" fn(
            usize,
            u32,
            u32,
            u32,
            u32,
            u32,
            u32,
            u32,
            usize,
            *const *const usize,
            usize,
        ) -> u32;
        let launch: Launch = driver.get(c"cuLaunchKernel");
        let read: unsafe extern "C" fn(*mut i32, usize, usize) -> u32 =
            driver.get(c"cuMemcpyDtoH_v2");
        let (mut context, mut pointer, mut module, mut function, mut found) = (0, 0, 0, 0, 0);
        assert_eq!(init(0), 0);
        assert_eq!(retain(&mut context, 0), 0);
        assert_eq!(make_current(context), 0);
        assert_eq!(allocate(&mut pointer, 4), 0);
        assert_eq!(load(&mut module, cubin.as_ptr()), 0);
        assert_eq!(find(&mut function, module, c"number".as_ptr()), 0);
        assert_eq!(
            launch(
                function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                0,
                [&raw const pointer].as_ptr(),
                0
            ),
            0
        );
        assert_eq!(read(&mut found, pointer, 4), 0);
        assert_eq!(found, 42);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
