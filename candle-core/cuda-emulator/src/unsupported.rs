//! Other functions that cudarc's safe layer can call. The emulator does not support them: each returns an error without reading its
//! arguments, so none declares them.

use crate::status::{Status, ERROR_NOT_SUPPORTED};

macro_rules! unsupported {
    ($($name:ident)*) => {
        $(
            #[no_mangle]
            pub extern "C" fn $name() -> Status {
                eprintln!("CUDA emulator: {} is not emulated", stringify!($name));
                ERROR_NOT_SUPPORTED
            }
        )*
    };
}

unsupported! {
    cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy_v2 cuCtxGetCacheConfig cuCtxGetLimit cuCtxSetCacheConfig
    cuCtxSetLimit cuDestroyExternalMemory cuDeviceSetMemPool cuExternalMemoryGetMappedBuffer cuImportExternalMemory
    cuLaunchCooperativeKernel cuMemAdvise_v2 cuMemAllocManaged cuMemHostRegister_v2 cuMemHostUnregister cuMemPoolCreate
    cuMemPoolDestroy cuMemPrefetchAsync_v2 cuModuleGetGlobal_v2 cuOccupancyAvailableDynamicSMemPerBlock
    cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
    cuOccupancyMaxPotentialClusterSize cuProfilerStart cuProfilerStop cuStreamAttachMemAsync cuStreamBeginCaptureToGraph
    cuStreamGetCaptureInfo_v3 cuThreadExchangeStreamCaptureMode cuGraphExecUpdate_v2 cuGraphExecKernelNodeSetParams_v2
    cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetParams_v2 cuGraphCreate cuGraphClone cuGraphAddKernelNode_v2
    cuPointerGetAttribute cuPointerGetAttributes cuTensorMapEncodeTiled cuMemcpy2D_v2 cuMemcpy2DAsync_v2 cuMemcpyPeer
    cuMemcpyAsync cuMemcpy cuMemExportToShareableHandle cuMemCreate cuMemMap cuMemAddressReserve cuMulticastCreate
    cuLibraryLoadData cuLibraryGetKernel cuKernelGetFunction
}

/// NVIDIA's NVRTC looks for it in the driver that it finds, and does without the functions that it lacks.
///
/// # Safety
/// `table` is null or points to a pointer.
#[no_mangle]
pub unsafe extern "C" fn cuGetExportTable(table: *mut *const std::ffi::c_void) -> Status {
    if !table.is_null() {
        *table = std::ptr::null();
    }
    ERROR_NOT_SUPPORTED
}
