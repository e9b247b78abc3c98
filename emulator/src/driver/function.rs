//! What is asked about functions, and allowed to them.

use super::codes::*;
use super::device::{DEVICE, Device, RESERVED_SHARED};
use super::module::Function;
use super::state::{Handle, State, call, call_in_context};

/// `CUfunction_attribute`.
const MAX_THREADS: u32 = 0;
const SHARED_BYTES: u32 = 1;
const REGISTERS: u32 = 4;
const PTX_VERSION: u32 = 5;
const BINARY_VERSION: u32 = 6;
const DYNAMIC_SHARED: u32 = 8;
const CARVEOUT: u32 = 9;
const LARGE_CLUSTERS: u32 = 14;
/// All that are known.
const LAST: u32 = 17;
/// What is said, as nobody has assigned any.
const SOME_REGISTERS: i32 = 64;

impl State {
    /// A function of a module that is loaded.
    pub fn function(&mut self, function: Handle) -> Outcome<&mut Function> {
        self.functions.get_mut(&function).ok_or(INVALID_HANDLE)
    }
}

impl Function {
    fn attribute(&self, attribute: u32) -> Outcome<i32> {
        Ok(match attribute {
            MAX_THREADS => self.kernel().max_threads as i32,
            SHARED_BYTES => self.kernel().shared as i32,
            REGISTERS => SOME_REGISTERS,
            PTX_VERSION => self.loaded.module.target as i32,
            // Compiled for the device, by the driver.
            BINARY_VERSION => DEVICE.capability as i32,
            DYNAMIC_SHARED => self.dynamic_shared as i32,
            CARVEOUT => -1,
            LARGE_CLUSTERS => self.large_clusters.into(),
            other if other <= LAST => 0,
            _ => return Err(INVALID_VALUE),
        })
    }

    fn set(&mut self, attribute: u32, value: i32, device: &Device) -> Outcome {
        match attribute {
            DYNAMIC_SHARED => {
                let value = u32::try_from(value).map_err(|_| INVALID_VALUE)?;
                if value > device.shared.saturating_sub(self.kernel().shared) {
                    return Err(INVALID_VALUE);
                }
                self.dynamic_shared = value;
                Ok(())
            }
            CARVEOUT if (-1..=100).contains(&value) => Ok(()),
            LARGE_CLUSTERS => {
                self.large_clusters = value != 0;
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        }
    }

    /// Blocks that a multiprocessor holds at once, by threads and shared memory. (By registers too on a GPU.)
    pub fn resident(&self, threads: u32, dynamic_shared: u32, device: &Device) -> u32 {
        let warps = threads.div_ceil(32).max(1);
        let shared = self.kernel().shared + dynamic_shared + RESERVED_SHARED;
        (device.threads_of_sm / 32 / warps).min(device.shared_of_sm / shared).min(device.blocks_of_sm)
    }
}

/// `cuFuncGetAttribute`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut i32, attribute: u32, function: Handle) -> Code {
    call_in_context(|turn| {
        let of_function = turn.function(function)?.attribute(attribute)?;
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(value, of_function) }
    })
}

/// `cuFuncSetAttribute`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(function: Handle, attribute: u32, value: i32) -> Code {
    call_in_context(|turn| turn.function(function)?.set(attribute, value, &DEVICE))
}

/// `cuFuncSetCacheConfig`: there is no cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetCacheConfig(function: Handle, _config: u32) -> Code {
    call(|turn| turn.function(function).map(drop))
}

/// `cuOccupancyMaxActiveBlocksPerMultiprocessor`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut i32,
    function: Handle,
    threads: i32,
    dynamic_shared: usize,
) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    unsafe { cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, dynamic_shared, 0) }
}

/// `cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut i32,
    function: Handle,
    threads: i32,
    dynamic_shared: usize,
    _flags: u32,
) -> Code {
    call(|turn| {
        let function = turn.function(function)?;
        let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(INVALID_VALUE)?;
        let fits = threads <= function.kernel().max_threads && dynamic_shared <= DEVICE.shared as usize;
        let resident = if fits { function.resident(threads, dynamic_shared as u32, &DEVICE) } else { 0 };
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(blocks, resident as i32) }
    })
}
