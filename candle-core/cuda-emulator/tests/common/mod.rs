//! Calls of the two libraries, as a program makes them.
#![allow(dead_code)]

use candle_cuda_emulator::{copy::*, device::*, launch::*, module::*, nvrtc::*, stream::*};
use std::ffi::{c_void, CString};

/// A thread's context on a device, with a stream.
pub struct Gpu {
    pub stream: usize,
}

impl Gpu {
    pub fn new() -> Self {
        let (mut context, mut stream) = (0, 0);
        unsafe {
            assert_eq!(cuInit(0), 0);
            assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 0), 0);
        }
        assert_eq!(cuCtxSetCurrent(context), 0);
        assert_eq!(cuStreamCreate(&mut stream, 1), 0);
        Self { stream }
    }

    pub fn alloc(&self, bytes: usize) -> usize {
        let mut pointer = 0;
        assert_eq!(cuMemAllocAsync(&mut pointer, bytes, self.stream), 0);
        pointer
    }

    pub fn upload<T: Copy>(&self, values: &[T]) -> usize {
        let pointer = self.alloc(size_of_val(values));
        self.write(pointer, values);
        pointer
    }

    pub fn write<T: Copy>(&self, to: usize, values: &[T]) {
        assert_eq!(
            cuMemcpyHtoDAsync_v2(
                to,
                values.as_ptr() as usize,
                size_of_val(values),
                self.stream
            ),
            0
        );
    }

    pub fn read<T: Copy + Default>(&self, from: usize, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        let bytes = size_of_val(&values[..]);
        assert_eq!(
            cuMemcpyDtoHAsync_v2(values.as_mut_ptr() as usize, from, bytes, self.stream),
            0
        );
        assert_eq!(cuStreamSynchronize(self.stream), 0);
        values
    }

    /// The function `name` of a source, preceded by the primitives as in the backend's kernels.
    pub fn function(&self, text: &str, name: &str) -> usize {
        let primitives = include_str!("../../../src/cuda_backend/kernels/primitives.cu");
        let image = compile(&format!("{primitives}{text}"), &["-arch=sm_80"]).unwrap();
        let (mut module, mut function) = (0, 0);
        let name = CString::new(name).unwrap();
        unsafe {
            assert_eq!(cuModuleLoadData(&mut module, image.as_ptr()), 0);
            assert_eq!(cuModuleGetFunction(&mut function, module, name.as_ptr()), 0);
        }
        function
    }

    pub fn launch(
        &self,
        function: usize,
        blocks: u32,
        threads: u32,
        shared: u32,
        parameters: &[u64],
    ) -> u32 {
        let pointers: Vec<*const u8> = parameters
            .iter()
            .map(|word| std::ptr::from_ref(word).cast())
            .collect();
        let none: *const c_void = std::ptr::null();
        cuLaunchKernel(
            function,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            shared,
            self.stream,
            pointers.as_ptr(),
            none,
        )
    }
}

pub fn compile(text: &str, options: &[&str]) -> Result<Vec<u8>, String> {
    let text = CString::new(text).unwrap();
    let options: Vec<CString> = options
        .iter()
        .map(|option| CString::new(*option).unwrap())
        .collect();
    let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    let (mut program, mut size) = (std::ptr::null_mut(), 0);
    let null = std::ptr::null();
    unsafe {
        assert_eq!(
            nvrtcCreateProgram(
                &mut program,
                text.as_ptr(),
                null,
                0,
                null.cast(),
                null.cast()
            ),
            0
        );
        let code = nvrtcCompileProgram(program, pointers.len() as i32, pointers.as_ptr());
        nvrtcGetProgramLogSize(program, &mut size);
        let mut log = vec![0u8; size];
        nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
        let result = if code == 0 {
            assert_eq!(nvrtcGetCUBINSize(program, &mut size), 0);
            let mut image = vec![0u8; size];
            assert_eq!(nvrtcGetCUBIN(program, image.as_mut_ptr().cast()), 0);
            Ok(image)
        } else {
            Err(String::from_utf8_lossy(&log).into_owned())
        };
        assert_eq!(nvrtcDestroyProgram(&mut program), 0);
        result
    }
}
