//! What a launch is: a kernel of a module, its blocks, and its parameters.

use crate::ptx::Module;

/// One launch of one kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Neighbours along x that form a cluster; 1: none.
    pub cluster: u32,
    /// All blocks are there at once.
    pub cooperative: bool,
    /// Bytes of dynamic shared memory of a block.
    pub dynamic_shared: u32,
    /// The bytes of all parameters, each at the place that the kernel's declaration gives it ([`crate::ptx::Kernel::parameters`]).
    pub parameters: Vec<u8>,
}

/// Runs a launch to its end. `memory`: begins and lengths of what it may touch, by address.
/// The error says kernel, instruction, thread, address.
///
/// # Safety
/// All bytes of `memory` are there until this returns, and nobody else reads or writes them meanwhile.
pub unsafe fn run(module: &Module, kernel: usize, launch: &Launch, memory: &[(u64, u64)]) -> Result<(), String> {
    let kernel = module.kernels.get(kernel).ok_or("no such kernel")?;
    let mut all = memory.to_vec();
    all.extend(module.variables.iter().map(|words| (words.as_ptr() as u64, 8 * words.len() as u64)));
    all.sort_unstable();
    crate::run::run(kernel, launch, &all)
}
