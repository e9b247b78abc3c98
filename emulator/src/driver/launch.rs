//! Launches: what the driver refuses, and what the interpreter gets.

use std::ffi::c_void;
use std::sync::Arc;

use super::codes::*;
use super::device::{DEVICE, Device};
use super::module::Function;
use super::op::Op;
use super::state::{Handle, call};
use super::stream::resolve;
use crate::launch::Launch;

/// `CUlaunchAttributeID`: what is not listed only hints, and is passed over.
const COOPERATIVE: u32 = 2;
const CLUSTER: u32 = 4;
/// Blocks of a cluster that every device has, and that may be allowed.
const CLUSTERS: [u32; 2] = [8, 16];
/// Of `extra`: its end, the parameters' address, and how many bytes they have.
const EXTRA: [u64; 3] = [0, 1, 2];

/// `CUlaunchAttribute`.
#[repr(C)]
pub struct Attribute {
    id: u32,
    pad: [u8; 4],
    /// A union of 64 bytes; these are those of three numbers.
    value: [u32; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
pub struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    attributes: *const Attribute,
    count: u32,
}

/// A launch without its parameters.
#[derive(Clone, Copy)]
struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    cluster: [u32; 3],
    cooperative: bool,
    shared: u32,
}

impl Shape {
    /// What CUDA refuses at the call.
    fn check(&self, function: &Function, device: &Device) -> Outcome {
        let Self { grid, block, cluster, cooperative, shared } = *self;
        let product = |sides: [u32; 3]| sides.into_iter().map(u64::from).product::<u64>();
        let (blocks, threads, of_cluster) = (product(grid), product(block), product(cluster));
        if blocks == 0 || grid[0] > i32::MAX as u32 || grid[1] > 65535 || grid[2] > 65535 {
            return Err(INVALID_VALUE);
        }
        if threads == 0 || block[2] > 64 || threads > u64::from(function.kernel().max_threads) {
            return Err(INVALID_VALUE);
        }
        if shared > function.dynamic_shared {
            return Err(INVALID_VALUE);
        }
        if of_cluster != 1 {
            let most = CLUSTERS[usize::from(function.large_clusters)];
            let whole = (0..3).all(|side| cluster[side] > 0 && grid[side].is_multiple_of(cluster[side]));
            if !device.has_clusters() || !whole || of_cluster > u64::from(most) {
                return Err(INVALID_CLUSTER_SIZE);
            }
            if cluster[1] != 1 || cluster[2] != 1 {
                eprintln!("PTX emulator: clusters of {cluster:?} blocks: it has those along x alone");
                return Err(NOT_SUPPORTED);
            }
        }
        let resident = u64::from(function.resident(threads as u32, shared, device) * device.multiprocessors);
        if cooperative && blocks > resident {
            return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        Ok(())
    }
}

/// Copies the parameters, each to its place.
///
/// # Safety
/// `parameters` or `extra` are as `cuLaunchKernel` documents them, for this kernel.
unsafe fn gather(function: &Function, parameters: *const *const u8, extra: *const u64) -> Outcome<Vec<u8>> {
    let kernel = function.kernel();
    let mut bytes = vec![0u8; kernel.parameter_bytes];
    if !parameters.is_null() {
        for (at, &(place, size)) in kernel.parameters.iter().enumerate() {
            // SAFETY: the caller gives one address for each parameter.
            let from = unsafe { parameters.add(at).read() };
            if from.is_null() {
                return Err(INVALID_VALUE);
            }
            // SAFETY: the caller's value is of the size that the kernel declares.
            bytes[place..place + size].copy_from_slice(unsafe { std::slice::from_raw_parts(from, size) });
        }
        return Ok(bytes);
    }
    if extra.is_null() {
        return if kernel.parameters.is_empty() { Ok(bytes) } else { Err(INVALID_VALUE) };
    }
    let (mut from, mut length, mut at) = (0, 0, 0);
    loop {
        // SAFETY: pairs of a name and a value, up to the end.
        let name = unsafe { extra.add(at).read() };
        if name == EXTRA[0] {
            break;
        }
        // SAFETY: as above.
        let value = unsafe { extra.add(at + 1).read() };
        match name {
            name if name == EXTRA[1] => from = value,
            // SAFETY: the value is the address of a `size_t`.
            name if name == EXTRA[2] => length = unsafe { (value as *const usize).read() },
            _ => return Err(INVALID_VALUE),
        }
        at += 2;
    }
    if from == 0 || length < kernel.parameters.iter().map(|(place, size)| place + size).max().unwrap_or(0) {
        return Err(INVALID_VALUE);
    }
    let length = length.min(bytes.len());
    // SAFETY: the caller says that there are so many bytes.
    bytes[..length].copy_from_slice(unsafe { std::slice::from_raw_parts(from as *const u8, length) });
    Ok(bytes)
}

/// # Safety
/// As of [`gather`].
unsafe fn launch(
    function: Handle,
    shape: Shape,
    stream: Handle,
    parameters: *const *const c_void,
    extra: *const *const c_void,
) -> Code {
    call(|turn| {
        let stream = resolve(stream)?;
        let function = turn.function(function)?.clone();
        shape.check(&function, &DEVICE).inspect_err(|code| {
            let Shape { grid, block, cluster, shared, .. } = shape;
            let name = &function.kernel().name;
            eprintln!(
                "PTX emulator: {name}<<<{grid:?}, {block:?}, {shared}>>> cluster {cluster:?} is refused: code {code}"
            );
        })?;
        // SAFETY: the caller's.
        let parameters = unsafe { gather(&function, parameters.cast(), extra.cast())? };
        let Shape { grid, block, cluster: [cluster, ..], cooperative, shared: dynamic_shared } = shape;
        let launch = Launch { grid, block, cluster, cooperative, dynamic_shared, parameters };
        turn.submit(stream, Op::Kernel(function.loaded, function.kernel, Arc::new(launch)))
    })
}

/// `cuLaunchKernelEx`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const Config,
    function: Handle,
    parameters: *const *const c_void,
    extra: *const *const c_void,
) -> Code {
    // SAFETY: the caller's, as CUDA documents: null, which is refused, or a configuration.
    let Some(config) = (unsafe { config.as_ref() }) else { return INVALID_VALUE };
    let Config { grid, block, shared, stream, attributes, count } = *config;
    let mut shape = Shape { grid, block, cluster: [1; 3], cooperative: false, shared };
    for at in 0..count as usize {
        // SAFETY: the caller gives so many attributes.
        let Attribute { id, value, .. } = unsafe { &*attributes.add(at) };
        match *id {
            COOPERATIVE => shape.cooperative = value[0] != 0,
            CLUSTER => shape.cluster = [value[0], value[1], value[2]],
            _ => {}
        }
    }
    // SAFETY: the caller's, as CUDA documents.
    unsafe { launch(function, shape, stream, parameters, extra) }
}

/// `cuLaunchKernel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Handle,
    parameters: *const *const c_void,
    extra: *const *const c_void,
) -> Code {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let shape = Shape { grid, block, cluster: [1; 3], cooperative: false, shared };
    // SAFETY: the caller's, as CUDA documents.
    unsafe { launch(function, shape, stream, parameters, extra) }
}

/// `cuLaunchCooperativeKernel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchCooperativeKernel(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Handle,
    parameters: *const *const c_void,
) -> Code {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let shape = Shape { grid, block, cluster: [1; 3], cooperative: true, shared };
    // SAFETY: the caller's, as CUDA documents.
    unsafe { launch(function, shape, stream, parameters, std::ptr::null()) }
}
