//! Modules, read from PTX, and their functions.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use super::codes::*;
use super::device::{DEVICE, Device, SHARED};
use super::state::{Handle, State, call_in_context};
use crate::ptx::{Kernel, Module};

/// A module as long as anything may run its kernels.
pub struct Loaded {
    /// As it was read.
    pub module: Module,
}

/// A kernel of a module.
#[derive(Clone)]
pub struct Function {
    /// The module.
    pub loaded: Arc<Loaded>,
    /// Which of its kernels.
    pub kernel: usize,
    /// Bytes of dynamic shared memory that launches may ask for.
    pub dynamic_shared: u32,
    /// Clusters of more than 8 blocks were allowed.
    pub large_clusters: bool,
    module: Handle,
}

impl Function {
    /// Its kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.loaded.module.kernels[self.kernel]
    }
}

/// The first bytes of what is no text: ELF, fatbin, and the header that nvcc puts before one.
const BINARIES: [[u8; 4]; 3] = [*b"\x7FELF", 0xBA55_ED50_u32.to_le_bytes(), 0x4662_43B1_u32.to_le_bytes()];

/// The first `.target` of PTX.
fn target(text: &str) -> Option<&str> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(".target"))?;
    line.split(|c: char| c.is_whitespace() || c == ',').find(|word| !word.is_empty())
}

fn read(text: &str, device: &Device) -> Outcome<Module> {
    if let Some(target) = target(text).filter(|target| !device.takes(target)) {
        eprintln!("PTX emulator: PTX for {target} on a device of sm_{}", device.capability);
        return Err(NO_BINARY_FOR_GPU);
    }
    let parse = || Module::parse(text);
    // A panic must not pass through functions that C calls.
    let parsed = std::panic::catch_unwind(parse).unwrap_or_else(|_| Err("the reader panicked".into()));
    parsed.map_err(|words| {
        eprintln!("PTX emulator: {words}");
        INVALID_PTX
    })
}

impl State {
    fn function_of(&mut self, module: Handle, name: &str) -> Outcome<Handle> {
        let loaded = self.modules.get(&module).ok_or(INVALID_HANDLE)?.clone();
        let kernel = loaded.module.kernels.iter().position(|kernel| kernel.name == name).ok_or(NOT_FOUND)?;
        let known: &HashMap<Handle, Function> = &self.functions;
        let known = known.iter().find(|(_, function)| function.module == module && function.kernel == kernel);
        if let Some((handle, _)) = known {
            return Ok(*handle);
        }
        let handle = self.new_handle();
        let dynamic_shared = SHARED.saturating_sub(loaded.module.kernels[kernel].shared);
        let function = Function { loaded, kernel, dynamic_shared, large_clusters: false, module };
        self.functions.insert(handle, function);
        Ok(handle)
    }
}

/// `cuModuleLoadData`, of PTX that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> Code {
    if image.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's, as CUDA documents: an image is longer than four bytes, or a text that ends with a NUL, before which
    // no byte equals one of these.
    let starts = |bytes: &[u8; 4]| (0..4).all(|at| unsafe { image.cast::<u8>().add(at).read() } == bytes[at]);
    if BINARIES.iter().any(starts) {
        eprintln!("PTX emulator: the image is machine code: it runs PTX alone");
        return NO_BINARY_FOR_GPU;
    }
    // SAFETY: the caller's, as CUDA documents: what is no binary ends with a NUL.
    let text = unsafe { CStr::from_ptr(image.cast()) };
    let Ok(text) = text.to_str() else { return INVALID_IMAGE };
    // Reading is long, and touches nothing of the state.
    let read = read(text, &DEVICE);
    call_in_context(|turn| {
        turn.refuse_unsafe()?;
        let handle = turn.new_handle();
        turn.modules.insert(handle, Arc::new(Loaded { module: read? }));
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(module, handle) }
    })
}

/// `cuModuleLoadDataEx`, whose options are passed over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Handle,
    image: *const c_void,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    unsafe { cuModuleLoadData(module, image) }
}

/// `cuModuleUnload`: its functions are gone; work and graphs that run them are not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: Handle) -> Code {
    call_in_context(|turn| {
        turn.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        turn.functions.retain(|_, function| function.module != module);
        Ok(())
    })
}

/// `cuModuleGetFunction`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> Code {
    if name.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's, as CUDA documents: a text that ends with a NUL.
    let name = unsafe { CStr::from_ptr(name) };
    call_in_context(|turn| {
        let handle = turn.function_of(module, &name.to_string_lossy())?;
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(function, handle) }
    })
}

/// `cuModuleGetGlobal_v2`: variables are not told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetGlobal_v2(_: *mut u64, _: *mut usize, _: Handle, _: *const c_char) -> Code {
    NOT_FOUND
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_found() {
        assert_eq!(target("// x\n.version 8.6\n.target sm_90a\n.address_size 64"), Some("sm_90a"));
        assert_eq!(target(".target sm_80, debug"), Some("sm_80"));
        assert_eq!(target(".version 8.6"), None);
    }
}
