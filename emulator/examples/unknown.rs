//! Reads PTX files and lists the instructions that the emulator does not know, with how often they occur.

use std::collections::BTreeMap;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let module = emulated_cuda::ptx::Module::parse(&std::fs::read_to_string(&path)?)?;
        let mut unknown: BTreeMap<String, usize> = BTreeMap::new();
        for text in module.kernels.iter().flat_map(|kernel| kernel.unknown()) {
            *unknown.entry(text.split(' ').next().unwrap_or(text).to_string()).or_default() += 1;
        }
        println!("{path}: {} kernels for {}, not known: {unknown:?}", module.kernels.len(), module.target);
    }
    Ok(())
}
