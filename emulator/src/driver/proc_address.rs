//! Addresses of functions by name.

use std::ffi::{CStr, c_char, c_void};

use super::codes::*;
use super::context::*;
use super::copy::*;
use super::device::*;
use super::event::*;
use super::function::*;
use super::graph::*;
use super::launch::*;
use super::memory::*;
use super::module::*;
use super::pointer::*;
use super::pool::*;
use super::stream::*;
use super::tensor::*;

/// `CUdriverProcAddressQueryResult`.
const FOUND: u32 = 0;
const NOT_FOUND_AT_ALL: u32 = 1;
const NEWER_ALONE: u32 = 2;

/// A function, and the version of CUDA from which on its name, without the version behind it, means this one.
struct Entry {
    name: &'static str,
    since: i32,
    address: *const (),
}

macro_rules! entries {
    ($($name:ident $since:literal,)+) => {
        [$(Entry { name: stringify!($name), since: $since, address: $name as *const () },)+]
    };
}

/// All functions of this library.
#[rustfmt::skip]
fn entries() -> impl Iterator<Item = Entry> {
    entries! {
        cuCtxGetApiVersion 2000,
        cuCtxGetCurrent 2000,
        cuCtxGetDevice 2000,
        cuCtxGetStreamPriorityRange 2000,
        cuCtxPopCurrent_v2 3020,
        cuCtxPushCurrent_v2 3020,
        cuCtxSetCurrent 2000,
        cuCtxSetFlags 2000,
        cuCtxSynchronize 2000,
        cuDeviceGet 2000,
        cuDeviceGetAttribute 2000,
        cuDeviceGetCount 2000,
        cuDeviceGetDefaultMemPool 2000,
        cuDeviceGetMemPool 2000,
        cuDeviceGetName 2000,
        cuDeviceGetPCIBusId 2000,
        cuDeviceGetUuid 9020,
        cuDeviceGetUuid_v2 11040,
        cuDevicePrimaryCtxGetState 2000,
        cuDevicePrimaryCtxRelease_v2 3020,
        cuDevicePrimaryCtxRetain 2000,
        cuDevicePrimaryCtxSetFlags_v2 3020,
        cuDeviceTotalMem_v2 3020,
        cuDriverGetVersion 2000,
        cuEventCreate 2000,
        cuEventDestroy_v2 3020,
        cuEventElapsedTime 2000,
        cuEventElapsedTime_v2 12080,
        cuEventQuery 2000,
        cuEventRecord 2000,
        cuEventRecordWithFlags 2000,
        cuEventSynchronize 2000,
        cuFuncGetAttribute 2000,
        cuFuncSetAttribute 2000,
        cuFuncSetCacheConfig 2000,
        cuGetErrorName 2000,
        cuGetErrorString 2000,
        cuGetProcAddress 11030,
        cuGetProcAddress_v2 12000,
        cuGraphDestroy 2000,
        cuGraphExecDestroy 2000,
        cuGraphGetNodes 2000,
        cuGraphInstantiateWithFlags 11040,
        cuGraphLaunch 2000,
        cuGraphUpload 2000,
        cuInit 2000,
        cuLaunchCooperativeKernel 2000,
        cuLaunchHostFunc 2000,
        cuLaunchKernel 2000,
        cuLaunchKernelEx 11060,
        cuMemAllocAsync 11020,
        cuMemAllocFromPoolAsync 11020,
        cuMemAllocHost_v2 3020,
        cuMemAlloc_v2 3020,
        cuMemFreeAsync 11020,
        cuMemFreeHost 2000,
        cuMemFree_v2 3020,
        cuMemGetAddressRange_v2 3020,
        cuMemGetInfo_v2 3020,
        cuMemHostAlloc 2000,
        cuMemPoolGetAttribute 2000,
        cuMemPoolSetAttribute 2000,
        cuMemPoolTrimTo 2000,
        cuMemcpy 2000,
        cuMemcpy2DAsync_v2 3020,
        cuMemcpy2D_v2 3020,
        cuMemcpyAsync 2000,
        cuMemcpyDtoDAsync_v2 3020,
        cuMemcpyDtoD_v2 3020,
        cuMemcpyDtoHAsync_v2 3020,
        cuMemcpyDtoH_v2 3020,
        cuMemcpyHtoDAsync_v2 3020,
        cuMemcpyHtoD_v2 3020,
        cuMemcpyPeerAsync 2000,
        cuMemsetD16Async 2000,
        cuMemsetD2D8Async 2000,
        cuMemsetD32Async 2000,
        cuMemsetD32_v2 3020,
        cuMemsetD8Async 2000,
        cuMemsetD8_v2 3020,
        cuModuleGetFunction 2000,
        cuModuleGetGlobal_v2 3020,
        cuModuleLoadData 2000,
        cuModuleLoadDataEx 2000,
        cuModuleUnload 2000,
        cuOccupancyMaxActiveBlocksPerMultiprocessor 2000,
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags 2000,
        cuPointerGetAttribute 2000,
        cuPointerGetAttributes 2000,
        cuStreamBeginCapture_v2 10010,
        cuStreamCreate 2000,
        cuStreamCreateWithPriority 2000,
        cuStreamDestroy_v2 3020,
        cuStreamEndCapture 2000,
        cuStreamGetCaptureInfo 10010,
        cuStreamGetCaptureInfo_v2 11030,
        cuStreamGetCaptureInfo_v3 12030,
        cuStreamGetCtx 2000,
        cuStreamGetFlags 2000,
        cuStreamGetPriority 2000,
        cuStreamIsCapturing 2000,
        cuStreamQuery 2000,
        cuStreamSynchronize 2000,
        cuStreamWaitEvent 2000,
        cuTensorMapEncodeTiled 12000,
        cuTensorMapReplaceAddress 12000,
        cuThreadExchangeStreamCaptureMode 2000,
    }
    .into_iter()
}

/// The name that callers ask for.
fn plain(name: &str) -> &str {
    name.strip_suffix("_v2").or(name.strip_suffix("_v3")).unwrap_or(name)
}

/// The newest of this name that a caller of this version may have, or how it is missing.
fn find(symbol: &str, version: i32) -> Result<*const (), u32> {
    let same = || entries().filter(|entry| entry.name == symbol || plain(entry.name) == symbol);
    let fits = same().filter(|entry| entry.since <= version).max_by_key(|entry| entry.since);
    let missing = if same().next().is_some() { NEWER_ALONE } else { NOT_FOUND_AT_ALL };
    fits.map(|entry| entry.address).ok_or(missing)
}

/// `cuGetProcAddress_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    place: *mut *const c_void,
    version: i32,
    _flags: u64,
    status: *mut u32,
) -> Code {
    if symbol.is_null() || place.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's, as CUDA documents: a text that ends with a NUL.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_string_lossy();
    let found = find(&symbol, version);
    if found.is_err() && std::env::var_os("SCALED_GEMM_EMULATED_TRACE").is_some() {
        eprintln!("PTX emulator: asked for {symbol} of {version}, which it has not");
    }
    // SAFETY: the caller's, as CUDA documents; a status that is null is passed over.
    unsafe {
        let _ = put(status, found.err().unwrap_or(FOUND));
        code(put(place, found.unwrap_or(std::ptr::null()).cast()).and(found.map(drop).map_err(|_| NOT_FOUND)))
    }
}

/// `cuGetProcAddress` of CUDA 11.3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    place: *mut *const c_void,
    version: i32,
    flags: u64,
) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    unsafe { cuGetProcAddress_v2(symbol, place, version, flags, std::ptr::null_mut()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_versions() {
        let address = |name, version| find(name, version).unwrap();
        assert_eq!(address("cuStreamGetCaptureInfo", 12000), cuStreamGetCaptureInfo_v2 as *const ());
        assert_eq!(address("cuStreamGetCaptureInfo", 13000), cuStreamGetCaptureInfo_v3 as *const ());
        assert_eq!(address("cuMemAlloc", 12000), cuMemAlloc_v2 as *const ());
        assert_eq!(address("cuMemAlloc_v2", 12000), cuMemAlloc_v2 as *const ());
        assert_eq!(find("cuLaunchKernelEx", 11000), Err(NEWER_ALONE));
        assert_eq!(find("cuNothing", 13000), Err(NOT_FOUND_AT_ALL));
    }
}
